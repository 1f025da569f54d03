"""Evaluations by key: what is stored is never run again, what is missing is run and stored."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.studies._leases import Leases, NoLeases
from xtune.studies._own_error import measure
from xtune.studies._trials import Outcome, TrialStore
from xtune.studies._work import Job, Workers, run_jobs

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from xtune.policies.spec import Policy
    from xtune.sim import Calibration
    from xtune.sim.fidelity import Fidelity

POLL_S = 0.5  # between two looks at what other processes have done


class TimeUp(Exception):
    """The time that the user gave is over; what is done is stored."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One finished evaluation, for a progress bar.

    Attributes:
        stage: What the evaluations are for.
        done: Evaluations of the stage that are there.
        total: All of the stage.
        failed: How many of them failed.
        text: The point.
    """

    stage: str
    done: int
    total: int
    failed: int
    text: str


class Evaluator:
    """Runs evaluations that are not stored yet.

    Args:
        workers: Where runs go.
        leases: Who else works on the study.
        cache: Folder that workers share sampled phases in.
        deadline: On the monotonic clock.
        progress: Called after each evaluation.
    """

    def __init__(
        self,
        workers: Workers,
        leases: Leases | NoLeases,
        *,
        cache: Path,
        deadline: float = math.inf,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._workers, self._leases = workers, leases
        self._cache, self._deadline, self._progress = cache, deadline, progress
        self.ran = 0

    def run(
        self,
        stage: str,
        jobs: Sequence[Job],
        store: TrialStore,
        ranges: Mapping[str, BaseDistribution] | None = None,
        *,
        constraints: Callable[[Outcome], Mapping[str, float] | None] = lambda _: None,
    ) -> dict[str, Outcome]:
        """The outcomes of all jobs by key.

        An evaluation that failed in an earlier run of the study is tried again, once.

        Args:
            stage: For the progress.
            jobs: What is needed.
            store: Where it is kept.
            ranges: Optuna's ranges of the searched fields, for storing.
            constraints: By how much an outcome exceeds its limits, for storing.

        Raises:
            TimeUp: The deadline has passed.
        """
        before = store.finished()
        needed = {job.key: job for job in jobs}
        total, failed = len(needed), 0
        found: dict[str, Outcome] = {}
        released: set[str] = set()
        while True:
            for key, outcome in store.finished().items():
                old = before.get(key)
                new = outcome.settled or old is None or outcome.number != old.number
                if key in needed and new:
                    found[key] = outcome
                    del needed[key]
            if not needed:
                return found
            if time.monotonic() > self._deadline:
                raise TimeUp
            mine = self._claim(list(needed.values()), released)
            for outcome in run_jobs(
                mine, self._workers, cache=self._cache, deadline=self._deadline
            ):
                store.add(outcome, ranges or {}, constraints(outcome))
                self._leases.release(outcome.key)
                found[outcome.key] = outcome
                del needed[outcome.key]
                self.ran += 1
                failed += outcome.state == "failed"
                text = ", ".join(map(str, outcome.params.values()))
                self._progress(Progress(stage, total - len(needed), total, failed, text))
            if not mine:
                time.sleep(POLL_S)

    def own_errors(
        self, stage: str, policies: Mapping[str, Policy], calibration: Calibration, seed: int
    ) -> tuple[dict[str, Fidelity], dict[str, str]]:
        """What the simulator is off by under each policy, and why that is not known, by its name.

        Kept beside the sampled phases.

        Raises:
            TimeUp: The deadline has passed.
        """
        alike = {policy.digest(): policy for policy in policies.values()}

        def told(done: int, policy: Policy) -> None:
            self._progress(Progress(stage, done, len(alike), 0, policy.name))

        try:
            found, reasons = measure(
                alike, calibration, self._workers, seed=seed, cache=self._cache,
                deadline=self._deadline, progress=told,
            )  # fmt: skip
        except TimeoutError:
            raise TimeUp from None
        digests = {name: policy.digest() for name, policy in policies.items()}
        return (
            {name: found[digest] for name, digest in digests.items() if digest in found},
            {name: reasons[digest] for name, digest in digests.items() if digest in reasons},
        )

    def once(self, key: str, there: Callable[[], bool], action: Callable[[], None]) -> None:
        """Do something that one process is to do, unless it is there or is being done."""
        if there():
            return
        state = self._leases.claim(key, again=False)
        if state == "released" and not there():
            state = self._leases.claim(key, again=True)
        if state == "mine":
            action()
            self._leases.release(key)

    def _claim(self, jobs: Sequence[Job], released: set[str]) -> list[Job]:
        """Those that this process takes now: all of them, or as many as its workers can do.

        One that was released by another process, and whose outcome is still not there when it is
        looked for again, is taken anew.
        """
        mine: list[Job] = []
        for job in jobs:
            if self._leases.shared and sum(len(j.seeds) for j in mine) >= self._workers.count:
                break
            state = self._leases.claim(job.key, job.key in released)
            if state == "mine":
                mine.append(job)
            elif state == "released":
                released.add(job.key)
        return mine
