"""Steps of a clock within a day: somebody set it, or NTP did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

# Less is drift or noise of the medians, and does not matter at any sampling interval in use.
STEP_NS = 100_000_000
# A step must stand out this much from how the clock moves from block to block otherwise.
_CLEAR = 20
# Blocks on each side that show the new level and the old: one alone is an outlier.
_LEVEL = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A clock between two steps: blocks ``first`` to ``last``, and its deviation there."""

    first: int
    last: int
    deviation_ns: int


def segments(deviations: Mapping[int, int]) -> list[Segment]:
    """Cut a day's series of deviations (block -> ns) at its steps; one segment without any."""
    blocks = sorted(deviations)
    values = [deviations[block] for block in blocks]
    cuts = [0, *_steps(values), len(values)]
    return [
        Segment(
            first=blocks[begin],
            last=blocks[end - 1],
            deviation_ns=median_low(values[begin:end]),
        )
        for begin, end in pairwise(cuts)
    ]


def _steps(values: Sequence[int]) -> list[int]:
    """Places where a level ends and another, clearly apart, begins."""
    moves = [abs(b - a) for a, b in pairwise(values)]
    if not moves:
        return []
    clear = max(STEP_NS, _CLEAR * median_low(moves))
    found: list[int] = []
    for place, move in enumerate(moves, start=1):
        before = values[max(found[-1] if found else 0, place - _LEVEL) : place]
        after = values[place : place + _LEVEL]
        if move < clear or min(len(before), len(after)) < 2:
            continue
        if abs(median_low(after) - median_low(before)) > clear / 2:
            found.append(place)
    return found


def boundary_ns(samples: Sequence[tuple[int, int, int]], before: Segment, after: Segment) -> int:
    """When a clock stepped, by itself: between the last sample before and the first after.

    Args:
        samples: (reference time, the clock's own time, its deviation) around the step.
        before: What its deviation was before the step.
        after: And after it.
    """
    ordered = sorted(samples)
    stepped = [
        abs(deviation - after.deviation_ns) < abs(deviation - before.deviation_ns)
        for _, _, deviation in ordered
    ]
    wrong = sum(not late for late in stepped)
    best, place = wrong, 0
    for i, late in enumerate(stepped):
        wrong += 1 if late else -1
        if wrong < best:
            best, place = wrong, i + 1
    if place in (0, len(ordered)):
        return ordered[min(place, len(ordered) - 1)][1]
    return (ordered[place - 1][1] + ordered[place][1]) // 2
