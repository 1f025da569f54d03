from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import ForecastTable, Policy, Router, make_forecaster
from xtune.policies.spec import Routing

KINDS = ("reading", "ewma", "slope", "holt")
GAPS_NS = (-5_000, 0, 1_000, 10_000, 10_000, 12_345, 1_000_000, 5_000_000, -5_000_000)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), marked=st.booleans())
def test_batch_gives_the_same_bits_as_one_by_one(kind: str, seed: int, marked: bool) -> None:
    """Readings and marks that are late, missing, at once, after a gap, or on a clock set back."""
    rng = np.random.default_rng(seed)
    routing = Routing(forecast=kind, window_readings=3)
    links = 4
    table = ForecastTable(links, routing)
    singles = [make_forecaster(routing) for _ in range(links)]
    at_ns = 1_700_000_000_000_000_000
    for _ in range(25):
        at_ns += int(rng.choice(GAPS_NS))
        when = at_ns + rng.choice([0, 0, 0, 700, -700], links)
        readings = np.where(rng.random(links) < 0.2, math.nan, rng.random(links))
        share = rng.choice([0.0, 0.02, 0.1, 1.0], links)
        marks = np.where(rng.random(links) < 0.4, math.nan, share) if marked else None
        table.update(readings, when, marks)
        for i, single in enumerate(singles):
            mark = math.nan if marks is None else float(marks[i])
            single.update(float(readings[i]), int(when[i]), mark)
        np.testing.assert_array_equal(table.level, [one.level for one in singles])
        np.testing.assert_array_equal(table.slope, [one.slope for one in singles])
        np.testing.assert_array_equal(table.heard_ns, [one.heard_ns for one in singles])
        np.testing.assert_array_equal(table.peak(200_000), [one.peak(200_000) for one in singles])


