"""Expectations, exposed time and stragglers, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipelines.impact import DAY_S, MS, Rows, collective, episode, hours, priced, usual
from tests.pipelines.lakes import SECOND, at

E = [episode(100, 200)]


def impact(found: dict[str, Rows], seq: int) -> dict[str, Any]:
    [row] = [r for r in found["collective_impact"] if r["seq"] == seq and r["rank"] in (0, None)]
    return row


def test_usual_is_the_day_and_the_24_hours_before() -> None:
    """Of the day before yesterday nothing counts, of yesterday all, of tomorrow nothing."""
    hit = collective(1, 120, 30)
    for first_s, expected in (
        (-500, 10 * MS),
        (-DAY_S, 10 * MS),
        (-2 * DAY_S, None),
        (DAY_S, None),
    ):
        found = priced(E, collectives=[hit, *usual(first_s=first_s)])
        assert impact(found, 1)["expected_ns"] == expected, first_s


def test_a_later_day_changes_no_number() -> None:
    before = [collective(1, 120, 30), *usual()]
    # The next day a hundred of 99 ms, from an hour after midnight on.
    after = [collective(5000 + n, DAY_S + n, 99) for n in range(100)]
    tables = priced(E, collectives=before), priced(E, collectives=before + after)
    assert tables[0] == tables[1]


def test_nothing_outside_is_not_known() -> None:
    found = priced([episode(0, 5000)], collectives=[collective(n, 10 + n, 30) for n in range(50)])
    assert {r["slowdown"] for r in found["collective_impact"]} == {None}
    [row] = found["episodes"]
    assert (row["collectives"], row["slowdown"], row["idle_gpu_hours"]) == (50, None, None)


def test_a_size_never_seen_outside_is_read_off_the_line() -> None:
    """1 ms and 10 ns a byte."""
    sizes = [2**n for n in range(10, 22)]
    rows = [collective(n, -900 + n, 1 + 1e-5 * size, message_bytes=size)
            for n, size in enumerate(sizes)]  # fmt: skip
    rows += [collective(90, 120, 100, message_bytes=3_000_000 // 2),
             collective(91, 121, 100, message_bytes=2**23)]  # fmt: skip
    found = priced(E, collectives=rows)
    assert impact(found, 90)["expected_ns"] == pytest.approx(16 * MS, rel=1e-6)
    assert impact(found, 91)["expected_ns"] is None  # beyond the sizes it was made of


def test_collectives_at_once_cost_their_union() -> None:
    """110..150, 10 expected, and 130..170: tails 120..150 and 140..170 are 50 s of 2 ranks."""
    rows = [*usual(10_000), collective(1, 110, 40_000), collective(2, 130, 40_000)]
    found = priced(E, collectives=rows)
    [row] = found["episodes"]
    assert row["idle_gpu_hours"] == pytest.approx(50 * 2 / 3600)
    assert hours(found, "job") == {"j": pytest.approx(50 * 2 / 3600)}


def busy(start_s: float, end_s: float, kind: str = "compute", rank: int = 0) -> dict[str, Any]:
    return {"start_ts": at(start_s), "end_ts": at(end_s), "job": "j", "rank": rank, "kind": kind}


def test_what_compute_overlaps_is_not_exposed() -> None:
    """110..150, 10 expected: the tail is 120..150; compute runs 105..125 and 140..145."""
    rows = [*usual(10_000), collective(1, 110, 40_000)]
    spans = [busy(0, 300, "traced"), busy(105, 125), busy(140, 145), busy(141, 142)]
    found = priced(E, collectives=rows, gpu_busy=spans)
    row = impact(found, 1)
    assert (row["exposed_ns"], row["lost_ns"]) == (20 * SECOND, 20 * SECOND)
    [cost] = found["episode_costs"]
    assert cost["idle_gpu_hours"] == pytest.approx(20 * 2 / 3600)
    # Of another rank, or of a trace that ended before, nothing is known: beyond the expectation.
    for spans in ([busy(0, 300, "traced", 1), busy(105, 125, rank=1)], [busy(0, 149, "traced")]):
        row = impact(priced(E, collectives=rows, gpu_busy=spans), 1)
        assert (row["exposed_ns"], row["lost_ns"]) == (30 * SECOND, 30 * SECOND)


def test_a_late_rank_is_not_the_networks() -> None:
    """Rank 1 came 490 ms late; the transfer took 10 ms, as usual."""
    rows = [*usual(), *usual(rank=1)]
    rows += [collective(1, 120, 500), collective(1, 120.49, 10, rank=1)]
    found = priced(E, collectives=rows)
    late = {r["rank"]: r for r in found["collective_impact"] if r["seq"] == 1}
    assert {r["straggler_rank"] for r in late.values()} == {1}
    assert [late[rank]["wait_ns"] for rank in (0, 1)] == [490 * MS, 0]
    assert [late[rank]["slowdown"] for rank in (0, 1)] == [1.0, 1.0]
    [cost] = found["episode_costs"]
    assert cost["idle_gpu_hours"] == 0.0
    assert cost["straggler_gpu_hours"] == pytest.approx(0.49 / 3600)
    assert {r["straggler_rank"] for r in found["collective_impact"] if r["seq"] != 1} == {None}


def test_a_host_40_s_off_is_repaired() -> None:
    """Host b's clock is 40 s ahead: its 240 s is 200 s, outside; its 160 s is 120 s, inside."""
    rows = [*usual(), collective(1, 241, 30, host="b"), collective(2, 160, 30, host="b")]
    clock = {"host": "b", "from_ns": at(0), "to_ns": at(1000), "offset_ns": 40 * SECOND}
    found = priced(E, collectives=rows, clocks=[clock])
    assert (impact(found, 1)["start_ts"], impact(found, 1)["episode_id"]) == (201.0, None)
    assert (impact(found, 2)["start_ts"], impact(found, 2)["episode_id"]) == (120.0, "e")


def test_what_is_no_measured_collective_counts_nowhere() -> None:
    mean: dict[str, Any] = {"comm": None, "extra": [("program", "all_reduce_perf")]}
    empty = {"op": "empty_dump", "comm": None, "seq": None, "start_ts": None, "duration_ns": None}
    rows = [
        collective(None, 120, 500, **mean, comm_size=99),
        {**collective(2, 120, 1), **empty},
        {**collective(3, 120, 1), "start_ts": None, "enqueue_ts": at(120), "duration_ns": None},
        collective(4, 120, 30),
    ]
    found = priced(E, collectives=[*usual(), *rows])
    [cost] = found["episode_costs"]
    assert (cost["collectives"], cost["slowdowns"], cost["ranks"]) == (1, [3.0], 2)
    assert len(found["collective_impact"]) == 6
