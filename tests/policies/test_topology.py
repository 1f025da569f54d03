"""Fabrics from files, and the paths through them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.samples import samples
from xtune.policies import DirectedLink, PathFinder, Router, preset
from xtune.policies.topology import TopologyError, read_fabric

HOSTS = {"0xa1": "host1", "host2 mlx5_0": "host2"}


def two_spines() -> list[dict[str, Any]]:
    """host1 and host2 on one leaf each, below two spines of different rates; both directions."""
    cables = [("a1", 1, "l1", 1, 400), ("b1", 1, "l2", 1, 400)]
    cables += [("l1", 1 + s, f"s{s}", 1, 100 * s) for s in (1, 2)]
    cables += [("l2", 1 + s, f"s{s}", 2, 100 * s) for s in (1, 2)]
    names = {"b1": "host2 mlx5_0"}
    rows = []
    for src, src_port, dst, dst_port, rate in cables:
        for a, pa, b, pb in ((src, src_port, dst, dst_port), (dst, dst_port, src, src_port)):
            rows.append(
                {"src_guid": f"0x{a}", "src_port": pa, "dst_guid": f"0x{b}", "dst_port": pb,
                 "src_name": names.get(a), "dst_name": names.get(b), "rate_gbps": rate, "ts": None}
            )  # fmt: skip
    return rows


def write(path: Path, rows: list[dict[str, Any]], form: str) -> Path:
    if form == "csv":
        columns = list(rows[0])
        lines = [",".join(columns)]
        lines += [",".join("" if row[c] is None else str(row[c]) for c in columns) for row in rows]
        path = path / "fabric.csv"
        path.write_text("\n".join(lines) + "\n")
        return path
    path = path / "fabric.json"
    path.write_text(
        json.dumps({"columns": list(rows[0]), "rows": rows} if form == "query" else rows)
    )
    return path


@pytest.mark.parametrize("form", ["csv", "json", "query"])
def test_paths_lead_over_both_spines_and_rates_are_the_links(tmp_path: Path, form: str) -> None:
    fabric = read_fabric(write(tmp_path, two_spines(), form), HOSTS)
    assert len(fabric.links) == 12
    sets = PathFinder(fabric.links).path_sets([("host1", "host2")], detours=0)
    assert sorted(sets["host1", "host2"]) == [
        ["0xa1/1", "0xl1/2", "0xs1/2", "0xl2/1"],
        ["0xa1/1", "0xl1/3", "0xs2/2", "0xl2/1"],
    ]
    assert fabric.gbps["0xl1/2"] == 100.0
    assert fabric.gbps["0xs2/1"] == 200.0
    router = Router(sets, preset("joint"), link_gbps=fabric.gbps)
    assert router.path_count("host1", "host2") == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_rate_that_the_latest_row_leaves_out_is_that_of_an_earlier_one(
    tmp_path: Path, first: bool
) -> None:
    told = {"name": "up", "src": "a", "dst": "s", "rate_gbps": 400, "ts": "2026-01-01"}
    bare = {**told, "rate_gbps": None, "ts": "2026-01-02"}
    moved = {**bare, "dst": "t", "ts": "2026-01-03"}
    rows: list[dict[str, Any]] = [told, bare] if first else [bare, told]
    assert read_fabric(write(tmp_path, rows, "json")).gbps == {"up": 400.0}
    # Another cable in the same port is no 400 Gb/s link by that.
    fabric = read_fabric(write(tmp_path, [*rows, moved], "json"))
    assert fabric.links[0].dst == "t"
    assert fabric.gbps == {}


def test_links_named_by_hand_and_the_latest_of_several_discoveries(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"name": "up", "src": "a", "dst": "s"}]
    fabric = read_fabric(write(tmp_path, rows, "json"), {"a": "host"})
    assert fabric.links == (DirectedLink(name="up", src="host", dst="s"),)
    assert fabric.gbps == {}
    first = {"src_guid": "g", "src_port": 1, "dst_guid": "old", "dst_port": 1}
    moved = [
        first | {"ts": "2026-03-02T00:00:00Z", "dst_guid": "new"},
        first | {"ts": "2026-03-01T00:00:00Z", "rate_gbps": 100},
    ]
    fabric = read_fabric(write(tmp_path, moved, "json"))
    assert fabric.links == (DirectedLink(name="g/1", src="g", dst="new"),)
    assert fabric.gbps == {}  # an older cable's rate is not the new one's


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("{}", "a list of rows is wanted"),
        ("[]", "no link in it"),
        ('[{"name": "x", "src": "a", "dst": "b"}, 3]', "row 2: int is no row"),
        ('[{"src_guid": "a", "src_port": 1}]', "row 1: no dst_guid, dst_port, and no name"),
        ('[{"name": "x", "src": "a", "dst": "b", "rate_gbps": "fast"}]', "row 1: could not conv"),
        (
            '[{"name": "x", "src": "a", "dst": "b", "rate_gbps": NaN}]',
            "row 1: rate_gbps nan is no",
        ),
        ('[{"name": "x", "src": "a", "dst": "b", "rate_gbps": [1]}]', "row 1: float()"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_topology_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "fabric.json"
    path.write_text(text)
    with pytest.raises(TopologyError) as caught:
        read_fabric(path)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["x.csv", "x.json"]))
def test_any_bytes_are_a_fabric_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(content)
    try:
        fabric = read_fabric(path)
    except TopologyError:
        return
    assert fabric.links
    assert all(math.isfinite(rate) for rate in fabric.gbps.values())


@pytest.mark.shared_samples
def test_a_discovered_fabric_of_the_lake(tmp_path: Path) -> None:
    """What a user types: collect, query, read; each link of the lake is one of the fabric's."""
    lake = ("--lake", str(tmp_path / "lake"))

    def xtune(*words: str) -> str:
        command = [sys.executable, "-m", "xtune", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    xtune("collect", *lake, str(samples("ib_ibnetdiscover")))
    path = tmp_path / "links.json"
    path.write_text(xtune("query", *lake, "--json", "SELECT * FROM topology_links"))
    rows = json.loads(path.read_text())["rows"]
    fabric = read_fabric(path)
    assert {link.name for link in fabric.links} == {
        f"{row['src_guid']}/{row['src_port']}" for row in rows
    }
