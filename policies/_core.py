"""The decision arithmetic: one formula, one place.

Plain functions of scalars (and of 1-D windows), without Python objects, so that the scalar
objects of the engine call them and ``numba.njit`` compiles the very same function objects for a
simulator's kernel. Neither fused nor reordered arithmetic: both give the same bits. None calls
another, since numba cannot compile a call to a plain function.

Conventions: an unknown value is NaN, never 0; a blacklisted path is worth ``inf``; slopes are per
nanosecond; times are integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

NAN = float("nan")
MOVE_BURST = 2.0  # moves that a flow may have saved up; more would let a quiet flow flap later
HASH_MASK = 0x7FFFFFFF
USUAL_FACTOR = 2.5  # an interval within it is usual: jitter is, and one missing reading
CLOSER = 0.25  # of a shorter one, by which the usual shrinks: no burst passes for it
LONGER = 3.0  # times the usual is what a longer one makes of it


def holt_update(
    level: float,
    slope: float,
    usual_ns: float,
    reading: float,
    dt_ns: int,
    level_gain: float,
    slope_gain: float,
) -> tuple[float, float, float]:
    """Holt's linear exponential smoothing for readings at irregular intervals.

    The first reading gives the level (slope unknown, NaN), the second the slope, as usual for
    Holt's method; a missing (NaN) or late (``dt_ns < 0``) reading changes nothing. A reading much
    sooner than usual, or of the same instant, smooths the level alone: noise over next to no time
    is any slope. One much later begins anew with its own slope: the old one does not hold so long.

    Args:
        level: Smoothed level at the last reading, NaN before the first.
        slope: Smoothed slope per ns, NaN before the second.
        usual_ns: Usual time between two readings, NaN if unknown.
        reading: The new reading, NaN where it is missing.
        dt_ns: Time since the last reading that was not missing.
        level_gain: Weight of the reading against the prediction, 0..1.
        slope_gain: Weight of the newest slope, 0..1.

    Returns:
        Level at the new reading, slope per ns, and the usual time.
    """
    if reading != reading or dt_ns < 0:
        return level, slope, usual_ns
    if level != level:
        return reading, NAN, usual_ns
    rise = slope if slope == slope else 0.0
    predicted = level + rise * dt_ns
    updated = predicted + level_gain * (reading - predicted)
    if dt_ns == 0 or dt_ns * USUAL_FACTOR < usual_ns:
        return updated, slope, usual_ns - CLOSER * dt_ns
    if slope != slope:
        return reading, (reading - level) / dt_ns, float(dt_ns)
    if dt_ns > usual_ns * USUAL_FACTOR:
        return reading, (reading - level) / dt_ns, usual_ns * LONGER
    return updated, slope + slope_gain * ((updated - level) / dt_ns - slope), float(dt_ns)


def ewma_update(level: float, reading: float, gain: float) -> float:
    """Exponentially weighted mean; a missing (NaN) reading changes nothing.

    Args:
        level: The mean so far, NaN before the first reading.
        reading: The new reading.
        gain: Weight of the reading, 0..1.

    Returns:
        The new mean.
    """
    if reading != reading:
        return level
    if level != level:
        return reading
    return level + gain * (reading - level)


def window_slope(values: Sequence[float], times_ns: Sequence[int], count: int) -> float:
    """Slope per ns of the least-squares line through the first ``count`` readings of a window.

    The order of the readings does not matter, so a ring buffer is passed as it lies.

    Args:
        values: Readings, none of them missing.
        times_ns: Their times.
        count: How many of them are filled.

    Returns:
        The slope; NaN with fewer than two instants.
    """
    if count < 2:
        return NAN
    origin = times_ns[0]
    mean_t = 0.0
    mean_v = 0.0
    for i in range(count):
        mean_t += times_ns[i] - origin
        mean_v += values[i]
    mean_t /= count
    mean_v /= count
    square = 0.0
    product = 0.0
    for i in range(count):
        offset = (times_ns[i] - origin) - mean_t
        square += offset * offset
        product += offset * (values[i] - mean_v)
    if square == 0.0:
        return NAN
    return product / square


def forecast_peak(level: float, slope: float, horizon_ns: int) -> float:
    """The highest value on a straight line from the last reading to the horizon.

    A smoothed level may fall below 0, a queue does not: no forecast is less than 0.

    Args:
        level: Value at the last reading, NaN if unknown.
        slope: Per ns; unknown (NaN) counts as flat.
        horizon_ns: How far ahead.

    Returns:
        The peak, NaN if the level is unknown.
    """
    peak = level + slope * horizon_ns if slope > 0.0 else level
    return 0.0 if peak < 0.0 else peak


def with_marks(peak: float, marks: float, low: float, high: float, top: float) -> float:
    """A forecast, and what congestion marks say of the same queue.

    The inverse of the marking curve of RED (Floyd and Jacobson 1993): a switch marks no packet
    below ``low``, a share that rises in a straight line to ``top`` at ``high``, and all above. So
    marks say how full the queue at least was; they raise a forecast and never lower it. Where
    nothing else is known they stand for it: without a mark, the queue was at most ``low``.

    Args:
        peak: Forecast occupancy, NaN if unknown.
        marks: Share of packets with a mark 0..1, NaN if unknown.
        low: Occupancy at which marking begins.
        high: Occupancy at which the share reaches ``top``.
        top: That share, above 0.

    Returns:
        The forecast, NaN if neither is known.
    """
    if marks != marks:
        return peak
    share = marks / top
    if share > 1.0:
        share = 1.0
    marked = low + (high - low) * share
    if peak != peak or (marks > 0.0 and marked > peak):
        return marked
    return peak


def marked_share(queue: float, low: float, high: float, top: float) -> float:
    """Share of packets that a switch marks: the curve of RED whose inverse is `with_marks`.

    Args:
        queue: How full the queue is.
        low: Up to it none is marked.
        high: Where the share reaches ``top``; from there on all are marked.
        top: That share.

    Returns:
        The share, 0..1.
    """
    if queue >= high:
        return 1.0
    if queue <= low:
        return 0.0
    return top * (queue - low) / (high - low)


def crosses(level: float, slope: float, horizon_ns: int, threshold: float) -> bool:
    """Is the threshold reached now or within the horizon? An unknown level never is.

    Args:
        level: Value at the last reading, NaN if unknown.
        slope: Per ns; unknown (NaN) counts as flat.
        horizon_ns: How far ahead.
        threshold: The value that counts as reached.

    Returns:
        True if the line reaches the threshold.
    """
    peak = level + slope * horizon_ns if slope > 0.0 else level
    return peak >= threshold


def choose_binary(
    primary_forecast: float,
    alternative_forecast: float,
    on_alternative: bool,
    enter: float,
    exit: float,
    cold: float,
    since_move_ns: int,
    hold_ns: int,
    budget: float,
) -> bool:
    """The binary choice between a primary path and its alternative.

    A flow leaves its primary only on a warning and only for a cold alternative; it returns when
    the primary is below ``exit``, or when the alternative is warned and worse than the primary,
    or when nothing is known of the alternative and the primary is not warned. In between, and
    during the hold after a move, and without budget, it stays where it is.

    Args:
        primary_forecast: Peak forecast of the primary, NaN if unknown.
        alternative_forecast: Peak forecast of the alternative, NaN if unknown.
        on_alternative: Where the flow is now.
        enter: A forecast at or above it is a warning.
        exit: Back on the primary below it.
        cold: An alternative must be below it.
        since_move_ns: Time since the last move.
        hold_ns: Least time between two moves.
        budget: Moves the flow may still make; one is needed.

    Returns:
        True to use the alternative.
    """
    if since_move_ns < hold_ns or budget < 1.0:
        return on_alternative
    if not on_alternative:
        return primary_forecast >= enter and alternative_forecast < cold
    if primary_forecast < exit:
        return False
    if alternative_forecast != alternative_forecast:
        return primary_forecast >= enter
    return not (alternative_forecast >= enter and primary_forecast < alternative_forecast)


def budget_refill(budget: float, dt_ns: int, moves_per_ms: float, burst: float) -> float:
    """A flow's move budget after some time (a token bucket; a move costs 1).

    Args:
        budget: Moves left at the last refill.
        dt_ns: Time since then.
        moves_per_ms: Refill rate.
        burst: The most that can be saved up.

    Returns:
        Moves left now.
    """
    filled = budget + dt_ns * (moves_per_ms * 1e-6)
    return burst if filled > burst else filled


def strike_update(
    strikes: int,
    answers: int,
    blacklisted: bool,
    lost: bool,
    strike_limit: int,
    readmit_answers: int,
) -> tuple[int, int, bool]:
    """Blacklist state after one probe: lost several times in a row out, answered several back in.

    Args:
        strikes: Probes lost in a row.
        answers: Probes answered in a row since the blacklisting.
        blacklisted: State before the probe.
        lost: Whether this probe timed out.
        strike_limit: Losses in a row that blacklist.
        readmit_answers: Answers in a row that re-admit.

    Returns:
        Strikes, answers and state after the probe.
    """
    if lost:
        strikes += 1
        return strikes, 0, blacklisted or strikes >= strike_limit
    if not blacklisted:
        return 0, 0, False
    answers += 1
    if answers >= readmit_answers:
        return 0, 0, False
    return 0, answers, True


def level_update(
    level: int,
    value: float,
    enter: tuple[float, float, float],
    exit: tuple[float, float, float],
) -> int:
    """Congestion level 0..3 with hysteresis; an unknown value (NaN) leaves it as it is.

    Args:
        level: Level so far.
        value: What is compared, for example a slowdown.
        enter: Level i + 1 is reached at or above ``enter[i]``.
        exit: Level i + 1 is left below ``exit[i]``; each under its ``enter``.

    Returns:
        The new level.
    """
    while level < 3 and value >= enter[level]:
        level += 1
    while level > 0 and value < exit[level - 1]:
        level -= 1
    return level


def hash31(a: int, b: int) -> int:
    """A well-mixed hash of two non-negative integers, the same in Python and in int64.

    Every product stays under 2**62, so fixed-width integers do not overflow. Multipliers: two of
    the 32-bit mixers found by C. Wellons' hash prospector, and Knuth's multiplicative constant.

    Args:
        a: First integer.
        b: Second integer.

    Returns:
        An integer in 0..2**31 - 1.
    """
    x = (a ^ ((b & HASH_MASK) * 1640531527)) & HASH_MASK
    x ^= x >> 15
    x = (x * 0x2C1B3C6D) & HASH_MASK
    x ^= x >> 12
    x = (x * 0x297A2D39) & HASH_MASK
    return x ^ (x >> 15)
