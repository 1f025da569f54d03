"""Points around one, one field changed at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xtune.studies._base import Point
from xtune.studies._space import apply

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from xtune.policies.spec import Policy

REACH = 0.15  # of a field's range, to either side
MOST_CHOICES = 4


def neighbours(
    base: Policy, point: Mapping[str, Any], ranges: Mapping[str, BaseDistribution]
) -> dict[str, list[tuple[Any, Point, Policy]]]:
    """For each field, the values beside the point's own that the policy takes.

    Returns:
        Field -> (value, the whole point, its policy).
    """
    from xtune.policies import PolicyError

    found: dict[str, list[tuple[Any, Point, Policy]]] = {}
    for field, allowed in ranges.items():
        found[field] = []
        for value in beside(point[field], allowed):
            other = {**point, field: value}
            try:
                found[field].append((value, other, apply(base, other)))
            except PolicyError:  # what it may be there depends on the other fields
                continue
    return found


def beside(value: Any, allowed: BaseDistribution) -> list[Any]:
    """Values at ``REACH`` of the range below and above one, or next to it; of choices, others."""
    choices = getattr(allowed, "choices", None)
    if choices is not None:
        return [c for c in choices if c != value][:MOST_CHOICES]
    low, high, log = (getattr(allowed, name) for name in ("low", "high", "log"))
    step = getattr(allowed, "step", None)
    ends = [math.log(v) if log else v for v in (low, high, value)]
    reach = REACH * (ends[1] - ends[0])
    found = []
    for sign in (-1, 1):
        place = min(max(ends[2] + sign * reach, ends[0]), ends[1])
        other = math.exp(place) if log else place
        if step is not None:
            other = low + round((other - low) / step) * step
        if isinstance(value, int):
            other = round(other)
            if other == value:  # of few whole values, the next one
                other += sign * (step or 1)
        other = min(max(other, low), high)
        if other != value and other not in found:
            found.append(other)
    return found
