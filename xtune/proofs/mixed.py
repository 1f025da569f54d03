"""Pipeline parallel beside data parallel traffic in a bound stated beforehand (claim L5).

``python -m xtune.proofs.mixed [--seeds 200] [--out FILE]`` runs whole steps of one job on the
simulator's fabric (rung A): pipelines of Megatron's schedule, a ring all-reduce of each stage's
gradients from its last backward pass on, other jobs' flows beside both. Placement and paths are
drawn anew for each seed. The bound of a step is reckoned from loads alone, before it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

from xtune.policies.spec import Routing
from xtune.proofs.command import run_study
from xtune.sim.bounds import payload_rate
from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import Flows, build_flows, join_flows, random_pairs
from xtune.sim.patterns import pipeline
from xtune.sim.phase import run_phase

FORMULA = (
    "the longest way through the step's passes and transfers, where a micro-batch takes, at each"
    " port of its way, one micro-batch of every pair of stages that sends by it (pipelines have"
    " the upper lane); a stage's gradients all bytes of every job that pass the ports of their"
    " way, and one Xoff at each of three switches; both their way's latency, and one step of the"
    " simulator's clock a port"
)
STEP_NS = 1000
Row = tuple[int, int, int, int]  # source, destination, spine, bytes
LOWER = 1  # lane; pipelines are in lane 0
WAYS = {
    "pipeline in the upper lane": Routing(mode="static", lanes=2),
    "all in one lane": Routing(mode="static"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One step of a job, and what runs beside it.

    Attributes:
        stages: p, of the pipeline.
        replicas: Pipelines, whose stages reduce their gradients in rings.
        micro_batches: m, of a step.
        activation_bytes: Between two stages, of a micro-batch.
        gradient_bytes: Of a stage.
        forward_ns: f, of a stage and micro-batch.
        backward_ns: b.
        others: Flows of other jobs.
        other_bytes: Of each of them.
    """

    stages: int = 8
    replicas: int = 8
    micro_batches: int = 8
    activation_bytes: int = 1 << 20
    gradient_bytes: int = 16 << 20
    forward_ns: int = 100_000
    backward_ns: int = 200_000
    others: int = 32
    other_bytes: int = 32 << 20


def step_flows(fabric: LeafSpine, job: Job, seed: int) -> tuple[Flows, Flows, Flows]:
    """Pipelines, gradients and other jobs' flows of one step, on drawn hosts and paths.

    The gradients' edges and releases are set by :func:`joined`.
    """
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(fabric.hosts)[: job.replicas * job.stages].astype(np.int32)
    hosts = ranks.reshape(job.replicas, job.stages)
    pipes = join_flows(
        *(
            pipeline(
                fabric, row.tolist(), job.micro_batches, job.activation_bytes,
                forward_ns=job.forward_ns, backward_ns=job.backward_ns,
            )
            for row in hosts
        )
    )  # fmt: skip
    sent = 2 * (job.replicas - 1) * job.gradient_bytes // job.replicas
    rings = build_flows(hosts.ravel(), np.roll(hosts, -1, axis=0).ravel(), sent, lane=LOWER)
    others = random_pairs(fabric, job.others, job.other_bytes, seed=seed)
    return _drawn(fabric, pipes, rng), _drawn(fabric, rings, rng), _drawn(fabric, others, rng)


def _drawn(fabric: LeafSpine, flows: Flows, rng: np.random.Generator) -> Flows:
    """The same with a spine for each pair of hosts, as a hash of a connection draws it."""
    table = rng.integers(0, fabric.spines, (fabric.hosts, fabric.hosts)).astype(np.int32)
    return flows.with_paths(table[flows.src, flows.dst])


def joined(job: Job, pipes: Flows, rings: Flows) -> Flows:
    """Both, each stage's ring released by the last backward pass of that stage and replica."""
    flows = join_flows(pipes, rings)
    each = len(pipes) // job.replicas
    release = flows.release_ns.copy()
    edges = []
    for number, host in enumerate(rings.src.tolist()):
        replica, stage = divmod(number, job.stages)
        first = replica * each
        own = slice(first, first + each)
        # The first stage's last gradient arrives, and is then passed back through it.
        waits = (pipes.src if stage else pipes.dst)[own] == host
        edges.append((first + int(np.flatnonzero(waits)[-1]), len(pipes) + number))
        release[len(pipes) + number] = 0 if stage else job.backward_ns
    after = np.concatenate([flows.after, np.array(edges, dtype=np.int32)])
    return replace(flows, after=after, release_ns=release)


