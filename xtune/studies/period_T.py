"""The regulation period T: how many iterations lie between two regulations."""

from __future__ import annotations

from xtune.studies._base import Study

STUDY = Study(
    name="period_T",
    title="regulation period T, iterations",
    base="joint",
    grid={"period.iterations": (5, 10, 25, 50, 100, 200, 350, 500, 1000)},
    claims={
        "L3": "under 50 it oscillates, over 500 it misses changes; a grid search found T = 200"
    },
)
