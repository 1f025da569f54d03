"""Clock repair by collectives, against offsets planted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.pipelines.clocks import DAY, DAY_END, collectives, fixed, offsets, only
from tests.pipelines.lakes import SECOND, T0, at, new_lake
from xtune.lake import Lake
from xtune.pipelines._clocks import Offset

FIVE = {"a": 0.0, "b": 40.0, "c": -3.0, "d": 0.2, "e": 0.0}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path / "lake")


def seconds(offset: Offset) -> tuple[float, float, float]:
    return offset.low_ns / SECOND, offset.offset_ns / SECOND, offset.high_ns / SECOND


def test_planted_offsets(lake: Lake) -> None:
    """40 s and -3 s are repaired; 0.2 s is shown, and matters at no sampling interval here."""
    found, notes = offsets(lake, collectives({h: fixed(o) for h, o in FIVE.items()}))
    for host, planted in FIVE.items():
        offset = only(found, host)
        assert offset.offset_ns / SECOND == pytest.approx(planted, abs=10e-6)
        assert offset.low_ns - 20_000 <= planted * SECOND <= offset.high_ns + 20_000
        assert (offset.from_ns, offset.to_ns, offset.source) == (DAY, DAY_END, "collectives")
        assert offset.applied == (host in "bc")
        assert offset.reference == "a"
    assert notes == []


def test_medians_are_those_of_numpy(lake: Lake) -> None:
    """A star of two arms, worked out another way: lower medians of differences."""
    rows = collectives({"a": fixed(1), "b": fixed(0), "c": fixed(0.5)}, noise=0.05)
    ends = {
        host: np.array([r["start_ts"] + r["duration_ns"] for r in rows if r["host"] == host])
        for host in "abc"
    }
    from_a = {h: int(np.sort(ends[h] - ends["a"])[(len(ends[h]) - 1) // 2]) for h in "bc"}
    found, _ = offsets(lake, rows)
    # The median clock is c's.
    assert only(found, "c").offset_ns == 0
    assert only(found, "b").offset_ns == from_a["b"] - from_a["c"]
    assert only(found, "a").offset_ns == -from_a["c"]


def test_stragglers_and_local_ranks_do_not_matter(lake: Lake) -> None:
    """A rank that always begins last, and one collective in ten that ends 3 s late on a host."""
    rows = collectives({h: fixed(o) for h, o in FIVE.items()}, ranks=4)
    for row in rows:
        if row["host"] == "e":
            row["start_ts"] += row["duration_ns"] - 1000
            row["duration_ns"] = 1000
        if row["host"] == "b" and row["seq"] % 10 == 0:
            row["duration_ns"] += 3 * SECOND
    found, _ = offsets(lake, rows)
    for host, planted in FIVE.items():
        assert only(found, host).offset_ns / SECOND == pytest.approx(planted, abs=20e-6)


def test_drift_is_one_offset_whose_interval_covers_the_day(lake: Lake) -> None:
    clocks = {"a": fixed(0), "b": lambda t: 1.0 + 20e-6 * t, "c": fixed(0)}
    found, _ = offsets(lake, collectives(clocks, every=133))
    low, middle, high = seconds(only(found, "b"))
    assert middle == pytest.approx(1.4, abs=0.01)
    # A block's median stands for a quarter of an hour: 0.018 s of this drift.
    assert low == pytest.approx(1.0, abs=0.02)
    assert high == pytest.approx(1.8, abs=0.02)
    assert only(found, "b").applied


@pytest.mark.parametrize(("before", "after"), [(0.0, 5.0), (40.0, 0.0), (-2.0, 3.0)])
def test_a_step_splits_the_day(lake: Lake, before: float, after: float) -> None:
    clocks = {
        "a": fixed(0), "b": lambda t: before if t < 19_900 else after, "c": fixed(0), "d": fixed(0)
    }  # fmt: skip
    found, _ = offsets(lake, collectives(clocks, every=133))
    one, two = found["b"]
    assert (one.from_ns, two.to_ns) == (DAY, DAY_END)
    assert one.to_ns == two.from_ns
    # Between the last collective before it and the first after, by the host's own clock.
    shown = sorted((at(19_818 + before), at(19_951 + after)))
    assert shown[0] <= one.to_ns <= shown[1]
    assert one.offset_ns / SECOND == pytest.approx(before, abs=1e-4)
    assert two.offset_ns / SECOND == pytest.approx(after, abs=1e-4)
    assert (one.applied, two.applied) == (before != 0, after != 0)
    assert all(len(found[host]) == 1 for host in "acd")


def test_two_steps_and_the_hub_steps(lake: Lake) -> None:
    """The star's own centre is the one that is set, twice."""
    clocks = {
        "a": lambda t: 8.0 if 10_000 < t < 25_000 else 0.0,
        **{host: fixed(0) for host in "bcd"},
    }
    found, _ = offsets(lake, collectives(clocks, every=133))
    assert [round(o.offset_ns / SECOND, 3) for o in found["a"]] == [0.0, 8.0, 0.0]
    assert all(
        only(found, host).offset_ns / SECOND == pytest.approx(0, abs=1e-4) for host in "bcd"
    )


