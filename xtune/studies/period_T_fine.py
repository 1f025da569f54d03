"""The regulation period again: the grid first, then a refinement around what is best of it."""

from __future__ import annotations

from xtune.studies import period_T
from xtune.studies._base import Dimension, Study

FIELD = "period.iterations"

STUDY = Study(
    name="period_T_fine",
    title="regulation period T, iterations, refined around the best of the grid",
    base="joint",
    space={FIELD: Dimension(low=5, high=1000, log=True)},
    sampler="gp",
    start=tuple({FIELD: period} for period in period_T.STUDY.grid[FIELD]),
    trials=21,
    batch=3,
    claims=period_T.STUDY.claims,
)
