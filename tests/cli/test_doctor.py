"""``xtune doctor``: each thing that can be wrong with a lake, found and said how to mend."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.fabrics import nic, topology_rows
from tests.pipelines.lakes import SECOND, A, at, new_lake, port_rows, put
from xtune.cli import main
from xtune.lake import Lake
from xtune.pipelines import rebuild

Look = Callable[[], tuple[int, dict[str, list[dict[str, str]]]]]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake that nothing is wrong with: a port of a fabric, and its host's collectives."""
    made = Lake.open(tmp_path / "lake", create=True)
    put(made, "topology_links", topology_rows())
    put(made, "link_counters", port_rows(nic(0, 0), [0.0] * 5))
    put(made, "collectives", [_collective("node00")])
    return made


def _collective(host: str) -> dict[str, Any]:
    return {
        "start_ts": at(1),
        "duration_ns": SECOND,
        "job": "llm",
        "host": host,
        "op": "AllReduce",
    }


@pytest.fixture
def look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Look:
    """Run it; exit status, and findings by check."""
    monkeypatch.chdir(tmp_path)

    def call() -> tuple[int, dict[str, list[dict[str, str]]]]:
        monkeypatch.setattr(sys, "argv", ["xtune", "doctor", "--json"])
        status = main()
        found: dict[str, list[dict[str, str]]] = {}
        for row in json.loads(capsys.readouterr().out)["checks"]:
            assert list(row) == ["check", "state", "found", "mend"]
            assert (row["state"] == "ok") == (row["mend"] == ""), row
            found.setdefault(row["check"], []).append(row)
        return status, found

    return call


def test_nothing_wrong(lake: Lake, look: Look) -> None:
    rebuild(lake)
    status, found = look()
    assert status == 0
    wrong = [row for rows in found.values() for row in rows if row["state"] != "ok"]
    assert [row["check"] for row in wrong if row["check"] != "free space"] == []
    assert found["derived tables"][0]["found"] == "up to date"
    assert found["topology"][0]["found"] == "1 sampled ports are in it"
    assert any(row["found"].startswith("link_counters: ") for row in found["bytes a day"])


def test_derived_tables_that_are_missing_or_stale(lake: Lake, look: Look) -> None:
    [row] = look()[1]["derived tables"]
    assert (row["state"], row["found"], row["mend"]) == ("warn", "none", "xtune rebuild")
    rebuild(lake)
    put(lake, "link_counters", port_rows(nic(0, 1), [0.0] * 5), source="1" * 12)
    [row] = look()[1]["derived tables"]
    assert (row["state"], row["mend"]) == ("warn", "xtune rebuild")
    assert "2026-03-02" in row["found"]


def test_another_rebuild(lake: Lake, look: Look) -> None:
    with lake.exclusive("rebuild"):
        [row] = look()[1]["rebuild lock"]
    assert (row["state"], row["found"]) == ("warn", "held")
    assert look()[1]["rebuild lock"][0]["state"] == "ok"  # a file that is left holds nobody up


def test_clocks_that_are_off(lake: Lake, look: Look) -> None:
    def offset(host: str, seconds: float, low: float, high: float) -> dict[str, Any]:
        return {
            "host": host, "from_ts": at(0), "to_ts": at(60), "offset_ns": round(seconds * SECOND),
            "low_ns": round(low * SECOND), "high_ns": round(high * SECOND), "applied": seconds > 1,
        }  # fmt: skip

    put(
        lake,
        "derived/clock_offsets",
        [
            offset("node7", 40.0, 39.5, 40.5),
            offset("node8", -0.9, -1.0, -0.8),
            offset("sure", 0.001, 0.0005, 0.002),  # too little to matter
            offset("unsure", 2.0, -1.0, 5.0),
        ],
    )
    found = [row["found"] for row in look()[1]["clock"]]
    assert found == [
        "node7: +40.0 s on 2026-03-02, repaired in derived tables",
        "node8: -0.9 s on 2026-03-02, too unsure to be repaired",
    ]


