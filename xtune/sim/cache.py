"""Rung B: how long a phase takes, from a few runs of rung A kept by what they depend on.

A cell holds one run, at one of the places that congestion may strike (and of the paths that a
hash may draw). Cells are filled on first use and shared: within a process in memory, between
processes and resumed runs in a folder. A cell depends on its key alone, so it does not matter who
fills it, or when.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xtune.policies.spec import Routing
from xtune.sim.fabric import PACKET_BYTES
from xtune.sim.flows import Flows
from xtune.sim.network import BINS_PER_OCTAVE, Network, State
from xtune.sim.phase import DEFAULT_LIMIT_NS, PhaseResult, run_phase

# Phases up to this size run whole. Larger ones run at two sizes, and the rate between them, which
# start-up and the first decisions no longer touch, carries on (FIFO fragments in steady state).
# Long enough that a router has made its first moves (3 to 7 in 30 MB, measured) before the rate is
# taken; at 400 Gb/s 1.3 milliseconds, in proportion at other rates.
WINDOW_BYTES = 64 << 20
WINDOW_GBPS = 400.0
LEAST_WINDOW_BYTES = 1 << 20
# Less is enough where nothing is decided.
STEADY_SHARES = {"static": 0.25, "spray": 0.5}
# All-to-alls whose paths collide are held up more and more for milliseconds: their rate between
# two short runs is up to a fifth too high. They run whole twice as far, beyond in proportion.
COLLIDING_SHARE = 2.0
SMALLEST_BYTES = 4096
# Steps are a share of a flow's time on its link: what follows another flow, or comes to an empty
# queue, waits for the next step. Where paths collide queues stand, which hides half of that.
FLOW_STEPS, COLLIDING_FLOW_STEPS = 16, 8
# The longest one at 400 Gb/s. On slower links it is longer in proportion, up to so many times:
# queues are read every ten microseconds.
LONGEST_STEP_NS, SLOWEST, COLLIDING_SLOWEST = 1000, 1.5, 3.0
# Small flows wait for round trips of some microseconds; bytes of a step are whole.
SHORTEST_STEP_NS, LEAST_STEP_BYTES = 50, 256
# A switch sees its queues as a step begins, so what comes within one must be less than a packet.
SWITCH_STEP_BYTES = PACKET_BYTES // 2
# Sources that make a cell what it is: a changed one never reads a cell of the old one.
MAKERS = (
    "xtune.policies._core", "xtune.policies._fields", "xtune.policies.ladder",
    "xtune.policies.learned_ratio", "xtune.policies.routing_parameters", "xtune.policies.spec",
    "xtune.sim._buffers", "xtune.sim._choices", "xtune.sim._extras",
    "xtune.sim._fill_extras", "xtune.sim._layout", "xtune.sim._rate", "xtune.sim._routes",
    "xtune.sim._state", "xtune.sim._window", "xtune.sim._events",
    "xtune.sim.beside", "xtune.sim.bounds",
    "xtune.sim.cache", "xtune.sim.congestion", "xtune.sim.fabric", "xtune.sim.flows",
    "xtune.sim.kernel", "xtune.sim.network", "xtune.sim.phase",
)  # fmt: skip


@lru_cache(maxsize=1)
def makers_digest() -> str:
    """Digest of the source of everything between a key and its cell.

    All that this module imports of the simulator and the policies, but for the calibration: what
    a network takes from it is in the key.
    """
    content = hashlib.sha256()
    for name in MAKERS:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            content.update(Path(spec.origin).read_bytes())
    return content.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One run of rung A (two for a large phase).

    Attributes:
        base_bytes: Bytes per host of the run.
        base_s: Time of its last flow.
        s_per_byte: Seconds for each byte beyond (or below) ``base_bytes``.
        moves: Path changes of all flows.
        reorder_bytes: Most bytes that one receiver held back for order.
        occupancy: Median queue, 0..1, of the best path of the worst pair of leaves.
        finished: Every flow arrived within the limit.
    """

    base_bytes: int
    base_s: float
    s_per_byte: float
    moves: int
    reorder_bytes: int
    occupancy: float
    finished: bool

    def seconds(self, bytes_per_host: int) -> float:
        """Time of a phase of nearly or more than the run's size."""
        return max(0.0, self.base_s + (bytes_per_host - self.base_bytes) * self.s_per_byte)


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """What a cell depends on.

    Attributes:
        network: Digest of the network.
        routing: Digest of the routing.
        collective: Pattern of the flows.
        state: Of the background, a sampled one.
        size_bin: Quarter octaves of bytes per host; -1: large.
        sample: Which of the places that are told apart.
    """

    network: str
    routing: str
    collective: str
    state: State
    size_bin: int
    sample: int

    @property
    def digest(self) -> str:
        """File name of the cell."""
        text = f"{makers_digest()}|{self!r}"
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def routing_digest(routing: Routing) -> str:
    """Identity of a routing, as far as a phase can tell: a static path has no other parameter."""
    if routing.mode == "static":
        return f"static-{routing.lanes}"
    content = json.dumps(asdict(routing), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def window_bytes(gbps: float, share: float = 1.0) -> int:
    """The largest phase that runs whole, so that a window lasts as long at every rate.

    Args:
        gbps: Rate of the links.
        share: Of a whole window.
    """
    return max(LEAST_WINDOW_BYTES, round(share * WINDOW_BYTES * gbps / WINDOW_GBPS))


def step_ns(flow_bytes: int, gbps: float, mode: str, *, collides: bool = False) -> int:
    """Step of a phase: never longer for a smaller flow or on a faster link.

    Args:
        flow_bytes: Of its smallest flow.
        gbps: Rate of the links.
        mode: Of the routing.
        collides: Whether it is an all-to-all on drawn paths.
    """
    steps = COLLIDING_FLOW_STEPS if collides else FLOW_STEPS
    slowest = COLLIDING_SLOWEST if collides else SLOWEST
    longest = LONGEST_STEP_NS * min(slowest, WINDOW_GBPS / gbps)
    if mode == "switch_adaptive":
        longest = min(longest, SWITCH_STEP_BYTES * 8 / gbps)
    shortest = min(max(SHORTEST_STEP_NS, LEAST_STEP_BYTES * 8 / gbps), longest)
    return round(min(max(flow_bytes * 8 / gbps / steps, shortest), longest))


def size_bin(bytes_per_host: int, window: int) -> int:
    """Quarter octave of a size, or -1 for one beyond the window, which is extrapolated."""
    if bytes_per_host > window:
        return -1
    return round(BINS_PER_OCTAVE * math.log2(max(bytes_per_host, SMALLEST_BYTES)))


@dataclass
class PhaseCache:
    """Cells by key.

    Attributes:
        folder: Where cells are kept for other processes; None keeps them in memory alone.
    """

    folder: Path | None = None
    _cells: dict[Key, Sample] = field(default_factory=dict, repr=False)

    def cell(self, key: Key, fill: Callable[[], Sample]) -> Sample:
        """The run of a key, made by ``fill`` where nobody has."""
        found = self._cells.get(key)
        if found is None:
            found = self._read(key)
            if found is None:
                found = fill()
                self._write(key, found)
            self._cells[key] = found
        return found

    def _path(self, folder: Path, key: Key) -> Path:
        return folder / f"{key.digest}.json"

    def _read(self, key: Key) -> Sample | None:
        if self.folder is None:
            return None
        try:
            document = json.loads(self._path(self.folder, key).read_text(encoding="utf-8"))
            return Sample(**document["sample"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent or of another make: it is made anew

    def _write(self, key: Key, sample: Sample) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self._path(self.folder, key)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        document = {"schema": 2, "key": asdict(key), "sample": asdict(sample)}
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(target)


@dataclass
class Phases:
    """Phase times of one network under one routing."""

    network: Network
    routing: Routing
    cache: PhaseCache

    @cached_property
    def _routing_digest(self) -> str:
        return routing_digest(self.routing)

    def _collides(self, collective: str) -> bool:
        return collective == "all_to_all" and self.network.ecmp_share > 0

    def _window(self, collective: str) -> int:
        share = STEADY_SHARES.get(self.routing.mode, 1.0)
        if self._collides(collective):
            share = COLLIDING_SHARE
        return window_bytes(self.network.gbps, share)

    @cached_property
    def _network_digest(self) -> str:
        return self.network.digest

    def sample(self, collective: str, bytes_per_host: int, state: State, place: int) -> Sample:
        """The run that stands for a phase where congestion strikes at ``place``.

        Under a sampled state, or the nearer one of the two around.
        """
        low, high = state.around
        state = low if state.depth - low.depth <= high.depth - state.depth else high
        key = Key(
            network=self._network_digest, routing=self._routing_digest, collective=collective,
            state=state, size_bin=size_bin(bytes_per_host, self._window(collective)),
            sample=place % self.network.samples(collective),
        )  # fmt: skip
        return self.cache.cell(key, lambda: self._run(key))

    def seconds(self, collective: str, bytes_per_host: int, state: State, place: int) -> float:
        """How long the phase takes, unscaled; between two sampled depths, in proportion."""
        low, high = (
            (at.depth, self.sample(collective, bytes_per_host, at, place).seconds(bytes_per_host))
            for at in state.around
        )
        if low[0] == high[0]:
            return low[1]
        return low[1] + (high[1] - low[1]) * (state.depth - low[0]) / (high[0] - low[0])

    def _run(self, key: Key) -> Sample:
        place = self.network.sampled_place(key.sample)
        whole = self._window(key.collective)
        if key.size_bin >= 0 or self._collides(key.collective):
            large = key.size_bin < 0
            size = whole if large else round(2.0 ** (key.size_bin / BINS_PER_OCTAVE))
            end = self._phase(key, size, place)
            return self._sample(key, place, end, size, end.phase_ns / size * 1e-9)
        half = whole // 2
        start, end = self._phase(key, half, place), self._phase(key, whole, place)
        span = whole - half
        # Routing may happen to do worse in the shorter run; no byte travels faster than the wire.
        slope = max((end.phase_ns - start.phase_ns) / span, 8.0 / self.network.gbps) * 1e-9
        return self._sample(key, place, end, whole, slope)

    def run(
        self,
        collective: str,
        bytes_per_host: int,
        state: State,
        place: int,
        limit_ns: int = DEFAULT_LIMIT_NS,
        longest_step_ns: int | None = None,
    ) -> PhaseResult:
        """Rung A: the phase as it is, neither kept nor cut; None takes the steps of a cell."""
        flows = self.network.flows(collective, bytes_per_host, seed=place)
        background, slow = self.network.background(state, place)
        if background is not None and self.routing.lanes == 1:
            background = replace(background, lane=0 * background.lane)
        step = step_ns(
            int(flows.size.min()), self.network.gbps, self.routing.mode,
            collides=self._collides(collective),
        )  # fmt: skip
        return run_phase(
            self.network.fabric(slow), flows, routing=self.routing, background=background,
            dt_ns=min(step, longest_step_ns or step), seed=place, limit_ns=limit_ns,
        )  # fmt: skip

    def _phase(self, key: Key, size: int, place: int) -> PhaseResult:
        return self.run(key.collective, size, key.state, place)

    def _sample(
        self, key: Key, place: int, result: PhaseResult, size: int, s_per_byte: float
    ) -> Sample:
        flows = self.network.flows(key.collective, size, seed=place)
        return Sample(
            base_bytes=size, base_s=result.phase_ns * 1e-9, s_per_byte=s_per_byte,
            moves=int(result.moves.sum()), reorder_bytes=int(result.reorder_bytes.max()),
            occupancy=self._occupancy(flows, result.occupancy_p50),
            finished=bool(result.finished),
        )  # fmt: skip

    def _occupancy(self, flows: Flows, queues: NDArray[np.float64]) -> float:
        """The best path of the worst pair of leaves; 0 where no flow leaves its leaf."""
        network = self.network
        half = network.leaves * network.spines
        up = queues[:half].reshape(network.leaves, network.spines)
        down = queues[half:].reshape(network.spines, network.leaves)
        pairs = np.unique(np.stack([flows.src, flows.dst]) // network.hosts_per_leaf, axis=1)
        pairs = pairs[:, pairs[0] != pairs[1]]
        if pairs.shape[1] == 0:
            return 0.0
        paths = np.maximum(up[pairs[0]], down[:, pairs[1]].T)
        return float(np.nan_to_num(paths).min(axis=1).max())
