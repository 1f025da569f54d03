"""Runs evaluations on processes, in a fixed order whatever their number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from xtune.errors import XtuneError
from xtune.executor import workers_of
from xtune.studies._trials import REACHES, Outcome

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration

MOST_LOSSES = 2  # workers that die on an evaluation, run alone, before it counts as failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One evaluation to do: a policy on all seeds.

    Attributes:
        key: Canonical name of the evaluation.
        params: Values of the searched fields.
        policy: The policy they give.
        seeds: One run each.
        iterations: Length of each run.
        calibration: What it is simulated on.
        metrics: What the study asks of it: these must be finite.
    """

    key: str
    params: Mapping[str, float | int | str]
    policy: Policy
    seeds: tuple[int, ...]
    iterations: int
    calibration: Calibration
    metrics: tuple[str, ...] = (REACHES,)


class Workers:
    """An executor that is opened where it is first needed, and anew after a worker died.

    Args:
        pool: Opens an executor.
    """

    def __init__(self, pool: Callable[[], AbstractContextManager[Executor]]) -> None:
        self._pool = pool
        self._stack = ExitStack()
        self._executor: Executor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def executor(self) -> Executor:
        """The executor."""
        if self._executor is None:
            self._executor = self._stack.enter_context(self._pool())
        return self._executor

    @property
    def count(self) -> int:
        """Runs that go on at once."""
        return workers_of(self.executor)

    def close(self) -> None:
        """End the processes; the next use starts new ones."""
        self._executor = None
        self._stack.close()


def run_seed(
    policy: Policy, calibration: Calibration, seed: int, iterations: int, cache: Path | None
) -> dict[str, float]:
    """One seed of one evaluation, in whatever process; returns its metrics."""
    from xtune.sim import simulate

    run = simulate(policy, calibration, seed=seed, iterations=iterations, cache_dir=cache)
    return dict(run.metrics)


def run_jobs(
    jobs: Sequence[Job], workers: Workers, *, cache: Path | None, deadline: float = math.inf
) -> Iterator[Outcome]:
    """Yield each job's outcome in the order of ``jobs``.

    A worker that dies (killed, out of memory) takes the whole pool with it, and does not say what
    it was at. What was finished is kept; each evaluation that may have been under way is run
    again with nothing beside it, and has failed where workers die on it then, twice. The others
    go on.

    Args:
        jobs: What to do.
        workers: Where.
        cache: Folder that workers share sampled phases in.
        deadline: On the monotonic clock; later jobs are not waited for.
    """
    todo = [_Task(job) for job in jobs]
    while todo:
        company = list(takewhile(lambda task: not task.suspect, todo)) or todo[:1]
        try:
            for task in company:
                task.submit(workers.executor, cache)
            for task in company:
                yield _gather(task.job, task.parts, deadline)
                todo.pop(0)
        except TimeoutError:
            _cancel(company)
            return
        except BrokenProcessPool:
            at_once = workers.count
            workers.close()  # waits: after it every call has ended, one way or the other
            first = todo[0]
            first.losses += first.suspect
            if first.losses >= MOST_LOSSES:
                job = todo.pop(0).job
                yield Outcome(key=job.key, params=job.params, reason="worker processes died on it")
            _suspect(company, at_once)
        except BaseException:
            _cancel(company)
            raise


Parts = list["Future[dict[str, float]]"]


@dataclass(slots=True)
class _Task:
    """A job on its way: its calls, one a seed, and what is held against it."""

    job: Job
    parts: Parts = field(default_factory=list)
    suspect: bool = False  # it may have been what a worker died on
    losses: int = 0  # workers that died while nothing else ran

    def submit(self, executor: Executor, cache: Path | None) -> None:
        """Call for each seed that has no result yet."""
        for place, seed in enumerate(self.job.seeds):
            if place < len(self.parts) and not _lost(self.parts[place]):
                continue
            self.parts[place : place + 1] = [
                executor.submit(
                    run_seed,
                    self.job.policy,
                    self.job.calibration,
                    seed,
                    self.job.iterations,
                    cache,
                )
            ]


def _lost(part: Future[dict[str, float]]) -> bool:
    """Whether a call has ended without a result and without an error of its own."""
    return part.done() and (part.cancelled() or isinstance(part.exception(), BrokenProcessPool))


def _suspect(company: Sequence[_Task], at_once: int) -> None:
    """Suspect what may have been under way: calls are handed out in order, one ahead."""
    lost = [task for task in company for part in task.parts if _lost(part)]
    for task in lost[: at_once + 1]:
        task.suspect = True


def _cancel(tasks: Sequence[_Task]) -> None:
    for task in tasks:
        for part in task.parts:
            part.cancel()


def seconds_left(deadline: float) -> float | None:
    """Until a deadline on the monotonic clock; None where there is none."""
    return None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())


def _gather(job: Job, parts: Parts, deadline: float) -> Outcome:
    results = []
    for future in parts:
        try:
            results.append(future.result(timeout=seconds_left(deadline)))
        except (TimeoutError, BrokenProcessPool):
            raise
        except XtuneError as error:
            return Outcome(key=job.key, params=job.params, reason=str(error))
        except Exception as error:  # one evaluation's, as out of memory: the others go on
            reason = f"{type(error).__name__}: {error}"
            return Outcome(key=job.key, params=job.params, reason=reason)
    return judged(job, results)


def judged(job: Job, results: Sequence[Mapping[str, float]]) -> Outcome:
    """The outcome of an evaluation's runs.

    One that does not reach the target loss is infeasible; a metric that is asked for and is no
    number makes it failed, so that NaN never ranks.
    """
    for seed, metrics in zip(job.seeds, results, strict=True):
        for name in job.metrics:
            value = metrics.get(name, math.nan)
            if math.isnan(value):
                reason = f"{name} is not a number for seed {seed}"
                return Outcome(key=job.key, params=job.params, reason=reason)
        if not all(math.isfinite(metrics[name]) for name in job.metrics):
            reason = f"the target loss is not reached with seed {seed}"
            return Outcome(key=job.key, params=job.params, reason=reason, infeasible=True)
    return Outcome(key=job.key, params=job.params, per_seed=results)
