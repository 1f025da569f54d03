"""Offsets of many clocks from differences of pairs: least absolute deviations over a graph.

One wrong pair (ranks that number their operations differently) does not move the others, which
least squares would. Everything is in whole nanoseconds, so nothing depends on the order of sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Edge:
    """A measured difference: the clock of ``host`` minus that of ``hub``, and its interval.

    ``weight`` says how much it counts against others: samples over their spread.
    """

    host: str
    hub: str
    diff_ns: int
    low_ns: int
    high_ns: int
    weight: float = 1.0
    samples: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """Hosts that are connected by measured pairs.

    Attributes:
        offset_ns: Host -> its clock minus that of the component's first host.
        tree: The edges that the offsets satisfy exactly.
        samples: Host -> measured differences it takes part in.
    """

    offset_ns: Mapping[str, int]
    tree: tuple[Edge, ...]
    samples: Mapping[str, int]

    def reference(self, without: Collection[str] = ()) -> str:
        """The host whose clock is the median; of two in the middle the one behind.

        Args:
            without: Hosts that are none, unless all are among them.
        """
        hosts = self.offset_ns.keys() - set(without) or self.offset_ns.keys()
        ranked = sorted(hosts, key=lambda host: (self.offset_ns[host], host))
        return ranked[(len(ranked) - 1) // 2]

    def relative_to(self, reference: str) -> dict[str, tuple[int, int, int]]:
        """Offset, lower and upper bound of each host; bounds add up along the tree."""
        near: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        for edge in self.tree:
            below, above = edge.diff_ns - edge.low_ns, edge.high_ns - edge.diff_ns
            near[edge.hub].append((edge.host, below, above))
            near[edge.host].append((edge.hub, above, below))
        base = self.offset_ns[reference]
        found = {reference: (0, 0, 0)}
        waiting = [(reference, 0, 0)]
        while waiting:
            host, below, above = waiting.pop()
            for other, more_below, more_above in near[host]:
                if other not in found:
                    under, over = below + more_below, above + more_above
                    offset = self.offset_ns[other] - base
                    found[other] = offset, offset - under, offset + over
                    waiting.append((other, under, over))
        return found


def components(edges: Iterable[Edge]) -> list[Component]:
    """Solve each connected part of a graph of pairs, ordered by its first host."""
    edges = sorted(edges)
    leader: dict[str, str] = {}

    def find(host: str) -> str:
        leader.setdefault(host, host)
        while leader[host] != host:
            leader[host] = leader[leader[host]]
            host = leader[host]
        return host

    for edge in edges:
        one, two = sorted((find(edge.host), find(edge.hub)))
        leader[two] = one
    parts: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        parts[find(edge.host)].append(edge)
    return [_solve(parts[key]) for key in sorted(parts)]


def _solve(edges: list[Edge]) -> Component:
    hosts = sorted({name for edge in edges for name in (edge.host, edge.hub)})
    index = {host: i for i, host in enumerate(hosts)}
    # The narrowest first: a tree of them is where the search begins.
    edges = sorted(edges, key=lambda e: (e.high_ns - e.low_ns, -e.weight, e))
    ends = np.array([(index[e.host], index[e.hub]) for e in edges], dtype=np.int64)
    value = np.array([e.diff_ns for e in edges], dtype=np.int64)
    weight = np.array([e.weight for e in edges], dtype=np.float64)
    tree = _first_tree(ends, len(hosts))
    if len(edges) >= len(hosts):
        residual = value - _differences(_offsets(tree, ends, value, len(hosts)), ends)
        nearest = np.argsort(_least_absolute(ends, residual, weight, len(hosts)), kind="stable")
        tree = [int(nearest[i]) for i in _first_tree(ends[nearest], len(hosts))]
    offset = _offsets(tree, ends, value, len(hosts))
    samples: dict[str, int] = defaultdict(int)
    for edge in edges:
        samples[edge.host] += edge.samples
        samples[edge.hub] += edge.samples
    return Component(
        offset_ns={host: int(offset[i]) for host, i in index.items()},
        tree=tuple(edges[i] for i in sorted(tree)),
        samples=dict(samples),
    )


def _first_tree(ends: NDArray[np.int64], count: int) -> list[int]:
    """A spanning tree of the first edges that join something new (Kruskal)."""
    part = np.arange(count)
    tree = []
    for i, (one, two) in enumerate(ends):
        if part[one] != part[two]:
            part[part == part[two]] = part[one]
            tree.append(i)
    return tree


def _offsets(
    tree: list[int], ends: NDArray[np.int64], value: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """What the edges of a tree say, the first host at 0."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for i in tree:
        one, two = int(ends[i, 0]), int(ends[i, 1])
        near[one].append((two, -int(value[i])))
        near[two].append((one, int(value[i])))
    offset = np.zeros(count, dtype=np.int64)
    seen = {0}
    waiting = [0]
    while waiting:
        here = waiting.pop()
        for there, diff in near[here]:
            if there not in seen:
                seen.add(there)
                offset[there] = offset[here] + diff
                waiting.append(there)
    return offset


def _differences(offset: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = offset[ends[:, 0]] - offset[ends[:, 1]]
    return found


def _least_absolute(
    ends: NDArray[np.int64],
    value: NDArray[np.int64],
    weight: NDArray[np.float64],
    count: int,
) -> NDArray[np.int64]:
    """What each edge is off in the best solution, in nanoseconds.

    A linear programme: ``sum(weight * miss)``, with ``-miss <= value - difference <= miss``. The
    solution is a corner, so a spanning tree of edges is met exactly: solver's rounding is gone
    when the offsets are read from that tree.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, eye_array, hstack, vstack

    edges = len(ends)
    rows = np.repeat(np.arange(edges), 2)
    signs = np.tile([1.0, -1.0], edges)
    differences = coo_array((signs, (rows, ends.ravel())), shape=(edges, count))
    miss = eye_array(edges)
    # In units of the largest: the solver's tolerances are absolute.
    unit = max(1.0, float(np.abs(value).max()))
    wanted = value / unit
    solved = linprog(
        np.concatenate([np.zeros(count), weight / weight.max()]),
        A_ub=vstack([hstack([differences, -miss]), hstack([-differences, -miss])]).tocsr(),
        b_ub=np.concatenate([wanted, -wanted]),
        bounds=[(0.0, 0.0)] + [(None, None)] * (count - 1) + [(0.0, None)] * edges,
        method="highs-ds",
    )
    off = np.abs(wanted - (solved.x[ends[:, 0]] - solved.x[ends[:, 1]]))
    found: NDArray[np.int64] = np.rint(off * unit).astype(np.int64)
    return found
