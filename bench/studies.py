"""Trials a second of a study with one worker and with two, phases sampled before.

Workers are there and warm: what is measured is how a search's batches keep them busy, with its
storage, its sampler and the waiting for the last of each batch.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from xtune.executor import open_executor
from xtune.lake import Lake
from xtune.sim import Calibration
from xtune.sim.scenarios import scenario
from xtune.studies import Dimension, Options, Study, run_study

RUNS = 3
TRIALS = 16
GOAL = 0.6
NAMES = ("studies.two_workers_vs_one",)
# Fields that ask for no phase of their own.
STUDY = Study(
    name="bench",
    title="trials a second",
    base="joint",
    space={
        "period.iterations": Dimension(low=10, high=2000, log=True),
        "safety.smoothing": Dimension(low=0.05, high=0.5),
    },
    sampler="tpe",
    trials=TRIALS,
    baselines=(),
    ablations=(),
)


def _wall(
    folder: Path, calibration: Calibration, pool: Callable[[], AbstractContextManager[Executor]]
) -> float:
    lake = Lake.open(folder, create=True)
    shutil.rmtree(folder / "studies" / STUDY.name, ignore_errors=True)
    start = time.perf_counter()
    run_study(
        STUDY,
        lake,
        calibration,
        Options(seeds=5, iterations=3000, fidelity=False),
        pool=pool,
    )
    return time.perf_counter() - start


def run() -> list[dict[str, object]]:
    """Medians of whole studies, taken in turns."""
    calibration = scenario("founding-dense").calibration.with_values(slice_hosts=64.0)
    walls: dict[int, list[float]] = {1: [], 2: []}
    with (
        tempfile.TemporaryDirectory() as name,
        open_executor("local", 1) as one,
        open_executor("local", 2) as two,
    ):
        pools: dict[int, Callable[[], AbstractContextManager[Executor]]] = {
            1: lambda: nullcontext(one),
            2: lambda: nullcontext(two),
        }
        for pool in pools.values():
            _wall(Path(name), calibration, pool)  # samples phases, and fills each worker's cache
        for _ in range(RUNS):
            for count, pool in pools.items():
                walls[count].append(_wall(Path(name), calibration, pool))
    wall = {count: statistics.median(taken) for count, taken in walls.items()}
    return [
        {
            "name": "studies.two_workers_vs_one",
            "ratio": wall[2] / wall[1],
            "goal": GOAL,
            "better": "lower",
            "value": TRIALS / wall[2],
            "unit": "trials/s",
            "against": f"one worker: {TRIALS / wall[1]:.3g} trials/s",
            "runs": RUNS,
        }
    ]
