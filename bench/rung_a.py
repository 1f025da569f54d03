"""Rung A at 1024 hosts: beside a packet simulator's quiet walls, and a bare loop in C.

The packet simulator's figures are stored (bench/reference/quiet_walls.csv): it is another program
in another language, and one of its phases takes a minute. Set-up of a phase counts beside it;
compiling once does not. Beside C only the stepping counts, in the same arrays. All times are CPU
times of one thread: what the wall is on a quiet machine, as the stored walls were taken.
"""

from __future__ import annotations

import csv
import statistics
import time
from pathlib import Path

from bench._bare import BareLoop, compiler, fresh_state
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import Flows, all_to_all, halving_doubling, permutation, ring
from xtune.sim.phase import run_phase

RUNS = 7
HOSTS = 1024
GOAL = 1 / 500  # of the packet simulator's wall
GOAL_C = 1.5
WALLS = Path(__file__).parent / "reference" / "quiet_walls.csv"
LABELS = {
    "permutation": "perm",
    "ring": "ring",
    "halving_doubling": "hd",
    "all_to_all": "a2a",
}
SIZES = (64, 256, 1024)
NAMES = (
    f"sim.phase_{HOSTS}_vs_htsim",
    *(f"sim.phase_{HOSTS}_{label}_vs_htsim" for label in LABELS.values()),
    f"sim.phase_{HOSTS}_vs_c",
    "sim.hosts_linear",
)


def run() -> list[dict[str, object]]:
    """Medians of several runs, each with paths of its own."""
    fabric = LeafSpine.square(HOSTS)
    run_phase(fabric, permutation(fabric, 4096))  # compiles
    return [*_beside_htsim(fabric), _beside_c(fabric), _linear()]


def _cpu_s(fabric: LeafSpine, flows: Flows) -> float:
    walls = []
    for seed in range(RUNS):
        start = time.process_time()
        run_phase(fabric, flows, seed=seed)
        walls.append(time.process_time() - start)
    return statistics.median(walls)


def _beside_htsim(fabric: LeafSpine) -> list[dict[str, object]]:
    """A row a workload, and the worst of them."""
    flows = {
        "permutation": permutation(fabric),
        "ring": ring(fabric, seed=7),
        "halving_doubling": halving_doubling(fabric),
        "all_to_all": all_to_all(fabric),
    }
    with WALLS.open() as file:
        stored = {row["workload"]: float(row["wall_s"]) for row in csv.DictReader(file)}
    rows: list[dict[str, object]] = []
    for workload, each in flows.items():
        wall, peer = _cpu_s(fabric, each), stored[workload]
        rows.append(
            {
                "name": f"sim.phase_{HOSTS}_{LABELS[workload]}_vs_htsim",
                "ratio": wall / peer,
                "goal": GOAL,
                "better": "lower",
                "value": wall * 1e3,
                "unit": "ms",
                "against": f"htsim RoCE ECMP, stored: {peer:g} s on a quiet 2-core machine",
                "runs": RUNS,
            }
        )
    worst = max(rows, key=lambda row: float(str(row["ratio"])))
    against = f"the worst of four: {worst['name']}, stored"
    return [worst | {"name": f"sim.phase_{HOSTS}_vs_htsim", "against": against}, *rows]


def _beside_c(fabric: LeafSpine) -> dict[str, object]:
    """A permutation, stepped by the kernel and by the bare loop in turn."""
    name = f"sim.phase_{HOSTS}_vs_c"
    row: dict[str, object] = {"name": name, "goal": GOAL_C, "better": "lower", "unit": "ms"}
    cc = compiler()
    if cc is None:
        return row | {"ratio": None, "value": 0.0, "against": "skipped: no C compiler", "runs": 0}
    bare, flows = BareLoop(cc), permutation(fabric)
    ratios, walls = [], []
    for seed in range(2 * RUNS):
        state, twin = (fresh_state(fabric, flows, seed) for _ in range(2))
        start = time.process_time()
        state.run()
        wall = time.process_time() - start
        bare_s, steps = bare.time_s(fabric, twin)
        if steps != state.figures()["steps"]:
            raise AssertionError(f"the bare loop took {steps} steps: it does not do the same")
        walls.append(wall)
        ratios.append(wall / bare_s)
    return row | {
        "ratio": statistics.median(ratios),
        "value": statistics.median(walls) * 1e3,
        "against": f"{cc} -O3: the same fragments in the same arrays, and nothing else",
        "runs": 2 * RUNS,
    }


def _linear() -> dict[str, object]:
    """Wall time a host and step at 1024 hosts, over that at 64."""
    each = {}
    for hosts in SIZES:
        fabric = LeafSpine.square(hosts)
        flows = permutation(fabric)
        steps = statistics.median(run_phase(fabric, flows, seed=s).steps for s in range(RUNS))
        each[hosts] = _cpu_s(fabric, flows) / (hosts * steps)
    text = ", ".join(f"{hosts} hosts {each[hosts] * 1e9:.1f} ns" for hosts in SIZES)
    return {
        "name": "sim.hosts_linear",
        "ratio": each[SIZES[-1]] / each[SIZES[0]],
        "goal": 1.5,
        "better": "lower",
        "value": each[SIZES[-1]] * 1e9,
        "unit": "ns a host and step",
        "against": f"64 hosts ({text})",
        "runs": RUNS,
    }
