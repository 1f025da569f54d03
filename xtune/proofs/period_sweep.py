"""Where the best regulation period T lies (founding document L3), by how fast traffic changes.

``python -m xtune.proofs.period_sweep [--seeds 10] [--calibration FILE]`` trains a job on the
simulator (rung C) under the joint policy with T from 10 to 2000 iterations, in three backgrounds
that are congested for the same share of the time and differ in the length of an episode. Every T
meets the same background on the same seed, so differences are paired. No term of the simulator
depends on T: regulations and changes of the plan cost what they were measured to, when they
happen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError, XtuneError
from xtune.files import write_atomically
from xtune.policies.presets import preset
from xtune.policies.spec import Policy, PolicyError, replace_fields
from xtune.sim import Calibration, mean_interval, simulate
from xtune.sim.cache import PhaseCache
from xtune.sim.network import scope_notes
from xtune.sim.scenarios import scenario

CLAIM = "under 50 it oscillates, over 500 it misses changes; a grid search found T = 200"
CLAIMED = 200
PERIODS = (10, 25, 50, 100, 200, 350, 500, 1000, 2000)
PACES = {"fast": 60, "medium": 300, "slow": 2000}  # iterations that an episode lasts, on average
SLICE_HOSTS = 64  # of a larger job, to keep the sweep short
RESOLUTION_PERCENT = 0.1  # of the time; no calibration knows a step better
ROUNDS = 2000  # of the bootstrap of the best T
METRICS = ("time_to_target_s", "control_changes", "perplexity_penalty", "ratio_vs_bf16")

Runs = dict[int, dict[str, NDArray[np.float64]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweep and print a table for each background; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        report = sweep(
            _calibration(arguments.calibration, arguments.scenario),
            preset(arguments.policy),
            seeds=arguments.seeds,
            iterations=arguments.iterations,
            said=partial(print, file=sys.stderr),
        )
        if arguments.out is not None:
            text = json.dumps(report, indent=1, allow_nan=False)
            write_atomically(arguments.out, (text + "\n").encode())
    except (OSError, PolicyError, XtuneError) as error:
        print(f"period_sweep: {error}", file=sys.stderr)
        return 2
    print(as_text(report))
    return 0


def at_pace(calibration: Calibration, iterations: float) -> Calibration:
    """The same share of the time congested, in episodes of so many iterations on average."""
    length_s = iterations * calibration["step_s"]
    busy_s = calibration["episode_rate_per_h"] * calibration["episode_length_s"]
    return calibration.with_values(episode_length_s=length_s, episode_rate_per_h=busy_s / length_s)


def sweep(
    calibration: Calibration,
    policy: Policy,
    *,
    seeds: int,
    iterations: int,
    said: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Every T in every background.

    Args:
        calibration: The job; its episodes' length is replaced, their share of the time stays.
        policy: What is regulated.
        seeds: Seeds of each, from 0.
        iterations: Progress each run makes.
        said: Called with a line as each T of a background is done.

    Returns:
        The figures, as plain data.

    Raises:
        UsageError: No seed, no iteration, or no episode to speak of.
    """
    if seeds < 2 or iterations < 1:
        raise UsageError("--seeds must be at least 2 and --iterations at least 1")
    if calibration["episode_rate_per_h"] <= 0:
        raise UsageError("the calibration has no episodes", "there is no pace to vary")
    cache = PhaseCache()
    paces = {}
    for pace, length in PACES.items():
        varied = at_pace(calibration, length)
        runs: Runs = {}
        for done, period in enumerate(PERIODS, 1):
            runs[period] = _runs(varied, policy, period, seeds, iterations, cache)
            said(f"{pace}: T = {period}, {done} of {len(PERIODS)}")
        paces[pace] = {"episode_iterations": length, **_summary(runs)}
        said(f"{pace}: best T {paces[pace]['best']}")
    return {
        "policy": policy.name,
        "job": calibration.job,
        "calibration": calibration.fingerprint,
        "seeds": seeds,
        "iterations": iterations,
        "paces": paces,
        "notes": list(scope_notes(calibration)),
        "founding_document": CLAIM,
        "simulated": True,
    }