def _loads(fabric: LeafSpine, rows: Iterable[Row]) -> Counter[int]:
    """Bytes at each port."""
    load: Counter[int] = Counter()
    for src, dst, spine, size in rows:
        for port in fabric.path(src, dst, spine):
            load[port] += size
    return load


def _rows(flows: Flows) -> list[Row]:
    columns = (flows.src, flows.dst, flows.spine, flows.size)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _at_most_ns(fabric: LeafSpine, row: Row, load: Counter[int]) -> float:
    """Time of a flow that waits, at each port of its way, for all that passes there."""
    src, dst, spine, size = row
    due = size + sum(load[port] - size for port in fabric.path(src, dst, spine))
    return due / payload_rate(fabric) + fabric.latency_ns(4) + 4 * STEP_NS


def bound_ns(fabric: LeafSpine, job: Job, pipes: Flows, rings: Flows, others: Flows) -> float:
    """The bound of a step, as ``FORMULA`` has it.

    A stage sends one micro-batch at a time, so no more than one of each pair of stages is at a
    port, and a byte waits there for no more than those.
    """
    flows, count = joined(job, pipes, rings), len(pipes)
    in_flight = _loads(fabric, set(_rows(pipes)))
    in_all = _loads(fabric, _rows(join_flows(pipes, rings, others)))
    lower_ns = 3 * Backpressure().xoff_bytes / payload_rate(fabric)
    takes = [_at_most_ns(fabric, row, in_flight) for row in _rows(pipes)]
    takes += [_at_most_ns(fabric, row, in_all) + lower_ns for row in _rows(rings)]
    before: list[list[int]] = [[] for _ in takes]
    for first, then in flows.after.tolist():
        before[then].append(first)
    order = TopologicalSorter(dict(enumerate(before))).static_order()
    ends = [0.0] * len(takes)
    for number in order:
        begin = max((ends[i] for i in before[number]), default=0.0)
        ends[number] = begin + float(flows.release_ns[number]) + takes[number]
    return max(ends[count:])


def run(job: Job, seeds: int, fabric: LeafSpine | None = None) -> dict[str, Any]:
    """Bound and measured step of every seed and way.

    Returns:
        A JSON document, schema 1.
    """
    fabric = fabric or LeafSpine.square(64)
    bounds: list[float] = []
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(seeds):
        pipes, rings, others = step_flows(fabric, job, seed)
        bounds.append(bound_ns(fabric, job, pipes, rings, others))
        flows = joined(job, pipes, rings)
        for way, routing in WAYS.items():
            result = run_phase(
                fabric, flows, routing=routing, background=others, dt_ns=STEP_NS, seed=seed
            )
            times[way].append(result.phase_ns)
    return {
        "schema": 1,
        "simulated": True,
        "job": asdict(job),
        "seeds": seeds,
        "formula": FORMULA,
        "bound_p50_us": float(np.median(bounds)) / 1e3,
        "ways": {way: _figures(took, bounds) for way, took in times.items()},
    }


def _figures(took: Sequence[float], bounds: Sequence[float]) -> dict[str, Any]:
    times, limits = np.array(took), np.array(bounds)
    return {
        "p50_us": float(np.median(times)) / 1e3,
        "p99_us": float(np.quantile(times, 0.99)) / 1e3,
        "p99_of_bound": float(np.quantile(times / limits, 0.99)),
        "beyond_bound": int((~(times <= limits)).sum()),  # one that never ended is beyond it
    }


def as_text(report: dict[str, Any]) -> str:
    """Lines for a terminal."""
    lines = [
        f"bound, stated beforehand: {report['formula']}",
        f"median bound {report['bound_p50_us']:.0f} us, {report['seeds']} seeds",
    ]
    for way, row in report["ways"].items():
        held = "held" if row["p99_of_bound"] <= 1.0 else "did not hold"
        lines.append(
            f"{way}: step p50 {row['p50_us']:.0f} us, p99 {row['p99_us']:.0f} us; p99 of step over"
            f" bound {row['p99_of_bound']:.2f}: {held} ({row['beyond_bound']} steps beyond it)"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and say by the exit status whether the bound held."""
    parser = argparse.ArgumentParser(prog="python -m xtune.proofs.mixed", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many, from 0")
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    report = run_study("mixed", lambda: run(Job(), options.seeds), as_text, options.out)
    if report is None:
        return 1
    return int(report["ways"]["pipeline in the upper lane"]["p99_of_bound"] > 1.0)


if __name__ == "__main__":
    sys.exit(main())
