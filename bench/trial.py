"""Seconds of one trial: 5,000 iterations at 1024 hosts on one core, phases sampled before.

The policy is that of the study of the period T, at its usual T. A study's trial is as many of
these as it has seeds.
"""

from __future__ import annotations

import statistics
import time

from xtune.policies.presets import preset
from xtune.sim import simulate
from xtune.sim.cache import PhaseCache
from xtune.sim.scenarios import scenario

RUNS = 5
ITERATIONS = 5000
GOAL_S = 2.0
NAMES = ("sim.trial_5000_s", "sim.trial_linear")


def run() -> list[dict[str, object]]:
    """Median wall time, and that of twice as many iterations over it."""
    calibration, cache, policy = (
        scenario("founding-dense").calibration,
        PhaseCache(),
        preset("joint"),
    )
    walls: dict[int, list[float]] = {ITERATIONS: [], 2 * ITERATIONS: []}
    for count in walls:
        simulate(policy, calibration, iterations=count, cache=cache)  # samples phases
    for _ in range(RUNS):
        for count, taken in walls.items():
            start = time.perf_counter()
            simulate(policy, calibration, iterations=count, cache=cache)
            taken.append(time.perf_counter() - start)
    wall = statistics.median(walls[ITERATIONS])
    ratio = statistics.median(walls[2 * ITERATIONS]) / wall
    common = {"better": "lower", "runs": RUNS}
    return [
        {
            "name": "sim.trial_5000_s", "ratio": None, "goal": GOAL_S, "value": wall, "unit": "s",
            "against": "a study of hundreds of trials on one machine", **common,
        },
        {
            "name": "sim.trial_linear", "ratio": ratio, "goal": 2.2,
            "value": statistics.median(walls[2 * ITERATIONS]), "unit": "s",
            "against": "the same trial of half as many iterations", **common,
        },
    ]  # fmt: skip
