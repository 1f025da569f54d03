"""The screening rung: a cheap first run in which clearly worse points are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from xtune.studies._base import Objective

SEEDS = 3
SHARE = 1 / 3  # of the iterations of a whole run
# A point is left out where it is worse than a finished one in every objective: beyond chance
# (one-sided, over the common seeds) and by more than this share. A short run is not the whole
# one: a point that is little worse in it may still be the best in the end.
MARGIN = 0.02
CONFIDENCE = 0.95

PerSeed = Sequence[Mapping[str, float]]


def iterations(whole: int) -> int:
    """Iterations of a screening run."""
    return max(1, round(whole * SHARE))


def clearly_worse(point: PerSeed, other: PerSeed, objective: Objective) -> bool:
    """Whether a point is worse than another on common seeds, beyond chance and ``MARGIN``."""
    from scipy.stats import t

    sign = 1.0 if objective.direction == "minimize" else -1.0
    theirs = [run[objective.metric] for run in other]
    excess = [
        sign * (run[objective.metric] - value) for run, value in zip(point, theirs, strict=True)
    ]
    n = len(excess)
    if n < 2:
        return False
    mean = math.fsum(excess) / n
    deviation = math.sqrt(math.fsum((e - mean) ** 2 for e in excess) / (n - 1))
    bound = mean - float(t.ppf(CONFIDENCE, n - 1)) * deviation / math.sqrt(n)
    return bound > MARGIN * abs(math.fsum(theirs) / n)


def pruned_by(
    point: PerSeed, finished: Mapping[int, PerSeed], objectives: Sequence[Objective]
) -> int | None:
    """Number of a finished trial that a point is clearly worse than in every objective."""
    for number, other in finished.items():
        if all(clearly_worse(point, other, objective) for objective in objectives):
            return number
    return None


def front(values: Mapping[int, Sequence[float]], objectives: Sequence[Objective]) -> list[int]:
    """Numbers of the points that no other is at least as good as in all and better in one."""
    signs = [1.0 if o.direction == "minimize" else -1.0 for o in objectives]
    cost = {n: [s * v for s, v in zip(signs, row, strict=True)] for n, row in values.items()}

    def beaten(mine: Sequence[float]) -> bool:
        return any(
            all(a <= b for a, b in zip(other, mine, strict=True)) and list(other) != list(mine)
            for other in cost.values()
        )

    return [n for n, mine in cost.items() if not beaten(mine)]


def ranked(values: Mapping[int, Sequence[float]], objectives: Sequence[Objective]) -> list[int]:
    """Numbers, the most promising first.

    First the best of each objective, then the rest of the front, then all others; each group by
    the first objective.
    """
    signs = [1.0 if o.direction == "minimize" else -1.0 for o in objectives]
    by_first = sorted(values, key=lambda n: (signs[0] * values[n][0], n))
    best = [
        min(values, key=lambda n, i=i: (signs[i] * values[n][i], n))  # type: ignore[misc]
        for i in range(len(signs))
        if values
    ]
    on_front = set(front(values, objectives))
    return list(dict.fromkeys([*best, *(n for n in by_first if n in on_front), *by_first]))
