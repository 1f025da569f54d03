"""A policy over several seeds: metrics with intervals, and paired differences to baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from xtune.policies.spec import Policy
from xtune.sim._stats import bootstrap
from xtune.sim.cache import PhaseCache
from xtune.sim.calibration import Calibration
from xtune.sim.loop import Run, simulate


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """Mean over seeds with a 95 % bootstrap interval; None where a seed has no finite value."""

    mean: float | None
    low: float | None
    high: float | None
    per_seed: tuple[float | None, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Metric:
        """Of one value a seed."""
        shown = tuple(v if math.isfinite(v) else None for v in values)
        if not values or None in shown:
            return cls(mean=None, low=None, high=None, per_seed=shown)
        mean, low, high = mean_interval(values)
        return cls(mean=mean, low=low, high=high, per_seed=shown)

    def to_json(self) -> dict[str, Any]:
        """JSON object."""
        return {"mean": self.mean, "low": self.low, "high": self.high,
                "per_seed": list(self.per_seed)}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A policy on the simulator.

    Attributes:
        policy: Name of the policy.
        calibration: Fingerprint of the calibration.
        iterations: Progress each run makes.
        seeds: One run each.
        metrics: By name.
        against: For each baseline, the paired difference of each metric, policy minus baseline, as
            a share of the baseline's value (where that is not 0).
        runs: The runs, in the order of the seeds.
    """

    policy: str
    calibration: str
    iterations: int
    seeds: tuple[int, ...]
    metrics: Mapping[str, Metric]
    against: Mapping[str, Mapping[str, Metric]] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON document, schema 1."""
        return {
            "schema": 1,
            "policy": self.policy,
            "calibration": self.calibration,
            "iterations": self.iterations,
            "seeds": list(self.seeds),
            "metrics": {name: m.to_json() for name, m in self.metrics.items()},
            "against": {
                base: {name: m.to_json() for name, m in row.items()}
                for base, row in self.against.items()
            },
            "runs": [run.to_json() for run in self.runs],
            "simulated": True,
        }


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % percentile bootstrap interval, the same for the same values.

    Args:
        values: At least one finite number.
    """
    array = np.asarray(values, dtype=float)
    low, high = bootstrap(array, lambda v: float(v.mean()))
    return float(array.mean()), low, high


def evaluate(
    policy: Policy,
    calibration: Calibration,
    *,
    seeds: Sequence[int] = range(5),
    iterations: int = 3000,
    baselines: Mapping[str, Sequence[Run]] | None = None,
    executor: Executor | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Evaluation:
    """Run a policy on every seed and compare it with baselines seed by seed.

    Args:
        policy: The policy.
        calibration: The cluster and the job.
        seeds: Seeds; every policy meets the same background, jitter and noise on the same seed.
        iterations: Progress each run makes.
        baselines: Runs of other policies with the same seeds and iterations (``Evaluation.runs``).
        executor: Where the runs go; None runs them here.
        cache_dir: Folder of sampled phases, shared between processes.
        progress: Called after each run with how many are done.

    Returns:
        The evaluation; it does not depend on the executor.

    Raises:
        ValueError: A baseline has other seeds or iterations.
    """
    seeds = tuple(seeds)
    if executor is None:
        cache = PhaseCache(cache_dir)
        made = (
            simulate(policy, calibration, seed=s, iterations=iterations, cache=cache)
            for s in seeds
        )
    else:
        one = partial(_one, policy, calibration, iterations, cache_dir)
        made = (run for run in executor.map(one, seeds))
    runs: tuple[Run, ...] = ()
    for run in made:
        runs += (run,)
        progress(len(runs))
    for name, others in (baselines or {}).items():
        if tuple((r.seed, r.iterations) for r in others) != tuple((s, iterations) for s in seeds):
            raise ValueError(f"baseline {name} has other seeds or iterations")
    names = list(runs[0].metrics) if runs else []
    return Evaluation(
        policy=policy.name, calibration=calibration.fingerprint, iterations=iterations,
        seeds=seeds, runs=runs,
        metrics={n: Metric.of([r.metrics[n] for r in runs]) for n in names},
        against={
            base: {n: _paired(n, runs, others) for n in names}
            for base, others in (baselines or {}).items()
        },
    )  # fmt: skip


def _one(
    policy: Policy, calibration: Calibration, iterations: int, cache_dir: Path | None, seed: int
) -> Run:
    return simulate(policy, calibration, seed=seed, iterations=iterations, cache_dir=cache_dir)


def _paired(name: str, runs: Sequence[Run], others: Sequence[Run]) -> Metric:
    pairs = [(a.metrics[name], b.metrics[name]) for a, b in zip(runs, others, strict=True)]
    return Metric.of([(a - b) / abs(b) if b else math.inf for a, b in pairs])
