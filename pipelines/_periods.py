"""Periods in noise: of events with a beginning and an end, and of an evenly sampled load.

Events: the intervals between beginnings are multiples of the period where some are missing, so
the phase of an interval, 2 pi interval / period, is near 0. The mean of its cosine (the V test:
Mardia and Jupp, Directional Statistics, 2000) is 1 for a clock, and near 0 for events at random,
whose intervals are exponential: 1 / (1 + 4 pi^2) = 0.025 at a period of their mean.

Loads: the autocorrelation over what is known. A period is a peak that comes again at twice its
lag. Its height is held against what noise with the same short memory gives (Bartlett, 1946). A
load sampled less than four times a period is not told: where a period shorter than an interval
would look the same, because the load hardly falls between its bursts, nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Fewer say nothing about a period.
_LEAST_EVENTS = 12
# So many tell a period to a thousandth; more only take time.
_MOST_INTERVALS = 4000
_LEAST_PERIODS = 6
# A burst's parts are nearer to each other than to the next burst by this factor.
_APART = 2.5
_RANDOM = 0.03
_CLOCK = 0.5
_LEAST_HEIGHT = 0.2
_SIGNIFICANT = 1e-3
# An average over an interval hides shorter periods, or shows them as longer ones.
SAMPLES_A_PERIOD = 4.0
# A shorter period of at least 0.1 duty, seen as one of L intervals, leaves less contrast than 5/L:
# each sample has all of a burst but for 1/L of an interval, so 1 / (2 L duty) of the load.
_SHORTEST_DUTY = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """A period that was found.

    Attributes:
        period_s: Time between bursts.
        low_s: 95 % interval, lower bound.
        high_s: Upper bound.
        duty: Share of the period in which it bursts.
        strength: 0 for noise, 1 for a clock.
        false_alarm: How often noise looks as periodic.
        samples: Bursts, or samples of the load.
    """

    period_s: float
    low_s: float
    high_s: float
    duty: float
    strength: float
    false_alarm: float
    samples: int


def bursts(starts: Floats, ends: Floats) -> list[tuple[Floats, Floats]]:
    """Ways to join events into bursts: widest gaps first, each event by itself last.

    Args:
        starts: Seconds, rising.
        ends: Seconds.
    """
    reach = np.maximum.accumulate(ends)
    free = starts[1:] > reach[:-1]
    first = np.concatenate([[True], free])
    last = np.concatenate([free, [True]])
    single = starts[first], reach[last]
    gaps = single[0][1:] - single[1][:-1]
    ways = []
    ordered = np.sort(gaps)
    floor = float(np.median(ordered)) * 1e-3 if ordered.size else 0.0
    ratios = ordered[1:] / np.maximum(ordered[:-1], max(floor, 1e-9))
    for jump in np.flatnonzero(ratios >= _APART)[::-1]:
        if ordered.size - 1 - jump < _LEAST_EVENTS:
            continue
        new = np.concatenate([[True], gaps > ordered[jump]])
        old = np.concatenate([new[1:], [True]])
        ways.append((single[0][new], single[1][old]))
    return [*ways, single]


def event_period(starts: Floats, ends: Floats) -> tuple[Period, Floats, Floats] | None:
    """The period of events, and the bursts that have it; None where none is certain.

    Args:
        starts: Seconds, rising.
        ends: Seconds.
    """
    if starts.size < _LEAST_EVENTS:
        return None
    for begin, end in bursts(starts, ends):
        found = _regular(begin, end)
        if found is not None:
            return found, begin, end
    return None


def _regular(begin: Floats, end: Floats) -> Period | None:
    intervals = np.diff(begin)
    if intervals.size < _LEAST_EVENTS - 1:
        return None
    usual = float(np.median(intervals))
    intervals = intervals[intervals <= 10 * usual]  # the job stood still
    if usual <= 0 or intervals.size < _LEAST_EVENTS - 1:
        return None
    every = intervals[:: -(-intervals.size // _MOST_INTERVALS)]
    low, high = 1 / (1.33 * usual), 1 / (0.75 * usual)
    for _ in range(4):
        frequencies = np.linspace(low, high, 201)
        lengths = np.cos(2 * np.pi * np.outer(frequencies, every)).mean(axis=1)
        best = int(np.argmax(lengths))
        width = (high - low) / 20
        low, high = frequencies[best] - width, frequencies[best] + width
    strength, period = float(lengths[best]), float(1 / frequencies[best])
    excess = max(0.0, strength - _RANDOM)
    alarm = min(1.0, 5 * float(np.exp(-every.size * excess**2)))
    if strength < _CLOCK or alarm >= _SIGNIFICANT:
        return None
    phases = intervals / period - np.round(intervals / period)
    turns = np.maximum(np.round(intervals / period), 1)
    error = 1.96 * period * float(np.std(phases)) / float(np.sqrt(np.sum(turns)))
    return Period(
        period_s=period,
        low_s=period - error,
        high_s=period + error,
        duty=min(1.0, float(np.median(end - begin)) / period),
        strength=strength,
        false_alarm=alarm,
        samples=int(begin.size),
    )


def load_periods(times: Floats, values: Floats, interval_s: float, most: int = 3) -> list[Period]:
    """Periods of a load, the strongest first, each found in what the others leave.

    Args:
        times: Middle of each sample's interval, seconds, rising.
        values: Mean load in it; finite.
        interval_s: Usual length of an interval.
        most: At most so many.
    """
    place = np.rint((times - times[0]) / interval_s).astype(np.int64)
    count = int(place[-1]) + 1
    # Nothing is told of a series that is mostly not there.
    if times.size < 8 * SAMPLES_A_PERIOD or count > 20 * times.size:
        return []
    sums = np.bincount(place, values, count)
    seen = np.bincount(place, minlength=count)
    known = seen > 0
    series = np.where(known, sums / np.maximum(seen, 1), 0.0)
    found: list[Period] = []
    while len(found) < most:
        here = _strongest(series, known, interval_s)
        if here is None:
            break
        period, profile = here
        if any(_related(period.period_s, other.period_s) for other in found):
            break
        found.append(period)
        # Too coarse to tell what is left of it from another.
        if period.period_s < 2 * SAMPLES_A_PERIOD * interval_s:
            break
        series = np.where(known, series - profile, 0.0)
    return found


def _related(one: float, other: float) -> bool:
    """Whether one period is about the other, a multiple or a part of it: its own remainder."""
    ratio = max(one, other) / min(one, other)
    return round(ratio) <= 4 and abs(ratio / round(ratio) - 1) < 0.15


def autocorrelation(series: Floats, known: npt.NDArray[np.bool_], lags: int) -> Floats:
    """Autocorrelation over the pairs of which both are known, at lags 0 to ``lags - 1``.

    It ends where fewer than a quarter of what is known has a pair: after a silence, what few
    samples have in common by chance looks like a period.
    """
    mask = known.astype(np.float64)
    centred = np.where(known, series - series[known].mean(), 0.0)
    size = 1 << int(np.ceil(np.log2(2 * series.size)))
    value, there = np.fft.rfft(centred, size), np.fft.rfft(mask, size)
    sums = np.fft.irfft(value * np.conj(value), size)[:lags]
    pairs = np.rint(np.fft.irfft(there * np.conj(there), size)[:lags])
    few = np.flatnonzero(pairs < max(8.0, 0.25 * pairs[0]))
    end = int(few[0]) if few.size else lags
    means = sums[:end] / pairs[:end]
    return means / means[0] if end and means[0] > 0 else np.zeros(0)


def _strongest(
    series: Floats, known: npt.NDArray[np.bool_], interval_s: float
) -> tuple[Period, Floats] | None:
    lags = series.size // _LEAST_PERIODS * 2
    count = int(known.sum())
    if lags < 3 * SAMPLES_A_PERIOD or not np.ptp(series[known]) > 0:
        return None
    curve = autocorrelation(series, known, lags)
    lags = curve.size
    if lags < 3 * SAMPLES_A_PERIOD:
        return None
    valley = np.minimum.accumulate(curve)
    half = lags // 2
    inner = np.arange(2, half)
    at = inner[(curve[inner] >= curve[inner - 1]) & (curve[inner] > curve[inner + 1])]
    at = at[curve[at] - valley[at] >= _LEAST_HEIGHT]
    if at.size == 0:
        return None
    heights = np.minimum(curve[at] - valley[at], [2 * _again(curve, lag) for lag in at])
    strong = heights >= 0.4 * heights.max()
    lag, height = int(at[strong][0]), float(heights[strong][0])
    memory = 1 + 2 * float(np.sum(np.square(curve[1 : _memory(curve)])))
    noise = float(np.sqrt(memory / count))
    # A difference of two values, the highest of `half` tries.
    alarm = min(1.0, half * float(np.exp(-((max(height, 0.0) / noise) ** 2) / 4)))
    if alarm >= _SIGNIFICANT or height < _LEAST_HEIGHT:
        return None
    exact, error = _refined(curve, lag, valley, noise)
    if exact < SAMPLES_A_PERIOD or _contrast(series[known]) < min(0.6, _SHORTEST_DUTY / exact):
        return None
    profile, duty = _folded(series, known, exact)
    return (
        Period(
            period_s=exact * interval_s,
            low_s=(exact - error) * interval_s,
            high_s=(exact + error) * interval_s,
            duty=duty,
            strength=min(1.0, height),
            false_alarm=alarm,
            samples=count,
        ),
        profile,
    )


def _again(curve: Floats, lag: int) -> float:
    """How far the curve rises above its valley about twice a lag."""
    low, high = int(1.8 * lag), int(2.2 * lag) + 2
    return float(curve[low:high].max() - curve[lag : 2 * lag].min()) if high <= curve.size else 0.0


def _memory(curve: Floats) -> int:
    """First lag at which nothing is left of the first lobe."""
    below = np.flatnonzero(curve <= 0)
    return int(below[0]) if below.size else curve.size


def _refined(curve: Floats, lag: int, valley: Floats, noise: float) -> tuple[float, float]:
    """A lag between samples, from the peaks at its multiples while they stay high."""
    reach = max(1, lag // 4)
    exact, error = _top(curve, lag, reach), 0.5
    least = valley[lag] + 0.5 * (curve[lag] - valley[lag])
    for turn in range(2, curve.size // lag):
        around = round(exact * turn)
        if around + reach + 1 >= curve.size:
            break
        place = around - reach + int(np.argmax(curve[around - reach : around + reach + 1]))
        if curve[place] < least:
            break
        exact, error = _top(curve, place, reach) / turn, 0.5 / turn
    return exact, error + noise * exact / 10


def _top(curve: Floats, place: int, reach: int) -> float:
    """Middle of the top of a peak."""
    low, high = max(1, place - reach), min(curve.size - 1, place + reach)
    floor = curve[place] - 0.2 * (curve[place] - curve[low : high + 1].min())
    weights = np.maximum(curve[low : high + 1] - floor, 0.0)
    total = float(weights.sum())
    return float(weights @ np.arange(low, high + 1)) / total if total > 0 else float(place)


def _contrast(values: Floats) -> float:
    """How far the load falls between its bursts: 1 to nothing, 0 not at all."""
    low, high = np.quantile(values, [0.05, 0.95])
    return float((high - low) / (abs(high) + abs(low))) if high > low else 0.0


def _folded(series: Floats, known: npt.NDArray[np.bool_], period: float) -> tuple[Floats, float]:
    """What comes again with a period, for each sample, and the share of it that is a burst.

    The phase drifts where a job's steps vary, so few turns are laid over each other at a time.
    """
    places = np.arange(series.size)
    phase = places / period
    bins = max(4, min(32, int(period)))
    turns = 8 * bins
    cell = (phase // 8).astype(np.int64) * turns // 8 + ((phase % 1) * bins).astype(np.int64)
    sums: Any = np.bincount(cell[known], series[known], minlength=cell.max() + 1)
    seen = np.bincount(cell[known], minlength=cell.max() + 1)
    mean = float(series[known].mean())
    means = np.where(seen > 0, sums / np.maximum(seen, 1), mean)
    low, high = np.quantile(means[seen > 0], [0.05, 0.95])
    share = (np.clip(series[known], low, high) - low) / (high - low) if high > low else 0.0
    return means[cell] - mean, float(np.mean(share))
