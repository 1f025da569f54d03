"""What a calibration predicts of days that it was not fitted on, beside what they showed.

Two kinds of checks. A parameter fitted on the days before is set beside the same one fitted on
the held-out days. And the simulator runs as long as the job did on those days, under static paths
and dense gradients, in runs whose parameters are drawn from their intervals: what it says of step
times is set beside the steps that were logged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from xtune.errors import CalibrationError
from xtune.policies.presets import preset
from xtune.sim._inputs import Inputs
from xtune.sim._stats import Floats
from xtune.sim.cache import PhaseCache
from xtune.sim.calibration import Calibration, Check, Parameter
from xtune.sim.fit_days import SHARED
from xtune.sim.fit_episodes import busy_intervals, covered_intervals, read_episodes, read_rates
from xtune.sim.fit_steps import read_steps
from xtune.sim.fit_traffic import read_collectives
from xtune.sim.loop import Step, simulate

# The smallest and the largest of so many draws hold the next one with 38 in 40: 95 %.
RUNS = 39
MOST_STEPS = 4000  # of a run; the first so many held-out steps are compared
FEWEST = 20  # steps below which there is no distribution to compare
TOLERANCE = 0.02  # difference below which no reader of step times acts: relative, but for
SHARES = ("_share", "_load")  # these
SLOW = 1.1  # times the clean step: counts as a slowed one
BETWEEN = (
    "compute_s", "collective_s", "episode_rate_per_h", "episode_length_s", "episode_hit_share",
    "episode_slowdown", "background_load",
)  # fmt: skip
DRAWN = BETWEEN[:-1]  # those that a simulated step depends on


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the held-out days logged: seconds of each step and of each gradient collective."""

    steps: Floats
    collectives: Floats


def read_observed(inputs: Inputs, job: str) -> Observed:
    """Of the days that ``inputs`` hold; empty where they logged none."""
    none = np.empty(0)
    try:
        busy = busy_intervals(read_episodes(inputs))
        steps = read_steps(inputs, job, busy, covered_intervals(read_rates(inputs))).seconds
        rows = read_collectives(inputs, job, busy)
    except CalibrationError:
        return Observed(steps=none, collectives=none)
    known = rows.filter(pl.col("duration_ns").is_not_null())["duration_ns"].to_numpy() / 1e9
    return Observed(steps=steps, collectives=known)


def validate(tuning: Calibration, observed: Observed, cache: PhaseCache) -> tuple[Check, ...]:
    """All checks that the held-out days allow.

    Args:
        tuning: With its held-out calibration.
        observed: What the held-out days logged.
        cache: Sampled phases.
    """
    if tuning.held_out is None:
        return ()
    later = tuning.held_out.parameters
    own = [name for name in BETWEEN if not later[name].why.startswith(SHARED)]
    checks = [between(tuning.parameters[n], later[n]) for n in own]
    known = [check for check in checks if check is not None]
    return (*known, *_step_checks(tuning, observed, cache))


def between(fitted: Parameter, later: Parameter) -> Check | None:
    """A parameter of the days before beside the same of later days; None without intervals.

    They agree where their difference is within the root of the sum of squares of both half
    widths, of each the one on the other's side: for independent estimates an interval of the
    difference. In logarithms where all is positive.
    """
    a, b = _estimate(fitted), _estimate(later)
    if a is None or b is None:
        return None
    if min(*a, *b) > 0:
        a, b = np.log(a), np.log(b)
    under, over = (a, b) if a[0] <= b[0] else (b, a)
    allowed = math.hypot(under[2] - under[0], over[0] - over[1])
    within = bool(over[0] - under[0] <= allowed)
    return Check(
        name=fitted.name, unit=fitted.unit, predicted=fitted.value, low=fitted.low,
        high=fitted.high, observed=later.value, observed_low=later.low, observed_high=later.high,
        n=later.n, why=later.why,
        agrees=within or _near(fitted.value, later.value, fitted.name),
    )  # fmt: skip


