"""Forecasts of readings at irregular times: bursts, gaps, another rate, the first two."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import Bus, ForecastTable, Policy, Router, make_forecaster, preset
from xtune.policies.presets import with_probes
from xtune.policies.spec import Routing

MS = 1_000_000
PROBED = with_probes(preset("routing_only"), 10 * MS, whole_flows=True)  # looks 20 ms ahead
GENTLE = replace(PROBED.routing, level_gain=0.5, slope_gain=0.3)
AS_EVER = st.integers(8 * MS, 12 * MS)
ANY_GAP = st.one_of(
    AS_EVER, st.integers(0, 4 * MS), st.just(20 * MS), st.integers(20 * MS, 190 * MS)
)


def textbook(readings: list[float], every_ns: int, routing: Routing) -> list[float]:
    """Holt's method as it stands in books, and its line at the horizon where it rises."""
    level, trend = readings[1], (readings[1] - readings[0]) / every_ns
    peaks = []
    for reading in readings[2:]:
        forecast = level + trend * every_ns
        new = forecast + routing.level_gain * (reading - forecast)
        trend = trend + routing.slope_gain * ((new - level) / every_ns - trend)
        level = new
        peaks.append(max(0.0, level, level + trend * routing.horizon_ns))
    return peaks


@pytest.mark.parametrize("every_ns", [1_000, 10_000, 50_000, 200_000])
def test_at_regular_intervals_it_is_the_textbooks_method_to_the_bit(every_ns: int) -> None:
    rng, routing = random.Random(every_ns), Routing()
    readings = [rng.random() for _ in range(200)]
    forecaster, peaks = make_forecaster(routing), []
    for i, reading in enumerate(readings):
        forecaster.update(reading, i * every_ns)
        peaks.append(forecaster.peak(routing.horizon_ns))
    assert peaks[2:] == textbook(readings, every_ns, routing)


@pytest.mark.parametrize("routing", [PROBED.routing, GENTLE], ids=["quick", "gentle"])
@settings(max_examples=200, deadline=None)
@given(
    low=st.floats(0.0, 0.5),
    range_=st.floats(0.01, 0.5),
    drawn=st.lists(st.tuples(st.floats(0, 1), ANY_GAP), min_size=1, max_size=60),
)
def test_whatever_the_gaps_a_forecast_stays_near_its_readings_and_comes_back(
    routing: Routing, low: float, range_: float, drawn: list[tuple[float, int]]
) -> None:
    forecaster, at_ns = make_forecaster(routing), 10**12
    for share, gap_ns in [(0.5, 10 * MS)] * 2 + drawn:
        at_ns += gap_ns
        forecaster.update(low + share * range_, at_ns)
        # At regular intervals these gains overshoot by up to 0.7 of the range.
        assert low - 1.5 * range_ < forecaster.level < low + 2.5 * range_
        assert forecaster.peak(routing.horizon_ns) < low + 8 * range_
    for _ in range(100):
        at_ns += 10 * MS
        forecaster.update(low, at_ns)
    assert forecaster.peak(routing.horizon_ns) == pytest.approx(low, abs=0.01 * range_)


def test_two_answers_at_once_are_no_warning() -> None:
    """An idle link, a little noise, 30 us apart: a line through both is full in 10 ms."""
    made = Router({("a", "b"): [["x"], ["y"]]}, PROBED, clock=lambda: 0)
    at_ns = 10**12
    for reading, gap_ns in [(0.003, 10 * MS)] * 5 + [(0.010, 10 * MS), (0.013, 30_000)]:
        at_ns += gap_ns
        made.observe("x", occupancy=reading, at_ns=at_ns)
        made.observe("y", occupancy=0.003, at_ns=at_ns)
        assert made.choose(("a", "b", 0), at_ns=at_ns) == 0
        assert made.links.worth[0] <= 0.013 + 2 * 0.010  # its last rise once more, twice
    assert made.moves == 0


