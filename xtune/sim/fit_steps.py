"""Training steps of one job: how long they take, and which of them no episode touched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xtune.errors import CalibrationError
from xtune.sim._inputs import Inputs
from xtune.sim._stats import Floats

Intervals = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Training steps of one job, sorted by (run, step).

    Attributes:
        seconds: Step times, where known.
        start_ns: Start of each of those steps; NaN-free, or empty where no step has a time.
        end_ns: End of each.
        clean: Whether it overlaps no episode (all of them where times are unknown).
        timed: Whether the steps have times.
        others: Other jobs that the lake holds steps of.
    """

    job: str
    seconds: Floats
    start_ns: Intervals
    end_ns: Intervals
    clean: NDArray[np.bool_]
    timed: bool
    first_step: int
    count: int
    others: int = 0


def overlaps(start_ns: Intervals, end_ns: Intervals, busy: Intervals) -> NDArray[np.bool_]:
    """Whether each [start, end] meets any of the (n, 2) intervals ``busy``."""
    hit = np.zeros(len(start_ns), dtype=bool)
    for low, high in busy:
        hit |= (start_ns <= high) & (end_ns >= low)
    return hit


def read_steps(inputs: Inputs, job: str | None, busy: Intervals, covered: Intervals) -> Steps:
    """Steps of ``job``, or of the job with most of them.

    Steps while no link was watched are left out where others remain: nobody knows whether they
    were congested, and without a job's name they may be another training's.

    Raises:
        CalibrationError: No training step with a known step time.
    """
    frame = inputs.read("steps", ["ts", "job", "run", "step", "split", "step_time_s", "skipped"])
    frame = frame.filter(
        pl.col("split").fill_null("train") == "train", pl.col("step").is_not_null()
    )
    frame = frame.with_columns(pl.col("job").fill_null(""), pl.col("run").fill_null(""))
    if frame.is_empty():
        raise CalibrationError(
            "the lake holds no training steps", "collect a training log: loss curve and step times"
        )
    others = frame["job"].n_unique() - 1
    if job is None:
        counts = frame.group_by("job").len().sort(["len", "job"], descending=[True, False])
        job = str(counts["job"][0])
    frame = frame.filter(pl.col("job") == job)
    if frame.is_empty():
        raise CalibrationError(f"the lake holds no training steps of job {job!r}", "check --job")
    ends = frame["ts"].fill_null(0).to_numpy()
    watched = frame.filter(pl.Series(overlaps(ends, ends, covered)))
    if len(watched):
        frame = watched
    keys = ["run", "step"]
    frame = frame.group_by(keys).agg(pl.col("ts", "step_time_s").drop_nulls().first()).sort(keys)
    since_last = (pl.col("ts").diff() / pl.col("step").diff()).over("run") / 1e9
    frame = frame.with_columns(pl.col("step_time_s").fill_null(since_last))
    known = frame.filter(pl.col("step_time_s") > 0)
    if known.is_empty():
        raise CalibrationError(
            f"job {job!r} has steps but no step time and no times to take it from",
            "collect a log that prints the time of an iteration, or one with times (--tz)",
        )
    timed = known["ts"].null_count() < len(known)
    if timed:
        known = known.filter(pl.col("ts").is_not_null())
    seconds = known["step_time_s"].to_numpy()
    ends = known["ts"].fill_null(0).to_numpy()
    if timed and not (ends % 1_000_000_000).any():
        ends = ends + 500_000_000  # a log with whole seconds cuts them off: half of one on average
    starts = ends - (seconds * 1e9).astype(np.int64)
    clean = ~overlaps(starts, ends, busy) if timed else np.ones(len(seconds), dtype=bool)
    return Steps(
        job=job, seconds=seconds, start_ns=starts, end_ns=ends, clean=clean, timed=timed,
        first_step=int(frame["step"].min() or 0), count=len(frame),  # type: ignore[arg-type]
        others=others,
    )  # fmt: skip


def clean_step_seconds(steps: Steps) -> tuple[Floats, str]:
    """Step times outside episodes, and how they were told from the others."""
    if steps.timed and steps.clean.any():
        return steps.seconds[steps.clean], "steps that overlap no episode"
    # Without times, or where every step is congested, the faster half is nearest the clean step:
    # congestion only ever adds time.
    fast = steps.seconds[steps.seconds <= np.median(steps.seconds)]
    why = "no step has a time" if not steps.timed else "every step overlaps an episode"
    return fast, f"{why}: the faster half of the steps"
