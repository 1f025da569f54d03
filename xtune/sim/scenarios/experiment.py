"""Runs a scenario: baselines, each half of a policy alone, the whole; beside the claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from xtune.policies.presets import preset
from xtune.policies.spec import Policy
from xtune.sim.evaluation import Evaluation, Metric, evaluate
from xtune.sim.scenarios._base import Scenario

BASELINE = "static_dense"
OTHERS = ("priority", "fixed_drop", "oblivious_spray", "power_of_two", "flowlet")
HALVES = ("routing_only", "compression_only")
# What a claim is about, and the metric whose change against the baseline answers it.
ANSWERS = {
    "throughput": "steps_per_s",
    "iterations": "steps_to_target",
    "time": "time_to_target_s",
}
SHOWN = (
    "steps_per_s", "mean_step_s", "steps_to_target", "extra_steps", "time_to_target_s",
    "exposed_share", "perplexity_penalty", "jitter_s", "ratio_vs_bf16", "control_changes",
)  # fmt: skip


def run_scenario(
    scenario: Scenario,
    policy: Policy,
    *,
    seeds: Sequence[int],
    iterations: int,
    executor: Executor | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[int, str], None] = lambda done, text: None,
) -> dict[str, Any]:
    """Every policy on the same seeds.

    Args:
        scenario: What to run.
        policy: The whole: routing and compression together.
        seeds: One run of each policy a seed.
        iterations: Progress that each run makes.
        executor: Where the runs go; None runs them here.
        cache_dir: Folder of sampled phases, shared between processes.
        progress: Called after each run: how many are done, and of which policy the last was.

    Returns:
        A JSON document, schema 1. It does not depend on the executor.
    """
    named = policies_of(policy)
    found: dict[str, Evaluation] = {}
    for name, each in named.items():
        found[name] = evaluate(
            each, scenario.calibration, seeds=seeds, iterations=iterations, executor=executor,
            cache_dir=cache_dir,
            baselines={BASELINE: found[BASELINE].runs} if found else None,
            progress=partial(_count, progress, name, len(found) * len(seeds)),
        )  # fmt: skip
    whole = next(name for name, each in named.items() if each == policy)
    return {
        "schema": 1,
        "simulated": True,
        "scenario": scenario.name,
        "title": scenario.title,
        "calibration": scenario.calibration.fingerprint,
        "iterations": iterations,
        "seeds": list(seeds),
        "policy": whole,
        "policies": [_row(scenario, name, e) for name, e in found.items()],
        "claims": [_answer(c, found[whole]) for c in map(asdict, scenario.claims)],
        "exposed": {
            "baseline": _brief(found[BASELINE].metrics["exposed_share"]),
            "needed": scenario.needed_share,
        },
        "assumed": [
            {"name": p.name, "value": p.value, "unit": p.unit, "why": p.why}
            for p in scenario.calibration.assumed
        ],
        "notes": sorted(
            {
                *scenario.calibration.notes,
                *(n for e in found.values() for r in e.runs for n in r.notes),
            }
        ),
    }


def _count(progress: Callable[[int, str], None], name: str, before: int, done: int) -> None:
    progress(before + done, name)


def policies_of(policy: Policy) -> dict[str, Policy]:
    """By name: baselines, each half alone, and the whole where it is none of these."""
    named = {name: preset(name) for name in (BASELINE, *OTHERS, *HALVES)}
    if policy not in named.values():
        named[policy.name if policy.name not in named else f"{policy.name} (given)"] = policy
    return named


def _row(scenario: Scenario, name: str, evaluation: Evaluation) -> dict[str, Any]:
    """One policy's figures, and its changes against the baseline seed by seed."""
    metrics = {m: _brief(evaluation.metrics[m]) for m in SHOWN}
    if scenario.flops_per_card is not None:
        rate = [r.metrics["steps_per_s"] * scenario.flops_per_card for r in evaluation.runs]
        metrics["tflops_per_card"] = _brief(Metric.of([1e-12 * value for value in rate]))
    return {"name": name, "metrics": metrics, "against": _changes(evaluation)}


def _changes(evaluation: Evaluation) -> dict[str, Mapping[str, float | None]] | None:
    paired = evaluation.against.get(BASELINE)
    if paired is None:
        return None
    return {what: _brief(paired[metric]) for what, metric in ANSWERS.items()}


def _answer(claim: dict[str, Any], evaluation: Evaluation) -> dict[str, Any]:
    """A claim beside the change that was simulated."""
    changes = _changes(evaluation)
    return {
        "metric": claim["metric"],
        "founding_document": claim["change"],
        "text": claim["text"],
        "simulated": None if changes is None else changes[claim["metric"]],
    }


def _brief(metric: Metric) -> Mapping[str, float | None]:
    """Mean and interval; none where a seed did not reach the target."""
    shown = {"mean": metric.mean, "low": metric.low, "high": metric.high}
    return {k: v if v is not None and math.isfinite(v) else None for k, v in shown.items()}