def test_of_two_hosts_nobody_knows_which_is_wrong(lake: Lake) -> None:
    found, _ = offsets(lake, collectives({"a": fixed(0), "b": fixed(40)}))
    apart = only(found, "b").offset_ns - only(found, "a").offset_ns
    assert apart / SECOND == pytest.approx(40, abs=1e-4)
    assert not any(o.applied for of_host in found.values() for o in of_host)


def test_groups_that_share_no_collective_have_their_own_reference(lake: Lake) -> None:
    one = collectives({h: fixed(0) for h in "abc"}, comm="pg:1")
    two = collectives({"x": fixed(7), "y": fixed(7), "z": fixed(9)}, comm="pg:2")
    found, notes = offsets(lake, one + two)
    assert only(found, "z").reference in ("x", "y")
    assert only(found, "z").offset_ns / SECOND == pytest.approx(2, abs=1e-4)
    assert only(found, "b").reference in ("a", "b", "c")
    assert notes == [
        "clocks: 2 groups of hosts share no collective; each is compared with its own median host"
    ]


def test_hosts_are_compared_through_others(lake: Lake) -> None:
    """Rings of two and three hosts: a-b, b-c-d; TP groups within a host say nothing."""
    rows = collectives({"a": fixed(0), "b": fixed(0)}, comm="1", seed=1)
    rows += collectives({"b": fixed(0), "c": fixed(3), "d": fixed(0)}, comm="2", seed=2)
    rows += collectives({"d": fixed(9)}, comm="3", ranks=8)
    found, _ = offsets(lake, rows)
    assert only(found, "c").offset_ns / SECOND == pytest.approx(3, abs=1e-4)
    assert only(found, "c").applied
    assert only(found, "d").offset_ns / SECOND == pytest.approx(0, abs=1e-4)


def test_what_cannot_be_compared_stays_unknown(lake: Lake) -> None:
    """No host, no other host, operations that do not end together, numbers by a trace's order."""
    clocks = {"a": fixed(0), "b": fixed(40), "c": fixed(0)}
    rows = collectives({"lonely": fixed(5)}, comm="own", ranks=8)
    rows += [{**row, "op": "broadcast"} for row in collectives(clocks, comm="1")]
    rows += [
        {**row, "extra": {"seq_source": "trace order"}} for row in collectives(clocks, comm="2")
    ]
    rows += [{**row, "state": "started"} for row in collectives(clocks, comm="3")]
    rows += [{**row, "host": None} for row in collectives(clocks, comm="4")]
    rows += collectives(clocks, comm="5", count=7)
    found, notes = offsets(lake, rows)
    assert found == {}
    assert notes == ["clocks: 4 hosts have no estimate, so times are as read (a, b, c, lonely)"]


def test_a_job_that_starts_anew_counts_from_zero_again(lake: Lake) -> None:
    clocks = {h: fixed(o) for h, o in FIVE.items()}
    rows = collectives(clocks) + collectives(clocks, start=20_000, seed=1)
    found, _ = offsets(lake, rows)
    for host, planted in FIVE.items():
        assert only(found, host).offset_ns / SECOND == pytest.approx(planted, abs=10e-6)
        assert only(found, host).samples in (600, 2400)


def test_midnight_changes_nothing(lake: Lake, tmp_path: Path) -> None:
    """Rows that a clock 40 s ahead puts into the next day's partition still meet the others."""
    clocks = {h: fixed(o) for h, o in FIVE.items()}
    to_midnight = (DAY_END - T0) / SECOND
    noon, _ = offsets(lake, collectives(clocks, count=60))
    late = new_lake(tmp_path / "late")
    rows = collectives(clocks, count=60, start=to_midnight - 90)
    assert {row["start_ts"] >= DAY_END for row in rows if row["host"] == "b"} == {True, False}
    first, _ = offsets(late, rows)
    second, _ = offsets(new_lake(tmp_path / "next"), rows, day=DAY_END)
    for host, planted in FIVE.items():
        for found in (noon, first, second):
            assert only(found, host).offset_ns / SECOND == pytest.approx(planted, abs=1e-4)
            assert only(found, host).applied == (host in "bc")
    # Each collective counts on the day of its latest row; the day before has what it could know.
    ended = {row["seq"] for row in rows if row["start_ts"] >= DAY_END}
    assert only(second, "b").samples == len(ended)
