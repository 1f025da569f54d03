"""Fits of one job's training step: time, compute, gradient buckets, noise of the readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xtune.errors import CalibrationError
from xtune.sim._inputs import Inputs
from xtune.sim._stats import Floats, bootstrap, median_interval, robust_sigma
from xtune.sim.calibration import Parameter

# Backward costs about twice the forward pass in operations (two matrix products for one), so a
# third of the compute time has passed before the first gradient can exist.
FORWARD_SHARE = 1 / 3
GRADIENT_OPS = ("all_reduce", "reduce_scatter")
# Control messages (loss, gradient norm, flags) are far below a bucket.
SMALLEST_BUCKET_SHARE = 0.01
ELEMENT_BYTES = {
    "bf16": 2, "bfloat16": 2, "fp16": 2, "f16": 2, "float16": 2, "half": 2,
    "fp32": 4, "f32": 4, "float32": 4, "float": 4, "fp64": 8, "float64": 8, "double": 8,
}  # fmt: skip

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
    """

    job: str
    seconds: Floats
    start_ns: Intervals
    end_ns: Intervals
    clean: NDArray[np.bool_]
    timed: bool
    first_step: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the gradient collectives of the job showed."""

    parameters: tuple[Parameter, ...]
    buckets: tuple[int, ...]
    hosts: int | None
    host_names: frozenset[str]
    notes: tuple[str, ...]


def overlaps(start_ns: Intervals, end_ns: Intervals, busy: Intervals) -> NDArray[np.bool_]:
    """Whether each [start, end] meets any of the (n, 2) intervals ``busy``."""
    hit = np.zeros(len(start_ns), dtype=bool)
    for low, high in busy:
        hit |= (start_ns <= high) & (end_ns >= low)
    return hit


def read_steps(inputs: Inputs, job: str | None, busy: Intervals) -> Steps:
    """Steps of ``job``, or of the job with most of them.

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
    if job is None:
        counts = frame.group_by("job").len().sort(["len", "job"], descending=[True, False])
        job = str(counts["job"][0])
    frame = frame.filter(pl.col("job") == job)
    if frame.is_empty():
        raise CalibrationError(f"the lake holds no training steps of job {job!r}", "check --job")
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


