"""Worst-case jitter (founding document R6): p99.9 less median of a message's latency.

``python -m xtune.proofs.jitter [--hosts 1024] [--seeds 20] [--out FILE]`` runs communication
phases on the simulator (rung A) under each way of choosing paths, so that it shows which part of
the engine helps. A message is what one host sends in the phase, 8 MB; its latency counts from its
release to its last byte at the receiver.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.policies.phase_placement import free_share
from xtune.policies.spec import Routing
from xtune.proofs.command import run_study
from xtune.sim._stats import bootstrap
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import Flows, build_flows, permutation, shift
from xtune.sim.phase import PhaseResult, run_phase
from xtune.sim.placement import placed

CLAIM_PERCENT = -58.0  # the founding document's, for worst-case jitter; not measured by us
MESSAGE_BYTES = 8_000_000
ROUNDS = 500  # of the bootstrap
OTHERS = 4  # in the pattern with another job, every fourth host is its


class Method(NamedTuple):
    """A way of choosing paths; ``placed``: by nothing, blindly, or knowing what others send."""

    routing: Routing
    placed: str | None = None


_STATIC, _ONE_PAIR = Routing(mode="static"), Routing(pairs=1)
METHODS = {
    "static ECMP": Method(_STATIC),
    "oblivious spray": Method(Routing(mode="spray")),
    "flowlet": Method(Routing(mode="flowlet")),
    "power of two choices": Method(Routing(mode="power_of_two")),
    "binary, last reading": Method(Routing(forecast="reading")),
    "binary, Holt": Method(Routing()),
    "binary, Holt, one pair": Method(_ONE_PAIR),
    "placement alone": Method(_STATIC, "blindly"),
    "placement by load": Method(_STATIC, "by load"),
    "placement, then Holt": Method(_ONE_PAIR, "blindly"),
    "placement by load, then Holt": Method(_ONE_PAIR, "by load"),
}


class Traffic(NamedTuple):
    """One phase: the flows it waits for, and another job's, which run no engine."""

    flows: Flows
    background: Flows | None = None


def _next_leaf(fabric: LeafSpine, seed: int) -> Traffic:
    return Traffic(shift(fabric, MESSAGE_BYTES))


def _permutation(fabric: LeafSpine, seed: int) -> Traffic:
    return Traffic(permutation(fabric, MESSAGE_BYTES, seed=seed))


def _beside_another(fabric: LeafSpine, seed: int) -> Traffic:
    """Every fourth host belongs to a job that sends twice as much over paths of its own."""
    flows = permutation(fabric, MESSAGE_BYTES, seed=seed)
    other = flows.src % OTHERS == 0
    theirs = _part(flows, other, 2).in_background(lane=0)
    spines = np.random.default_rng(seed).integers(0, fabric.spines, len(theirs))
    return Traffic(_part(flows, ~other, 1), theirs.with_paths(spines.astype(np.int32)))


