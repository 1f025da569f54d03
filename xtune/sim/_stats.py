"""Robust statistics that the fits share. Every interval is a 95 % one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Z95 = 1.959964
MAD_TO_SIGMA = 1.482602  # standard deviation of a normal over its median absolute deviation


def median_interval(values: Floats) -> tuple[float, float, float]:
    """Median with the order statistics that bracket it (binomial, normal approximation)."""
    ordered = np.sort(values)
    n = len(ordered)
    reach = 0.5 * Z95 * math.sqrt(n)
    low = max(0, math.floor(n / 2 - reach))
    high = min(n - 1, math.ceil(n / 2 + reach))
    return float(np.median(ordered)), float(ordered[low]), float(ordered[high])


def robust_sigma(values: Floats) -> float:
    """Standard deviation from the median absolute deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return float(np.median(np.abs(values - np.median(values))) * MAD_TO_SIGMA)


def poisson_interval(count: int) -> tuple[float, float]:
    """Interval of the mean of a Poisson count (Byar's approximation; none seen: rule of three)."""
    if count == 0:
        return 0.0, 3.0
    low = count * (1 - 1 / (9 * count) - Z95 / (3 * math.sqrt(count))) ** 3
    up = count + 1
    high = up * (1 - 1 / (9 * up) + Z95 / (3 * math.sqrt(up))) ** 3
    return max(0.0, low), high


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """Interval of a share, by Jeffreys' prior; with its ends where all or none hit.

    Brown, Cai and DasGupta, Statistical Science 16 (2001).
    """
    from scipy.stats import beta

    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits + 0.5, count - hits + 0.5))
    high = 1.0 if hits == count else float(beta.ppf(0.975, hits + 0.5, count - hits + 0.5))
    return low, high


def bootstrap(
    values: NDArray[Any], statistic: Callable[[NDArray[Any]], float], *, rounds: int = 1000
) -> tuple[float, float]:
    """Percentile interval of a statistic over the first axis, always with the same resamples.

    It is widened to hold the statistic itself, which a median of few values may leave.
    """
    if len(values) < 2:
        only = statistic(values)
        return only, only
    generator = np.random.default_rng(20240917)
    index = generator.integers(0, len(values), size=(rounds, len(values)))
    results = np.array([statistic(values[row]) for row in index])
    low, high = np.quantile(results, [0.025, 0.975])
    here = statistic(values)
    return min(float(low), here), max(float(high), here)