def _estimate(p: Parameter) -> Floats | None:
    """Value, lower and upper end; None without an interval."""
    if p.low is None or p.high is None:
        return None
    return np.array([p.value, p.low, p.high])


def _near(predicted: float, observed: float, name: str) -> bool:
    scale = 1.0 if name.endswith(SHARES) else abs(observed)
    return abs(predicted - observed) <= TOLERANCE * scale


def _step_checks(tuning: Calibration, observed: Observed, cache: PhaseCache) -> list[Check]:
    seen = observed.steps[:MOST_STEPS]
    if len(seen) < FEWEST:
        return []
    runs = predicted_steps(tuning, len(seen), cache)
    why = f"{RUNS} simulated runs of {len(seen)} steps, parameters drawn from their intervals"
    clean = tuning["step_s"]
    figures: tuple[tuple[str, str, Callable[[Floats], float]], ...] = (
        ("step_s_mean", "s", lambda steps: float(np.mean(steps))),
        ("step_s_p99", "s", lambda steps: float(np.quantile(steps, 0.99))),
        ("slow_step_share", "", lambda steps: float(np.mean(steps > SLOW * clean))),
    )
    checks = []
    for name, unit, figure in figures:
        values, value = np.array([figure(run) for run in runs]), figure(seen)
        low, high, middle = float(values.min()), float(values.max()), float(np.median(values))
        checks.append(
            Check(
                name=name,
                unit=unit,
                predicted=middle,
                low=low,
                high=high,
                observed=value,
                n=len(seen),
                agrees=low <= value <= high or _near(middle, value, name),
                why=why,
            )
        )
    return [*checks, _distance_check(runs, seen, why)]


def predicted_steps(tuning: Calibration, steps: int, cache: PhaseCache) -> list[Floats]:
    """Seconds of each step of `RUNS` runs; each with parameters of its own draw."""
    random = np.random.default_rng(0x7A11)
    bare = replace(tuning, held_out=None, validation=())
    policy = preset("static_dense")
    runs = []
    for seed in range(RUNS):
        drawn = bare.with_values(**draw(bare, random))
        trace: list[Step] = []
        simulate(policy, drawn, seed=seed, iterations=steps, cache=cache, trace=trace)
        runs.append(np.array([step.seconds for step in trace]))
    return runs


def draw(calibration: Calibration, random: np.random.Generator) -> dict[str, float]:
    """Parameters as uncertain as their intervals say, log-normal about their values."""
    values = {}
    for name in DRAWN:
        normal = float(random.standard_normal())  # drawn whether it is used or not
        p = calibration.parameters[name]
        if p.low and p.high and p.value > 0:
            sigma = math.log(p.high / p.low) / 3.92
            values[name] = p.value * math.exp(sigma * normal)
    if "episode_hit_share" in values:
        values["episode_hit_share"] = min(1.0, values["episode_hit_share"])
    return values


def _distance_check(runs: list[Floats], seen: Floats, why: str) -> Check:
    """Largest distance between the distributions of step times (Kolmogorov and Smirnov).

    Steps of one episode are alike, so the distance that chance allows is taken from the runs
    themselves: each against all others.
    """
    together = np.sort(np.concatenate(runs))
    own = np.array([distance(run, together) for run in runs])
    value = distance(seen, together)
    return Check(
        name="step_s_distance", predicted=float(np.median(own)), low=0.0, high=float(own.max()),
        observed=value, n=len(seen), agrees=value <= float(own.max()),
        why=f"largest distance of distribution functions; {why}",
    )  # fmt: skip


def distance(some: Floats, ordered: Floats) -> float:
    """Kolmogorov-Smirnov distance of a sample from a sorted one."""
    values = np.sort(some)
    at = np.concatenate([values, ordered])
    one = np.searchsorted(values, at, side="right") / len(values)
    two = np.searchsorted(ordered, at, side="right") / len(ordered)
    return float(np.abs(one - two).max())