def read_collectives(
    inputs: Inputs, job: str, busy: Intervals
) -> tuple[pl.DataFrame, str, frozenset[str], float | None]:
    """One row per gradient collective of the job's main communicators.

    Columns: comm, seq, message_bytes, start_ns, duration_ns (its shortest rank, which waited
    least for the others), clean. Then the element type, the hosts seen, and ranks a host.

    Raises:
        CalibrationError: No collective with a size.
    """
    raw = inputs.read(
        "collectives",
        ["start_ts", "enqueue_ts", "duration_ns", "job", "host", "comm", "comm_rank", "comm_size",
         "seq", "op", "dtype", "message_bytes"],
    )  # fmt: skip
    raw = raw.filter(pl.col("message_bytes") > 0, pl.col("seq").is_not_null())
    raw = raw.with_columns(pl.col("comm").fill_null(""), pl.col("job").fill_null(""))
    mine = raw.filter(pl.col("job") == job)
    if mine.is_empty():
        jobs = raw["job"].unique().to_list()
        mine = raw.filter(pl.col("job") == "") if "" in jobs else raw
        if "" not in jobs and len(jobs) > 1:
            raise CalibrationError(
                f"no collective belongs to job {job!r} and several other jobs have some",
                "collect the traces with --job",
            )
    gradient = mine.filter(pl.col("op").is_in(GRADIENT_OPS))
    if gradient.is_empty():
        raise CalibrationError(
            "the lake holds no all-reduce or reduce-scatter with a size and a sequence number",
            "collect an NCCL trace of the job: Flight Recorder, Inspector or NCCL_DEBUG=INFO",
        )
    key = ["op", "comm", "seq"]
    one = gradient.group_by(key).agg(
        pl.col("message_bytes").max(),
        pl.col("comm_size").max(),
        pl.col("duration_ns").filter(pl.col("duration_ns") > 0).min(),
        pl.coalesce("start_ts", "enqueue_ts").max().alias("start_ns"),
        pl.col("dtype").drop_nulls().first(),
    )
    totals = one.group_by("op", "comm_size").agg(pl.col("message_bytes").sum())
    best = totals.sort(["message_bytes", "op", "comm_size"], descending=[True, False, True]).row(0)
    one = one.filter(pl.col("op") == best[0], pl.col("comm_size").eq_missing(best[1]))
    least = SMALLEST_BUCKET_SHARE * float(one["message_bytes"].max())  # type: ignore[arg-type]
    one = one.filter(pl.col("message_bytes") >= least)
    impact = inputs.read(
        "derived/collective_impact",
        ["start_ts", "op", "comm", "seq", "duration_ns", "expected_ns", "episode_id"],
    ).with_columns(pl.col("comm").fill_null(""))
    better = impact.group_by(key).agg(
        pl.col("start_ts").max().alias("impact_start"),
        pl.col("duration_ns").filter(pl.col("duration_ns") > 0).min().alias("impact_ns"),
        pl.col("expected_ns").min(),
        pl.col("episode_id").drop_nulls().first(),
    )
    one = one.join(better, on=key, how="left").with_columns(
        pl.coalesce("impact_start", "start_ns").alias("start_ns"),
        pl.coalesce("impact_ns", "duration_ns").alias("duration_ns"),
        pl.col("episode_id").is_null().alias("clean"),
    )
    starts = one["start_ns"].fill_null(0).to_numpy()
    hit = overlaps(starts, starts + one["duration_ns"].fill_null(0).to_numpy(), busy)
    one = one.with_columns(
        pl.col("clean") & (pl.col("start_ns").is_null() | ~pl.Series("hit", hit))
    )
    dtype = one["dtype"].drop_nulls().mode().sort().to_list()
    hosts = frozenset(gradient["host"].drop_nulls().unique().to_list())
    seen = gradient.filter(pl.col("host").is_not_null()).select("host", "comm", "comm_rank")
    members = seen.unique().group_by("comm").len()["len"].max()
    per_host = float(members) / len(hosts) if hosts and members else None  # type: ignore[arg-type]
    return one.sort("comm", "seq"), dtype[0] if dtype else "", hosts, per_host


