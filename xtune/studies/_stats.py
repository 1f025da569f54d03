"""What seeds that are common to two policies say of the difference between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# With n seeds on the same side, chance alone puts them there in 2 of 2**n cases: 6 % at five.
FEWEST_SEEDS = 5
# Share of the time that a difference must exceed: with common seeds two points may differ by the
# charge of one regulation on every seed alike, far below what a calibration knows of a step.
RESOLUTION = 1e-3
ERROR_RATE = 0.05
POWER = 0.8
NORMAL_95 = 1.96
MOST_SEEDS_NEEDED = 100_000
SMALLEST_P = -100.0  # its exponent; below it, 0

Interval = tuple[float, float | None, float | None]  # mean, low, high
Error = tuple[float, float]  # bias and sd of the simulator itself


def interval(values: Sequence[float]) -> Interval:
    """Mean and interval; one seed tells nothing of the others, so its interval is unknown."""
    from xtune.sim import mean_interval

    mean, low, high = mean_interval(values)
    return (mean, low, high) if len(values) > 1 else (mean, None, None)


def gains(best: Sequence[float], other: Sequence[float], direction: str) -> list[float] | None:
    """By how much the best is better, seed by seed, as a share of the other; None where that is 0.

    Args:
        best: One value a seed.
        other: The same seeds.
        direction: ``minimize``: less is better.
    """
    if not all(other):
        return None
    sign = 1.0 if direction == "minimize" else -1.0
    return [sign * (o - b) / abs(o) for b, o in zip(best, other, strict=True)]


def figures(
    values: Sequence[float],
    error: Error | None = None,
    over_seeds: Callable[[Sequence[float]], Interval] = interval,
) -> dict[str, Any]:
    """Mean over seeds with its 95 % interval.

    Args:
        values: One a seed.
        error: The simulator's own, in the unit of the mean; None where it is not known.
        over_seeds: Mean and interval of what varies with the seed.

    Returns:
        ``mean``; ``low`` and ``high``, which hold both; ``over_seeds``, the interval without the
        simulator's own error; ``own_error``.
    """
    mean, low, high = over_seeds(values)
    seeds = {"low": low, "high": high}
    if low is not None and high is not None:
        low, high = widen(mean, low, high, error)
    own = None if error is None else {"bias": error[0], "sd": error[1]}
    return {"mean": mean, "low": low, "high": high, "over_seeds": seeds, "own_error": own}


def against(
    best: Sequence[float],
    other: Sequence[float],
    direction: str = "minimize",
    error: Error | None = None,
) -> dict[str, Any]:
    """Paired difference over common seeds, as a share of ``other``.

    Positive: the best is better by that share. To its :func:`figures` come ``p``, the chance of a
    mean at least that far beyond ``RESOLUTION`` were the true one within it, and ``told_apart``,
    whether that is below 5 %. ``None`` where there are too few seeds to say, or where a value of
    the other is 0.

    Args:
        best: One value a seed.
        other: The same seeds.
        direction: ``minimize``: less is better.
        error: The simulator's own in a relative difference of the two; None where not known.
    """
    shares = gains(best, other, direction)
    if shares is None:
        nothing = dict.fromkeys(("mean", "low", "high", "over_seeds", "own_error"))
        return {**nothing, "p": None, "told_apart": None}
    error = error_of_gain(shares, direction, error)
    chance = p_value(shares, error) if len(shares) >= FEWEST_SEEDS else None
    apart = None if chance is None else chance < ERROR_RATE
    return {**figures(shares, error), "p": chance, "told_apart": apart}


def error_of_gain(shares: Sequence[float], direction: str, error: Error | None) -> Error | None:
    """Error of a gain: it is a share of the other, and the best is a part or more of that."""
    if error is None:
        return None
    gain = math.fsum(shares) / len(shares)
    part = 1.0 - gain if direction == "minimize" else 1.0 + gain
    return abs(part) * error[0], abs(part) * error[1]


def p_value(shares: Sequence[float], error: Error | None = None) -> float:
    """Two-sided p of paired shares against a true mean within ``RESOLUTION`` of 0.

    Paired Student's t. With the simulator's own error: the level at which the interval that holds
    both, half widths in quadrature, would just reach ``RESOLUTION``.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm, t

    mean, deviation = _moments(shares)
    beyond, freedom = abs(mean) - RESOLUTION, len(shares) - 1
    seeds, own = deviation / math.sqrt(len(shares)), _own(error) / NORMAL_95
    if beyond <= 0:
        return 1.0
    if own == 0.0:
        return float(2 * t.sf(beyond / seeds, freedom)) if seeds else 0.0

    def short_of(exponent: float) -> float:
        tail = 10**exponent / 2
        return beyond - math.hypot(t.isf(tail, freedom) * seeds, norm.isf(tail) * own)

    if short_of(SMALLEST_P) >= 0:
        return 0.0
    return float(10 ** brentq(short_of, SMALLEST_P, 0.0))