@pytest.mark.parametrize("kind", KINDS)
@given(value=st.floats(0, 1), gaps=st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_a_constant_is_forecast_as_itself(kind: str, value: float, gaps: list[int]) -> None:
    forecaster = make_forecaster(Routing(forecast=kind))
    at_ns = 0
    for gap in gaps:
        at_ns += gap
        forecaster.update(value, at_ns)
    assert forecaster.peak(200_000) == pytest.approx(value)


@pytest.mark.parametrize("kind", ("slope", "holt"))
def test_a_ramp_is_foreseen_and_the_level_tests_miss_it(kind: str) -> None:
    # 0.2 %/us from 0.30: 0.70 is reached at 200 us, so a warning is due from the start on.
    at = [10_000 * i for i in range(4)]
    routing = Routing(forecast=kind)
    sees, blind = make_forecaster(routing), make_forecaster(Routing(forecast="reading"))
    for at_ns in at:
        sees.update(0.30 + 2e-6 * at_ns, at_ns)
        blind.update(0.30 + 2e-6 * at_ns, at_ns)
    assert sees.peak(200_000) == pytest.approx(0.30 + 2e-6 * (at[-1] + 200_000))
    assert blind.peak(200_000) == pytest.approx(0.36)


def test_the_window_forgets_what_left_it() -> None:
    forecaster = make_forecaster(Routing(forecast="slope", window_readings=3))
    for i, reading in enumerate((0.9, 0.0, 0.1, 0.2, 0.3)):
        forecaster.update(reading, i * 1000)
    assert forecaster.slope == pytest.approx(1e-4)  # that of 0.1, 0.2, 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_late_and_missing_readings_change_nothing_and_a_long_gap_starts_anew(kind: str) -> None:
    forecaster = make_forecaster(Routing(forecast=kind, stale_ns=100_000))
    assert math.isnan(forecaster.peak(0))
    for i in range(3):
        forecaster.update(0.1 * i, 10_000 * i)
    before = (forecaster.level, forecaster.slope, forecaster.at_ns)
    forecaster.update(0.9, 19_999)
    forecaster.update(math.nan, 30_000)
    np.testing.assert_equal((forecaster.level, forecaster.slope, forecaster.at_ns), before)
    forecaster.update(0.5, 120_001)
    assert forecaster.level == 0.5
    forecaster.update(0.9, 20_001)  # late by just stale_ns
    assert forecaster.level == 0.5
    assert math.isnan(forecaster.slope)
    forecaster.update(0.6, 220_001)  # a gap of just stale_ns does not
    assert math.isnan(forecaster.slope) == (kind in ("reading", "ewma"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_clock_set_back_starts_anew_and_blinds_nobody(kind: str) -> None:
    routing = Routing(forecast=kind, stale_ns=100_000)
    forecaster, table = make_forecaster(routing), ForecastTable(1, routing)
    for at_ns, reading in ((10**12, 0.1), (10**12 + 10_000, 0.2), (10**9, 0.9)):
        forecaster.update(reading, at_ns)
        table.update(np.array([reading]), at_ns)
    assert (forecaster.level, forecaster.at_ns) == (0.9, 10**9)
    assert (float(table.level[0]), int(table.at_ns[0])) == (0.9, 10**9)
    assert math.isnan(forecaster.slope)


def marking(occupancy: float, routing: Routing) -> float:
    """Share of packets that a switch with RED's curve marks."""
    low, high = routing.mark_low_occupancy, routing.mark_high_occupancy
    if occupancy > high:
        return 1.0
    return max(0.0, (occupancy - low) / (high - low)) * routing.mark_top_share


@given(st.floats(0, 1), st.floats(0, 0.5), st.floats(0.51, 1), st.floats(0.001, 1))
def test_marks_tell_the_queue_that_made_them(
    occupancy: float, low: float, high: float, top: float
) -> None:
    routing = Routing(mark_low_occupancy=low, mark_high_occupancy=high, mark_top_share=top)
    forecaster = make_forecaster(routing)
    forecaster.update(math.nan, 1_000, marking(occupancy, routing))
    # Below the curve and above it the queue is not known better than its ends.
    assert forecaster.peak(0) == pytest.approx(min(high, max(low, occupancy)))
    assert forecaster.heard_ns == 1_000


@pytest.mark.parametrize("kind", KINDS)
def test_marks_raise_a_forecast_and_never_lower_it(kind: str) -> None:
    forecaster = make_forecaster(Routing(forecast=kind))  # 0.25 .. 1.0, 5 % at the top
    forecaster.update(0.1, 1_000, 0.03)
    assert forecaster.peak(200_000) == pytest.approx(0.25 + 0.75 * 0.6)
    forecaster.update(0.1, 2_000, 0.0)
    assert forecaster.peak(200_000) == pytest.approx(0.1)
    forecaster.update(0.1, 3_000, 0.05)
    forecaster.update(0.1, 4_000)  # not told: the last that is not stale holds
    assert forecaster.peak(200_000) == pytest.approx(1.0)
    forecaster.update(0.1, 3_500, 0.0)  # later than the marks at 3000: taken
    forecaster.update(0.1, 3_400, 0.05)  # late
    assert forecaster.peak(200_000) == pytest.approx(0.1)


def test_what_is_stale_of_marks_and_queue_does_not_count() -> None:
    forecaster = make_forecaster(Routing(forecast="reading", stale_ns=100_000))
    forecaster.update(0.3, 0, 0.05)
    forecaster.update(0.3, 100_000)
    assert forecaster.peak(0) == 1.0
    forecaster.update(0.3, 100_001)
    assert forecaster.peak(0) == 0.3
    forecaster.update(math.nan, 200_002, 0.0)
    assert forecaster.peak(0) == 0.25  # no mark: at most where marking begins


def test_marks_of_before_a_clock_was_set_back_are_forgotten() -> None:
    routing = Routing(forecast="reading")
    forecaster, table = make_forecaster(routing), ForecastTable(1, routing)
    for reading, at_ns, marks, peak in (
        (0.1, 10**12, 0.05, 1.0),
        (0.2, 10**9, math.nan, 0.2),
        (math.nan, 10**6, 0.02, 0.55),
    ):
        forecaster.update(reading, at_ns, marks)
        table.update(np.array([reading]), at_ns, np.array([marks]))
        assert forecaster.peak(0) == table.peak(0)[0] == pytest.approx(peak)
        assert forecaster.heard_ns == table.heard_ns[0] == at_ns


def test_a_router_moves_by_marks_alone() -> None:
    policy = Policy(routing=Routing(pairs=1))
    router = Router({("a", "b"): [["up1"], ["up2"]]}, policy, clock=int)
    for up1, chosen in ((0.0, 0), (0.02, 0), (0.04, 1)):
        router.observe("up1", marks=up1, at_ns=10**10)
        router.observe("up2", marks=0.0, at_ns=10**10)
        assert router.choose(("a", "b", 0), at_ns=10**10) == chosen
    router.observe("up1", marks=1.5)  # none
    assert router.links.bad_readings == 1