def fit_traffic(inputs: Inputs, steps: Steps, busy: Intervals) -> Traffic:
    """Step, compute, buckets, collective time and reading noise."""
    notes: list[str] = []
    seconds, how = clean_step_seconds(steps)
    step_s, step_low, step_high = median_interval(seconds)
    rows, dtype, host_names, per_host = read_collectives(inputs, steps.job, busy)
    per_step, count_why = _buckets_per_step(rows, steps)
    buckets, sizes = _bucket_sizes(rows, per_step)
    element, element_assumed = (
        ELEMENT_BYTES.get(dtype.lower(), 4),
        dtype.lower() not in ELEMENT_BYTES,
    )
    tables = ("collectives", "derived/collective_impact")
    low, high = bootstrap(sizes, lambda v: float(np.mean(v)), rounds=400)
    known = rows.filter(pl.col("duration_ns").is_not_null() & pl.col("clean"))
    if known.is_empty():
        raise CalibrationError(
            "no collective outside an episode has a duration",
            "collect a trace with durations: NCCL Inspector, or Flight Recorder with timing on",
        )
    durations = known["duration_ns"].to_numpy() / 1e9
    coll_s, coll_low, coll_high = median_interval(durations)
    compute, first, exposed_why = _compute(rows, steps, step_s, coll_s, len(buckets))
    noise, noise_n = _noise(known)
    ranks = rows["comm_size"].max()
    spread = robust_sigma(seconds) / step_s
    parameters = [
        Parameter(
            name="step_s", value=step_s, low=step_low, high=step_high, unit="s", n=len(seconds),
            tables=("steps", "derived/episodes"), fit=spread, fit_kind="relative spread",
            why=f"median of {how}",
        ),
        Parameter(
            name="compute_s", value=compute, low=max(0.0, compute - (step_s - step_low)),
            high=compute + (step_high - step_s), unit="s", n=len(seconds),
            tables=("steps", "collectives", "derived/episodes"), fit=spread,
            fit_kind="relative spread", why=f"clean step minus exposed collectives; {exposed_why}",
        ),
        Parameter(
            name="compute_jitter", value=spread, n=len(seconds), tables=("steps",),
            why="relative spread (MAD) of the clean steps",
        ),
        Parameter(
            name="first_bucket_share", value=first, unit="", n=len(rows),
            tables=("collectives", "steps"), why=f"compute before the first bucket; {exposed_why}",
        ),
        Parameter(
            name="collective_bytes", value=float(np.mean(sizes)), low=low, high=high, unit="bytes",
            n=len(sizes), tables=("collectives",), fit=robust_sigma(sizes) / float(np.mean(sizes)),
            fit_kind="relative spread", why="mean size of a gradient collective, control left out",
        ),
        Parameter(
            name="collectives_per_step", value=float(per_step), low=float(per_step),
            high=float(per_step), n=len(rows), tables=("collectives", "steps"), why=count_why,
        ),
        Parameter(
            name="collective_s", value=coll_s, low=coll_low, high=coll_high, unit="s",
            n=len(durations), tables=tables, fit=robust_sigma(durations) / coll_s,
            fit_kind="relative spread", why="median outside episodes, of the shortest rank",
        ),
        Parameter(
            name="reading_noise", value=noise, unit="", n=noise_n, tables=tables,
            assumed=noise_n == 0,
            why="relative spread (MAD) of clean durations around the expectation of their size"
            if noise_n else "fewer than two clean durations of one size: no noise",
        ),
        Parameter(
            name="element_bytes", value=float(element), unit="bytes", n=len(rows),
            tables=("collectives",), assumed=element_assumed,
            why="element type of the collectives" if not element_assumed
            else f"element type {dtype!r} is not known: fp32, the reduction type of most trainers",
        ),
        Parameter(
            name="ranks", value=float(ranks) if ranks else 2.0, n=len(rows),  # type: ignore[arg-type]
            tables=("collectives",), assumed=not ranks,
            why="size of the communicator that carries the gradients" if ranks
            else "no collective names the size of its communicator: 2, the least",
        ),
    ]  # fmt: skip
    if not steps.timed:
        notes.append("steps carry no times: episodes could not be cut out of the step time")
    # Traces of a few ranks name a few hosts; how many ranks share one tells of the others.
    hosts = max(len(host_names), round(float(ranks) / per_host)) if ranks and per_host else None  # type: ignore[arg-type]
    return Traffic(
        parameters=tuple(parameters), buckets=buckets, hosts=hosts, host_names=host_names,
        notes=tuple(notes),
    )  # fmt: skip


def _buckets_per_step(rows: pl.DataFrame, steps: Steps) -> tuple[int, str]:
    """Gradient collectives of one communicator in one step."""
    spans = rows.filter(pl.col("start_ns").is_not_null())
    if steps.timed and len(spans):
        first, last = int(spans["start_ns"].min()), int(spans["start_ns"].max())  # type: ignore[arg-type]
        inside = (steps.start_ns >= first - 1) & (steps.end_ns <= last)
        counts: list[int] = []
        for _, group in spans.group_by("comm"):
            times = np.sort(group["start_ns"].to_numpy())
            low = np.searchsorted(times, steps.start_ns[inside])
            high = np.searchsorted(times, steps.end_ns[inside])
            counts.extend((high - low)[high > low].tolist())
        if counts:
            return max(1, round(float(np.median(counts)))), "collectives that start within a step"
    per_comm = rows.group_by("comm").len()["len"].to_numpy()
    per_step = max(1, round(float(np.median(per_comm)) / max(1, steps.count)))
    return per_step, "collectives of a communicator over the number of steps (no common times)"


