"""A learned rule for the compression rung: a small network beside the rule by congestion level.

The network moves the rung that the hand-written rule wants up or down; with weights of zero it is
that rule. Its inputs are figures that all ranks agree on. It computes with sums, products and
quotients alone, in a fixed order: those are exact to the last bit on every machine (IEEE 754),
where ``tanh`` or ``exp`` of two C libraries may differ and part the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

INPUTS = ("one", "level", "shortage", "slowdown", "gradient change", "rung", "age")
HIDDEN = 3
#: Into each hidden unit from every input, unit by unit; then one from each unit to the output.
WEIGHTS = HIDDEN * (len(INPUTS) + 1)
AGE_ITERATIONS = 1000.0  # at which the input "age" is one half


def learned_rung(
    weights: Sequence[float],
    by_level: int,
    top: int,
    *,
    level: int,
    slowdown: float | None,
    available_share: float | None,
    gradient_change: float | None,
    rung: int,
    step: int,
) -> int | None:
    """The rung that the learned rule wants, before any cap.

    Args:
        weights: ``WEIGHTS`` numbers.
        by_level: Rung that the hand-written rule wants.
        top: Highest rung of the ladder, at least 1.
        level: Congestion level, 0..3.
        slowdown: Measured over clear communication time.
        available_share: Free share of the link rate; where no router tells, 1 / slowdown.
        gradient_change: Relative change of the gradient.
        rung: Rung in force.
        step: First iteration that the answer can be in force.

    Returns:
        A rung, 0..top; None where a figure is unknown or not a number, no rung is above another,
        ``step`` is before the first iteration or a weight is not finite: then the hand-written
        rule holds.
    """
    if slowdown is None or gradient_change is None:
        return None
    if not (math.isfinite(slowdown) and slowdown > 0.0 and 0.0 <= gradient_change < math.inf):
        return None
    if top < 1 or step < 0:
        return None
    share = 1.0 / slowdown if available_share is None else available_share
    if not math.isfinite(share):
        return None
    inputs = (
        1.0,
        level / 3.0,
        1.0 - min(1.0, max(0.0, share)),
        1.0 - 1.0 / max(1.0, slowdown),
        gradient_change / (1.0 + gradient_change),
        rung / top,
        step / (step + AGE_ITERATIONS),
    )
    moved = 0.0
    for unit in range(HIDDEN):
        first = unit * len(INPUTS)
        reached = _dot(weights[first : first + len(INPUTS)], inputs)
        moved += weights[HIDDEN * len(INPUTS) + unit] * _squash(reached)
    position = by_level + top * _squash(moved) + 0.5
    if not math.isfinite(position):  # weights that are no numbers, or beyond their range
        return None
    return max(0, min(top, math.floor(position)))


def _dot(weights: Sequence[float], inputs: Sequence[float]) -> float:
    """In the order given: ``sum`` rounds otherwise from Python 3.12 on."""
    total = 0.0
    for weight, value in zip(weights, inputs, strict=True):
        total += weight * value
    return total


def _squash(value: float) -> float:
    """Into (-1, 1): the softsign."""
    return value / (1.0 + abs(value))
