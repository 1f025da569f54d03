"""Gains of Holt's method by the noise of the readings: smoothing pays only against noise.

Without noise the best gains are 1: level and slope are the last readings' own, and all smaller
ones are late. With noise, a slope that is carried a horizon of many readings ahead multiplies it.
So the gains are the quickest whose forecast has no more noise than is tolerable.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LEAST_TRIPLES = 32  # of readings inside the range, before an estimate is given
TOLERABLE = 0.1  # of the default policy: a third of what lies between cold and warned
_NORMAL = 1.4826  # standard deviation over median absolute deviation, of a normal variable
_CUT = 0.578  # the same estimate of noise 1 around an empty queue, whose lower half is cut
_AWAY = 5.0  # first estimates from an end of the range, where it does not cut the noise
_MOST_MARGIN = 0.2  # what is left between is to be wider than the noise


class Gains(NamedTuple):
    """What readings call for.

    Attributes:
        noise: Standard deviation of one reading, as occupancy.
        level_gain: For `Routing.level_gain`.
        slope_gain: For `Routing.slope_gain`.
    """

    noise: float
    level_gain: float
    slope_gain: float


def estimate_gains(
    readings: npt.NDArray[np.float64],
    interval_ns: int,
    horizon_ns: int,
    tolerable: float = TOLERABLE,
) -> Gains | None:
    """Noise of readings at equal intervals, and the gains that suit it.

    Args:
        readings: Occupancy 0..1, NaN where missing, shape (readings,) or (readings, links).
        interval_ns: Between two readings.
        horizon_ns: How far ahead the forecast looks.
        tolerable: Standard deviation of a forecast, as occupancy, that noise alone may cause.

    Returns:
        The gains; None with too few readings inside the range.
    """
    noise = estimate_noise(readings)
    if noise is None:
        return None
    return Gains(noise, *quickest_gains(noise, horizon_ns / interval_ns, tolerable))


def estimate_noise(readings: npt.NDArray[np.float64]) -> float | None:
    """Standard deviation of the noise of one reading.

    On a straight line the second difference of readings is noise alone, with six times the
    variance of one, and the median of many does not see the few where a slope changes. Two
    estimates, of which both may be too high and the lower one counts: of all readings between 0
    and 1, corrected as if an empty queue had cut the noise of all; and of those that lie further
    from the ends than the noise, of which more are of a queue in motion. Where a queue turns from
    one reading to the next, that counts as noise.

    Args:
        readings: Occupancy 0..1, NaN where missing, shape (readings,) or (readings, links).

    Returns:
        The noise; None with too few readings inside the range.
    """
    triples = np.stack([readings[:-2], readings[1:-1], readings[2:]]).reshape(3, -1)
    every = _spread(triples, 0.0)
    if every is None:
        return None
    away = _spread(triples, min(_AWAY * every, _MOST_MARGIN))
    return every / _CUT if away is None else min(every / _CUT, away)


def _spread(triples: npt.NDArray[np.float64], margin: float) -> float | None:
    """Noise by the readings that are further than a margin from both ends."""
    inside = ((triples > margin) & (triples < 1.0 - margin)).all(axis=0)
    if inside.sum() < LEAST_TRIPLES:
        return None
    first, middle, last = triples[:, inside]
    second = np.abs(first - 2.0 * middle + last)
    return _NORMAL * float(np.median(second)) / math.sqrt(6.0)


def quickest_gains(noise: float, ahead: float, tolerable: float) -> tuple[float, float]:
    """The largest gains of Holt's method, critically damped, whose forecast is quiet enough.

    Args:
        noise: Standard deviation of a reading.
        ahead: Horizon, in readings.
        tolerable: Standard deviation that the forecast may have.

    Returns:
        Level gain and slope gain, 0..1.
    """
    low, high = 0.0, 1.0  # the damping: 0 forgets all, 1 nothing
    if noise * forecast_noise(*_damped(0.0), ahead) <= tolerable:
        return _damped(0.0)
    for _ in range(50):
        middle = (low + high) / 2.0
        if noise * forecast_noise(*_damped(middle), ahead) <= tolerable:
            high = middle
        else:
            low = middle
    return _damped(high)


def forecast_noise(level_gain: float, slope_gain: float, ahead: float) -> float:
    """Standard deviation of Holt's forecast in those of a reading, on a straight line.

    Variances of the alpha-beta tracker in its steady state (Benedict and Bordner 1962), whose
    beta is the product of both gains here.

    Args:
        level_gain: Alpha, above 0.
        slope_gain: Weight of the newest slope.
        ahead: Horizon, in readings.
    """
    alpha, beta = level_gain, level_gain * slope_gain
    scale = alpha * (4.0 - 2.0 * alpha - beta)
    level = (2.0 * alpha * alpha + 2.0 * beta - 3.0 * alpha * beta) / scale
    both = beta * (2.0 * alpha - beta) / scale
    slope = 2.0 * beta * beta / scale
    return math.sqrt(level + 2.0 * ahead * both + ahead * ahead * slope)


def _damped(root: float) -> tuple[float, float]:
    """Gains of the tracker whose both poles are at ``root``: least squares that fade by it."""
    if root >= 1.0:
        return 0.0, 0.0
    return 1.0 - root * root, (1.0 - root) / (1.0 + root)