def _bucket_sizes(rows: pl.DataFrame, per_step: int) -> tuple[tuple[int, ...], Floats]:
    """Bytes of each bucket in sending order, and all sizes seen."""
    sizes = rows["message_bytes"].to_numpy().astype(float)
    by_place: list[list[float]] = [[] for _ in range(per_step)]
    steady = True
    for _, group in rows.group_by("comm"):
        ordered = group.sort("seq")["message_bytes"].to_numpy()
        steady &= (
            bool((ordered[per_step:] == ordered[:-per_step]).mean() > 0.9)
            if len(ordered) > per_step
            else True
        )
        for place in range(per_step):
            by_place[place].extend(ordered[place::per_step].tolist())
    if steady and all(by_place):
        return tuple(int(np.median(place)) for place in by_place), sizes
    return (round(float(np.mean(sizes))),) * per_step, sizes


def chain_end(ready: Sequence[float], durations: Sequence[float]) -> float:
    """When the last of several messages that share one ordered queue is done."""
    end = 0.0
    for at, takes in zip(ready, durations, strict=True):
        end = max(at, end) + takes
    return end


def _compute(
    rows: pl.DataFrame, steps: Steps, step_s: float, collective_s: float, buckets: int
) -> tuple[float, float, str]:
    """Compute time for which the simulator's own overlap model gives the clean step.

    Returns compute seconds, the share of it that has passed when the first bucket is ready, and
    how that was found.
    """
    durations = [collective_s] * buckets
    offset, why = _first_offset(rows, steps)

    def ready(compute: float) -> list[float]:
        share = FORWARD_SHARE + (1 - FORWARD_SHARE) / buckets
        first = min(offset, compute) if offset is not None else compute * share
        return [first + (compute - first) * i / max(1, buckets - 1) for i in range(buckets)]

    if buckets == 1:
        compute = max(0.0, step_s - collective_s)
        return compute, 1.0, "one collective a step, wholly exposed"
    if offset is not None and step_s <= 1.02 * (offset + sum(durations)):
        # The network never idles after the first bucket, so nothing shows when the others were
        # ready: the share of compute before the first bucket has to be assumed.
        share = FORWARD_SHARE + (1 - FORWARD_SHARE) / buckets
        compute = min(max(offset / share, offset), max(offset, step_s - collective_s))
        return compute, offset / compute if compute > 0 else 1.0, f"network-bound step; {why}"
    low, high = 0.0, step_s
    for _ in range(80):  # bisection: the end of the chain grows with compute
        middle = (low + high) / 2
        if max(middle, chain_end(ready(middle), durations)) < step_s:
            low = middle
        else:
            high = middle
    compute = (low + high) / 2
    return compute, ready(compute)[0] / compute if compute > 0 else 1.0, why


def _first_offset(rows: pl.DataFrame, steps: Steps) -> tuple[float | None, str]:
    """Median time from a clean step's start to its first collective."""
    assumed = "first bucket assumed ready after the forward third and one bucket of backward"
    times = np.sort(rows.filter(pl.col("start_ns").is_not_null())["start_ns"].to_numpy())
    if not steps.timed or not len(times):
        return None, assumed
    starts, ends = steps.start_ns[steps.clean], steps.end_ns[steps.clean]
    place = np.searchsorted(times, starts)
    inside = place < len(times)
    found = times[place[inside]]
    within = found < ends[inside]
    offsets = (found - starts[inside])[within] / 1e9
    if len(offsets) < 3:
        return None, assumed
    return float(np.median(offsets)), f"first bucket seen {np.median(offsets):.4g} s into the step"


def _noise(known: pl.DataFrame) -> tuple[float, int]:
    """Relative spread of clean durations around the median of their size."""
    scaled = known.with_columns(
        (pl.col("duration_ns") / pl.col("duration_ns").median().over("message_bytes")).alias("r"),
        pl.len().over("message_bytes").alias("peers"),
    ).filter(pl.col("peers") >= 2)
    if scaled.is_empty():
        return 0.0, 0
    return robust_sigma(np.log(scaled["r"].to_numpy())), len(scaled)
