"""What is planted: jobs, and episodes of each cause at places where nothing else gets in the way.

A place is taken only if the fluid's equilibrium there, with all that may be active at once, has
the planted roots and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.planted.fabric import Adapter, Fabric
from tests.planted.fluid import Group, Steady, settle

CAUSES = ("incast", "uplink_collision", "sick_link", "slow_receiver", "overload")
JOB_DEMAND = 0.85  # share of line rate that a collective reaches when nothing is in its way
ELEPHANT = 0.93  # what one large flow reaches alone
_FULL = 0.94
_APART_S = 25.0  # two episodes of one root
BREAKS_S = (2.0, 5.0)  # between bursts of one episode: well under the longest gap


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A training job: a ring over one adapter a rail of its hosts, in the order of leaves."""

    name: str
    hosts: tuple[int, ...]
    group: Group
    compute_s: float
    transfer_s: float  # at line rate

    @property
    def clean_s(self) -> float:
        """A step that nothing slows."""
        return self.compute_s + self.transfer_s / JOB_DEMAND


@dataclass(frozen=True, kw_only=True, slots=True)
class Plant:
    """One planted episode.

    Attributes:
        bursts: When it is active, seconds after the beginning.
        roots: Ports that may be named as its root; several only for overload.
        slow: Port -> share of line rate that it can send while active.
        deaf: Whether a slow port does not itself wait.
        errors_s: Errors a second that the receiving port counts (sick link).
        lead_s: From the beginning, how long marks slow the senders before anybody is paused.
        marks: Share of the packets through the roots that are marked (ECN).
        drops_s: Packets a second that each root drops.
    """

    cause: str
    bursts: tuple[tuple[float, float], ...]
    roots: frozenset[int]
    groups: tuple[Group, ...] = ()
    slow: dict[int, float] = field(default_factory=dict)
    deaf: bool = False
    errors_s: float = 0.0
    lead_s: float = 0.0
    marks: float = 0.0
    drops_s: float = 0.0

    @property
    def start_s(self) -> float:
        return self.bursts[0][0]

    @property
    def end_s(self) -> float:
        return self.bursts[-1][1]

    @property
    def paused_bursts(self) -> tuple[tuple[float, float], ...]:
        """When ports wait for it."""
        begin = self.start_s + self.lead_s
        return tuple((max(a, begin), b) for a, b in self.bursts if b > begin)


@dataclass(kw_only=True)
class Plan:
    """Everything that will happen."""

    fabric: Fabric
    length_s: float
    background: np.ndarray
    jobs: list[Job]
    plants: list[Plant] = field(default_factory=list)
    busy: list[tuple[Group, float, float]] = field(default_factory=list)
    fabric_kind: str = "ib"

    def settled(
        self, plants: Sequence[Plant], groups: Sequence[Group], leading: Sequence[Plant] = ()
    ) -> Steady:
        """Equilibrium of some episodes and other groups; ``leading`` ones only mark as yet."""
        capacity = self.fabric.vector() + 1.0
        deaf = frozenset(p for plant in plants if plant.deaf for p in plant.slow)
        for plant in plants:
            for port, share in plant.slow.items():
                capacity[port] = min(capacity[port], share)
        active = [*groups, *(group for plant in plants for group in plant.groups)]
        mild = frozenset(root for plant in leading for root in plant.roots)
        if self.fabric_kind == "lossy":
            mild = frozenset(range(len(capacity)))
        return settle(active, capacity, self.background, deaf, mild)