def test_no_topology_and_ports_outside_of_it(tmp_path: Path, look: Look, lake: Lake) -> None:
    put(lake, "link_counters", port_rows(A, [0.0] * 5), source="1" * 12)
    [row] = look()[1]["topology"]
    assert row["found"] == f"1 of 2 sampled ports are not in it: {A}"
    bare = new_lake(tmp_path / "bare")
    put(bare, "link_counters", port_rows(A, [0.0] * 5))
    (tmp_path / "lake").rename(tmp_path / "other")
    (tmp_path / "bare").rename(tmp_path / "lake")
    [row] = look()[1]["topology"]
    assert row["found"].startswith("none") and "ibnetdiscover" in row["mend"]


def test_hosts_that_nobody_matched_are_listed(lake: Lake, look: Look) -> None:
    assert "hosts" not in look()[1]
    rows = [_collective(host) for host in ("pod-1", "pod-2.cluster.local", "node00")]
    put(lake, "collectives", rows, source="1" * 12)
    [row] = look()[1]["hosts"]
    assert row["found"] == "2 hosts that no port belongs to: pod-1, pod-2"
    assert "--host-map" in row["mend"]


def test_waiting_that_nobody_knows_and_rows_without_times(lake: Lake, look: Look) -> None:
    rows = port_rows(nic(0, 1), [0.0] * 5)
    for row in rows:
        del row["port_xmit_wait"]
    put(lake, "link_counters", rows, source="1" * 12)
    put(lake, "link_counters", [{**rows[0], "ts": None}], source="2" * 12)
    rebuild(lake)
    found = look()[1]
    assert found["waiting"][0]["found"] == f"never known on 1 of 2 ports: {nic(0, 1)}"
    assert found["times"][0]["found"] == "1 counter rows without a time"


def test_what_was_rejected_and_what_is_damaged(lake: Lake, look: Look, tmp_path: Path) -> None:
    from xtune.collectors import Context
    from xtune.ingest import collect

    (tmp_path / "noise.bin").write_bytes(bytes(100))
    collect(lake, [str(tmp_path / "noise.bin")], context=Context(now_ns=lambda: 1))
    status, found = look()
    assert (status, found["rejected"][0]["found"]) == (0, "1 pieces of input")
    lake.files("topology_links")[0].path.write_bytes(b"PAR1")
    status, found = look()
    assert status == 1 and found["damaged file"][0]["state"] == "bad"


def test_a_file_that_is_damaged_in_the_middle_is_found(lake: Lake, look: Look) -> None:
    assert "damaged file" not in look()[1]
    path = lake.files("link_counters")[0].path
    content = bytearray(path.read_bytes())
    for place in range(4, min(400, len(content) // 2)):  # its footer stays as it was
        content[place] ^= 0xFF
    path.write_bytes(content)
    status, found = look()
    [row] = found["damaged file"]
    assert (status, row["state"]) == (1, "bad")
    assert str(path) in row["found"]


def test_a_person_sees_what_is_wrong_and_a_count_of_the_rest(
    lake: Lake, look: Look, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [row for rows in look()[1].values() for row in rows]
    wrong = [row for row in every if row["state"] != "ok"]
    assert wrong  # nothing was rebuilt
    monkeypatch.setattr(sys, "argv", ["xtune", "doctor"])
    assert main() == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 + len(wrong) + 2  # heading, a line each, two of counts
    assert f"{len(every)} checks: {len(every) - len(wrong)} ok, {len(wrong)} to look at" in shown
    assert shown[-1].startswith("ok: python, ") and "--json" in shown[-1]


def test_no_lake_is_one_finding(look: Look) -> None:
    status, found = look()
    assert status == 1
    assert found["lake"][0]["mend"].startswith("run xtune collect")
