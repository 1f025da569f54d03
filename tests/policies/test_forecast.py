from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import ForecastTable, make_forecaster
from xtune.policies.spec import Routing

KINDS = ("reading", "ewma", "slope", "holt")
READING = st.one_of(st.just(math.nan), st.floats(0, 1))
GAP_NS = st.sampled_from([-5_000, 0, 1_000, 10_000, 12_345, 1_000_000, 5_000_000])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_batch_gives_the_same_bits_as_one_by_one(kind: str, data: st.DataObject) -> None:
    routing = Routing(forecast=kind, window_readings=3)
    links = 4
    table = ForecastTable(links, routing)
    singles = [make_forecaster(routing) for _ in range(links)]
    at_ns = 1_700_000_000_000_000_000
    for _ in range(data.draw(st.integers(1, 12))):
        at_ns += data.draw(GAP_NS)
        skew = np.array([data.draw(st.sampled_from([0, 0, 0, 700, -700])) for _ in range(links)])
        readings = np.array([data.draw(READING) for _ in range(links)])
        table.update(readings, at_ns + skew)
        for single, reading, offset in zip(singles, readings, skew, strict=True):
            single.update(float(reading), at_ns + int(offset))
        np.testing.assert_array_equal(table.level, [one.level for one in singles])
        np.testing.assert_array_equal(table.slope, [one.slope for one in singles])
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
