"""Wall time of one phase at 1024 hosts, beside the quiet wall times of a packet simulator.

The peer's figures are stored (bench/reference/quiet_walls.csv): it is another program in another
language, and one of its phases takes a minute. Set-up of a phase counts; compiling once does not.
"""

from __future__ import annotations

import csv
import statistics
import time
from pathlib import Path

from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import all_to_all, halving_doubling, permutation, ring
from xtune.sim.phase import run_phase

RUNS = 7
HOSTS = 1024
GOAL_S = 0.05  # of a phase: what a study of hundreds of trials can afford
WALLS = Path(__file__).parent / "reference" / "quiet_walls.csv"
LABELS = {
    "permutation": "perm",
    "ring": "ring",
    "halving_doubling": "hd",
    "all_to_all": "a2a",
}
NAMES = tuple(f"sim_{label}{HOSTS}_vs_htsim" for label in LABELS.values())


def run() -> list[dict[str, object]]:
    """Medians of several runs, each with paths of its own."""
    fabric = LeafSpine.square(HOSTS)
    flows = {
        "permutation": permutation(fabric),
        "ring": ring(fabric, seed=7),
        "halving_doubling": halving_doubling(fabric),
        "all_to_all": all_to_all(fabric),
    }
    with WALLS.open() as file:
        stored = {row["workload"]: float(row["wall_s"]) for row in csv.DictReader(file)}
    run_phase(fabric, permutation(fabric, 4096))  # compiles
    results: list[dict[str, object]] = []
    for workload, each in flows.items():
        walls = []
        for seed in range(RUNS):
            start = time.perf_counter()
            run_phase(fabric, each, seed=seed)
            walls.append(time.perf_counter() - start)
        wall = statistics.median(walls)
        peer = stored[workload]
        results.append(
            {
                "name": f"sim_{LABELS[workload]}{HOSTS}_vs_htsim",
                "ratio": wall / peer,
                "goal": GOAL_S / peer,
                "better": "lower",
                "value": wall * 1e3,
                "unit": "ms",
                "against": f"htsim RoCE ECMP, stored: {peer:g} s on a quiet 2-core machine",
                "runs": RUNS,
            }
        )
    return results
