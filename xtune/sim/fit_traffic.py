"""Fits of one job's training step: time, compute, gradient buckets, noise of the readings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xtune.errors import CalibrationError
from xtune.sim._inputs import Inputs
from xtune.sim._stats import Floats, bootstrap, median_interval, robust_sigma
from xtune.sim.calibration import Parameter
from xtune.sim.fit_compute import compute_seconds
from xtune.sim.fit_steps import Intervals, Steps, clean_step_seconds, overlaps

GRADIENT_OPS = ("all_reduce", "reduce_scatter")
# Control messages (loss, gradient norm, flags) are far below a bucket.
SMALLEST_BUCKET_SHARE = 0.01
ELEMENT_BYTES = {
    "bf16": 2, "bfloat16": 2, "fp16": 2, "f16": 2, "float16": 2, "half": 2,
    "fp32": 4, "f32": 4, "float32": 4, "float": 4, "fp64": 8, "float64": 8, "double": 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the gradient collectives of the job showed."""

    parameters: tuple[Parameter, ...]
    buckets: tuple[int, ...]
    hosts: int | None
    host_names: frozenset[str]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Members:
    """Who sends the job's gradients: facts of the job, which hold on all days alike.

    Attributes:
        dtype: Element type of the collectives, "" where none is named.
        hosts: Names of the hosts seen.
        per_host: Ranks a host; None where no collective names its host.
    """

    dtype: str
    hosts: frozenset[str]
    per_host: float | None


def read_members(inputs: Inputs, job: str) -> Members:
    """From the collectives of all days, also of those that are not fitted on.

    Raises:
        CalibrationError: No collective with a size.
    """
    gradient = _gradient_rows(inputs.within(None, None), job)
    seen = gradient.filter(pl.col("host").is_not_null()).select("host", "comm", "comm_rank")
    hosts = frozenset(seen["host"].unique().to_list())
    members = seen.unique().group_by("comm").len()["len"].max()
    dtype = gradient["dtype"].drop_nulls().mode().sort().to_list()
    return Members(
        dtype=dtype[0] if dtype else "", hosts=hosts,
        per_host=float(members) / len(hosts) if hosts and members else None,  # type: ignore[arg-type]
    )  # fmt: skip


def _gradient_rows(inputs: Inputs, job: str) -> pl.DataFrame:
    """Raw gradient collectives of the job, one row a rank."""
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
    return gradient


def read_collectives(inputs: Inputs, job: str, busy: Intervals) -> pl.DataFrame:
    """One row per gradient collective of the job's main communicators.

    Columns: comm, seq, message_bytes, start_ns, duration_ns (its shortest rank, which waited
    least for the others), clean.

    Raises:
        CalibrationError: No collective with a size.
    """
    gradient = _gradient_rows(inputs, job)
    key = ["op", "comm", "seq"]
    one = gradient.group_by(key).agg(
        pl.col("message_bytes").max(),
        pl.col("comm_size").max(),
        pl.col("duration_ns").filter(pl.col("duration_ns") > 0).min(),
        pl.coalesce("start_ts", "enqueue_ts").max().alias("start_ns"),
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
    return one.sort("comm", "seq")


def fit_traffic(inputs: Inputs, steps: Steps, busy: Intervals) -> Traffic:
    """Step, compute, buckets, collective time and reading noise."""
    notes: list[str] = []
    seconds, how = clean_step_seconds(steps)
    step_s, step_low, step_high = median_interval(seconds)
    rows, members = read_collectives(inputs, steps.job, busy), read_members(inputs, steps.job)
    dtype = members.dtype
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
    compute, first, exposed_why = compute_seconds(rows, step_s, coll_s, len(buckets))
    scatter = _scatter(known)
    noise, noise_n = robust_sigma(scatter), len(scatter)
    noise_low, noise_high = bootstrap(scatter, robust_sigma, rounds=100) if noise_n else (0.0, 0.0)
    ranks = rows["comm_size"].max()
    spread = robust_sigma(seconds) / step_s
    jitter = bootstrap(seconds / step_s, robust_sigma, rounds=200)
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
            name="compute_jitter", value=spread, low=jitter[0], high=jitter[1], n=len(seconds),
            tables=("steps",),
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
            name="reading_noise", value=noise, low=noise_low, high=noise_high, n=noise_n,
            tables=tables, assumed=noise_n == 0,
            why="relative spread (MAD) of clean durations around the expectation of their size"
            if noise_n else "fewer than two clean durations of one size: no noise",
        ),
        Parameter(
            name="element_bytes", value=float(element), unit="bytes", n=len(rows),
            tables=("collectives",), assumed=element_assumed,
            needs="a trace that names the element type, such as Flight Recorder's"
            if element_assumed else "",
            why="element type of the collectives" if not element_assumed
            else f"element type {dtype!r} is not known: fp32, the reduction type of most trainers",
        ),
        Parameter(
            name="ranks", value=float(ranks) if ranks else 2.0, n=len(rows),  # type: ignore[arg-type]
            tables=("collectives",), assumed=not ranks,
            needs="" if ranks else "a trace that names the size of its communicators",
            why="size of the communicator that carries the gradients" if ranks
            else "no collective names the size of its communicator: 2, the least",
        ),
    ]  # fmt: skip
    if not steps.timed:
        notes.append("steps carry no times: episodes could not be cut out of the step time")
    # Traces of a few ranks name a few hosts; how many ranks share one tells of the others.
    hosts = None
    if ranks and members.per_host:
        hosts = max(len(members.hosts), round(float(ranks) / members.per_host))  # type: ignore[arg-type]
    return Traffic(
        parameters=tuple(parameters), buckets=buckets, hosts=hosts, host_names=members.hosts,
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


def _scatter(known: pl.DataFrame) -> Floats:
    """Log of each clean duration over the median of its size."""
    scaled = known.with_columns(
        (pl.col("duration_ns") / pl.col("duration_ns").median().over("message_bytes")).alias("r"),
        pl.len().over("message_bytes").alias("peers"),
    ).filter(pl.col("peers") >= 2)
    return np.asarray(np.log(scaled["r"].to_numpy()))