PATTERNS: dict[str, Callable[[LeafSpine, int], Traffic]] = {
    "ring to the next leaf": _next_leaf,
    "random permutation": _permutation,
    "permutation beside another job": _beside_another,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study and print its table.

    Args:
        arguments: Command line; that of the process by default.

    Returns:
        Exit code.
    """
    given = _parser().parse_args(arguments)
    found = run_study("jitter", lambda: study(given.hosts, given.seeds), as_text, given.out)
    return int(found is None)


def study(hosts: int, seeds: int) -> dict[str, Any]:
    """All methods on all patterns.

    Args:
        hosts: Hosts of a square fabric.
        seeds: How many seeds, from 0; each draws paths and, where it is random, the pattern.

    Returns:
        Figures by pattern and method; times in us, changes in percent of static ECMP.

    Raises:
        UsageError: No square fabric, or too small for a p99.9.
    """
    fabric = LeafSpine.square(hosts)
    if hosts * seeds < 1000:
        least = -(-1000 // hosts)
        raise UsageError(f"{hosts * seeds} messages have no p99.9", f"--seeds {least} or more")
    patterns = {}
    for name, pattern in PATTERNS.items():
        traffic = [pattern(fabric, seed) for seed in range(seeds)]
        runs = {
            method: [_run(fabric, traffic[seed], method, seed) for seed in range(seeds)]
            for method in METHODS
        }
        patterns[name] = _compared(runs)
    return {
        "hosts": hosts,
        "seeds": seeds,
        "message_bytes": MESSAGE_BYTES,
        "founding_document_percent": CLAIM_PERCENT,
        "patterns": patterns,
    }


def jitter_us(latency_ns: NDArray[np.float64]) -> float:
    """p99.9 less median, in us.

    Args:
        latency_ns: Latencies, any shape.
    """
    worst, median = np.quantile(latency_ns, [0.999, 0.5])
    return float(worst - median) / 1000.0


def _run(fabric: LeafSpine, traffic: Traffic, method: str, seed: int) -> PhaseResult:
    routing, how = METHODS[method]
    flows = traffic.flows
    if how is not None:
        theirs = traffic.background if how == "by load" else None
        flows = placed(fabric, flows, free=None if theirs is None else _free(fabric, theirs))
    return run_phase(fabric, flows, routing=routing, background=traffic.background, seed=seed)


def _free(fabric: LeafSpine, others: Flows) -> list[float]:
    """The share of each port that others leave; each of their flows can fill a port."""
    using = np.zeros(fabric.ports)
    for src, dst, spine in zip(others.src, others.dst, others.spine, strict=True):
        using[list(fabric.path(int(src), int(dst), int(spine)))] += 1.0
    return [free_share(count) for count in using.tolist()]


def _compared(runs: Mapping[str, Sequence[PhaseResult]]) -> dict[str, dict[str, Any]]:
    latency = {
        method: np.stack([_foreground(run, run.completion_ns - run.released_ns) for run in of])
        for method, of in runs.items()
    }
    base = latency["static ECMP"]
    return {
        method: {**_figures(latency[method], base), **_costs(of)} for method, of in runs.items()
    }


def _figures(latency: NDArray[np.float64], base: NDArray[np.float64]) -> dict[str, Any]:
    """Of all messages together; intervals by drawing seeds anew, the same ones for both."""
    both = np.stack([latency, base], axis=1)

    def change(runs: NDArray[np.float64]) -> float:
        without = jitter_us(runs[:, 1])
        return 100.0 * (jitter_us(runs[:, 0]) / without - 1.0) if without else math.nan

    return {
        "median_us": float(np.median(latency)) / 1000.0,
        "p999_us": float(np.quantile(latency, 0.999)) / 1000.0,
        "jitter_us": jitter_us(latency),
        "jitter_interval_us": bootstrap(latency, jitter_us, rounds=ROUNDS),
        "change_percent": change(both),
        "change_interval_percent": bootstrap(both, change, rounds=ROUNDS),
    }


def _costs(runs: Sequence[PhaseResult]) -> dict[str, float]:
    """Moves of a message's path, and what receivers held back for the order of bytes."""
    moves = np.concatenate([_foreground(run, run.moves) for run in runs])
    held = np.concatenate([_foreground(run, run.reorder_bytes) for run in runs])
    return {
        "phase_us": float(np.mean([run.phase_ns for run in runs])) / 1000.0,
        "moves": float(moves.mean()),
        "held_p995_bytes": float(np.quantile(held, 0.995)),
    }


def _foreground(run: PhaseResult, values: NDArray[Any]) -> NDArray[Any]:
    return values[~run.background]


def _part(flows: Flows, which: NDArray[np.bool_], times: int) -> Flows:
    """Some of the flows, each with so many times the bytes."""
    chosen = np.flatnonzero(which)
    return build_flows(flows.src[chosen], flows.dst[chosen], flows.size[chosen] * times)


def as_text(report: Mapping[str, Any]) -> str:
    """The table for a terminal, and for a page."""
    lines = []
    for pattern, methods in report["patterns"].items():
        lines += [
            f"{pattern}, {report['hosts']} hosts, {report['seeds']} seeds",
            "",
            "| | median, us | p99.9, us | jitter, us | against static ECMP | moves "
            "| held for order, p99.5 |",
            "|---|---|---|---|---|---|---|",
            *(_row(name, figures) for name, figures in methods.items()),
            "",
        ]
    claim = report["founding_document_percent"]
    return "\n".join([*lines, f"the founding document's own claim: {claim:.0f} %"])


def _row(name: str, figures: Mapping[str, Any]) -> str:
    low, high = figures["jitter_interval_us"]
    least, most = figures["change_interval_percent"]
    return (
        f"| {name} | {figures['median_us']:.0f} | {figures['p999_us']:.0f} "
        f"| {figures['jitter_us']:.0f} ({low:.0f}..{high:.0f}) "
        f"| {figures['change_percent']:+.0f} % ({least:+.0f}..{most:+.0f}) "
        f"| {figures['moves']:.1f} | {figures['held_p995_bytes'] / 1e6:.2f} MB |"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m xtune.proofs.jitter", description="Worst-case jitter by way of routing."
    )
    parser.add_argument("--hosts", type=int, default=1024, help="a square number")
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 0")
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
