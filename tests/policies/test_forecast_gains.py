from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.policies import ForecastTable
from xtune.policies.forecast_gains import (
    LEAST_TRIPLES,
    estimate_gains,
    estimate_noise,
    forecast_noise,
    quickest_gains,
)
from xtune.policies.spec import Routing

INTERVAL, HORIZON = 10_000, 200_000


def sawtooth(readings: int, links: int, high: float) -> np.ndarray:
    """Queues that are empty for half of the time, fill in 40 readings and drain in 40."""
    cycle = np.concatenate([np.zeros(80), np.linspace(0, high, 40), np.linspace(high, 0, 40)])
    at = np.arange(readings)[:, None] + 37 * np.arange(links)
    return np.asarray(cycle[at % 160])


@pytest.mark.parametrize("gains", [(1.0, 1.0), (0.5, 0.3), (0.44, 0.14), (0.9, 0.05)])
@pytest.mark.parametrize("ahead", (0, 1, 20))
def test_the_formula_is_what_the_forecaster_does_with_noise(
    gains: tuple[float, float], ahead: int
) -> None:
    level_gain, slope_gain = gains
    table = ForecastTable(20_000, Routing(level_gain=level_gain, slope_gain=slope_gain))
    rng = np.random.default_rng(7)
    for i in range(200):  # a line that rises, so that the slope is always carried ahead
        table.update(i + 1e-3 * rng.normal(size=20_000), i * INTERVAL)
    forecast = table.peak(ahead * INTERVAL)
    assert forecast.mean() == pytest.approx(199 + ahead, abs=1e-3)
    assert forecast.std() == pytest.approx(1e-3 * forecast_noise(*gains, ahead), rel=0.03)


@given(st.floats(1e-4, 1), st.floats(1, 100), st.floats(0.01, 0.5))
def test_gains_are_the_quickest_that_are_quiet_enough(
    noise: float, ahead: float, tolerable: float
) -> None:
    level_gain, slope_gain = quickest_gains(noise, ahead, tolerable)
    assert 0.0 < slope_gain <= 1.0 and 0.0 < level_gain <= 1.0
    said = noise * forecast_noise(level_gain, slope_gain, ahead)
    if (level_gain, slope_gain) != (1.0, 1.0):
        assert said == pytest.approx(tolerable, rel=1e-6)
    else:
        assert said <= tolerable
    # Critically damped: both poles of the tracker in one place.
    beta = level_gain * slope_gain
    assert (2 - level_gain - beta) ** 2 == pytest.approx(4 * (1 - level_gain), abs=1e-9)


@pytest.mark.parametrize("noise", (0.01, 0.05, 0.1))
def test_noise_is_found_on_queues_that_are_empty_half_of_the_time(noise: float) -> None:
    rng = np.random.default_rng(3)
    exact = sawtooth(8_000, 4, 0.8)
    readings = np.clip(exact + rng.normal(0, noise, exact.shape), 0, 1)
    readings[rng.random(exact.shape) < 0.05] = math.nan
    assert estimate_noise(readings) == pytest.approx(noise, rel=0.12)


def test_an_empty_queue_that_cuts_the_noise_does_not_hide_it() -> None:
    readings = np.clip(np.random.default_rng(4).normal(0, 0.05, 40_000), 0, 1)
    assert estimate_noise(readings) == pytest.approx(0.05, rel=0.05)


def test_without_noise_the_last_readings_count_alone() -> None:
    gains = estimate_gains(sawtooth(2_000, 2, 0.8), INTERVAL, HORIZON)
    assert gains is not None and gains.noise == pytest.approx(0.0, abs=1e-12)
    assert (gains.level_gain, gains.slope_gain) == (1.0, 1.0)


def test_more_noise_smooths_more_and_too_little_is_no_estimate() -> None:
    rng = np.random.default_rng(5)
    exact = sawtooth(4_000, 1, 0.8)[:, 0]
    found = []
    for noise in (0.02, 0.05, 0.1):
        gains = estimate_gains(
            np.clip(exact + rng.normal(0, noise, len(exact)), 0, 1), INTERVAL, HORIZON
        )
        assert gains is not None
        found.append((gains.level_gain, gains.slope_gain))
    assert sorted(found, reverse=True) == found
    assert estimate_gains(np.full(LEAST_TRIPLES + 1, 0.5), INTERVAL, HORIZON) is None
    assert estimate_gains(np.full(LEAST_TRIPLES + 2, 0.5), INTERVAL, HORIZON) is not None
    assert estimate_gains(np.zeros(1_000), INTERVAL, HORIZON) is None
