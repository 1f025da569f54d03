"""Held-out days: which they are, what is fitted on them, and what their checks tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, ks_2samp

from tests.sim_loop.lakes import Rows, Truth, arrow, rows_of
from xtune.errors import CalibrationError
from xtune.lake import Lake
from xtune.sim import Calibration, Parameter, calibrate
from xtune.sim.calibration import Check
from xtune.sim.fit_days import (
    DAY_NS,
    OWN,
    day_seconds,
    dispersion,
    held_out_from,
    stationarity_notes,
)
from xtune.sim.validation import between, distance

HOUR_NS = 3_600_000_000_000


def lake_of(root: Path, *days: Rows) -> Lake:
    """Each day's rows one day after the last one's; steps and sequence numbers go on."""
    lake = Lake.open(root, create=True)
    steps = seqs = 0
    with lake.begin() as transaction:
        for day, rows in enumerate(days):
            for name, some in rows.items():
                if not some or (day and name == "topology_links"):
                    continue
                moved = [later(row, day, steps, seqs) for row in some]
                transaction.write(name, arrow(name, moved))
            steps += len(rows["steps"])
            seqs += 1 + max((row["seq"] for row in rows["collectives"]), default=0)
        transaction.commit()
    return lake


def later(row: dict[str, Any], day: int, steps: int, seqs: int) -> dict[str, Any]:
    out = {k: v + day * DAY_NS if k.endswith("ts") else v for k, v in row.items()}
    if "step" in out:
        out["step"] += steps
    if "seq" in out:
        out["seq"] += seqs
    if "episode_id" in out and out["episode_id"] is not None:
        out["episode_id"] = f"{out['episode_id']}-{day}"
    return out


def check_of(calibration: Calibration, name: str) -> Check:
    return next(check for check in calibration.validation if check.name == name)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    truth = Truth(hours=0.5, rate_per_h=24.0, length_s=40.0)
    days = rows_of(truth), rows_of(replace(truth, seed=2))
    return calibrate(lake_of(tmp_path_factory.mktemp("lake"), *days))


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """The second day has twice the compute, thrice the depth and more episodes."""
    first = Truth(hours=0.5, rate_per_h=12.0, length_s=40.0, slowdown=2.0)
    second = replace(first, compute_s=2.0, slowdown=6.0, rate_per_h=48.0, seed=2)
    return calibrate(lake_of(tmp_path_factory.mktemp("lake"), rows_of(first), rows_of(second)))


def test_days_alike_agree_in_every_figure(alike: Calibration) -> None:
    names = {check.name for check in alike.validation}
    assert names >= {"compute_s", "collective_s", "episode_rate_per_h", "episode_length_s",
                     "step_s_mean", "step_s_p99", "step_s_distance"}  # fmt: skip
    assert [check.name for check in alike.validation if not check.agrees] == []


def test_days_unlike_differ_where_they_do(unlike: Calibration) -> None:
    wrong = {check.name for check in unlike.validation if not check.agrees}
    assert wrong >= {"compute_s", "episode_rate_per_h", "episode_slowdown", "step_s_mean",
                     "step_s_p99", "step_s_distance"}  # fmt: skip
    assert "collective_s" not in wrong  # outside episodes it is the same
    error = check_of(unlike, "compute_s").error
    assert error == pytest.approx(-0.5, abs=0.01)


def test_each_calibration_is_of_its_own_days(unlike: Calibration) -> None:
    later_one = unlike.held_out
    assert later_one is not None
    assert unlike["compute_s"] == pytest.approx(1.0, rel=0.02)
    assert later_one["compute_s"] == pytest.approx(2.0, rel=0.02)
    assert unlike["episode_rate_per_h"] == pytest.approx(12.0)
    assert later_one["episode_rate_per_h"] == pytest.approx(48.0)
    assert (unlike["episode_slowdown"], later_one["episode_slowdown"]) == (2.0, 6.0)
    for name in set(unlike.parameters) - set(OWN):
        assert later_one[name] == unlike[name], name
    assert (later_one.layers, later_one.buckets) == (unlike.layers, unlike.buckets)
    assert unlike.span_ns is not None and later_one.span_ns is not None
    assert unlike.span_ns[1] <= later_one.span_ns[0] - 23 * HOUR_NS


def test_it_reads_back_and_held_out_days_make_another_fingerprint(unlike: Calibration) -> None:
    document = json.loads(json.dumps(unlike.to_json(), allow_nan=False))
    assert Calibration.from_json(document) == unlike
    assert document["validation"][0]["error"] is not None
    assert unlike.held_out is not None
    other = replace(unlike, held_out=unlike.held_out.with_values(compute_s=3.0))
    assert other.fingerprint != unlike.fingerprint
    document["held_out"]["parameters"][0]["value"] += 1.0
    with pytest.raises(CalibrationError, match="changed by hand"):
        Calibration.from_json(document)
    older = {k: v for k, v in replace(unlike, held_out=None).to_json().items()}
    for name in ("held_out", "validation", "response"):
        del older[name]
    assert Calibration.from_json(older).held_out is None


def test_values_by_hand_hold_for_held_out_days_too(unlike: Calibration) -> None:
    by_hand = unlike.with_values(change_s=1.0)
    assert by_hand.held_out is not None
    assert by_hand.held_out["change_s"] == by_hand["change_s"] == 1.0
    assert by_hand.validation == ()


def test_a_held_out_day_without_training_has_its_background_alone(tmp_path: Path) -> None:
    truth = Truth(hours=0.3)
    second = rows_of(replace(truth, rate_per_h=40.0, length_s=30.0))
    for name in ("steps", "collectives", "derived/collective_impact"):
        second[name] = []
    c = calibrate(lake_of(tmp_path, rows_of(truth), second))
    assert c.held_out is not None
    assert c.held_out["episode_rate_per_h"] == pytest.approx(40.0)
    assert c.held_out["compute_s"] == c["compute_s"]
    assert "of the days before" in c.held_out.parameters["compute_s"].why
    assert any("no training steps" in note for note in c.held_out.notes)
    assert {check.name for check in c.validation} >= {"episode_rate_per_h"}
    assert not {check.name for check in c.validation} & {"compute_s", "step_s_mean"}


def test_training_on_the_last_day_alone_holds_none_out_unless_asked(tmp_path: Path) -> None:
    truth = Truth(hours=0.3)
    first = rows_of(truth)
    for name in ("steps", "collectives", "derived/collective_impact"):
        first[name] = []
    lake = lake_of(tmp_path, first, rows_of(truth))
    c = calibrate(lake)
    assert c.held_out is None and c.validation == ()
    assert any("no day is held out" in note and "no training steps" in note for note in c.notes)
    with pytest.raises(CalibrationError, match="no training steps"):
        calibrate(lake, held_out_days=1)
    with pytest.raises(CalibrationError, match="2 days held out leave none to fit"):
        calibrate(lake, held_out_days=2)
    assert calibrate(lake, held_out_days=0).notes != c.notes


def spans(*hours: tuple[float, float]) -> np.ndarray:
    return np.array([[round(a * HOUR_NS), round(b * HOUR_NS)] for a, b in hours], dtype=np.int64)


@pytest.mark.parametrize(
    ("covered", "asked", "first_day"),
    [
        (spans((1, 5)), None, None),
        (spans((1, 5), (25, 29)), None, 1),
        (spans((1, 5), (25, 29)), 0, None),
        (spans((0, 24 * 9)), None, 7),  # a quarter of nine
        (spans((0, 24 * 9)), 3, 6),
        (spans((22, 24.1)), None, None),  # six minutes after midnight are no day of their own
        (spans((23.9, 30), (49, 55)), None, 2),
    ],
)
def test_which_days_are_held_out(
    covered: np.ndarray, asked: int | None, first_day: int | None
) -> None:
    expected = None if first_day is None else first_day * DAY_NS
    assert held_out_from(covered, asked) == expected


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5)), min_size=1, max_size=8))
def test_days_hold_all_the_time_and_no_more(lengths: list[tuple[int, int]]) -> None:
    at, intervals = 0, []
    for gap, length in lengths:
        at += gap
        intervals.append((at * 10**9, (at + length) * 10**9))
        at += length
    seconds = day_seconds(np.array(intervals, dtype=np.int64))
    assert sum(seconds.values()) == pytest.approx(sum(length for _, length in lengths))
    assert all(0 < s <= 86_400 for s in seconds.values())


def test_distance_is_that_of_scipy() -> None:
    random = np.random.default_rng(3)
    for size in (1, 7, 200):
        a, b = random.normal(0, 1, size).round(1), random.normal(0.3, 1, 150).round(1)
        assert distance(a, np.sort(b)) == pytest.approx(ks_2samp(a, b).statistic)


def test_dispersion_is_that_of_scipy() -> None:
    counts, seconds = [10, 20, 12], [3600.0, 3600.0, 1800.0]
    share = np.array(seconds) / sum(seconds) * sum(counts)
    known = chisquare(counts, share)
    found = dispersion(counts, seconds)
    assert found is not None
    assert found == pytest.approx((known.statistic / 2, known.pvalue))
    assert dispersion([3, 4], [1.0, 1.0]) is None  # too few
    assert dispersion([300], [1.0]) is None


def estimate(value: float, half: float) -> Parameter:
    return Parameter(name="x_s", value=value, low=value - half, high=value + half, n=9)


@pytest.mark.parametrize(
    ("a", "b", "agrees"),
    [
        (estimate(0.0, 3.0), estimate(4.9, 4.0), True),  # 4.9 <= hypot(3, 4)
        (estimate(0.0, 3.0), estimate(5.1, 4.0), False),
        (estimate(5.1, 4.0), estimate(0.0, 3.0), False),
        (estimate(1.0, 0.0), estimate(1.019, 0.0), True),  # no reader acts on 2 %
        (estimate(1.0, 0.0), estimate(1.03, 0.0), False),
    ],
)
def test_two_estimates_by_hand(a: Parameter, b: Parameter, agrees: bool) -> None:
    found = between(a, b)
    assert found is not None and found.agrees is agrees
    assert found.n == 9


def test_the_ends_that_face_each_other_count() -> None:
    low = Parameter(name="x_s", value=0.0, low=-0.1, high=3.0)
    high = Parameter(name="x_s", value=4.9, low=0.9, high=5.0)
    for one, other in ((low, high), (high, low)):
        found = between(one, other)
        assert found is not None and found.agrees  # 4.9 <= hypot(3, 4)
    apart = between(replace(low, low=-3.0, high=0.1), replace(high, low=4.8, high=9.0))
    assert apart is not None and not apart.agrees


def test_an_estimate_without_interval_is_not_checked() -> None:
    assert between(Parameter(name="x", value=1.0), estimate(1.0, 0.1)) is None


def test_a_rate_that_changes_between_days_is_said() -> None:
    covered = spans((1, 2), (25, 26), (49, 50))
    for counts, said in (([20, 22, 18], False), ([20, 60, 20], True)):
        starts = [
            day * DAY_NS + HOUR_NS + i * 10**9 for day, n in enumerate(counts) for i in range(n)
        ]
        notes = stationarity_notes(pl.DataFrame({"start_ts": starts}), covered)
        assert bool(notes) is said
    # Pearson: (13.3^2 + 26.7^2 + 13.3^2) / 33.3 = 32, over two degrees of freedom 16.
    assert "16 times as much as chance" in notes[0]
