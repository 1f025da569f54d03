"""Path sets computed ahead (founding document R5), so that run time is left a binary choice.

For each pair of ends: the shortest paths up to a cap, then some longer ones for "edge first".
Deterministic: ties are broken by a hash of pair, node and link, which also spreads the primaries
of different pairs over the links as ECMP would.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ._core import hash31

MOST_STEPS = 10_000  # of the search for one longer path; a fabric's needs a few dozen


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectedLink:
    """One directed link of the fabric."""

    name: str
    src: str
    dst: str


class PathFinder:
    """Finds path sets in one fabric.

    Args:
        links: All directed links.
        seed: Varies how ties are broken.
    """

    def __init__(self, links: Iterable[DirectedLink], *, seed: int = 0) -> None:
        self._seed = seed
        self._out: dict[str, list[DirectedLink]] = {}
        self._into: dict[str, list[DirectedLink]] = {}
        for link in sorted(links, key=lambda link: link.name):
            self._out.setdefault(link.src, []).append(link)
            self._into.setdefault(link.dst, []).append(link)
        self._distances: dict[tuple[str, frozenset[str]], dict[str, int]] = {}

    def path_set(
        self,
        src: str,
        dst: str,
        *,
        cap: int = 16,
        detours: int = 2,
        extra_hops: int = 2,
        ends: frozenset[str] = frozenset(),
    ) -> list[list[str]]:
        """Paths from one end to another, primary first, shortest first.

        Args:
            src: Where from.
            dst: Where to.
            cap: At most so many shortest paths.
            detours: At most so many longer paths after them.
            extra_hops: A longer path has at most so many links more.
            ends: Nodes that forward nothing, such as hosts.

        Returns:
            Lists of link names; empty if there is no way, or ``src`` is ``dst``.
        """
        distance = self._distance_to(dst, ends)
        if src == dst or src not in distance:
            return []
        key = hash31(zlib.crc32(f"{src}\0{dst}".encode()) & 0x7FFFFFFF, self._seed)
        paths = list(islice(self._shortest(src, dst, distance, ends, key), cap))
        longer: list[list[str]] = []
        for hops in range(distance[src] + 1, distance[src] + extra_hops + 1):
            for turn in range(1, detours + 1):
                path = self._of_length(src, dst, distance, ends, hash31(key, turn), hops)
                if path and path not in longer:
                    longer.append(path)
        return paths + longer[:detours]

    def path_sets(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        cap: int = 16,
        detours: int = 2,
        extra_hops: int = 2,
    ) -> dict[tuple[str, str], list[list[str]]]:
        """The path set of each pair, as the router takes it; no end forwards for another.

        Args:
            pairs: Pairs of ends.
            cap: At most so many shortest paths a pair.
            detours: At most so many longer paths a pair.
            extra_hops: A longer path has at most so many links more.

        Returns:
            Path sets; pairs without any way are left out.
        """
        wanted = list(pairs)
        ends = frozenset(end for pair in wanted for end in pair)
        found = {}
        for src, dst in wanted:
            paths = self.path_set(
                src, dst, cap=cap, detours=detours, extra_hops=extra_hops, ends=ends
            )
            if paths:
                found[(src, dst)] = paths
        return found

    def _distance_to(self, dst: str, ends: frozenset[str]) -> dict[str, int]:
        """Hops from every node to ``dst``, by breadth-first search backwards."""
        known = self._distances.get((dst, ends))
        if known is None:
            distance = {dst: 0}
            queue = deque([dst])
            while queue:
                node = queue.popleft()
                if node != dst and node in ends:
                    continue
                for link in self._into.get(node, ()):
                    if link.src not in distance:
                        distance[link.src] = distance[node] + 1
                        queue.append(link.src)
            self._distances[dst, ends] = known = distance
        return known

    def _shuffled(self, node: str, key: int) -> Sequence[DirectedLink]:
        """A node's links, each pair's in an order of its own."""
        return sorted(
            self._out.get(node, ()),
            key=lambda link: (hash31(key, zlib.crc32(link.name.encode()) & 0x7FFFFFFF), link.name),
        )

    def _shortest(
        self, node: str, dst: str, distance: dict[str, int], ends: frozenset[str], key: int
    ) -> Iterator[list[str]]:
        if node == dst:
            yield []
            return
        for link in self._shuffled(node, key):
            if link.dst != dst and link.dst in ends:
                continue
            if distance.get(link.dst, -1) == distance[node] - 1:
                for rest in self._shortest(link.dst, dst, distance, ends, key):
                    yield [link.name, *rest]

    def _of_length(
        self,
        src: str,
        dst: str,
        distance: dict[str, int],
        ends: frozenset[str],
        key: int,
        hops: int,
    ) -> list[str] | None:
        """One loop-free path of exactly so many links, None if none is found."""
        path: list[DirectedLink] = []
        visited = {src}
        trail = [iter(self._shuffled(src, key))]
        for _ in range(MOST_STEPS):
            if not trail:
                return None
            link = next(trail[-1], None)
            if link is None:
                trail.pop()
                if path:
                    visited.discard(path.pop().dst)
                continue
            left = hops - len(path) - 1
            if link.dst == dst and left == 0:
                return [step.name for step in (*path, link)]
            if link.dst in visited or link.dst in ends or link.dst == dst:
                continue
            if distance.get(link.dst, hops + 1) > left:
                continue
            path.append(link)
            visited.add(link.dst)
            trail.append(iter(self._shuffled(link.dst, key)))
        return None