@pytest.mark.parametrize("probes", [2, 10, 40])
def test_probes_that_share_a_link_are_no_burst_of_slopes(probes: int) -> None:
    """Each 10 ms as many answers within some 10 us of each other; also the very first ones."""
    rng, routing = random.Random(probes), PROBED.routing
    forecaster, at_ns, peaks = make_forecaster(routing), 10**12, []
    for _ in range(100):
        for probe in range(probes):
            forecaster.update(rng.uniform(0.10, 0.12), at_ns + 10_000 * probe)
            peaks.append(forecaster.peak(routing.horizon_ns))
        at_ns += 10 * MS
    assert max(peaks) < 0.12 + 8 * 0.02


@pytest.mark.parametrize(
    "before_ns, after_ns, count",
    [(10 * MS, MS // 10, 4 * 100 + 30), (MS // 10, 10 * MS, 30)],
    ids=["faster", "slower"],
)
def test_another_rate_becomes_usual(before_ns: int, after_ns: int, count: int) -> None:
    """A hundred times as often: after four of the old intervals. As seldom: after a few."""
    routing = replace(PROBED.routing, stale_ns=10**9)
    forecaster, at_ns = make_forecaster(routing), 0
    for _ in range(20):
        at_ns += before_ns
        forecaster.update(0.2, at_ns)
    begun_ns = at_ns
    per_ns = 0.5 / (count * after_ns)
    for _ in range(count):
        at_ns += after_ns
        forecaster.update(0.2 + per_ns * (at_ns - begun_ns), at_ns)
    assert forecaster.slope == pytest.approx(per_ns, rel=0.01)
    assert forecaster.level == pytest.approx(0.2 + per_ns * (at_ns - begun_ns), rel=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_a_table_learns_each_links_interval_as_one_by_one(seed: int) -> None:
    """Links that miss some of the readings, between stretches in which all have all."""
    rng, routing = np.random.default_rng(seed), PROBED.routing
    table, singles = ForecastTable(3, routing), [make_forecaster(routing) for _ in range(3)]
    at_ns, apart = 10**12, 0
    for step in range(600):
        at_ns += int(rng.choice([10 * MS] * 6 + [0, 30_000, 11 * MS, 20 * MS, 30 * MS]))
        readings = rng.random(3)
        if step // 10 % 2:
            readings[rng.random(3) < 0.4] = np.nan
        table.update(readings, at_ns)
        for single, reading in zip(singles, readings, strict=True):
            single.update(float(reading), at_ns)
        for name in ("level", "slope", "usual_ns"):
            expected = [getattr(single, name) for single in singles]
            np.testing.assert_array_equal(getattr(table, name), expected)
        apart += len(set(table.usual_ns)) > 1
    assert 50 < apart < 550


def test_a_line_that_falls_below_empty_is_an_empty_queue_everywhere() -> None:
    bus = Bus()
    made = Router({("a", "b"): [["x"], ["y"]]}, Policy(), bus, clock=lambda: 0)
    times = itertools.count(10_000, 10_000)
    for reading in (1.0, 0.5, 0.0, 0.0):
        made.observe("x", occupancy=reading, at_ns=next(times))
    assert made.links.worth[0] == 0.0
    for at_ns in itertools.islice(times, 3000):  # long after a level may be a hair below 0
        made.observe("x", occupancy=0.0, at_ns=at_ns)
        made.observe("y", occupancy=0.0, at_ns=at_ns)
        made.choose(("a", "b", 0), at_ns=at_ns)
        assert made.links.worth[0] >= 0.0
    assert made.links.worth[0] == 0.0
    told = bus.routing.version
    made.publish(at_ns + 5)
    state = bus.routing
    assert (state.version, state.at_ns) == (told + 1, at_ns + 5)
    assert (state.level, state.available_share) == (0, 1.0)
    made.publish(at_ns + 6)  # no unit since
    assert bus.routing == state
