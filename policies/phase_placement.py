"""Placement at the start of a phase: collisions avoided before they happen.

Who knows all flows of a phase needs no reaction to their collisions: each flow gets a path such
that the worst link is done soonest. Greedy, the largest flow first; then flows are moved as long
as that relieves the worst link.

What is guaranteed: never worse than greedy. Flows of one size over a two-tier fabric, all of whose
spines are free and open to each of them, are spread as evenly as can be: where no leaf sends or
receives more flows than it has uplinks, no two share a link. That is the colouring of a bipartite
graph's edges by alternating chains (König, 1916). Sizes that differ, or paths that are not open,
have no such bound: the problem is NP-hard even with two links.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from numbers import Real

from .flow_state import Flow, PathSet, flow_key
from .links import DEAD

MOST_ROUNDS = 64  # of relief; flows of one size need as many as flows share the worst link
LEAST_FREE = 0.05  # of a link whose queue is full: it still carries something
ROUNDING = 1e-9  # relative; loads are sums in changing order


def place(
    paths: Sequence[Sequence[Sequence[int]]],
    sizes: Sequence[float],
    free: Sequence[float],
    turns: Sequence[int],
) -> list[int]:
    """A path for each flow of a phase.

    Args:
        paths: For each flow its paths, each a list of links by index.
        sizes: Bytes of each flow.
        free: Rate of each link that others leave free, in any one unit; 0: not to be used.
        turns: A number of each flow's own, such as a hash, which decides where paths are alike.

    Returns:
        Index of each flow's path. One whose paths all use a link with nothing free gets its
        first.
    """
    board = _Board(paths, sizes, free)
    order = sorted(range(len(sizes)), key=lambda flow: (-sizes[flow], turns[flow], flow))
    for flow in order:
        board.put(flow, board.best(flow, turns[flow])[1])
    for _ in range(MOST_ROUNDS):
        before = list(board.path)
        if not _relieve(board, turns):
            for flow, path in enumerate(before):
                board.move(flow, path)
            break
    return board.path


def place_flows(
    flows: Mapping[Flow, float],
    path_sets: Mapping[Flow, PathSet],
    free: Sequence[float],
    names: Sequence[str],
) -> dict[Flow, int]:
    """`place` by names, so that hosts which number links and flows otherwise come to the same.

    Args:
        flows: Bytes of each flow; those without a path set are left out.
        path_sets: Of each flow that has one.
        free: Free rate of each link; links that all paths of a flow share do not count.
        names: The links' names, in the order of ``free``.

    Returns:
        Index of each flow's path.

    Raises:
        ValueError: The bytes of a flow are no number from 0 up.
    """
    for flow, size in flows.items():
        if not (isinstance(size, Real) and 0.0 <= float(size) < math.inf):
            raise ValueError(f"flow {flow!r}: {size!r} is not a number of bytes from 0 up")
    order = sorted(range(len(names)), key=names.__getitem__)
    number = {link: i for i, link in enumerate(order)}
    known = sorted((flow for flow in flows if flow in path_sets), key=repr)
    chosen = place(
        [[[number[x] for x in path] for path in path_sets[flow].links] for flow in known],
        [flows[flow] for flow in known],
        [free[link] for link in order],
        [flow_key(flow) for flow in known],
    )
    return dict(zip(known, chosen, strict=True))


def free_share(worth: float) -> float:
    """What a forecast leaves free of a link: all where it is unknown, nothing of a dead one.

    Args:
        worth: Forecast occupancy, NaN unknown, inf blacklisted.
    """
    if worth != worth:
        return 1.0
    return 0.0 if worth == DEAD else max(LEAST_FREE, 1.0 - worth)


class _Board:
    """Which flow is on which path, and what that puts on each link."""

    def __init__(
        self,
        paths: Sequence[Sequence[Sequence[int]]],
        sizes: Sequence[float],
        free: Sequence[float],
    ) -> None:
        self.paths, self.sizes = paths, sizes
        self.slowness = [1.0 / rate if rate > 0.0 else math.inf for rate in free]
        self.path = [-1] * len(sizes)  # -1: on none
        self.load = [0.0] * len(free)
        self.on: list[dict[int, None]] = [{} for _ in free]  # flows, in the order they came

    def links(self, flow: int) -> Sequence[int]:
        """The links that a flow is on."""
        return self.paths[flow][self.path[flow]] if self.path[flow] >= 0 else ()

    def put(self, flow: int, path: int) -> None:
        self.path[flow] = path
        for link in self.paths[flow][path]:
            self.load[link] += self.sizes[flow]
            self.on[link][flow] = None

    def take(self, flow: int) -> None:
        for link in self.links(flow):
            self.load[link] -= self.sizes[flow]
            del self.on[link][flow]
        self.path[flow] = -1

    def move(self, flow: int, path: int) -> None:
        if self.path[flow] != path:
            self.take(flow)
            if path >= 0:
                self.put(flow, path)

    def time(self, link: int, more: float = 0.0) -> float:
        """When a link is done with its load, and more."""
        load = self.load[link] + more
        return load * self.slowness[link] if load > 0.0 else 0.0

    def best(self, flow: int, turn: int) -> tuple[float, int]:
        """The path that is done soonest with one flow more, and when; the shorter if alike."""
        paths, size = self.paths[flow], self.sizes[flow]
        count = len(paths)
        found, least = 0, (math.inf, 0, math.inf, 0)
        for i, links in enumerate(paths):
            times = [self.time(link, size) for link in links]
            rank = (max(times, default=0.0), len(links), sum(times), (i - turn) % count)
            if rank < least:
                found, least = i, rank
        return least[0], found


def _relieve(board: _Board, turns: Sequence[int]) -> bool:
    """Bring all links below the time of the worst one; if it fails, flows are anywhere."""
    times = [board.time(link) for link in range(len(board.load))]
    worst = max((time for time in times if time < math.inf), default=0.0)
    if worst == 0.0:
        return False
    limit = worst * (1.0 - ROUNDING)
    out = []
    for link, flows in enumerate(board.on):
        while flows and limit <= board.time(link) < math.inf:
            flow = next(reversed(flows))
            board.take(flow)
            out.append(flow)
    return all(_insert(board, flow, turns[flow], limit) for flow in out)


def _insert(board: _Board, flow: int, turn: int, limit: float) -> bool:
    """Find a path below the limit, if need be by moving others along a chain."""
    time, path = board.best(flow, turn)
    if time < limit:
        board.put(flow, path)
        return True
    for path in range(len(board.paths[flow])):
        blocked = [x for x in board.paths[flow][path] if board.time(x, board.sizes[flow]) >= limit]
        if len(blocked) != 1:
            continue
        victim = _in_the_way(board, blocked[0], (), limit, board.sizes[flow])
        for other in range(len(board.paths[victim]) if victim >= 0 else 0):
            if other != board.path[victim] and _chain(board, flow, path, victim, other, limit):
                return True
    return False


def _chain(board: _Board, flow: int, path: int, victim: int, other: int, limit: float) -> bool:
    """Put a flow on a path; who is in its way moves, and so on. Undone where it does not end.

    The first to give way takes its path ``other``; each later one takes what the one before it
    left: the two paths of an alternating chain.
    """
    moved: dict[int, int] = {}  # flow: the path it was on
    while True:
        before = board.links(flow)
        moved[flow] = board.path[flow]
        board.move(flow, path)
        full = [link for link in board.links(flow) if board.time(link) >= limit]
        if not full:
            return True
        if len(full) > 1:
            break
        if len(moved) > 1:
            victim = _in_the_way(board, full[0], moved, limit)
            other = _path_over(board, victim, before) if victim >= 0 else -1
        if other < 0:
            break
        flow, path = victim, other
    for flow, path in reversed(moved.items()):
        board.move(flow, path)
    return False


def _in_the_way(
    board: _Board, link: int, moved: Container[int], limit: float, more: float = 0.0
) -> int:
    """A flow whose leaving brings a link, and what it gets more, below the limit; -1: none."""
    for flow in board.on[link]:
        if flow not in moved and board.time(link, more - board.sizes[flow]) < limit:
            return flow
    return -1


def _path_over(board: _Board, flow: int, links: Sequence[int]) -> int:
    """A path of the flow, other than its own, over one of the links; -1: none."""
    for path, own in enumerate(board.paths[flow]):
        if path != board.path[flow] and any(link in links for link in own):
            return path
    return -1
