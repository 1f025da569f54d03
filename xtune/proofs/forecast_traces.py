"""Traces of queues on which forecasts are judged, from the simulator's rung A.

A leaf-spine fabric of 16 hosts at 400 Gb/s runs bursts of two jobs; the queues of all links
between leaves and spines are read at each step of 1 us. Three regimes, with buffers of 1 MB and
of 16 MB a port, whose thresholds of flow control lie as far apart as the buffers:

``collisions``  each burst goes to other hosts over other spines, at line rate
``mild``        the same between hosts whose links have little more than half the rate
``periodic``    the own job's bursts come each period, with bytes and paths that stay, on which
                some of its flows meet; the other job's as often, at random
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import Flows, build_flows

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

STEP_NS = 1_000
REGIMES = ("collisions", "mild", "periodic")
BUFFERS = {"1 MB": 1_000_000, "16 MB": 16_000_000}
_MILD_SHARE = 0.57  # of a host's line rate: two of them overload a link by 1.14
_OVERLOAD = {"collisions": 2.0, "mild": 2 * _MILD_SHARE, "periodic": 2.0}
_GAP = 5.0  # mean gap of random bursts, in the time that a burst takes
OWN, OTHERS = np.arange(0, 16, 2), np.arange(1, 16, 2)  # hosts: two of each job below each leaf
_PERIOD_NS = {1_000_000: 1_000_000, 16_000_000: 4_000_000}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trace:
    """Queues over time, and what goes with them.

    Attributes:
        name: Buffer and regime, or where it was measured.
        at_ns: Times of the fine readings, int64, shape (times,), rising.
        occupancy: Share of the buffer in use, shape (times, links).
        bursts: Begin and end of the own job's bursts in ns, int64, shape (bursts, 2).
        flows: Pairs of paths, each a tuple of link indices: what a router chooses between.
        horizon_ns: How far ahead a warning is asked for.
        packets: Of a fine reading while the queue is in use, each of which a switch may mark;
            0 where nobody marks.
    """

    name: str
    at_ns: I64
    occupancy: F64
    bursts: I64 = field(default_factory=lambda: np.empty((0, 2), np.int64))
    flows: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    horizon_ns: int = 200_000
    packets: int = 12  # of 4096 bytes at 400 Gb/s in 1 us


def simulate(regime: str, buffer: str, *, seed: int, length_ns: int) -> Trace:
    """One trace of the simulator.

    Args:
        regime: One of `REGIMES`.
        buffer: One of `BUFFERS`.
        seed: Of bursts and paths.
        length_ns: How long.
    """
    size = BUFFERS[buffer]
    slow = tuple((host, _MILD_SHARE) for host in range(16)) if regime == "mild" else ()
    fabric = LeafSpine(16, 4, 4, buffer_bytes=size, slow_ports=slow)
    rng = np.random.default_rng([seed, REGIMES.index(regime), size])
    flows, bursts = _traffic(regime, fabric, rng, length_ns)
    # Two senders that are stopped at 45 % each fill a queue to 90 % of the buffer.
    pfc = Backpressure(xoff_bytes=size * 45 // 100, xon_bytes=size * 36 // 100)
    queues = _queues(fabric, flows, pfc, seed, length_ns)
    return Trace(
        name=f"{buffer}, {regime}",
        at_ns=np.arange(1, len(queues) + 1, dtype=np.int64) * STEP_NS,
        occupancy=np.minimum(queues / size, 1.0),
        bursts=bursts,
        flows=_pairs(fabric),
    )


def _queues(fabric: LeafSpine, flows: Flows, pfc: Backpressure, seed: int, length_ns: int) -> I64:
    """Bytes in the queue of each link between leaves and spines, after each step."""
    from xtune.policies.spec import Routing
    from xtune.sim import _layout as k  # loads numba
    from xtune.sim._state import State

    state = State(
        fabric,
        flows,
        routing=Routing(mode="static"),
        dt_ns=STEP_NS,
        seed=seed,
        pfc=pfc,
        limit_ns=length_ns,
    )
    first, last = fabric.first_uplink, fabric.first_delivery
    found = np.zeros((length_ns // STEP_NS, last - first), np.int64)
    for step in range(len(found)):
        state.cfg[k.LIMIT_STEP] = step + 1
        state.run()
        found[step] = state.queued[first:last]
        if state.cfg[k.LEFT] == 0:
            break
    return found


def _traffic(
    regime: str, fabric: LeafSpine, rng: np.random.Generator, length_ns: int
) -> tuple[Flows, I64]:
    """Flows of both jobs, and the own job's bursts.

    Flows at random have a third of the bytes to three times as many as fill the buffer to 70 %
    where two of them meet.
    """
    fill = 0.7 * fabric.buffer_bytes / (1.0 - 1.0 / _OVERLOAD[regime])  # bytes of both
    mean_ns = 8.0 * fill / fabric.gbps
    rows: list[F64] = []  # src, dst, bytes, start, spine
    gap_ns = _PERIOD_NS[fabric.buffer_bytes] if regime == "periodic" else _GAP * mean_ns
    count = int(3 * length_ns / gap_ns) + 10
    apart = rng.exponential(gap_ns, (2, count))
    if regime == "periodic":
        apart[0] = gap_ns * rng.normal(1.0, 0.01, count)
    at = np.cumsum(np.maximum(apart, mean_ns), axis=1).astype(np.int64)
    begins = at[0, at[0] < length_ns]
    for hosts, at_ns, regular in (
        (OWN, begins, regime == "periodic"),
        (OTHERS, at[1, at[1] < length_ns], False),
    ):
        # A job that repeats itself sends as much from each host; two flows of the first leaf meet.
        size = np.full(len(hosts), 1.5 * fill / 2)
        spine = rng.integers(0, fabric.spines, len(hosts))
        spine[1] = spine[0]
        dst = np.roll(hosts, -2)
        for start in at_ns:
            if not regular:
                size = fill * rng.uniform(1 / 3, 3, len(hosts)) / 2
                spine = rng.integers(0, fabric.spines, len(hosts))
                dst = np.roll(hosts, 2 * int(rng.integers(1, 4)))  # below another leaf
            at_once = np.full(len(hosts), start)
            rows.append(np.stack([hosts, dst, size, at_once, spine], axis=1))
    table = np.concatenate(rows).astype(np.int64)
    ends = table[:, [0, 1, 4]].astype(np.int32)
    flows = build_flows(ends[:, 0], ends[:, 1], table[:, 2], start_ns=table[:, 3])
    flows = flows.with_paths(ends[:, 2])
    return flows, np.stack([begins, begins + int(2 * mean_ns)], axis=1)


def _pairs(fabric: LeafSpine) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """From each leaf to the next, over the first two spines and over the last two."""
    first, pairs = fabric.first_uplink, []
    for leaf in range(fabric.leaves):
        to = (leaf + 1) % fabric.leaves
        paths = [
            (fabric.uplink(leaf, spine) - first, fabric.downlink(spine, to) - first)
            for spine in range(4)
        ]
        pairs += [(paths[0], paths[1]), (paths[2], paths[3])]
    return tuple(pairs)
