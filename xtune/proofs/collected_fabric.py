"""Traffic of a collective on the fabric that a lake's topology tells of.

``python -m xtune.proofs.collected_fabric LAKE`` reads ``topology_links``, says what fabric it
makes, runs one phase on it by each way of routing, and names the fullest queues.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xtune.errors import XtuneError
from xtune.lake import Lake
from xtune.policies.spec import Routing
from xtune.sim.bounds import load_bound_ns
from xtune.sim.fabric import Fabric
from xtune.sim.flows import Flows, permutation, ring
from xtune.sim.phase import PhaseResult, run_phase
from xtune.sim.topology_links import from_links
from xtune.sim.up_down import UpDown

PATTERNS: dict[str, Callable[[Fabric, int, int], Flows]] = {
    "permutation": lambda fabric, size, seed: permutation(fabric, size, seed=seed),
    "ring": lambda fabric, size, seed: ring(fabric, size, seed=seed),
}
MODES = ("static", "spray", "power_of_two", "binary")
MOST_NAMED = 3


def read(root: Path) -> UpDown:
    """The fabric of a lake.

    Args:
        root: The lake's folder.

    Raises:
        UsageError: its topology makes no fabric.
        XtuneError: there is no lake, or it cannot be read.
    """
    return from_links(Lake.open(root).read("topology_links").to_pylist())


def study(fabric: UpDown, pattern: str, size: int, seed: int) -> dict[str, Any]:
    """What the fabric is, and how long one phase takes on it.

    Args:
        fabric: The fabric.
        pattern: One of ``PATTERNS``.
        size: Bytes that each host sends, or that a ring reduces.
        seed: Draws the pattern and the paths.
    """
    flows = PATTERNS[pattern](fabric, size, seed)
    runs = {
        mode: run_phase(fabric, flows, routing=Routing(mode=mode), seed=seed) for mode in MODES
    }
    return {
        "fabric": described(fabric),
        "pattern": pattern,
        "bytes": size,
        "seed": seed,
        "bound_us": load_bound_ns(fabric, flows) / 1000.0,
        "runs": {mode: _figures(fabric, run) for mode, run in runs.items()},
    }


def described(fabric: UpDown) -> dict[str, Any]:
    """Sizes of a fabric, and the room above its leaves."""
    rates, ends = fabric.port_gbps(), fabric.port_ends()
    height = np.array([*fabric.heights, -1])  # the last one is a host's
    rising = (ends[:, 0] >= 0) & (height[ends[:, 0]] < height[ends[:, 1]])
    above = np.bincount(ends[rising, 0], rates[rising], fabric.leaves)[: fabric.leaves]
    below = np.bincount(ends[fabric.first_delivery :, 0], rates[fabric.first_delivery :])
    over = below[above > 0] / above[above > 0]
    return {
        "hosts": fabric.hosts,
        "leaves": fabric.leaves,
        "switches": len(fabric.switch_names),
        "tiers": max(fabric.heights) + 1,
        "ports": fabric.ports,
        "gbps": fabric.gbps,
        "oversubscription": [float(over.min()), float(over.max())] if len(over) else None,
        "unused": [fabric.port_name(port) for port in fabric.unused_ports()],
    }


def _figures(fabric: UpDown, run: PhaseResult) -> dict[str, Any]:
    done = run.completion_ns[~run.background]
    worst = np.argsort(-run.occupancy_p50, kind="stable")[:MOST_NAMED]
    return {
        "last_us": run.phase_ns / 1000.0,
        "mean_us": float(done.mean()) / 1000.0,
        "queue_p50": {
            fabric.port_name(fabric.hosts + int(at)): float(run.occupancy_p50[at]) for at in worst
        },
    }


def as_text(report: dict[str, Any]) -> str:
    """For a terminal."""
    fabric = report["fabric"]
    lines = [
        f"{fabric['hosts']} hosts at {fabric['gbps']:g} Gb/s below {fabric['leaves']} leaves of"
        f" {fabric['switches']} switches in {fabric['tiers']} tiers, {fabric['ports']} ports"
    ]
    if fabric["oversubscription"] is not None:
        low, high = fabric["oversubscription"]
        lines.append(f"leaves are oversubscribed {low:.2f} to {high:.2f} times")
    if fabric["unused"]:
        lines.append(f"on no shortest path up and down: {', '.join(fabric['unused'])}")
    lines += [
        f"{report['pattern']} of {report['bytes'] / 1e6:g} MB, seed {report['seed']}: no network"
        f" of these links is faster than {report['bound_us']:.0f} us",
        "",
        "| routing | last, us | mean, us | fullest queues, median share of buffer |",
        "|---|---|---|---|",
    ]
    for mode, run in report["runs"].items():
        full = ", ".join(f"{name} {share:.2f}" for name, share in run["queue_p50"].items())
        lines.append(f"| {mode} | {run['last_us']:.0f} | {run['mean_us']:.0f} | {full or '-'} |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m xtune.proofs.collected_fabric",
        description="One phase on the fabric that a lake's topology tells of.",
    )
    parser.add_argument("lake", type=Path, help="folder of the lake")
    parser.add_argument("--pattern", choices=sorted(PATTERNS), default="permutation")
    parser.add_argument("--bytes", type=int, default=8_000_000, help="that each host sends")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the phases and print what came of them.

    Args:
        arguments: Command line; that of the process by default.

    Returns:
        Exit code.
    """
    given = _parser().parse_args(arguments)
    try:
        report = study(read(given.lake), given.pattern, given.bytes, given.seed)
    except (XtuneError, OSError) as error:
        print(f"collected_fabric: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=1) if given.json else as_text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
