"""Several jobs on one fabric at once, each with its own pattern, size and start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xtune.errors import UsageError
from xtune.sim.flows import Flows, join_flows
from xtune.sim.phase import PhaseResult


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What one job sends in a phase.

    Attributes:
        name: Shown beside its figures.
        flows: From a builder of :mod:`xtune.sim.flows` or :mod:`xtune.sim.patterns`, with the
            job's own ``hosts``.
        start_ns: When it begins.
        lane: Lane of all its flows, when the policy has two.
    """

    name: str
    flows: Flows
    start_ns: int = 0
    lane: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTime:
    """How long one job's part of a phase took; NaN where it did not finish.

    Attributes:
        name: Of the job.
        span_ns: From the job's start to its last flow's end.
        p50_ns: Median time of a flow from its release to its end.
        p99_ns: 99th percentile of the same.
    """

    name: str
    span_ns: float
    p50_ns: float
    p99_ns: float


def join_jobs(jobs: Sequence[Job]) -> Flows:
    """The flows of all jobs, in their order, each begun at its start.

    Raises:
        UsageError: no job.
    """
    if not jobs:
        raise UsageError("no job", "give at least one")
    return join_flows(
        *(
            replace(
                job.flows,
                start_ns=job.flows.start_ns + job.start_ns,
                lane=np.full(len(job.flows), job.lane, dtype=np.uint8),
            )
            for job in jobs
        )
    )


def job_times(jobs: Sequence[Job], result: PhaseResult) -> list[JobTime]:
    """Each job's figures.

    Args:
        jobs: As given to :func:`join_jobs`.
        result: Of ``run_phase`` with those flows.
    """
    times, first = [], 0
    for job in jobs:
        own = slice(first, first + len(job.flows))
        first = own.stop
        end, took = result.completion_ns[own], result.completion_ns[own] - result.released_ns[own]
        p50, p99 = np.quantile(took, (0.5, 0.99))  # NaN where one is
        times.append(
            JobTime(
                name=job.name,
                span_ns=float(end.max()) - job.start_ns,
                p50_ns=float(p50),
                p99_ns=float(p99),
            )
        )
    return times
