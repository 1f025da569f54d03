"""From counters to episodes: what must be reported, and what looks like it and must not."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.fabrics import down, nic, topology_rows
from tests.pipelines.lakes import TICKS_S, A, counters, derived, new_lake, port_rows, put
from xtune.lake import InputRecord, Lake
from xtune.pipelines import EpisodeRules, rebuild

U32 = 2**32 - 1


def stretches(tmp_path: Path, rows: list[dict[str, Any]], **rules: Any) -> list[dict[str, Any]]:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", rows)
    rebuild(lake, rules=EpisodeRules(**rules))
    return derived(lake, "link_episodes")


def test_a_stretch_and_its_figures(tmp_path: Path) -> None:
    [row] = stretches(
        tmp_path, port_rows(A, [0, 0.2, 0.6, 0.4, 0.05, 0], [0.1, 0.5, 1, 0.9, 0, 0])
    )
    assert (row["link"], row["start_ts"], row["end_ts"]) == (A, 1.0, 4.0)
    assert row["peak_level"] == 3
    assert row["mean_wait_fraction"] == pytest.approx(0.4)
    assert row["peak_utilization"] == pytest.approx(1.0)
    assert row["bytes"] == pytest.approx(2.4 * 50e9)
    assert (row["role"], row["cause"]) == ("unknown", "unknown")
    assert json.loads(row["evidence"])["topology"] is False


LOOK_ALIKES = {
    "busy without waiting": port_rows(A, [0.0] * 10, [1.0] * 10),
    "one sample alone": port_rows(A, [0, 0, 0.9, 0, 0]),
    "short of level 2": port_rows(A, [0.14] * 10),
    "down": counters(range(10), port_xmit_wait=[77] * 10, port_xmit_data=[5] * 10),
    "stuck at the top": counters(range(10), port_xmit_wait=[U32] * 10),
    "reset": counters(
        range(6),
        port_xmit_wait=[0, 0, 0, 9 * 10**9, 9 * 10**9, 9 * 10**9],
        port_xmit_data=[100, 200, 300, 10, 20, 30],
    ),
    "seen once": counters([0], port_xmit_wait=[10**12]),
}


def test_look_alikes_are_not_reported(tmp_path: Path) -> None:
    """Each on a port of its own, beside one that is congested."""
    rows = port_rows(A, [0, 0.6, 0.6, 0])
    links = {f"0x{number:016x}/1": name for number, name in enumerate(LOOK_ALIKES, start=1)}
    for link, name in links.items():
        rows += [{**row, "link": link} for row in LOOK_ALIKES[name]]
    reported = [row["link"] for row in stretches(tmp_path, rows)]
    assert [links.get(link, "congested") for link in reported] == ["congested"]


def test_unknown_for_long_ends_a_stretch_and_says_so(tmp_path: Path) -> None:
    waits = [0.0, 0.6, 0.6, 0.6, *[0.0] * 20, 0.6, 0.6, 0.0]
    rows = port_rows(A, waits)
    for row in rows[5:24]:
        row["port_xmit_wait"] = U32  # stuck for 20 s, then cleared
    first, second = stretches(tmp_path, rows, max_gap_s=5.0)
    assert (first["start_ts"], first["end_ts"]) == (1.0, 4.0)
    assert json.loads(first["evidence"])["end_unknown"] is True
    assert (second["start_ts"], second["end_ts"]) == (24.0, 26.0)
    assert "end_unknown" not in json.loads(second["evidence"])


def test_unknown_for_a_moment_neither_opens_nor_closes(tmp_path: Path) -> None:
    rows = port_rows(A, [0.0, 0.6, 0.6, 0.6, 0.6, 0.6, 0.0], step_s=10.0)
    rows[3]["port_xmit_wait"] = U32  # two intervals of 10 s, one after the other, unknown
    [row] = stretches(tmp_path, rows, max_gap_s=20.0)
    assert (row["start_ts"], row["end_ts"]) == (10.0, 60.0)


def test_the_last_sample_still_congested_has_no_known_end(tmp_path: Path) -> None:
    [row] = stretches(tmp_path, port_rows(A, [0, 0.6, 0.6, 0.6]))
    assert json.loads(row["evidence"])["end_unknown"] is True


def test_a_gap_no_longer_than_allowed_is_bridged(tmp_path: Path) -> None:
    waits = [0.6, 0.6, 0, 0, 0.6, 0.6, 0, 0, 0, 0.6, 0.6, 0]
    found = stretches(tmp_path, port_rows(A, waits), max_gap_s=2.0)
    assert [(row["start_ts"], row["end_ts"]) for row in found] == [(0.0, 6.0), (9.0, 11.0)]


def test_marks_alone_are_congestion(tmp_path: Path) -> None:
    """RoCE: 2 % of the 12.2 million full-size packets a second that 400 Gb/s are."""
    marks = round(0.02 * 50e9 / 4096)
    rows = counters(
        range(6), np_ecn_marked_roce_packets=[0, 0, marks, 2 * marks, 3 * marks] * 1 + [3 * marks]
    )
    [row] = stretches(tmp_path, rows)
    assert (row["start_ts"], row["end_ts"], row["peak_level"]) == (1.0, 4.0, 2)
    assert row["mean_wait_fraction"] is None


def test_an_incast_from_counters_to_the_table(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", topology_rows())
    on, off = [0.0] * 5, [0.0] * 5
    for link in (nic(0, 1), nic(0, 2)):
        waits = [*off, *[0.5] * 20, *off]
        put(lake, "link_counters", port_rows(link, waits, [0.1] * 5 + [0.5] * 20 + [0.1] * 5))
    put(lake, "link_counters", port_rows(down(0, 0), [0.0] * 30, [0.1] * 5 + [1.0] * 20 + on))
    put(lake, "link_counters", port_rows(down(0, 3), [0.0] * 30, [1.0] * 30))  # innocent
    summary = rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert (episode["cause"], episode["root_link"]) == ("incast", down(0, 0))
    assert (episode["start_ts"], episode["end_ts"]) == (5.0, 25.0)
    assert episode["links"] == sorted([nic(0, 1), nic(0, 2), down(0, 0)])
    roles = {row["link"]: row["role"] for row in derived(lake, "link_episodes")}
    assert roles == {nic(0, 1): "victim", nic(0, 2): "victim", down(0, 0): "root"}
    assert (summary.episodes, summary.links) == (1, 3)
    assert summary.to_json()["tables"]["link_episodes"] == 3


def test_an_incast_where_only_hosts_are_sampled(tmp_path: Path) -> None:
    """The leaf is not sampled: its port to the host is seen by what the host receives."""
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", topology_rows())
    for link in (nic(0, 1), nic(0, 2)):
        waits = [*[0.0] * 5, *[0.5] * 20, *[0.0] * 5]
        put(lake, "link_counters", port_rows(link, waits))
    received = [0, *accumulate([0.1] * 5 + [1.0] * 20 + [0.1] * 5)]
    words = [round(total * 50e9 / 4) for total in received]
    target = counters(range(31), nic(0, 0), port_rcv_data=words, port_xmit_wait=[0] * 31)
    put(lake, "link_counters", target)
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert (episode["cause"], episode["root_link"]) == ("incast", down(0, 0))
    assert json.loads(episode["evidence"])["seen_from"] == nic(0, 0)
    [root] = [row for row in derived(lake, "link_episodes") if row["role"] == "root"]
    assert (root["start_ts"], root["end_ts"]) == (5.0, 25.0)
    assert root["bytes"] == pytest.approx(20 * 50e9)
    assert (root["peak_utilization"], root["mean_wait_fraction"]) == (1.0, None)


@pytest.mark.parametrize(
    ("unit", "factor", "words"), [(4, 4, "4 times too large"), (1, 0.25, "4 times too small")]
)
def test_data_off_by_four_is_told(tmp_path: Path, unit: int, factor: float, words: str) -> None:
    """Full packets where the source had multiplied; acknowledgements where it had not."""
    lake = new_lake(tmp_path / "lake")
    name = "a" * 12
    record = InputRecord(
        id=name, name="export.json", path="/export.json", content="c", size=1, head="h",
        parser="prometheus", parser_version=1, time_ns=0,
    )  # fmt: skip
    with lake.begin() as transaction:
        transaction.record(record)
        transaction.commit()
    packet = 4096 if unit == 4 else 40
    packets = [0, 10**6, 2 * 10**6]
    data = [round(n * packet * factor / unit) for n in packets]
    rows = counters(range(3), port_xmit_data=data, port_xmit_packets=packets,
                    port_xmit_wait=[0] * 3, data_unit_bytes=[unit] * 3)  # fmt: skip
    put(lake, "link_counters", rows, source=name)
    [note] = rebuild(lake).notes
    assert "export.json" in note and words in note
    assert rebuild(lake).notes == (note,)  # still so when nothing is computed


def test_honest_data_is_not_accused(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    packets = [0, 10**6, 2 * 10**6]
    rows = counters(range(3), port_xmit_data=[n * 1041 for n in packets],
                    port_xmit_packets=packets, port_xmit_wait=[0] * 3)  # fmt: skip
    put(lake, "link_counters", rows)
    assert rebuild(lake).notes == ()


def test_rows_without_a_time_are_counted(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", [{"link": A, "port_xmit_wait": TICKS_S}])
    assert rebuild(lake).notes == ("1 counter rows have no time and are in no rate (--time-from)",)


def test_a_lake_without_counters_still_rebuilds(tmp_path: Path) -> None:
    lake: Lake = new_lake(tmp_path / "lake")
    put(lake, "steps", [{"ts": 0, "job": "j", "step": 1, "step_time_s": 1.0}])
    summary = rebuild(lake)
    assert (summary.episodes, summary.computed) == (0, ())


def test_a_rebuild_says_where_it_could_see_nothing(tmp_path: Path) -> None:
    """Without a rate nobody knows what a tick is: no episode there is no clean bill."""
    seen = port_rows(A, [0.0] * 5)
    unrated = [
        row | {"link": "0x00000000000000cc/1", "rate_gbps": None}
        for row in port_rows(A, [0.9] * 5)
    ]
    uncounted = counters(range(5), "0x00000000000000dd/1", port_xmit_data=range(0, 5000, 1000))
    lake = new_lake(tmp_path / "all")
    put(lake, "link_counters", seen + unrated + uncounted)
    [note] = [note for note in rebuild(lake).notes if "waiting is unknown" in note]
    assert note.startswith("waiting is unknown on 2 of 3 ports, so they open no episode")
    assert "1 count none" in note
    assert "of 1 no source says the rate" in note
    lake = new_lake(tmp_path / "seen")
    put(lake, "link_counters", seen)
    assert not [note for note in rebuild(lake).notes if "unknown" in note]
