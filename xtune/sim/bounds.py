"""What no network can beat, and closed forms that the simulator is checked against."""

from __future__ import annotations

import numpy as np

from xtune.errors import UsageError
from xtune.sim.fabric import PACKET_BYTES, LeafSpine
from xtune.sim.flows import DRAW, Flows


def payload_rate(fabric: LeafSpine) -> float:
    """Payload bytes per nanosecond of a host's link."""
    return fabric.gbps / 8 * PACKET_BYTES / (PACKET_BYTES + fabric.header_bytes)


def flow_ns(fabric: LeafSpine, size: int, links: int = 4) -> float:
    """Time of a flow that is alone: its size over the rate, and its way.

    Args:
        fabric: The fabric.
        size: Payload bytes.
        links: Links on the path, 2 inside a leaf.
    """
    return size / payload_rate(fabric) + fabric.latency_ns(links)


def ring_bound_ns(fabric: LeafSpine, size: int, ranks: int) -> float:
    """Least time of an all-reduce: each rank sends 2(n-1)/n of ``size``, without any latency."""
    return 2 * (ranks - 1) / ranks * size / payload_rate(fabric)


def all_to_all_bound_ns(fabric: LeafSpine, group: int, bytes_per_pair: int) -> float:
    """Least time of an all-to-all: each rank sends to g-1 others, without any latency."""
    return (group - 1) * bytes_per_pair / payload_rate(fabric)


def load_bound_ns(fabric: LeafSpine, flows: Flows) -> float:
    """Least time of a set of flows: the busiest port at full rate, without any latency.

    Uplinks count where a flow's spine is given; a drawn one could be any.

    Args:
        fabric: The fabric.
        flows: The flows; all count, also background.
    """
    per_leaf = fabric.hosts_per_leaf
    load = np.zeros(fabric.ports)
    np.add.at(load, flows.src, flows.size)
    np.add.at(load, fabric.first_delivery + flows.dst, flows.size)
    up, down = flows.src // per_leaf, flows.dst // per_leaf
    fixed = (up != down) & (flows.spine != DRAW)
    spine = flows.spine[fixed]
    np.add.at(load, fabric.first_uplink + up[fixed] * fabric.spines + spine, flows.size[fixed])
    np.add.at(load, fabric.first_downlink + spine * fabric.leaves + down[fixed], flows.size[fixed])
    rate = np.full(fabric.ports, payload_rate(fabric))
    if fabric.uplink_gbps is not None:
        rate[fabric.first_uplink : fabric.first_delivery] *= fabric.uplink_gbps / fabric.gbps
    for port, share in fabric.slow_ports:
        rate[port] *= share
    return float((load / rate).max())


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
