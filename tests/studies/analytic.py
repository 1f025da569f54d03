"""Runs whose outcome is a formula of policy and seed: an executor in the simulator's place.

The time falls to 100 s at a period of 200 iterations; a point has noise of its own on each seed,
and a seed what is common to all points. What it gives is known, so that a search can be judged.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.sim_loop.made import made
from xtune.lake import Lake
from xtune.policies.spec import Policy
from xtune.sim import Calibration
from xtune.sim.fidelity import Fidelity
from xtune.studies import Dimension, Options, Study, run_study
from xtune.studies._own_error import measured
from xtune.studies._space import METRICS

SPACE = {
    "period.iterations": Dimension(low=5, high=1000, log=True),
    "bus.smoothing": Dimension(low=0.05, high=1.0),
    "bus.enter_slowdown[0]": Dimension(low=1.01, high=1.6),
}
STUDY = Study(
    name="drawn",
    title="for tests",
    base="joint",
    space=SPACE,
    sampler="tpe",
    trials=12,
    batch=4,
    baselines=("static_dense",),
    ablations=("compression_only",),
)
OPTIONS = Options(seed=3, seeds=5, iterations=300, fidelity=False)


def noise(*what: object) -> float:
    """A number of -1 to 1, the same for the same arguments."""
    content = hashlib.sha256(repr(what).encode()).digest()
    return int.from_bytes(content[:8], "big") / 2**63 - 1.0


class Runs(Executor):
    """Computes runs at once, in this process.

    Args:
        sigma: Noise of a point on a seed, s.
        stop_after: Runs after which this process is interrupted.
        rule: Changes the metrics of a run.
    """

    def __init__(
        self,
        *,
        sigma: float = 0.05,
        stop_after: int | None = None,
        rule: Callable[[Policy, dict[str, float]], None] = lambda policy, metrics: None,
    ) -> None:
        self.sigma, self.stop_after, self.rule = sigma, stop_after, rule
        self.ran: list[tuple[str, int, int]] = []
        self._max_workers = 1  # as of a pool of threads

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        if function is measured:
            known: Future[Any] = Future()
            known.set_result(own_error(*args[:2]))
            return known
        policy, calibration, seed, iterations, _ = args
        if len(self.ran) == self.stop_after:
            raise KeyboardInterrupt
        self.ran.append((policy.digest(), seed, iterations))
        future: Future[Any] = Future()
        try:
            metrics = self._metrics(policy, calibration, seed, iterations)
            self.rule(policy, metrics)
            future.set_result(metrics)
        except Exception as error:
            future.set_exception(error)
        return future

    def _metrics(
        self, policy: Policy, calibration: Calibration, seed: int, iterations: int
    ) -> dict[str, float]:
        away = math.log(policy.period.iterations / 200)
        bend = 10 * (policy.bus.smoothing - 0.4) ** 2
        own = self.sigma * noise(policy.digest(), seed, calibration["compute_s"])
        time_s = 100 + 2 * away**2 + bend + 0.5 * noise(seed) + own
        if policy.routing.mode == "static":
            time_s += 10
        metrics = dict.fromkeys(METRICS, 0.0)
        return metrics | {
            "time_to_target_s": time_s * iterations / 300,
            "jitter_s": 1.0 / policy.period.iterations,
            "control_changes": 1000.0 / policy.period.iterations,
        }


def own_error(policy: Policy, calibration: Calibration) -> Fidelity:
    """Made up: in two windows of equal weight, and another on another calibration."""
    errors = tuple(
        0.01 * noise("window", i, policy.digest(), calibration["compute_s"]) for i in range(2)
    )
    bias, sd = sum(errors) / 2, abs(errors[0] - errors[1]) / 2
    return Fidelity(
        policy=policy.name, bias=bias, sd=sd, phase_bias=0.0, phase_sd=0.0, windows=2,
        errors=errors, shares=(0.5, 0.5),
    )  # fmt: skip


def lake_in(folder: Path) -> Lake:
    """An empty lake."""
    return Lake.open(folder / "lake", create=True)


def search(
    lake: Lake,
    runs: Executor | None = None,
    *,
    study: Study = STUDY,
    options: Options = OPTIONS,
    calibration: Calibration | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Run a study on formulas."""
    executor = runs or Runs()

    def pool() -> AbstractContextManager[Executor]:
        return nullcontext(executor)

    return run_study(study, lake, calibration or made(), options, pool=pool, **how)


def sampled(sampler: str, **changes: Any) -> Study:
    """The study with another sampler."""
    return replace(STUDY, sampler=sampler, **changes)
