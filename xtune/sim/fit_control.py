"""What control costs, where a policy ran: the time for which training stands while a plan changes.

A change's iteration is set beside the three after it, which run under the same plan without
changing it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from xtune.sim._inputs import Inputs
from xtune.sim._stats import median_interval, robust_sigma
from xtune.sim.calibration import Parameter

KINDS = ("bits", "ratio")  # of decisions: another plan of what is sent
AFTER = 3  # iterations after a change that it is compared with
FEWEST = 8  # changes below which their cost is not told from the noise of a step
# Seconds for which training stands still when the plan changes (new workspaces, residuals
# re-sliced): measured with a prototype of the loop.
ASSUMED_S = 0.3


def read_changes(inputs: Inputs, job: str) -> list[int]:
    """Iterations at which a policy that ran in the job changed what is sent."""
    rows = inputs.read("decisions", ["ts", "job", "step", "kind", "before", "after"])
    rows = rows.filter(
        pl.col("kind").is_in(KINDS), pl.col("job").fill_null("") == job,
        pl.col("step").is_not_null(), pl.col("before").ne_missing(pl.col("after")),
    )  # fmt: skip
    return sorted(set(rows["step"].to_list()))


def fit_change(inputs: Inputs, job: str) -> Parameter:
    """Seconds that a change of the plan takes, from `decisions` and `steps`."""
    changes = read_changes(inputs, job)
    extra = _extra_seconds(inputs, job, changes)
    if len(extra) < FEWEST:
        return Parameter(
            name="change_s", value=ASSUMED_S, unit="s", assumed=True,
            why="training stands still while a plan changes: measured with a prototype;"
            f" {len(extra)} changes with known step times are too few",
            needs=f"decisions of a policy that ran, with {FEWEST} changes, and its step times",
        )  # fmt: skip
    value, low, high = median_interval(extra)
    return Parameter(
        name="change_s", value=max(0.0, value), low=low, high=high, unit="s", n=len(extra),
        tables=("decisions", "steps"), fit=robust_sigma(extra), fit_kind="spread",
        why=f"iterations at which the plan changed, less the {AFTER} after each",
    )  # fmt: skip


def _extra_seconds(inputs: Inputs, job: str, changes: list[int]) -> np.ndarray:
    """Of each change whose own and next iterations have times, and bring no other change."""
    if not changes:
        return np.empty(0)
    frame = inputs.read("steps", ["ts", "job", "run", "step", "split", "step_time_s", "skipped"])
    frame = frame.filter(
        pl.col("split").fill_null("train") == "train", pl.col("job").fill_null("") == job,
        pl.col("step").is_not_null(), pl.col("step_time_s") > 0,
    )  # fmt: skip
    times = dict(frame.select("step", "step_time_s").iter_rows())
    found = []
    for step in changes:
        after = [step + i for i in range(1, AFTER + 1)]
        if step in times and not set(after) & set(changes) and all(s in times for s in after):
            found.append(times[step] - float(np.median([times[s] for s in after])))
    return np.array(found)
