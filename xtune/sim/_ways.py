"""Up-down routing: which way is up in a fabric, and the shortest paths that turn down once.

A path goes up towards the middle of the fabric, turns once, and goes down. Such paths never wait
for each other in a circle, so that lossless flow control cannot lock up (up*/down* routing of
Autonet, Schroeder et al. 1991, as the ``updn`` engine of OpenSM).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.sim.fabric import MOST_PATHS

NONE = np.uint32(0xFFFFFFFF)  # no port at this stage

I64 = NDArray[np.int64]


def heights(leaves: int, below: Sequence[int], links: Sequence[tuple[int, int]]) -> list[int]:
    """How high each switch stands: the longest way up to it. Links always join two heights.

    A switch is above another if it is further from the leaves. Of two as far, that with fewer
    hosts is above: a spine with a management node stays a spine.

    Args:
        leaves: Switches with hosts are the first so many.
        below: Hosts below each switch.
        links: Pairs of switches that are joined, in either direction.

    Returns:
        Of each switch, 0 for the lowest; -1 where no leaf is joined to it.
    """
    near: list[set[int]] = [set() for _ in below]
    for a, b in links:
        near[a].add(b)
        near[b].add(a)
    level = {leaf: 0 for leaf in range(leaves)}
    queue = deque(level)
    while queue:
        here = queue.popleft()
        for there in sorted(near[here] - level.keys()):
            level[there] = level[here] + 1
            queue.append(there)
    rank = {switch: (level[switch], -below[switch], switch) for switch in level}
    height = [-1] * len(below)
    for switch in sorted(rank, key=rank.__getitem__):
        lower = [height[other] for other in near[switch] if rank[other] < rank[switch]]
        height[switch] = max(lower, default=-1) + 1
    return height


def groups(height: Sequence[int], ends: I64, most: int) -> I64:
    """The group of each switch: those up to a height that hang together; others alone.

    Args:
        height: Of each switch.
        ends: Pairs of switches that links join; -1 for hosts.
        most: That height.
    """
    group = np.arange(len(height))
    low = np.array(height) <= most
    joined = ends[(ends >= 0).all(axis=1)]
    joined = joined[low[joined].all(axis=1)]
    while True:  # every round passes the lowest number on by a link
        before = group.copy()
        np.minimum.at(group, joined[:, 0], before[joined[:, 1]])
        if np.array_equal(group, before):
            return group


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fan:
    """All shortest ways between one leaf and the switches above it.

    Attributes:
        turn: The upper end of each way, int64.
        by_turn: The ways in the order of their upper ends, int64; those of one in their own.
        hops: Links of each way, int64.
        ports: Port at each stage, uint32 of shape (ways, stages); ``NONE`` at the others.
    """

    turn: I64
    by_turn: I64
    hops: I64
    ports: NDArray[np.uint32]


def fan(leaf: int, steps: Sequence[Sequence[tuple[int, int]]], stage: I64, stages: int) -> Fan:
    """The ways from a leaf, nearest port of the leaf first.

    Args:
        leaf: Where from.
        steps: (port, switch above) of each switch, in the order of the ports.
        stage: Of each port, 1 for the first between switches.
        stages: Their number.

    Raises:
        UsageError: more ways to one switch than a fragment's record can tell apart.
    """
    ways: dict[int, list[tuple[int, ...]]] = {leaf: [()]}
    layer = [leaf]
    while layer:
        found: dict[int, list[tuple[int, ...]]] = {}
        for switch in layer:
            for port, above in steps[switch]:
                if above not in ways:
                    found.setdefault(above, []).extend((*way, port) for way in ways[switch])
        if any(len(group) > MOST_PATHS for group in found.values()):
            raise UsageError("too many ways up from one leaf", f"at most {MOST_PATHS}")
        ways.update(found)
        layer = list(found)
    rows = sorted((way, turn) for turn, group in ways.items() for way in group)
    ports = np.full((len(rows), stages), NONE, dtype=np.uint32)
    for row, (way, _) in enumerate(rows):
        for port in way:
            ports[row, stage[port] - 1] = port
    turns = np.array([turn for _, turn in rows], dtype=np.int64)
    return Fan(
        turn=turns,
        by_turn=np.argsort(turns, kind="stable"),
        hops=np.array([len(way) for way, _ in rows], dtype=np.int64),
        ports=ports,
    )


def join(up: Fan, down: Fan) -> NDArray[np.uint32]:
    """The shortest paths that go up one fan and down the other, in the order of their ports.

    Args:
        up: Ways up from the sending leaf.
        down: Ways down to the receiving leaf.

    Returns:
        Port at each stage, uint32 of shape (paths, stages); without rows where there is no path.

    Raises:
        UsageError: more paths than a fragment's record can tell apart.
    """
    turns = down.turn[down.by_turn]
    low = np.searchsorted(turns, up.turn, "left")
    count = np.searchsorted(turns, up.turn, "right") - low
    first = np.repeat(np.arange(len(count)), count)  # each way up with each that it meets
    nth = np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count)
    second = down.by_turn[np.repeat(low, count) + nth]
    hops = up.hops[first] + down.hops[second]
    least = np.flatnonzero(hops == hops.min(initial=np.iinfo(np.int64).max))
    if len(least) > MOST_PATHS:
        raise UsageError(f"{len(least)} paths between two leaves", f"at most {MOST_PATHS}")
    # A stage that one half does not use is NONE there, the highest number.
    return np.asarray(np.minimum(up.ports[first[least]], down.ports[second[least]]))
