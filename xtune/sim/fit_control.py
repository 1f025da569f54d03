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


Change = tuple[int | None, int]  # the stretch it was in, where known, and its iteration


def read_changes(inputs: Inputs, job: str) -> list[Change]:
    """Changes of what is sent by a policy that ran in the job.

    Where several stretches have the iteration, that of the nearest time counts; None where two
    ran at the time.
    """
    rows = inputs.read("decisions", ["ts", "job", "step", "kind", "before", "after"])
    rows = rows.filter(
        pl.col("kind").is_in(KINDS), pl.col("job").fill_null("") == job,
        pl.col("step").is_not_null(), pl.col("before").ne_missing(pl.col("after")),
    ).select("step", "ts").unique()  # fmt: skip
    if rows.is_empty():
        return []
    steps = _stretches(inputs, job)
    spans = {
        s: (low, high)
        for s, low, high in steps.group_by("stretch")
        .agg(pl.col("ts").min().alias("low"), pl.col("ts").max().alias("high"))
        .iter_rows()
    }
    times: dict[int, dict[int, int | None]] = {}
    for stretch, step, ts in steps.select("stretch", "step", "ts").iter_rows():
        times.setdefault(step, {})[stretch] = ts
    found = {(_stretch_at(ts, times.get(step, {}), spans), step) for step, ts in rows.iter_rows()}
    return sorted(found, key=lambda change: (change[0] is None, change[0] or 0, change[1]))


def _stretch_at(
    ts: int | None,
    ends: dict[int, int | None],
    spans: dict[int, tuple[int | None, int | None]],
) -> int | None:
    """Of the stretches that have an iteration, by when it ended there, the one at a time."""
    if len(ends) < 2:
        return next(iter(ends), None)
    known = {s: end for s, end in ends.items() if end is not None}
    if ts is None or len(known) < len(ends):
        return None
    running = 0
    for stretch in known:
        low, high = spans[stretch]
        running += low is not None and high is not None and low <= ts <= high
    return None if running > 1 else min(known, key=lambda s: (abs(known[s] - ts), s))


def _stretches(inputs: Inputs, job: str) -> pl.DataFrame:
    """Training steps of a job, numbered by stretch: a run, up to where it goes back.

    A run that is resumed makes some of its iterations again.
    """
    frame = inputs.read("steps", ["ts", "job", "run", "step", "split", "step_time_s", "skipped"])
    frame = frame.filter(
        pl.col("split").fill_null("train") == "train", pl.col("job").fill_null("") == job,
        pl.col("step").is_not_null(),
    ).with_columns(pl.col("run").fill_null("")).sort("run", "ts", "step")  # fmt: skip
    begins = (pl.col("run") != pl.col("run").shift()) | (pl.col("step").diff() < 0)
    return frame.with_columns(begins.fill_null(False).cast(pl.Int64).cum_sum().alias("stretch"))


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
        name="change_s", value=max(0.0, value), low=max(0.0, low), high=max(0.0, high),
        unit="s", n=len(extra), tables=("decisions", "steps"),
        fit=robust_sigma(extra), fit_kind="spread",
        why=f"iterations at which the plan changed, less the {AFTER} after each",
    )  # fmt: skip


def _extra_seconds(inputs: Inputs, job: str, changes: list[Change]) -> np.ndarray:
    """Of each change whose own and next iterations have times, and bring no other change.

    Times of iterations that were skipped, or beside skipped ones, are none of a training step.
    """
    if not changes:
        return np.empty(0)
    frame = _stretches(inputs, job).filter(
        pl.col("step_time_s") > 0, pl.col("skipped").fill_null(0) == 0
    )
    times = {(s, step): t for s, step, t in frame["stretch", "step", "step_time_s"].iter_rows()}
    known, found = set(changes), []
    for stretch, step in changes:
        own = times.get((stretch or 0, step))
        after = [(stretch or 0, step + i) for i in range(1, AFTER + 1)]
        if stretch is None or own is None or known & set(after):
            continue
        if all(at in times for at in after):
            found.append(own - float(np.median([times[at] for at in after])))
    return np.array(found)
