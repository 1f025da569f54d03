"""What seeds that are common to two policies say of the difference between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# With n seeds on the same side, chance alone puts them there in 2 of 2**n cases: 6 % at five.
FEWEST_SEEDS = 5
# Share of the time that a difference must exceed: with common seeds two points may differ by the
# charge of one regulation on every seed alike, far below what a calibration knows of a step.
RESOLUTION = 1e-3
ERROR_RATE = 0.05
MOST_SEEDS_NEEDED = 100_000


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
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


def against(
    best: Sequence[float], other: Sequence[float], direction: str = "minimize"
) -> dict[str, Any]:
    """Paired difference over common seeds, as a share of ``other``.

    Positive: the best is better by that share. The interval is a bootstrap over seeds, ``p`` the
    chance of a mean at least that far beyond ``RESOLUTION`` were the true one within it (paired
    Student's t); ``told_apart`` is whether that is below 5 %. ``None`` where there are too few
    seeds to say, or where a value of the other is 0.
    """
    shares = gains(best, other, direction)
    if shares is None:
        return {"mean": None, "low": None, "high": None, "p": None, "told_apart": None}
    mean, low, high = interval(shares)
    chance = p_value(shares) if len(shares) >= FEWEST_SEEDS else None
    apart = None if chance is None else chance < ERROR_RATE
    return {"mean": mean, "low": low, "high": high, "p": chance, "told_apart": apart}


def p_value(shares: Sequence[float]) -> float:
    """Two-sided p of paired shares against a true mean within ``RESOLUTION`` of 0."""
    from scipy.stats import t

    mean, deviation = _moments(shares)
    beyond = abs(mean) - RESOLUTION
    if beyond <= 0:
        return 1.0
    if deviation == 0.0:
        return 0.0
    return float(min(1.0, 2 * t.sf(beyond * math.sqrt(len(shares)) / deviation, len(shares) - 1)))


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
    best: Sequence[float] | None, default: Sequence[float] | None, direction: str, where: str
) -> dict[str, Any]:
    """Whether to use the tuned policy in place of the default one.

    Args:
        best: Objective of the tuned policy, one value a seed; not those it was picked by.
        default: Of the study's base on the same seeds.
        direction: ``minimize``: less is better.
        where: What they were run on, for the sentence.
    """
    shares = None
    if best is not None and default is not None:
        shares = gains(best, default, direction)
    if shares is None or len(shares) < 2:
        text = "Not said: there are not enough seeds of both policies to compare them."
        return {"verdict": "no_difference", "text": text, "seeds_needed": None}
    mean, low, high = t_interval(shares)
    span = f"{mean:.2%} [{low:.2%}, {high:.2%}]"
    over = f"over the default on {where}, {len(shares)} seeds"
    if len(shares) >= FEWEST_SEEDS and low > RESOLUTION:
        text = f"Use the tuned policy: it gains {span} {over}."
        return {"verdict": "better", "text": text, "seeds_needed": None}
    if len(shares) >= FEWEST_SEEDS and high < -RESOLUTION:
        text = f"Keep the default: the tuned policy gains {span} {over}."
        return {"verdict": "worse", "text": text, "seeds_needed": None}
    needed = seeds_needed(shares)
    settle = (
        "No number of seeds within reason would settle it."
        if needed is None
        else f"About {needed} seeds (tune.seeds) would settle it."
    )
    if all(share == 0.0 for share in shares):
        settle = "They act alike on every seed."
    text = f"No difference from the default at this noise: {span} {over}. {settle}"
    return {"verdict": "no_difference", "text": text, "seeds_needed": needed}


def t_interval(shares: Sequence[float]) -> tuple[float, float, float]:
    """Mean with Student's 95 % interval, honest at few seeds; at least two values."""
    from scipy.stats import t

    mean, deviation = _moments(shares)
    half = float(t.ppf(1 - ERROR_RATE / 2, len(shares) - 1)) * deviation / math.sqrt(len(shares))
    return mean, mean - half, mean + half


def seeds_needed(shares: Sequence[float]) -> int | None:
    """Seeds at which the interval would lie on one side of ``RESOLUTION``, were all else the same.

    Returns:
        The number, at least ``FEWEST_SEEDS``; ``None``: beyond ``MOST_SEEDS_NEEDED``.
    """
    from scipy.stats import t

    mean, deviation = _moments(shares)
    gap = abs(abs(mean) - RESOLUTION)
    low, high = FEWEST_SEEDS, MOST_SEEDS_NEEDED

    def enough(n: int) -> bool:
        return float(t.ppf(1 - ERROR_RATE / 2, n - 1)) * deviation / math.sqrt(n) < gap

    if not enough(high):
        return None
    while low < high:  # the half width falls with n
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((v - mean) ** 2 for v in values)
    return mean, math.sqrt(squares / (len(values) - 1))
