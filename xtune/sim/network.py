"""The calibrated fabric as rung A sees it: job hosts, collectives as flows, background as flows.

A congestion episode of depth d is made of other jobs' flows through one port that the job uses,
so many and so fast that a flow on a fixed path gets 1 / d of the port. What another policy makes
of the same flows (another path, an upper lane) is for rung A to find out.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from xtune.sim.beside import optional
from xtune.sim.calibration import Calibration
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import Flows, all_to_all, build_flows

# Beyond this many job hosts a slice of the fabric stands for all of it, unless the calibration
# says otherwise (``slice_hosts``): a phase of 64 hosts takes milliseconds, and what a policy
# changes happens at single ports. It lies where fixed paths collide at many ports at once.
SLICE_HOSTS = 64
PEERS = 64  # that a host exchanges with in an all-to-all; of more ranks these stand for all
# Hosts a leaf that only carry background; with all of them at line rate the depth is 8.
BACKGROUND_HOSTS = 7
DEEPEST = float(BACKGROUND_HOSTS + 1)
ENDLESS = 1 << 40  # bytes of a background flow: outlasts any phase
BINS_PER_OCTAVE = 4
# Places that are told apart, and as many draws of paths. Where each host sends one flow and a hash
# draws its path, few draws miss by how much the flows collide.
SAMPLES, DRAWS = 4, 64
CHAINS = 8  # sends of one rank in an all-to-all that run at once


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What others do to the job for a while.

    Attributes:
        depth_bin: Slowdown of a fixed path, in quarter octaves: 0 is clear, 4 is twice as slow.
            Sampled phases are of whole numbers.
        edge: The port is a job host's own (no path avoids it), not one between switches.
    """

    depth_bin: float = 0
    edge: bool = False

    @property
    def depth(self) -> float:
        """Slowdown that a flow on the port suffers, at least 1."""
        return min(DEEPEST, float(2.0 ** (self.depth_bin / BINS_PER_OCTAVE)))

    @property
    def around(self) -> tuple[State, State]:
        """The sampled states just below and above; twice the same where it is one of them."""
        low, high = math.floor(self.depth_bin), math.ceil(self.depth_bin)
        return (
            State(depth_bin=low, edge=self.edge and low > 0),
            State(depth_bin=high, edge=self.edge),
        )


CLEAR = State()