def draw_jobs(fabric: Fabric, rng: np.random.Generator) -> list[Job]:
    """Jobs of different sizes; each has a spine of its own, so that they never meet."""
    per_leaf = fabric.hosts_per_leaf
    shapes = [(range(fabric.leaves), 2, (0.3, 0.2)), (range(fabric.leaves // 2), 2, (2.4, 1.2))]
    if fabric.spines > 2:
        shapes.append((range(fabric.leaves // 2, fabric.leaves), 1, (0.8, 0.5)))
    jobs, taken = [], 0
    for number, (leaves, each, (compute, transfer)) in enumerate(shapes):
        hosts = [leaf * per_leaf + taken + i for leaf in leaves for i in range(each)]
        taken += each
        ring = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
        paths = tuple(
            fabric.path((a, rail), (b, rail), number)
            for rail in range(fabric.rails)
            for a, b in ring
        )
        jobs.append(
            Job(
                name=f"job{number + 1}",
                hosts=tuple(hosts),
                group=Group(name=f"job{number + 1}", paths=paths, demand=JOB_DEMAND),
                compute_s=compute * float(rng.uniform(0.9, 1.1)),
                transfer_s=transfer * float(rng.uniform(0.9, 1.1)),
            )
        )
    return jobs


def draw_background(fabric: Fabric, rng: np.random.Generator) -> np.ndarray:
    """Small flows between random hosts, conserved along their paths."""
    load = fabric.vector()
    for host in range(fabric.hosts):
        for rail in range(fabric.rails):
            other = int(rng.integers(fabric.hosts))
            if other == host:
                continue
            spine, core = int(rng.integers(fabric.spines)), int(rng.integers(fabric.cores))
            path = fabric.path((host, rail), (other, rail), spine, core)
            load[list(path)] += rng.uniform(0.0005, 0.008)
    return load


class Places:
    """Draws a place for each cause: hosts that belong to no job, except where it says so."""

    def __init__(self, plan: Plan, rng: np.random.Generator) -> None:
        self._plan, self._rng = plan, rng
        self._fabric = plan.fabric
        of_jobs = {host for job in plan.jobs for host in job.hosts}
        self._free = [h for h in range(self._fabric.hosts) if h not in of_jobs]
        self._serial = 0

    def draw(self, cause: str, bursts: tuple[tuple[float, float], ...]) -> Plant:
        self._serial += 1
        make: dict[str, Callable[[], dict[str, object]]] = {
            "incast": self._incast,
            "uplink_collision": self._collision,
            "sick_link": self._sick,
            "slow_receiver": self._slow,
            "overload": self._overload,
        }
        fields = make[cause]()
        if self._plan.fabric_kind != "ib":
            fields["marks"] = float(self._rng.uniform(0.05, 0.3))
            fields["deaf"] = cause == "sick_link"
        if self._plan.fabric_kind == "roce":
            short = bursts[0][1] - bursts[0][0] < 12.0
            fields["lead_s"] = 0.0 if short else float(self._rng.uniform(0.0, 6.0))
        if self._plan.fabric_kind == "lossy":
            fields["drops_s"] = float(np.exp(self._rng.uniform(np.log(300), np.log(20_000))))
        return Plant(cause=cause, bursts=bursts, **fields)  # type: ignore[arg-type]

    def busy(self) -> Group:
        """A flow that is alone on its way."""
        src, dst = self._pick(2)
        return self._flow((src, 0), (dst, 0), self._spine())

    def _spine(self) -> int:
        return int(self._rng.integers(self._fabric.spines))

    def _rail(self) -> int:
        return int(self._rng.integers(self._fabric.rails))

    def _pick(self, number: int, *, but: set[int] | None = None) -> list[int]:
        """Free hosts, not on the leaves of ``but``."""
        leaves = {h // self._fabric.hosts_per_leaf for h in but or ()}
        free = [h for h in self._free if h // self._fabric.hosts_per_leaf not in leaves]
        return [int(h) for h in self._rng.choice(free, number, replace=False)]

    def _flow(self, src: Adapter, dst: Adapter, spine: int, demand: float = ELEPHANT) -> Group:
        core = int(self._rng.integers(self._fabric.cores))
        self._serial += 1
        path = self._fabric.path(src, dst, spine, core)
        return Group(name=f"flow{self._serial}", paths=(path,), demand=demand)

    def _incast(self) -> dict[str, object]:
        rail, senders = self._rail(), int(self._rng.integers(2, 7))
        everyone = self._free if self._rng.random() < 0.7 else range(self._fabric.hosts)
        target = int(self._rng.choice(np.array(everyone)))
        sources = [h for h in self._pick(senders + 1) if h != target][:senders]
        groups = [self._flow((h, rail), (target, rail), self._spine()) for h in sources]
        return {"roots": frozenset({groups[0].paths[0][-1]}), "groups": tuple(groups)}

    def _collision(self) -> dict[str, object]:
        rail, spine, count = self._rail(), self._spine(), int(self._rng.integers(2, 4))
        [first] = self._pick(1)
        leaf = first // self._fabric.hosts_per_leaf
        near = [h for h in self._free if h // self._fabric.hosts_per_leaf == leaf]
        near = [int(h) for h in self._rng.permutation(near)[:count]]
        far = self._pick(len(near), but={first})
        falls = self._rng.random() < 0.3
        ends = zip(near, far, strict=True)
        pairs = [(b, a) for a, b in ends] if falls else list(ends)
        groups = [self._flow((a, rail), (b, rail), spine) for a, b in pairs]
        path = groups[0].paths[0]
        return {"roots": frozenset({path[-2] if falls else path[1]}), "groups": tuple(groups)}

    def _sick(self) -> dict[str, object]:
        rail, spine = self._rail(), self._spine()
        [src] = self._pick(1)
        [dst] = self._pick(1, but={src})
        group = self._flow((src, rail), (dst, rail), spine, 0.8)
        path = group.paths[0]
        root = path[1] if self._rng.random() < 0.7 else path[-2]
        return {
            "roots": frozenset({root}),
            "groups": (group,),
            "slow": {root: float(self._rng.uniform(0.2, 0.6))},
            "deaf": bool(self._rng.random() < 0.3),
            "errors_s": float(np.exp(self._rng.uniform(np.log(1.0), np.log(200.0)))),
        }

    def _slow(self) -> dict[str, object]:
        rail = self._rail()
        [src] = self._pick(1)
        [dst] = self._pick(1, but={src})
        group = self._flow((src, rail), (dst, rail), self._spine(), 0.9)
        root = group.paths[0][-1]
        return {
            "roots": frozenset({root}),
            "groups": (group,),
            "slow": {root: float(self._rng.uniform(0.2, 0.7))},
        }

    def _overload(self) -> dict[str, object]:
        """All hosts of a leaf send to other leaves: more than its uplinks carry."""
        fabric, rail = self._fabric, self._rail()
        leaf = int(self._rng.integers(fabric.leaves)) * fabric.rails + rail
        hosts = fabric.hosts_of(leaf)
        many = max(len(hosts), 2 * fabric.spines)
        sources = [hosts[i % len(hosts)] for i in range(many)]
        others = [h for h in self._free if h not in hosts]
        targets = [int(h) for h in self._rng.choice(others, many, replace=len(others) < many)]
        pairs = zip(sources, targets, strict=True)
        groups = tuple(
            self._flow((a, rail), (b, rail), i % fabric.spines) for i, (a, b) in enumerate(pairs)
        )
        return {"roots": frozenset(g.paths[0][1] for g in groups), "groups": groups}


def draw_bursts(
    rng: np.random.Generator, start_s: float, length_s: float, repeated: bool
) -> tuple[tuple[float, float], ...]:
    """One burst, or several with short breaks."""
    if not repeated:
        return ((start_s, start_s + length_s),)
    bursts, now = [], start_s
    while now < start_s + length_s:
        end = now + float(rng.uniform(4.0, 10.0))
        bursts.append((now, end))
        now = end + float(rng.uniform(*BREAKS_S))
    return tuple(bursts)


def fits(plan: Plan, plant: Plant) -> bool:
    """Whether a plant has its own roots and no others, with all that may happen beside it."""
    beside = [
        other
        for other in plan.plants
        if other.start_s < plant.end_s and plant.start_s < other.end_s
    ]
    if any(
        other.roots & plant.roots
        and other.start_s - plant.end_s < _APART_S
        and plant.start_s - other.end_s < _APART_S
        for other in plan.plants
    ):
        return False  # two episodes with one root at once, or joined by the longest gap
    jobs = [job.group for job in plan.jobs]
    busy = [g for g, a, b in plan.busy if a < plant.end_s and plant.start_s < b]
    sets = [[plant], [plant, *beside]] + [[plant, other] for other in beside[1:]]
    for plants in sets:
        want = frozenset().union(*(p.roots for p in plants))
        for groups in (busy, [*busy, *jobs]):
            steady = plan.settled(plants, groups)
            if plan.fabric_kind == "lossy":
                limits = _limits_beyond_sources(steady, plants, groups)
                if not limits <= want or any(not limits & p.roots for p in plants):
                    return False
                if _as_full(steady, plants, want):
                    return False
                continue
            if steady.limiting | frozenset(p for x in plants if x.deaf for p in x.slow) != want:
                return False
            if any(not held(steady, p.roots) for p in plants):
                return False
            leading = [p for p in plants if p.lead_s]
            early = plan.settled(plants, groups, leading)
            if _as_full(steady, plants, want) or _as_full(early, plants, want):
                return False
            if not early.limiting | _limits_beyond_sources(early, plants, groups) <= want:
                return False
    return True


def _as_full(steady: Steady, plants: Sequence[Plant], roots: frozenset[int]) -> bool:
    """Whether a planted flow passes a port that is as good as full without being a root.

    Nobody could tell it from one: a little more, and it would be.
    """
    passed = {p for x in plants for group in x.groups for path in group.paths for p in path[1:]}
    return any(steady.load[port] > _FULL for port in passed - roots)


def _limits_beyond_sources(
    steady: Steady, plants: Sequence[Plant], groups: Sequence[Group]
) -> frozenset[int]:
    """Ports that limit some flow after its first."""
    return frozenset(
        port
        for group in [*groups, *(g for plant in plants for g in plant.groups)]
        for port in steady.limits[group.name]
        if any(port in path[1:] for path in group.paths)
    )


def held(steady: Steady, roots: frozenset[int]) -> bool:
    """Whether some port waits for these roots long enough to be reported, and not marginally."""
    return any(
        steady.wait[port] > 0.2 for port, for_ports in steady.roots.items() if for_ports & roots
    )


#: Episodes in a row for which no place is found, after which the next ones begin later.
_CROWDED = 4


def draw_plan(
    fabric: Fabric, rng: np.random.Generator, length_s: float, *, kind: str = "ib"
) -> Plan:
    """Jobs and episodes over ``length_s`` seconds; about half of the time is quiet."""
    plan = Plan(
        fabric=fabric,
        length_s=length_s,
        background=draw_background(fabric, rng),
        jobs=draw_jobs(fabric, rng),
        fabric_kind=kind,
    )
    places = Places(plan, rng)
    for _ in range(2):
        start = float(rng.uniform(20.0, length_s * 0.6))
        group = places.busy()
        if not plan.settled([], [group, *(job.group for job in plan.jobs)]).roots:
            plan.busy.append((group, start, start + float(rng.uniform(60.0, 200.0))))
    causes = CAUSES if kind != "lossy" else ("incast", "uplink_collision", "overload")
    number, now, failed = 0, 30.0, 0
    while True:
        cause = causes[number % len(causes)]
        length = float(np.exp(rng.uniform(np.log(6.0), np.log(90.0))))
        repeated = length > 25.0 and rng.random() < 0.3
        # A third overlaps the one before it.
        if plan.plants and rng.random() < 0.33:
            last = plan.plants[-1]
            start = float(rng.uniform(last.start_s, max(last.end_s - 4.0, last.start_s)))
        else:
            start = now + float(rng.uniform(20.0, 60.0))
        bursts = draw_bursts(rng, start, length, repeated)
        if bursts[-1][1] > length_s - 20.0:
            return plan
        for _ in range(60):
            plant = places.draw(cause, bursts)
            if fits(plan, plant):
                plan.plants.append(plant)
                now = max(now, plant.end_s)
                failed = 0
                break
        else:
            failed += 1
            now += 10.0 if failed > _CROWDED else 0.0
        number += 1
