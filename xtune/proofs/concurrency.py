"""Drops, retransmission and waiting against the number of jobs that share a fabric.

``python -m xtune.proofs.concurrency [--seeds 5] [--jobs N ..] [--buffers MB ..] [--out FILE]``
runs jobs on the simulator (rung A) over lossy switches with one shared buffer each, marks with
DCQCN at the senders, and go-back-N. Every job sends a burst from each of its ranks to the next,
waits for all of them, computes, and sends again. Whether a signal has a knee, and where, is found
by the rule of the derived table ``concurrency_knee``.

Sizes of bursts, pauses and buffers are assumed; with them the knee moves, which is why several
buffers are shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.pipelines._knee import find_knee
from xtune.proofs.command import run_study
from xtune.sim._stats import bootstrap
from xtune.sim.bounds import flow_ns
from xtune.sim.congestion import Dcqcn, SharedBuffer
from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import Flows, build_flows, join_flows
from xtune.sim.phase import PhaseResult, run_phase

CLAIM = "past 64 concurrent jobs switch buffers overflow"  # the founding document's, not measured
JOBS = (8, 16, 32, 48, 64, 96, 128, 192, 256)
BUFFERS_MB = (4, 8, 16)
SIGNALS = {
    "dropped": "dropped share",
    "retransmitted": "retransmitted share",
    "waited": "share of time waited",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What the jobs are and how long they are watched; all of it assumed.

    Attributes:
        hosts: Of a square leaf-spine at 400 Gb/s.
        ranks: Of each job, on hosts drawn at random.
        burst_bytes: From each rank to the next.
        pause_ns: Computing between two bursts.
        window_ns: How long is watched.
        alpha: Share of a switch's free buffer that one queue may hold.
    """

    hosts: int = 64
    ranks: int = 8
    burst_bytes: int = 1_000_000
    pause_ns: int = 400_000
    window_ns: int = 3_000_000
    alpha: float = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study and print its tables.

    Args:
        arguments: Command line; that of the process by default.

    Returns:
        Exit code.
    """
    given = _parser().parse_args(arguments)
    found = run_study(
        "concurrency",
        lambda: study(Scene(), given.jobs, given.buffers, given.seeds),
        as_text,
        given.out,
    )
    return int(found is None)


def study(
    scene: Scene, jobs: Sequence[int], buffers_mb: Sequence[float], seeds: int
) -> dict[str, Any]:
    """All numbers of jobs with all buffers.

    Args:
        scene: The jobs.
        jobs: Numbers of concurrent jobs.
        buffers_mb: Packet memory of a switch, MB.
        seeds: How many, from 0; each draws hosts, starts, paths and marks.

    Returns:
        Means, intervals and knees by buffer; shares in 0..1.

    Raises:
        UsageError: numbers that are no jobs or seeds.
    """
    if min(jobs, default=0) < 1 or seeds < 1 or min(buffers_mb, default=0) <= 0:
        raise UsageError("jobs, seeds and buffers must be positive", "see --help")
    cases = {
        f"{buffer:g} MB": _case(scene, sorted(set(jobs)), round(buffer * 1e6), seeds)
        for buffer in buffers_mb
    }
    return {
        "scene": asdict(scene),
        "seeds": seeds,
        "founding_document": CLAIM,
        "buffers": cases,
    }


def _case(scene: Scene, jobs: Sequence[int], buffer_bytes: int, seeds: int) -> dict[str, Any]:
    runs = {
        count: [watch(scene, count, buffer_bytes, seed) for seed in range(seeds)] for count in jobs
    }
    number = np.repeat(np.array(list(runs), dtype=np.float64), seeds)
    flat = [figures for of in runs.values() for figures in of]
    knees = {}
    for signal in SIGNALS:
        values = np.array([figures[signal] for figures in flat])
        # Each run is a stretch of time by itself.
        found = find_knee(number, values, np.ones(len(values)), np.arange(len(values)))
        knees[signal] = asdict(found)
    return {
        "by_jobs": {str(count): _summary(of) for count, of in runs.items()},
        "knees": knees,
    }


def _summary(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in ("load", *SIGNALS):
        values = np.array([run[name] for run in runs])
        low, high = bootstrap(values, _mean)
        result[name] = {"mean": float(values.mean()), "low": low, "high": high}
    return result


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean())


def job_flows(scene: Scene, jobs: int, fabric: LeafSpine, seed: int) -> Flows:
    """Bursts of all jobs, as many as fit in the window if nothing slowed them."""
    cycle_ns = scene.pause_ns + flow_ns(fabric, scene.burst_bytes)
    bursts = int(scene.window_ns // cycle_ns) + 1
    return join_flows(*(_one_job(scene, bursts, fabric, (seed, job)) for job in range(jobs)))


def _one_job(scene: Scene, bursts: int, fabric: LeafSpine, seed: tuple[int, int]) -> Flows:
    rng, ranks = np.random.default_rng(seed), scene.ranks
    hosts = rng.permutation(fabric.hosts)[:ranks].astype(np.int32)
    begin = int(rng.integers(0, scene.pause_ns))
    ids = np.arange(bursts * ranks, dtype=np.int32).reshape(bursts, ranks)
    # A rank's burst waits for all of the one before.
    before = np.repeat(ids[:-1], ranks, axis=1).ravel()
    then = np.tile(ids[1:], ranks).ravel()
    return build_flows(
        np.tile(hosts, bursts),
        np.tile(np.roll(hosts, -1), bursts),
        scene.burst_bytes,
        start_ns=np.where(ids.ravel() < ranks, begin, 0),
        after=np.stack([before, then], axis=1),
        release_ns=scene.pause_ns,
    )


def watch(scene: Scene, jobs: int, buffer_bytes: int, seed: int) -> dict[str, float]:
    """Figures of one window.

    Args:
        scene: The jobs.
        jobs: How many.
        buffer_bytes: Of each switch.
        seed: Random seed.

    Returns:
        ``load``, what was delivered as a share of all hosts' lines; ``dropped`` and
        ``retransmitted``, shares of the bytes sent; ``waited``, the share of the flows' time that
        their bytes would not have taken alone.
    """
    fabric = LeafSpine.square(scene.hosts)
    flows = job_flows(scene, jobs, fabric, seed)
    result = run_phase(
        fabric, flows, pfc=Backpressure(kind="none"), seed=seed, limit_ns=scene.window_ns,
        shared_buffer=SharedBuffer(bytes_per_switch=buffer_bytes, alpha=scene.alpha),
        rate_control=Dcqcn.for_link(fabric.gbps),
    )  # fmt: skip
    sent = float(result.sent_bytes.sum())
    lines = fabric.hosts * fabric.gbps / 8 * scene.window_ns
    return {
        "load": float(result.delivered_bytes.sum()) / lines,
        "dropped": result.dropped_bytes / sent,
        "retransmitted": float(result.retransmitted_bytes.sum()) / sent,
        "waited": _waited(scene, fabric, flows, result),
    }


def _waited(scene: Scene, fabric: LeafSpine, flows: Flows, result: PhaseResult) -> float:
    near = fabric.leaves_of(flows.src) == fabric.leaves_of(flows.dst)
    alone = np.where(
        near, flow_ns(fabric, scene.burst_bytes, 2), flow_ns(fabric, scene.burst_bytes)
    )
    end = np.where(np.isnan(result.completion_ns), scene.window_ns, result.completion_ns)
    took = np.where(np.isnan(result.released_ns), 0.0, end - result.released_ns)
    # What is under way at the end counts by its part.
    needed = alone * result.delivered_bytes / scene.burst_bytes
    return max(0.0, float(1.0 - needed.sum() / took.sum()))


def as_text(report: Mapping[str, Any]) -> str:
    """The tables for a terminal, and for a page."""
    scene = report["scene"]
    lines = [
        f"{scene['hosts']} hosts; jobs of {scene['ranks']} ranks that send "
        f"{scene['burst_bytes'] / 1e6:g} MB each and compute {scene['pause_ns'] / 1000:g} us; "
        f"{scene['window_ns'] / 1e6:g} ms, {report['seeds']} seeds; 95 % intervals",
        "",
    ]
    for buffer, case in report["buffers"].items():
        lines += [
            f"{buffer} of buffer a switch",
            "",
            "| jobs | delivered, of all lines | dropped | retransmitted | time waited |",
            "|---|---|---|---|---|",
            *(_row(jobs, figures) for jobs, figures in case["by_jobs"].items()),
            "",
            *(f"{SIGNALS[signal]}: {_knee(knee)}" for signal, knee in case["knees"].items()),
            "",
        ]
    return "\n".join([*lines, f"the founding document's own claim: {report['founding_document']}"])


def _row(jobs: str, figures: Mapping[str, Mapping[str, float]]) -> str:
    cells = [f"{100 * figures['load']['mean']:.0f} %"]
    for name in SIGNALS:
        one = figures[name]
        low, high = 100 * one["low"], 100 * one["high"]
        cells.append(f"{100 * one['mean']:.2f} % ({low:.2f}..{high:.2f})")
    return f"| {jobs} | {' | '.join(cells)} |"


def _knee(knee: Mapping[str, Any]) -> str:
    if knee["verdict"] != "knee":
        return str(knee["verdict"])
    return f"knee at {knee['knee']:.0f} jobs ({knee['low']:.0f}..{knee['high']:.0f})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m xtune.proofs.concurrency",
        description="Retransmission and waiting by the number of concurrent jobs.",
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    parser.add_argument("--jobs", type=int, nargs="+", default=list(JOBS), help="numbers of jobs")
    parser.add_argument(
        "--buffers", type=float, nargs="+", default=list(BUFFERS_MB), help="MB of each switch"
    )
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