def state_of(depth: float, *, edge: bool) -> State:
    """The background state of a slowdown."""
    bin_ = round(BINS_PER_OCTAVE * math.log2(min(max(depth, 1.0), DEEPEST)), 6)
    return State(depth_bin=bin_, edge=edge and bin_ > 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """The fabric of the job and its background.

    Attributes:
        leaves: Leaves that the job stands on.
        spines: Spines above them.
        job_per_leaf: Job hosts below each leaf.
        gbps: Rate of every link.
        latency_ns: Propagation time of a link.
        ecmp_share: Share of the job's flows whose fixed path is drawn at random; the others are
            spread evenly, so that they never meet each other.
        same_lane_share: Share of episodes whose traffic is marked like the job's own.
        slice_of: Job hosts that this stands for, where it is a slice; else None.
        rings: Rings that run side by side: each k-th host is in the same one.
    """

    leaves: int
    spines: int
    job_per_leaf: int
    gbps: float
    latency_ns: int
    ecmp_share: float
    same_lane_share: float
    slice_of: int | None
    rings: int = 1

    @classmethod
    def of(cls, calibration: Calibration) -> Network:
        """The network of a calibration, sliced where it is large."""
        hosts = max(2, int(calibration["job_hosts"]))
        leaves = max(1, min(int(calibration["leaves"]), hosts))
        spines = max(1, int(calibration["spines"]))
        per_leaf = math.ceil(hosts / leaves)
        slice_of = None
        limit = int(optional(calibration, "slice_hosts", SLICE_HOSTS))
        if per_leaf * leaves > limit:
            slice_of = hosts
            most = max(1, limit // 4)  # at least four leaves stay, if there are four
            if per_leaf > most:
                spines = max(1, round(spines * most / per_leaf))
                per_leaf = most
            leaves = max(1, min(leaves, limit // per_leaf))
        return cls(
            leaves=leaves, spines=spines, job_per_leaf=per_leaf, gbps=calibration["rate_gbps"],
            latency_ns=round(calibration["link_latency_ns"]),
            ecmp_share=calibration["ecmp_share"],
            same_lane_share=calibration["same_lane_share"], slice_of=slice_of,
            rings=max(1, int(optional(calibration, "job_rings", 1.0))),
        )  # fmt: skip

    @property
    def digest(self) -> str:
        """Identity of everything that rung A is given of the fabric."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]

    @property
    def hosts_per_leaf(self) -> int:
        """Job hosts and background hosts below a leaf."""
        return self.job_per_leaf + BACKGROUND_HOSTS

    @property
    def job(self) -> np.ndarray:
        """Numbers of the job's hosts, int32, leaf by leaf."""
        first = np.arange(self.leaves, dtype=np.int32)[:, None] * self.hosts_per_leaf
        return (first + np.arange(self.job_per_leaf, dtype=np.int32)[None, :]).ravel()

    def fabric(self, slow_ports: tuple[tuple[int, float], ...] = ()) -> LeafSpine:
        """The fabric, with the NIC of a background host that sends below line rate slowed."""
        return LeafSpine(
            hosts=self.leaves * self.hosts_per_leaf, leaves=self.leaves, spines=self.spines,
            gbps=self.gbps, link_latency_ns=self.latency_ns, slow_ports=slow_ports,
        )  # fmt: skip

    def flows(self, collective: str, bytes_per_host: int, seed: int) -> Flows:
        """One phase of the job.

        Args:
            collective: ``ring``: each host sends to the next of its ring; ``all_to_all``: to all
                others, or to ``PEERS`` of them; ``pipeline``: to its peer below the next leaf.
            bytes_per_host: What each host sends in total.
            seed: Draws the paths of the share of flows that has none assigned.
        """
        job = self.job
        if collective in ("ring", "pipeline"):
            by = self.job_per_leaf if self.leaves > 1 else 1
            if collective == "ring":
                by = min(self.rings, len(job) - 1)
            flows = build_flows(job, np.roll(job, -by), max(1, bytes_per_host))
            # Hosts of one leaf that send out of it do so through spines of their own.
            place = job // self.hosts_per_leaf + job % self.hosts_per_leaf
            spine = place % self.spines
        elif collective == "all_to_all":
            flows, spine = self._all_to_all(bytes_per_host)
        else:
            raise ValueError(f"collective {collective!r}")
        if self.ecmp_share > 0:
            rng = np.random.default_rng([seed, 1])
            drawn = rng.random(len(flows)) < self.ecmp_share
            spine = np.where(drawn, rng.integers(0, self.spines, len(flows)), spine)
        return replace(flows, spine=spine.astype(np.int32))

    def _all_to_all(self, bytes_per_host: int) -> tuple[Flows, np.ndarray]:
        job = self.job
        group = next(g for g in range(min(PEERS, len(job)), 0, -1) if len(job) % g == 0)
        if group < 2:
            group = len(job)
        flows = all_to_all(
            self.fabric(), group, max(1, bytes_per_host // (group - 1)),
            chains=min(CHAINS, group - 1), hosts=job, release_ns=4 * self.latency_ns,
        )  # fmt: skip
        # Peers in turn over the spines: even in number at every moment of a shifted exchange.
        rank = np.empty(job.max() + 1, dtype=np.int64)
        rank[job] = np.arange(len(job)) // (len(job) // group)
        return flows, (rank[flows.src] + rank[flows.dst]) % self.spines

    def background(
        self, state: State, place: int
    ) -> tuple[Flows | None, tuple[tuple[int, float], ...]]:
        """Other jobs' flows of a state, and the NICs that send below line rate.

        By max-min fairness a port that ``m`` flows at line rate and one at rate ``r`` share with
        the job's leaves the job (1 - r) / (m + 1), for r up to 1 / (m + 2).

        Args:
            state: What to make.
            place: Which of the possible ports, and which lane; any number.
        """
        depth = state.depth
        if depth <= 1.0:
            return None, ()
        whole = math.floor(depth + 1e-6)  # a depth is rounded, see `state_of`
        rest = max(0.0, 1.0 - whole / depth)
        count = (whole - 1) + (rest > 1e-6)
        per = self.hosts_per_leaf
        leaf = place % self.leaves
        sources = leaf * per + self.job_per_leaf + np.arange(count, dtype=np.int32)
        if state.edge or self.leaves == 1:
            # Below one leaf, straight to a job host: nothing but its own port is shared.
            victim = leaf * per + (place // self.leaves) % self.job_per_leaf
            flows = build_flows(sources, np.full(count, victim, dtype=np.int32), ENDLESS)
        else:
            others, struck = self._targets(leaf, place)
            other = others[place // self.leaves % len(others)]
            targets = other * per + self.job_per_leaf + np.arange(count, dtype=np.int32)
            flows = build_flows(sources, targets, ENDLESS)
            spine = np.full(count, struck, dtype=np.int32)
            flows = flows.with_paths(spine, spine)
        slow = ((int(sources[-1]), rest),) if rest > 1e-6 else ()
        return flows.in_background(lane=0 if self.same_lane(place) else 1), slow

    def same_lane(self, place: int) -> bool:
        """Whether the episode at a place is of traffic marked like the job's own."""
        # Golden-ratio steps: any run of places has close to the asked share in the same lane.
        return (place * 0.6180339887498949) % 1.0 < self.same_lane_share

    def samples(self, collective: str) -> int:
        """How many places are told apart for a collective."""
        few = collective != "all_to_all"  # of whose many flows the draws even out
        return DRAWS if self.ecmp_share > 0 and few else SAMPLES

    def sampled_place(self, index: int) -> int:
        """Place of a cell's sample: leaves, targets and lanes in turn.

        Args:
            index: Of the sample. The place has the lane of the place of that number.
        """
        place = index
        while self.leaves > 1 and (
            place // self.leaves % (self.leaves - 1) != index % (self.leaves - 1)
            or self.same_lane(place) is not self.same_lane(index)
        ):
            place += self.leaves
        return place

    def _targets(self, leaf: int, seed: int) -> tuple[list[int], int]:
        """Leaves that other jobs may send to from a leaf, and the spine that they take there.

        They share the path of the ring's last flow out of the leaf, where nothing moves it, and
        meet the ring nowhere else: the depth of a state is that of one shared port.
        """
        flows, per = self.flows("ring", 1, seed), self.hosts_per_leaf
        last = (leaf + 1) * self.job_per_leaf - 1
        spine, own = int(flows.spine[last]), int(flows.dst[last]) // per
        out = flows.src // per != flows.dst // per
        taken = {int(d) // per for d in flows.dst[out & (flows.spine == spine)]}
        free = [at % self.leaves for at in range(leaf + 1, leaf + self.leaves)]
        return [at for at in free if at == own or at not in taken], spine


def scope_notes(calibration: Calibration) -> tuple[str, ...]:
    """What a reader must know of how much of the job is simulated."""
    network = Network.of(calibration)
    if network.slice_of is None:
        return ()
    hosts = network.leaves * network.job_per_leaf
    return (f"{hosts} hosts stand for the job's {network.slice_of}",)
