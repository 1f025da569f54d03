"""Derived times are on the reference clock, where an offset is sure and matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pipelines.clocks import DAY, DAY_END, collectives, fixed
from tests.pipelines.lakes import SECOND, T0, A, counters, derived, new_lake, put
from xtune.lake import InputRecord, Lake
from xtune.pipelines import rebuild
from xtune.pipelines._clocks import Clocks

HOSTS = {"a": fixed(0), "b": fixed(40), "c": fixed(0)}
PROMETHEUS = "b" * 12


def counts(link: str, host: str | None, times: list[float]) -> list[dict[str, Any]]:
    rows = counters(times, link, port_xmit_data=[10**8 * i for i in range(len(times))])
    return [{**row, "host": host} for row in rows]


def ends(lake: Lake, link: str) -> list[float]:
    return [row["ts"] for row in derived(lake, "link_rates") if row["link"] == link]


def test_counters_of_a_wrong_clock_move_and_others_stay(tmp_path: Path) -> None:
    """The host's own rows move, what a server or the fabric stamped of its port does not."""
    lake = new_lake(tmp_path / "lake")
    put(lake, "collectives", collectives(HOSTS, count=60))
    put(lake, "link_counters", counts("a/mlx5_0/1", "a", [100, 101, 102]))
    put(lake, "link_counters", counts("b/mlx5_0/1", "b", [140, 141, 142]))
    with lake.begin() as transaction:
        transaction.record(
            InputRecord(
                id=PROMETHEUS, name="p", path="", content="", size=0, head="",
                parser="prometheus", parser_version=1, time_ns=0,
            )
        )  # fmt: skip
        transaction.commit()
    put(lake, "link_counters", counts("b/mlx5_1/1", "b", [100, 101, 102]), PROMETHEUS)
    put(lake, "link_counters", counts(A, None, [100, 101, 102]))
    rebuild(lake)
    assert ends(lake, "a/mlx5_0/1") == [101, 102]
    moved = ends(lake, "b/mlx5_0/1")
    assert [round(end, 3) for end in moved] == [101, 102]
    assert moved != [101, 102]  # by what was measured, not by what was planted
    assert ends(lake, "b/mlx5_1/1") == [101, 102]
    assert ends(lake, A) == [101, 102]


def test_collectives_move_too(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "collectives", collectives(HOSTS, count=60))
    rebuild(lake)
    rows = derived(lake, "collective_impact")
    by_seq: dict[int, set[int]] = {}
    for row in rows:
        by_seq.setdefault(row["seq"], set()).add(round(row["start_ts"] + row["duration_ns"] / 1e9))
    assert len(by_seq) == 60
    assert all(len(ended) == 1 for ended in by_seq.values())


def test_a_new_day_changes_no_offset_of_an_old_one(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "collectives", collectives(HOSTS, count=60))
    rebuild(lake)
    before = derived(lake, "clock_offsets")
    later = {"a": fixed(0), "b": fixed(7), "c": fixed(0)}
    put(lake, "collectives", collectives(later, count=60, start=(DAY_END - T0) / SECOND + 60))
    rebuild(lake)
    after = derived(lake, "clock_offsets")
    assert [row for row in after if row["from_ts"] == (DAY - T0) / SECOND] == before
    clocks = Clocks.read(lake)
    assert round(clocks.offset_ns("b", T0) / SECOND, 3) == 40
    assert round(clocks.offset_ns("b", DAY_END + 60 * SECOND) / SECOND, 3) == 7
    assert clocks.offset_ns("a", T0) == clocks.offset_ns(None, T0) == 0
    assert clocks.offset_ns("b", DAY - 1) == 0
    assert [s[2] for s in clocks.within("b", DAY, DAY_END)] == [clocks.offset_ns("b", T0)]
    assert clocks.mark(DAY - 10, DAY) == ""
    assert clocks.mark(DAY, DAY_END) != clocks.mark(DAY, DAY_END + 1)
