"""Many at once: 1024 binary choices over 2048 links in one call, and 2048 forecasts.

Links are those between 16 leaves and 64 spines; each choice has the pair's primary and seven more
paths of two links. Quiet: no primary is warned. Beside it the same with a tenth of the links
warm, where rows search and move. Compiled where numba is installed, and by numpy. And the
placement of a phase: a permutation of 1024 hosts over 32 leaves and 32 spines.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from xtune.policies import ChoiceTable, ForecastTable, preset
from xtune.policies._core import hash31
from xtune.policies.flow_state import FlowState, PathSet
from xtune.policies.phase_placement import place

NAMES = ("policies.table_2048_us", "policies.forecast_2048_us", "policies.place_1024_ms")

RUNS, ROUNDS = 5, 500
LEAVES, SPINES, CHOICES, PATHS = 16, 64, 1024, 8
LINKS = 2 * LEAVES * SPINES
GOAL_US = {True: 5.0, False: 20.0}  # compiled, or by numpy
STEP_NS = 10_000


def _choices() -> list[PathSet]:
    rng = random.Random(1)
    sets = []
    for number in range(CHOICES):
        src, dst = rng.sample(range(LEAVES), 2)
        down = LEAVES * SPINES
        spines = rng.sample(range(SPINES), PATHS)
        sets.append(PathSet(number, [(src * SPINES + s, down + s * LEAVES + dst) for s in spines]))
    return sets


def _median_us(call: Callable[[int], object]) -> float:
    """Of one call, given the number of the round; after the first, which may compile."""
    call(0)
    times = []
    for turn in range(1, ROUNDS):
        started = time.perf_counter_ns()
        call(turn)
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times) / 1000


def _table_us(compiled: bool, warm: float) -> float:
    routing = preset("joint").routing
    rows = [
        (paths, FlowState(i, paths, routing, 0).pairs[0]) for i, paths in enumerate(_choices())
    ]
    table = ChoiceTable(rows, routing, compiled=compiled)
    rng = np.random.default_rng(1)
    worths = [
        np.where(
            rng.random(LINKS) < warm, rng.uniform(0.7, 1.0, LINKS), rng.uniform(0, 0.3, LINKS)
        )
        for _ in range(50)
    ]
    seen = np.full(LINKS, 2**60)
    return _median_us(lambda turn: table.choose(worths[turn % 50], seen, turn * STEP_NS))


def _forecast_us(compiled: bool) -> float:
    table = ForecastTable(LINKS, preset("joint").routing, compiled=compiled)
    readings = np.random.default_rng(1).random((50, LINKS))
    return _median_us(lambda turn: table.update(readings[turn % 50], turn * STEP_NS))


def _place_ms(seed: int) -> float:
    side = 32
    to = random.Random(seed).sample(range(side * side), side * side)
    paths = [
        [(n // side * side + s, side * side + s * side + dst // side) for s in range(side)]
        for n, dst in enumerate(to)
    ]
    count = len(paths)
    started = time.perf_counter_ns()
    place(paths, [8e6] * count, [1.0] * (2 * side * side), [hash31(n, seed) for n in range(count)])
    return (time.perf_counter_ns() - started) / 1e6


def run() -> list[dict]:
    """Medians of several runs of the best form that is there, the other form beside it."""
    compiled = find_spec("numba") is not None

    def median(timed: Callable[[], float]) -> float:
        return statistics.median(timed() for _ in range(RUNS))

    chosen = median(lambda: _table_us(compiled, 0.0))
    warm = median(lambda: _table_us(compiled, 0.1))
    by_numpy = median(lambda: _table_us(False, 0.0))
    forecast = median(lambda: _forecast_us(compiled))
    forecast_by_numpy = median(lambda: _forecast_us(False))
    goal = GOAL_US[compiled]
    form = "numba" if compiled else "numpy"
    rows = (
        (chosen, f"{form}, quiet; a tenth warm: {warm:.1f} us; by numpy {by_numpy:.1f} us"),
        (forecast, f"{form}, Holt; by numpy {forecast_by_numpy:.1f} us"),
    )
    placing = statistics.median(_place_ms(seed) for seed in range(RUNS))
    return [
        {
            "name": NAMES[2],
            "ratio": None,
            "goal": None,
            "better": "lower",
            "value": placing,
            "unit": "ms",
            "against": "once a traffic pattern; no two flows share a link",
            "runs": RUNS,
        }
    ] + [
        {
            "name": name,
            "ratio": None,
            "goal": goal,
            "better": "lower",
            "value": value,
            "unit": "us",
            "against": against,
            "runs": RUNS,
        }
        for name, (value, against) in zip(NAMES[:2], rows, strict=True)
    ]
