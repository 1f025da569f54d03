"""What the steps of sampled phases are off by, beside much shorter ones.

``python -m xtune.proofs.steps [--places 8]``: all-to-alls of 8 hosts below 4 leaves, from 4 KiB to
1 MB a flow, clear and with a port 2.8 times slower, each in the steps of a cell and in an eighth
of them. Where a way of routing decides by chance, or by readings, other steps draw other paths:
the error of a mean says how much of a figure is that.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xtune.policies.spec import Routing
from xtune.sim.cache import PhaseCache, Phases, step_ns
from xtune.sim.network import CLEAR, Network, State

MODES = ("static", "binary", "power_of_two", "flowlet", "spray", "switch_adaptive")
SIZES = (4096, 16384, 65536, 262144, 1_000_000)  # of a flow
RATES = (100.0, 400.0)
STATES = (CLEAR, State(depth_bin=6))
SHORTER, SHORTEST_NS = 8, 20


def errors(mode: str, gbps: float, places: int) -> NDArray[np.float64]:
    """Relative error of each phase, by size, state and place."""
    network = Network(
        leaves=4, spines=2, job_per_leaf=2, gbps=gbps, latency_ns=500, ecmp_share=0.0,
        same_lane_share=1.0, slice_of=None,
    )  # fmt: skip
    phases = Phases(network, Routing(mode=mode), PhaseCache())
    peers = len(network.job) - 1
    found = []
    for size in SIZES:
        short = max(SHORTEST_NS, step_ns(size, gbps, mode) // SHORTER)
        for state in STATES:
            for k in range(places):
                ours, fine = (
                    phases.run("all_to_all", peers * size, state, k, longest_step_ns=longest)
                    for longest in (None, short)
                )
                found.append(ours.phase_ns / fine.phase_ns - 1.0)
    return np.array(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints mean, its error and the spread, by way of routing and rate."""
    parser = argparse.ArgumentParser(description="Steps of sampled phases beside short ones.")
    parser.add_argument("--places", type=int, default=8, help="of an episode, and draws")
    given = parser.parse_args(argv)
    print("routing          Gb/s    mean          sd")
    for mode in MODES:
        for gbps in RATES:
            e = errors(mode, gbps, given.places)
            error = e.std() / np.sqrt(len(e))
            print(
                f"{mode:16} {gbps:4.0f}  {e.mean():+6.2%} ({error:.2%})  {e.std():.2%}", flush=True
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
