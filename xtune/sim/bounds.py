"""What no network can beat, and closed forms that the simulator is checked against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.sim.fabric import F64, I64, PACKET_BYTES, Fabric
from xtune.sim.flows import DRAW, Flows


def payload_rate(fabric: Fabric) -> float:
    """Payload bytes per nanosecond of a host's link."""
    return fabric.gbps / 8 * PACKET_BYTES / (PACKET_BYTES + fabric.header_bytes)


def flow_ns(fabric: Fabric, size: int, links: int = 4) -> float:
    """Time of a flow that is alone: its size over the rate, and its way.

    Args:
        fabric: The fabric.
        size: Payload bytes.
        links: Links on the path, 2 inside a leaf.
    """
    return size / payload_rate(fabric) + float(way_ns(fabric, size, links))


def way_ns(fabric: Fabric, size: int | I64, links: int) -> F64:
    """Time of a flow's way: that of its links, and of a packet stored at each switch.

    A flow shorter than a packet is stored as the packet that it is.

    Args:
        fabric: The fabric.
        size: Payload bytes.
        links: Links on the path.

    Returns:
        float64, of the shape of ``size``.
    """
    wire = links * fabric.link_latency_ns
    stored = fabric.latency_ns(links) - wire
    return np.asarray(wire + stored * np.minimum(np.asarray(size) / PACKET_BYTES, 1.0))


def ring_bound_ns(fabric: Fabric, size: int, ranks: int) -> float:
    """Least time of an all-reduce: each rank sends 2(n-1)/n of ``size``, without any latency."""
    return 2 * (ranks - 1) / ranks * size / payload_rate(fabric)


def all_to_all_bound_ns(fabric: Fabric, group: int, bytes_per_pair: int) -> float:
    """Least time of an all-to-all: each rank sends to g-1 others, without any latency."""
    return (group - 1) * bytes_per_pair / payload_rate(fabric)


def load_bound_ns(fabric: Fabric, flows: Flows) -> float:
    """Least time of a set of flows on any paths they may take, without any latency.

    The busiest of: each host's two ports; each port between switches, by flows that have no other
    path or are given it (which binds them under static routing alone); each group of switches
    (leaf, pod), by what leaves or enters it over all its links.

    Args:
        fabric: The fabric.
        flows: The flows; all count, also background.
    """
    rate = fabric.payload_rates()
    busiest = float((_port_load(fabric, flows) / rate).max())
    ends = fabric.port_ends()
    inner = (ends >= 0).all(axis=1)
    ends, rate = ends[inner], rate[inner]
    src, dst = fabric.leaves_of(flows.src), fabric.leaves_of(flows.dst)
    for group in fabric.groups():
        for a, b, end in ((src, dst, 0), (dst, src, 1)):
            apart = group[a] != group[b]
            load = _sums(group, group[a[apart]], flows.size[apart])
            cut = group[ends[:, 0]] != group[ends[:, 1]]
            room = _sums(group, group[ends[cut, end]], rate[cut])
            needed = load > 0
            busiest = max(busiest, float((load[needed] / room[needed]).max(initial=0.0)))
    return busiest


def _sums(group: I64, of: I64, values: NDArray[np.generic]) -> F64:
    return np.asarray(np.bincount(of, weights=values, minlength=len(group)), dtype=np.float64)


def _port_load(fabric: Fabric, flows: Flows) -> F64:
    """Bytes that each port must carry whatever is drawn."""
    load = np.zeros(fabric.ports)
    np.add.at(load, flows.src, flows.size)
    np.add.at(load, fabric.first_delivery + flows.dst, flows.size)
    count = fabric.routes(flows.src, flows.dst).count
    path = np.where(count == 1, 0, flows.spine)
    given = np.flatnonzero(path != DRAW)
    ports = fabric.between(flows.src[given], flows.dst[given], path[given])
    size = np.broadcast_to(flows.size[given, None], ports.shape)
    np.add.at(load, ports[ports >= 0], size[ports >= 0])
    return load


def in_system_md1(load: float) -> float:
    """Mean number in an M/D/1 queue with its server (Pollaczek-Khinchine).

    Args:
        load: Arrivals per service time, in [0, 1).

    Raises:
        UsageError: a load that has no stationary state.
    """
    if not 0.0 <= load < 1.0:
        raise UsageError(f"a queue with load {load} has no stationary state", "take 0 <= load < 1")
    return load + load * load / (2.0 * (1.0 - load))