def hold_together(rows: Sequence[Mapping[str, Any]]) -> None:
    """Correct ``told_apart`` of a family of comparisons with one winner (Holm 1979).

    Args:
        rows: The family; each one's ``gain_of_best`` is changed in place.
    """
    family = [row["gain_of_best"] for row in rows if "gain_of_best" in row]
    tested = sorted((g for g in family if g["p"] is not None), key=lambda gain: gain["p"])
    largest = 0.0
    for rank, gain in enumerate(tested):
        largest = max(largest, min(1.0, gain["p"] * (len(tested) - rank)))
        gain["p"] = largest
        gain["told_apart"] = largest < ERROR_RATE


def recommendation(
    best: Sequence[float],
    default: Sequence[float],
    direction: str,
    where: str,
    error: Error | None = None,
) -> dict[str, Any]:
    """Whether to use the tuned policy in place of the default one.

    Args:
        best: Objective of the tuned policy, one value a seed; not those it was picked by.
        default: Of the study's base on the same seeds.
        direction: ``minimize``: less is better.
        where: What they were run on, for the sentence.
        error: The simulator's own in a relative difference of the two; None where not known.
    """
    shares = gains(best, default, direction)
    if shares is None:
        return unsaid("the default's figure is 0 on a seed, so that there is no share of it")
    if len(shares) < 2:
        return unsaid("there are not enough seeds of both policies to compare them")
    error = error_of_gain(shares, direction, error)
    difference = figures(shares, error, t_interval)
    mean, low, high = (difference[k] for k in ("mean", "low", "high"))
    span = f"{mean:z.2%} [{low:z.2%}, {high:z.2%}]"
    over = f"over the default on {where}, {len(shares)} seeds"
    needed = None
    verdict = "no_difference"
    if len(shares) >= FEWEST_SEEDS and low > RESOLUTION:
        verdict, text = "better", f"Use the tuned policy: it gains {span} {over}."
    elif len(shares) >= FEWEST_SEEDS and high < -RESOLUTION:
        verdict, text = "worse", f"Keep the default: the tuned policy gains {span} {over}."
    elif len(shares) >= FEWEST_SEEDS and low >= -RESOLUTION and high <= RESOLUTION:
        text = f"Equal within {RESOLUTION:.1%}: the tuned policy gains {span} {over}."
    else:
        needed = seeds_needed(shares, error)
        settle = "No number of seeds within reason would settle it."
        if needed is not None:
            settle = f"About {needed} seeds (tune.seeds) have an 80 % chance to settle it."
        elif error is not None and seeds_needed(shares) is not None:
            settle = "More seeds would not settle it: the simulator's own error stays."
        text = f"No difference from the default at this noise: {span} {over}. {settle}"
    return {"verdict": verdict, "text": text, "seeds_needed": needed, "difference": difference}


def unsaid(why: str) -> dict[str, Any]:
    """No recommendation, and why."""
    return {
        "verdict": "no_difference",
        "text": f"Not said: {why}.",
        "seeds_needed": None,
        "difference": None,
    }


def widen(center: float, low: float, high: float, error: Error | None) -> tuple[float, float]:
    """An interval over seeds with the simulator's own error in it, in quadrature.

    Args:
        center: The mean.
        low: Lower end of the 95 % interval over seeds.
        high: Its upper end.
        error: Bias and sd, in the unit of the mean; None leaves the interval as it is.
    """
    if error is None:
        return low, high
    own = _own(error)
    return center - math.hypot(center - low, own), center + math.hypot(high - center, own)


def _own(error: Error | None) -> float:
    """Half of the 95 % interval of the simulator's own error."""
    return 0.0 if error is None else math.hypot(error[0], NORMAL_95 * error[1])


def t_interval(shares: Sequence[float]) -> tuple[float, float, float]:
    """Mean with Student's 95 % interval, honest at few seeds; at least two values."""
    from scipy.stats import t

    mean, deviation = _moments(shares)
    half = float(t.ppf(1 - ERROR_RATE / 2, len(shares) - 1)) * deviation / math.sqrt(len(shares))
    return mean, mean - half, mean + half


def seeds_needed(shares: Sequence[float], error: Error | None = None) -> int | None:
    """Seeds that settle it with a chance of 80 %, were mean and deviation what they seem.

    Settled: the interval lies beyond ``RESOLUTION``, or within it on both sides, whichever the
    mean is. Within it either end may miss, each with half of the chance.

    Returns:
        The number, more than there are and at least ``FEWEST_SEEDS``; ``None``: beyond
        ``MOST_SEEDS_NEEDED``.
    """
    from scipy.stats import t

    mean, deviation = _moments(shares)
    gap = abs(abs(mean) - RESOLUTION)
    miss = (1 - POWER) / (1 if abs(mean) > RESOLUTION else 2)
    low, high = max(FEWEST_SEEDS, len(shares) + 1), MOST_SEEDS_NEEDED

    def enough(n: int) -> bool:
        scale = deviation / math.sqrt(n)
        half = math.hypot(float(t.ppf(1 - ERROR_RATE / 2, n - 1)) * scale, _own(error))
        return half + float(t.ppf(1 - miss, n - 1)) * scale < gap

    if not enough(high):
        return None
    while low < high:  # what is needed falls with n
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((v - mean) ** 2 for v in values)
    return mean, math.sqrt(squares / (len(values) - 1))
