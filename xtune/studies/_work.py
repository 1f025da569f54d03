"""Runs evaluations on processes, in a fixed order whatever their number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from xtune.errors import XtuneError
from xtune.executor import workers_of
from xtune.studies._trials import REACHES, Outcome

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration

MOST_LOSSES = 2  # workers that may die on one evaluation before it counts as failed


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

    A worker that dies (killed, out of memory) costs its evaluation one more try; an evaluation on
    which workers die twice has failed, and the others go on.

    Args:
        jobs: What to do.
        workers: Where.
        cache: Folder that workers share sampled phases in.
        deadline: On the monotonic clock; later jobs are not waited for.
    """
    todo = list(jobs)
    losses = 0
    while todo:
        futures = [_submit(workers.executor, job, cache) for job in todo]
        try:
            for job, parts in zip(list(todo), futures, strict=True):
                yield _gather(job, parts, deadline)
                todo.pop(0)
                losses = 0
        except TimeoutError:
            _cancel(futures)
            return
        except BrokenProcessPool:
            workers.close()
            losses += 1
            if losses >= MOST_LOSSES:
                job = todo.pop(0)
                losses = 0
                yield Outcome(key=job.key, params=job.params, reason="worker processes died on it")
        except BaseException:
            _cancel(futures)
            raise


Parts = list["Future[dict[str, float]]"]


def _submit(executor: Executor, job: Job, cache: Path | None) -> Parts:
    return [
        executor.submit(run_seed, job.policy, job.calibration, seed, job.iterations, cache)
        for seed in job.seeds
    ]


def _cancel(futures: list[Parts]) -> None:
    for parts in futures:
        for future in parts:
            future.cancel()


def _gather(job: Job, parts: Parts, deadline: float) -> Outcome:
    results = []
    for future in parts:
        left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
        try:
            results.append(future.result(timeout=left))
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
