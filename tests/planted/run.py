"""What happens, second by second: segments of constant rates, and the steps of the jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.planted.fluid import Steady
from tests.planted.plan import Job, Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of a job: compute, then one collective.

    Attributes:
        plants: Episodes that slowed its transfer, and for how long.
    """

    job: int
    number: int
    start_s: float
    transfer_s: float  # when the collective starts
    end_s: float
    lost_s: float
    plants: dict[int, float]


@dataclass(kw_only=True)
class History:
    """What happened; segment i lasts from ``edges[i]`` to ``edges[i + 1]``.

    Attributes:
        state: Segment -> index into ``states``.
        states: Equilibria that occurred, and which plants were active in each.
    """

    plan: Plan
    edges: np.ndarray
    state: np.ndarray
    states: list[tuple[Steady, tuple[int, ...]]]
    steps: list[Step]
    strange: frozenset[int]

    def integral(self, values: np.ndarray) -> np.ndarray:
        """Cumulated value at each edge of something that each state has a value of."""
        return np.concatenate(([0.0], np.cumsum(values[self.state] * np.diff(self.edges))))


@dataclass(kw_only=True)
class _Running:
    job: Job
    index: int
    number: int = 0
    start_s: float = 0.0
    until_s: float = 0.0  # end of the compute phase; infinite during transfer
    begun_s: float = 0.0
    left: float = 0.0
    plants: dict[int, float] = field(default_factory=dict)
    compute_s: float = 0.0

    @property
    def transfers(self) -> bool:
        return self.until_s == np.inf


def run(plan: Plan, rng: np.random.Generator) -> History:
    """Play a plan."""
    states: dict[tuple[object, ...], int] = {}
    told: list[tuple[Steady, tuple[int, ...]]] = []
    changes = sorted(
        {edge for plant in plan.plants for burst in plant.bursts for edge in burst}
        | {plant.start_s + plant.lead_s for plant in plan.plants}
        | {edge for _, start, end in plan.busy for edge in (start, end)}
        | {plan.length_s}
    )
    jobs = [_Running(job=job, index=i) for i, job in enumerate(plan.jobs)]
    for running in jobs:
        _compute(running, float(rng.uniform(0.0, 2.0)), rng)
    edges, state, steps, now = [0.0], [], [], 0.0
    while now < plan.length_s - 1e-9:
        active = tuple(
            i for i, p in enumerate(plan.plants) if any(a <= now < b for a, b in p.bursts)
        )
        busy = tuple(i for i, (_, a, b) in enumerate(plan.busy) if a <= now < b)
        moving = tuple(r.index for r in jobs if r.transfers)
        leading = tuple(
            i for i in active if now < plan.plants[i].start_s + plan.plants[i].lead_s - 1e-9
        )
        key = (active, busy, moving, leading)
        if key not in states:
            groups = [plan.busy[i][0] for i in busy] + [plan.jobs[i].group for i in moving]
            plants = [plan.plants[i] for i in active]
            marking = [plan.plants[i] for i in leading]
            told.append((plan.settled(plants, groups, marking), active))
            states[key] = len(told) - 1
        steady = told[states[key]][0]
        later = [edge for edge in changes if edge > now + 1e-9][:1]
        for r in jobs:
            rate = steady.rates.get(r.job.name, 0.0)
            later.append(now + max(r.left, 0.0) / rate if r.transfers else r.until_s)
        until = min(later)
        for r in jobs:
            if r.transfers:
                r.left -= steady.rates[r.job.name] * (until - now)
                for i in active:
                    name = r.job.name
                    limits = steady.limits[name] or steady.began.get(name, frozenset())
                    if limits & plan.plants[i].roots:
                        r.plants[i] = r.plants.get(i, 0.0) + until - now
        if until > now:
            edges.append(until)
            state.append(states[key])
        now = until
        for r in jobs:
            if r.transfers and r.left <= 1e-9:
                steps.append(_finish(r, now))
                _compute(r, now, rng)
            elif r.until_s <= now + 1e-9:
                r.begun_s, r.left, r.until_s = now, r.job.transfer_s, np.inf
    wanted = frozenset().union(*(p.roots for p in plan.plants)) if plan.plants else frozenset()
    strange = frozenset().union(*(steady.limiting for steady, _ in told)) - wanted
    return History(
        plan=plan,
        edges=np.array(edges),
        state=np.array(state),
        states=told,
        steps=steps,
        strange=strange,
    )


def _compute(running: _Running, now: float, rng: np.random.Generator) -> None:
    running.start_s, running.left, running.plants = now, 0.0, {}
    running.compute_s = running.job.compute_s * float(np.exp(rng.normal(0.0, 0.01)))
    running.until_s = now + running.compute_s


def _finish(running: _Running, now: float) -> Step:
    running.number += 1
    lost = now - running.begun_s - running.job.transfer_s / running.job.group.demand
    return Step(
        job=running.index,
        number=running.number,
        start_s=running.start_s,
        transfer_s=running.begun_s,
        end_s=now,
        lost_s=max(0.0, lost),
        plants=dict(running.plants),
    )