def _runs(
    calibration: Calibration,
    policy: Policy,
    period: int,
    seeds: int,
    iterations: int,
    cache: PhaseCache,
) -> dict[str, NDArray[np.float64]]:
    """Metrics under one T, one value a seed."""
    tried = replace_fields(policy, {"period.iterations": period})
    runs = [
        simulate(tried, calibration, seed=seed, iterations=iterations, cache=cache).metrics
        for seed in range(seeds)
    ]
    return {name: np.array([run[name] for run in runs]) for name in METRICS}


def _summary(runs: Runs) -> dict[str, Any]:
    times = np.stack([runs[period]["time_to_target_s"] for period in PERIODS])
    best = int(np.argmin(times.mean(axis=1)))
    over_best = [_percent(row, times[best]) for row in times]
    alike = [low <= RESOLUTION_PERCENT for _, low, _ in over_best]
    return {
        "best": PERIODS[best],
        "best_interval": list(_best_interval(times)),
        "not_told_apart": [t for t, same in zip(PERIODS, alike, strict=True) if same],
        "periods": {
            period: {
                "time_s": float(times[i].mean()),
                "over_claimed_percent": _percent(times[i], times[PERIODS.index(CLAIMED)]),
                "over_best_percent": over_best[i],
                **{name: float(runs[period][name].mean()) for name in METRICS[1:]},
            }
            for i, period in enumerate(PERIODS)
        },
    }


def _percent(times: NDArray[np.float64], others: NDArray[np.float64]) -> list[float]:
    """Paired difference of the time with its 95 % bootstrap interval over seeds."""
    return list(mean_interval(list(100.0 * (times / others - 1.0))))


def _best_interval(times: NDArray[np.float64]) -> tuple[int, int]:
    """95 % bootstrap interval of the best T: seeds are drawn anew, the best is picked anew."""
    random = np.random.default_rng(0)
    drawn = random.integers(times.shape[1], size=(ROUNDS, times.shape[1]))
    best = np.sort(times[:, drawn].mean(axis=2).argmin(axis=0))
    low, high = (best[round(share * (ROUNDS - 1))] for share in (0.025, 0.975))
    return PERIODS[low], PERIODS[high]


def as_text(report: Mapping[str, Any]) -> str:
    """The tables for a terminal, and for a page."""
    lines = [
        f"policy {report['policy']}, job {report['job']}, calibration {report['calibration']}, "
        f"{report['seeds']} seeds, {report['iterations']} iterations; simulated",
        *report["notes"],
        "",
    ]
    for pace, figures in report["paces"].items():
        low, high = figures["best_interval"]
        lines += [
            f"{pace}: episodes of {figures['episode_iterations']} iterations; best T "
            f"{figures['best']}, 95 % interval {low} to {high}; not told apart from it: "
            f"{', '.join(map(str, figures['not_told_apart']))}",
            "",
            f"| T | time, s | against T = {CLAIMED} | against the best T | control changes "
            "| bytes saved |",
            "|---|---|---|---|---|---|",
            *(_row(period, row) for period, row in figures["periods"].items()),
            "",
        ]
    return "\n".join([*lines, f"founding document (L3): {report['founding_document']}"])


def _row(period: int, row: Mapping[str, Any]) -> str:
    shown = (
        f"{mean:+.2f} % ({low:+.2f}..{high:+.2f})"
        for mean, low, high in (row["over_claimed_percent"], row["over_best_percent"])
    )
    return (
        f"| {period} | {row['time_s']:.1f} | {' | '.join(shown)} "
        f"| {row['control_changes']:.1f} | {100 * row['ratio_vs_bf16']:.1f} % |"
    )


def _calibration(file: Path | None, name: str) -> Calibration:
    """What a file holds, else a scenario's, of which a slice is simulated.

    Raises:
        XtuneError: There is none.
    """
    if file is not None:
        return Calibration.load(file)
    found = scenario(name).calibration
    return found.with_values(slice_hosts=min(SLICE_HOSTS, found["slice_hosts"]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m xtune.proofs.period_sweep",
        description="The best regulation period T, by how fast the background changes.",
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 0")
    parser.add_argument("--iterations", type=int, default=6000, help="progress of each run")
    parser.add_argument("--policy", default="joint", help="a preset")
    parser.add_argument("--scenario", default="founding-dense", help="a job without telemetry")
    parser.add_argument("--calibration", type=Path, help="a file of xtune calibrate's, instead")
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
