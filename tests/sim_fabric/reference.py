"""The reference figures in bench/reference, for the tests beside this file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import Flows, build_flows
from xtune.sim.phase import run_phase

FOLDER = Path(__file__).parents[2] / "bench" / "reference"
HEADER_BYTES = 64  # of the packet simulator
SEEDS = 50


def reference_fabric(hosts: int) -> LeafSpine:
    """The fabric of the reference, on the wire as it had it."""
    side = round(hosts**0.5)
    return LeafSpine(hosts, side, side, header_bytes=HEADER_BYTES)


def figures(workload: str) -> tuple[float, float, float]:
    """Mean, p99 and last completion under RoCE ECMP, us."""
    with (FOLDER / "htsim_results.csv").open() as file:
        for row in csv.DictReader(file):
            if row["scheme"] == "roce_ecmp" and row["workload"] == workload:
                return float(row["mean_us"]), float(row["p99_us"]), float(row["last_us"])
    raise KeyError(workload)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """One permutation on the paths of the reference: our completions and the reference's, us."""

    ours: NDArray[np.float64]
    theirs: NDArray[np.float64]

    @property
    def correlation(self) -> float:
        return float(np.corrcoef(self.ours, self.theirs)[0, 1])

    @property
    def mean_error(self) -> float:
        return float(np.mean(np.abs(self.ours - self.theirs) / self.theirs))

    @property
    def last_error(self) -> float:
        return float(abs(self.ours.max() / self.theirs.max() - 1))


def replay(hosts: int, dt_ns: int) -> Replay:
    """Run the stored paths."""
    table = np.loadtxt(FOLDER / f"htsim_flows_perm{hosts}.csv", delimiter=",", skiprows=1)
    src, dst, size, spine = (table[:, i].astype(np.int64) for i in range(4))
    flows = build_flows(src.astype(np.int32), dst.astype(np.int32), size)
    result = run_phase(
        reference_fabric(hosts), flows.with_paths(spine.astype(np.int32)), dt_ns=dt_ns
    )
    return Replay(ours=result.completion_ns / 1e3, theirs=table[:, 4])


def in_band(hosts: int, workload: str, flows: list[Flows]) -> list[bool]:
    """Whether mean, p99 and last lie in the 5 to 95 % band of our draws, one flow set a draw."""
    fabric = reference_fabric(hosts)
    draws = []
    for seed, each in enumerate(flows):
        us = run_phase(fabric, each, seed=seed).completion_ns / 1e3
        draws.append((us.mean(), np.quantile(us, 0.99), us.max()))
    low, high = np.quantile(np.array(draws), [0.05, 0.95], axis=0)
    theirs = np.array(figures(workload))
    return [bool(x) for x in (low <= theirs) & (theirs <= high)]
