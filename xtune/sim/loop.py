"""Rung C: training iterations under a policy, on the calibrated fabric and background.

The engine's own controller decides, on readings like those a training job would give it. Nothing
here depends on the period T but what a regulation and a change are measured to cost, charged when
they happen: where the best T lies has to come out of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xtune.policies.compress import wire
from xtune.policies.controller import Controller
from xtune.policies.plan import Plan
from xtune.policies.spec import Policy, Routing
from xtune.sim.background import Background
from xtune.sim.beside import traffic_beside
from xtune.sim.cache import PhaseCache, Phases
from xtune.sim.calibration import Calibration
from xtune.sim.network import CLEAR, DRAWS, SAMPLES, Network, State, scope_notes
from xtune.sim.response import Response
from xtune.sim.routing_side import RoutingSide
from xtune.sim.workload import Wire, Workload

F64 = NDArray[np.float64]

# A run ends where it has made the progress of ``iterations`` uncompressed ones, or after this many
# times as many: then it has not reached the target.
MOST_STEPS = 3.0
HOPS = 4  # links between hosts under two leaves


@dataclass(frozen=True, kw_only=True)
class Run:
    """One simulated training run.

    Attributes:
        policy: Name of the policy.
        seed: Of background, jitter and noise.
        iterations: Progress to reach, in uncompressed iterations.
        steps: Iterations that were simulated.
        reached: Whether the target was reached.
        metrics: By name; ``inf`` where the target was not reached.
        rungs: Share of the iterations at each rung of the ladder.
        notes: What a reader must know of how it was made.
    """

    policy: str
    seed: int
    iterations: int
    steps: int
    reached: bool
    metrics: dict[str, float]
    rungs: dict[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON document; what is not finite is null."""
        return {
            "schema": 1,
            "policy": self.policy,
            "seed": self.seed,
            "iterations": self.iterations,
            "steps": self.steps,
            "reached": self.reached,
            "metrics": {k: v if math.isfinite(v) else None for k, v in self.metrics.items()},
            "rungs": {str(k): v for k, v in sorted(self.rungs.items())},
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One simulated iteration: when it began, how long it took, and the plan in force."""

    start_s: float
    seconds: float
    plan: Plan


def simulate(
    policy: Policy,
    calibration: Calibration,
    *,
    seed: int = 0,
    iterations: int = 3000,
    cache_dir: Path | None = None,
    cache: PhaseCache | None = None,
    link_gbps: float | None = None,
    trace: list[Step] | None = None,
) -> Run:
    """Train until the progress of ``iterations`` uncompressed iterations is made.

    Args:
        policy: The policy.
        calibration: The cluster and the job.
        seed: The same seed gives every policy the same background, jitter and noise.
        iterations: Progress to reach.
        cache_dir: Folder of sampled phases, shared with other processes.
        cache: Sampled phases of this process; overrides ``cache_dir``.
        link_gbps: Rate that the job tells its engine at ``attach``; None, the default there, lets
            the engine judge slowness by the best it has seen.
        trace: Takes each iteration, for who wants more than figures of all.

    Returns:
        The run. It depends on the arguments alone, not on process, order or cache.
    """
    phases = cache or PhaseCache(cache_dir)
    return _Loop(policy, calibration, seed, iterations, phases, link_gbps).run(trace)


class _Loop:
    """State of one run."""

    def __init__(
        self,
        policy: Policy,
        calibration: Calibration,
        seed: int,
        iterations: int,
        cache: PhaseCache,
        link_gbps: float | None,
    ) -> None:
        self.link_gbps = link_gbps
        self.policy, self.calibration = policy, calibration
        self.seed, self.iterations = seed, iterations
        self.workload = Workload(calibration, policy.compression)
        self.controller = Controller(policy, self.workload.layers, self.workload.world)
        self.response = Response(calibration, policy.compression, self.workload.elements)
        self.background = Background(calibration, seed)
        self.network = Network.of(calibration)
        self.phases = Phases(self.network, policy.routing, cache)
        self.latency_s = start_up_s(calibration, self.workload.world)
        self.scale = self._scale(cache)
        self.compressing = policy.compression.mode != "off"
        # Fixed paths need no router; without one, congestion shows in measured times alone.
        self.routing_side = (
            RoutingSide(policy, self.controller.bus, self.network.gbps)
            if policy.routing.mode != "static"
            else None
        )
        self._times: dict[tuple[str, int, State, int], float] = {}
        self._beside = traffic_beside(calibration)
        self._beside_times: dict[tuple[State, int], float] = {}
        self._buckets_times: dict[tuple[int, State, int], F64] = {}
        self._ready = ready_shares(calibration, len(self.workload.buckets))
        self.completions: list[F64] = []

    def run(self, trace: list[Step] | None = None) -> Run:
        """All iterations, and the figures of them; ``trace`` takes each."""
        c = self.calibration
        limit = math.ceil(MOST_STEPS * self.iterations)
        random = np.random.default_rng([self.seed, 0x100])
        jitter, reading, loss_noise, gradient = random.standard_normal((4, limit)).tolist()
        compute_s, jitter_sigma = c["compute_s"], c["compute_jitter"]
        reading_sigma = c["reading_noise"] / math.sqrt(len(self.workload.buckets))
        change, change_sigma = c["gradient_change"], c["gradient_change_sigma"]
        controller, workload = self.controller, self.workload
        now = progress = 0.0
        sent = regulations = changes = step = 0
        rungs: dict[int, int] = {}
        comm_total = compute_total = lost = 0.0
        loss: float | None = None
        before = controller.plan
        while progress < self.iterations and step < limit:
            started = now
            plan = controller.begin(step)
            if self.workload.under(plan) is not self.workload.under(before):
                changes += 1
                now += c["change_s"]
            before = plan
            computed = compute_s * math.exp(jitter_sigma * jitter[step])
            took, comm_s = self._iteration(plan, now, computed)
            now += took
            compute_total += computed
            traffic = workload.under(plan)
            sent += traffic.total_bytes
            comm_total += comm_s
            rungs[plan.rung] = rungs.get(plan.rung, 0) + 1
            if step > 0:  # the loss of the last iteration travelled in this one's headers
                controller.losses(step - 1, loss, True)
            gain = self.response.progress(plan, step)
            last = progress
            progress += gain
            if step == self.iterations - 1:  # every policy gets here: no gain is over 1
                lost = self._loss(progress) - self._loss(self.iterations)
            loss = self._loss(progress) + c["loss_noise"] * loss_noise[step]
            controller.observe(
                step,
                comm_s=comm_s * math.exp(reading_sigma * reading[step]),
                modelled_s=traffic.total_bytes * 8e-9 / self.link_gbps if self.link_gbps else None,
                wire_bytes=traffic.total_bytes,
                gradient_change=change * math.exp(change_sigma * gradient[step]),
                step_s=now - started,
            )
            trained = now
            if trace is not None:
                trace.append(Step(start_s=started, seconds=now - started, plan=plan))
            if self.compressing and controller.due(step):
                if self.routing_side is not None:
                    size = traffic.bucket_bytes[-1]
                    self.routing_side.tell(self._occupancy(traffic.patterns, size, now), now)
                # One rank stands for all: its readings are those of the slowest.
                report = controller.report()
                controller.agree(step, report)
                # The side all-reduce carries one more number: whether a rank failed.
                sent += wire.side_bytes(len(report), workload.world)
                regulations += 1
                now += c["regulation_s"]
            step += 1
        reached = progress >= self.iterations
        share = (self.iterations - last) / gain if reached else 0.0
        end_s = started + share * (trained - started) if reached else math.inf
        steps_to_target = step - 1 + share if reached else math.inf
        done = np.concatenate(self.completions)
        metrics = {
            "time_to_target_s": end_s,
            "mean_step_s": now / step,
            "steps_per_s": step / now,
            "steps_to_target": steps_to_target,
            "extra_steps": steps_to_target / self.iterations - 1.0,
            "mean_comm_s": comm_total / step,
            "exposed_share": 1.0 - compute_total / now,
            "perplexity_penalty": math.expm1(lost),
            "ratio_vs_bf16": 1.0 - sent / (step * workload.bf16_bytes),
            "ratio_vs_fp32": 1.0 - sent / (step * workload.fp32_bytes),
            "jitter_s": float(np.quantile(done, 0.999) - np.median(done)),
            "retreats": float(controller.retreats),
            "control_changes": float(changes),
            "regulations": float(regulations),
        }
        return Run(
            policy=self.policy.name, seed=self.seed, iterations=self.iterations, steps=step,
            reached=reached, metrics=metrics, rungs={k: v / step for k, v in rungs.items()},
            notes=scope_notes(c),
        )  # fmt: skip

    def _iteration(self, plan: Plan, start: float, compute_s: float) -> tuple[float, float]:
        """Seconds of one iteration from its start, and the sum of its buckets' times."""
        traffic = self.workload.under(plan)
        ready = compute_s * self._ready
        stretch = self.background.at(start)
        takes = self._steady(traffic, stretch.state, stretch.place % DRAWS)
        ends = finish_times(ready, takes)
        if start + ends[-1] >= stretch.end_s:
            takes = self._changing(traffic, start, ready)
            ends = finish_times(ready, takes)
        self.completions.append(ends - ready)
        beside = self._beside_s(stretch.state, stretch.place % DRAWS) if self._beside else 0.0
        return max(compute_s, float(ends[-1])) + beside, float(takes.sum())

    def _beside_s(self, state: State, place: int) -> float:
        """Seconds of an iteration's traffic beside data parallel, under the state at its start."""
        if (state, place) not in self._beside_times:
            self._beside_times[state, place] = sum(
                b.per_step * self._phase(b.pattern, b.bytes_per_host, state, place)
                for b in self._beside
            )
        return self._beside_times[state, place]

    def _steady(self, traffic: Wire, state: State, place: int) -> F64:
        """Seconds of each bucket while the background stays as it is."""
        key = (id(traffic), state, place)  # the workload keeps every traffic that it made
        if key not in self._buckets_times:
            self._buckets_times[key] = bucket_seconds(
                traffic, self.latency_s, lambda p, n: self._phase(p, n, state, place)
            )
        return self._buckets_times[key]

    def _changing(self, traffic: Wire, start: float, ready: F64) -> F64:
        """Seconds of each bucket where the background changes during the iteration."""
        takes, end = [], 0.0
        for at, size, codec in zip(ready, traffic.bucket_bytes, traffic.codec_s, strict=True):
            begin = max(float(at), end)
            takes.append(self._transfer(traffic.patterns, size, start + begin) + codec)
            end = begin + takes[-1]
        return np.array(takes)

    def _transfer(self, patterns: tuple[str, ...], size: int, at_s: float) -> float:
        """Seconds of one bucket that starts at a time: its patterns one after the other."""
        end = at_s
        for pattern in patterns:
            stretch = self.background.at(end)
            end += self._phase(
                pattern, size // len(patterns), stretch.state, stretch.place % DRAWS
            )
        return self.latency_s + (end - at_s)

    def _phase(self, pattern: str, size: int, state: State, place: int) -> float:
        key = (pattern, size, state, place)
        found = self._times.get(key)
        if found is None:
            seconds = self.phases.seconds(pattern, size, state, place)
            found = self._times[key] = self.scale * seconds
        return found

    def _occupancy(self, patterns: tuple[str, ...], size: int, at_s: float) -> float:
        """Of the pattern that fills the queues most."""
        stretch = self.background.at(at_s)
        return max(
            self.phases.sample(p, size // len(patterns), stretch.state, stretch.place).occupancy
            for p in patterns
        )

    def _loss(self, progress: float) -> float:
        c = self.calibration
        if c.loss_kind == "power":
            fallen = math.pow(progress + 1.0, -c["loss_exponent"])
            return c["loss_floor"] + c["loss_scale"] * fallen
        return c["loss_floor"] + c["loss_scale"] * math.exp(-progress * c["loss_exponent"])

    def _scale(self, cache: PhaseCache) -> float:
        """Measured time of a clean collective over rung A's for the same bytes on fixed paths.

        Paths that never meet: what drawn ones cost comes out of the phases themselves.
        """
        c = self.calibration
        payload = c["collective_bytes"] * 2 * (self.workload.world - 1) / self.workload.world
        static = Phases(replace(self.network, ecmp_share=0.0), Routing(mode="static"), cache)
        clean = [static.seconds("ring", round(payload), CLEAR, k) for k in range(SAMPLES)]
        return (c["collective_s"] - self.latency_s) / float(np.mean(clean))


def ready_shares(calibration: Calibration, buckets: int) -> F64:
    """Share of the compute time after which each bucket is ready."""
    first = calibration["first_bucket_share"]
    shares: F64 = first + (1.0 - first) * np.arange(buckets) / max(1, buckets - 1)
    return shares


def start_up_s(calibration: Calibration, world: int) -> float:
    """A tree over all ranks and back, at most half of a measured collective."""
    tree = 2 * math.ceil(math.log2(world)) * HOPS * calibration["link_latency_ns"] * 1e-9
    return min(tree, 0.5 * calibration["collective_s"])


def bucket_seconds(traffic: Wire, latency_s: float, seconds: Callable[[str, int], float]) -> F64:
    """Seconds of each bucket: its patterns one after the other, with start-up and codec.

    Args:
        traffic: Of an iteration.
        latency_s: Of `start_up_s`.
        seconds: Of a pattern whose hosts send so many bytes each.
    """
    patterns = traffic.patterns
    takes = [
        latency_s + sum(seconds(p, n // len(patterns)) for p in patterns)
        for n in traffic.bucket_bytes
    ]
    all_: F64 = np.array(takes) + np.array(traffic.codec_s)
    return all_


def finish_times(ready: F64, takes: F64) -> F64:
    """When each transfer ends that starts once it is ready and the one before it has ended.

    Args:
        ready: When each may start at the earliest, in seconds.
        takes: Seconds of each.
    """
    behind = np.cumsum(takes)
    return np.maximum.accumulate(ready - (behind - takes)) + behind
