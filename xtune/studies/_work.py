"""Runs evaluations on processes, in a fixed order whatever their number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.errors import XtuneError
from xtune.studies._trials import OBJECTIVE, Outcome

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration

MOST_LOSSES = 2  # workers that may die on one evaluation before it counts as failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One evaluation to do: a policy on all seeds."""

    key: str
    params: dict[str, float | int | str]
    policy: Policy
    seeds: tuple[int, ...]
    iterations: int


def run_seed(
    policy: Policy, calibration: Calibration, seed: int, iterations: int, cache: Path | None
) -> dict[str, float]:
    """One seed of one evaluation, in whatever process; returns its metrics."""
    from xtune.sim import simulate

    run = simulate(policy, calibration, seed=seed, iterations=iterations, cache_dir=cache)
    return dict(run.metrics)


def run_jobs(
    jobs: Sequence[Job],
    calibration: Calibration,
    *,
    pool: Callable[[], AbstractContextManager[Executor]],
    cache: Path | None,
    deadline: float = math.inf,
) -> Iterator[Outcome]:
    """Yield each job's outcome in the order of ``jobs``.

    A worker that dies (killed, out of memory) costs its evaluation one more try; an evaluation on
    which workers die twice has failed, and the others go on.

    Args:
        jobs: What to do.
        calibration: The simulator's.
        pool: Opens an executor.
        cache: Folder that workers share sampled phases in.
        deadline: On the monotonic clock; later jobs are not waited for.
    """
    todo = list(jobs)
    losses = 0
    while todo:
        with pool() as executor:
            futures = [_submit(executor, job, calibration, cache) for job in todo]
            try:
                for job, parts in zip(list(todo), futures, strict=True):
                    yield _gather(job, parts, deadline)
                    todo.pop(0)
                    losses = 0
            except TimeoutError:
                _cancel(futures)
                return
            except BrokenProcessPool:
                losses += 1
                if losses >= MOST_LOSSES:
                    job = todo.pop(0)
                    losses = 0
                    yield Outcome(
                        key=job.key, params=job.params, reason="worker processes died on it"
                    )
            except BaseException:
                _cancel(futures)
                raise


Parts = list["Future[dict[str, float]]"]


def _submit(executor: Executor, job: Job, calibration: Calibration, cache: Path | None) -> Parts:
    return [
        executor.submit(run_seed, job.policy, calibration, seed, job.iterations, cache)
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
    bad = [m[OBJECTIVE] for m in results if not math.isfinite(m[OBJECTIVE])]
    if bad:
        return Outcome(
            key=job.key, params=job.params, reason=f"{OBJECTIVE} is {bad[0]} for a seed"
        )
    return Outcome(key=job.key, params=job.params, per_seed=results)
