"""Whether a slice of 64 hosts stands for a job of 1024: phase times of both, beside each other.

``python -m xtune.proofs.slices [--hosts 1024] [--out FILE]`` runs the ring phases that the
training loop draws from (rung B) on the fabric's slice and on all of it, for jobs whose ranks form
few or many rings side by side, on fixed paths drawn by a hash and on those the engine chooses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xtune.policies.presets import preset
from xtune.proofs.command import run_study
from xtune.sim.cache import PhaseCache, Phases
from xtune.sim.network import SAMPLES, Network, state_of

BYTES = 4 << 20  # that a host sends
POLICIES = ("static_dense", "routing_only")
DEPTHS = (1.0, 2.0, 4.0)
SLICE = 64


def networks(hosts: int, rings: int) -> tuple[Network, Network]:
    """The slice that the loop takes of a square fabric, and all of it; paths drawn by a hash."""
    side = round(hosts**0.5)
    whole = Network(
        leaves=side, spines=side, job_per_leaf=side, gbps=400.0, latency_ns=500, ecmp_share=1.0,
        same_lane_share=1.0, slice_of=None, rings=rings,
    )  # fmt: skip
    per_leaf = min(side, SLICE // 4)
    part = replace(
        whole, leaves=SLICE // per_leaf, spines=per_leaf, job_per_leaf=per_leaf, slice_of=hosts
    )
    return part, whole


def run(hosts: int = 1024) -> dict[str, Any]:
    """Phase times over those at the full rate.

    Returns:
        A JSON document, schema 1: a row for each number of rings, slowdown and policy, with the
        mean of ``SAMPLES`` places on the slice and on all, and the slice's error as a share.
    """
    cache, rows = PhaseCache(), []
    side = round(hosts**0.5)
    for rings in sorted({1, 2, min(8, side), side}):
        for depth in DEPTHS:
            for name in POLICIES:
                part, whole = (
                    _slowness(Phases(network, preset(name).routing, cache), depth)
                    for network in networks(hosts, rings)
                )
                rows.append(
                    {
                        "rings": rings, "depth": depth, "policy": name, "slice": part,
                        "whole": whole, "error": part / whole - 1.0,
                    }
                )  # fmt: skip
    return {"schema": 1, "simulated": True, "hosts": hosts, "slice_hosts": SLICE, "rows": rows}


def _slowness(phases: Phases, depth: float) -> float:
    state = state_of(depth, edge=False)
    times = [phases.seconds("ring", BYTES, state, place) for place in range(SAMPLES)]
    return float(np.mean(times)) / (BYTES * 8e-9 / phases.network.gbps)


def as_text(report: dict[str, Any]) -> str:
    """A table for a terminal, and for a page."""
    lines = [
        f"phase time over that at the full rate, {report['slice_hosts']} and {report['hosts']}"
        f" hosts, mean of {SAMPLES} places",
        "",
        "| rings | slowdown by others | policy | slice | all | error |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['rings']} | {r['depth']:g} | {r['policy']} | {r['slice']:.2f} | {r['whole']:.2f}"
        f" | {r['error']:+.0%} |"
        for r in report["rows"]
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m xtune.proofs.slices", description=__doc__)
    parser.add_argument("--hosts", type=int, default=1024, help="a square number above 64")
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args(arguments)
    if options.hosts <= SLICE or round(options.hosts**0.5) ** 2 != options.hosts:
        parser.error(f"--hosts {options.hosts} is not a square number above {SLICE}")
    found = run_study("slices", lambda: run(options.hosts), as_text, options.out)
    return int(found is None)


if __name__ == "__main__":
    sys.exit(main())
