"""The fabric as a directed graph of ports: which port feeds which node, and which way is up."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xtune.pipelines._identity import Identity


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """One directed link: the port that sends, its node, and the node and port that receive."""

    link: str
    node: str
    next_node: str
    receiver: str


@dataclass(kw_only=True)
class Topology:
    """Links of a fabric; made by :meth:`build`.

    Attributes:
        hops: Link -> its hop.
        out_of: Node -> links that it sends on, sorted.
        into: Node -> links that it receives on, sorted.
        height: Node -> links from the nearest host; 0 for a host.
        names: Node -> its description.
        identity: Names of hosts and ports.
    """

    hops: dict[str, Hop] = field(default_factory=dict)
    out_of: dict[str, list[str]] = field(default_factory=dict)
    into: dict[str, list[str]] = field(default_factory=dict)
    height: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    identity: Identity = field(default_factory=Identity)
    _rises: dict[str, int] = field(default_factory=dict)
    _siblings: dict[str, list[str]] = field(default_factory=dict)
    _reach: dict[tuple[str, bool], dict[tuple[str, bool], int]] = field(default_factory=dict)

    @classmethod
    def build(cls, rows: Iterable[Mapping[str, Any]], identity: Identity) -> Topology:
        """Build from rows of ``topology_links``, one a sending port.

        Both directions are there where the source saw one end only.
        """
        topology = cls(identity=identity)
        tiers: dict[str, set[int | None]] = defaultdict(set)
        for row in rows:
            if None in (row["src_guid"], row["src_port"], row["dst_guid"], row["dst_port"]):
                continue
            source = f"{row['src_guid']}/{row['src_port']}"
            target = f"{row['dst_guid']}/{row['dst_port']}"
            topology.hops[source] = Hop(
                link=source, node=row["src_guid"], next_node=row["dst_guid"], receiver=target
            )
            topology.hops.setdefault(
                target,
                Hop(link=target, node=row["dst_guid"], next_node=row["src_guid"], receiver=source),
            )
            for end in ("src", "dst"):
                tiers[row[f"{end}_guid"]].add(row["tier"])
                if row[f"{end}_name"]:
                    topology.names[row[f"{end}_guid"]] = row[f"{end}_name"].strip()
        out_of, into = defaultdict(list), defaultdict(list)
        for link, hop in sorted(topology.hops.items()):
            out_of[hop.node].append(link)
            into[hop.next_node].append(link)
        topology.out_of, topology.into = dict(out_of), dict(into)
        topology._measure_heights(tiers, identity)
        return topology

    def _measure_heights(self, tiers: Mapping[str, set[int | None]], identity: Identity) -> None:
        hosts = {node for node in self.out_of if self._is_edge(node, tiers[node], identity)}
        self.height = dict.fromkeys(hosts, 0)
        waiting = deque(sorted(hosts))
        while waiting:
            node = waiting.popleft()
            for link in self.out_of[node]:
                beyond = self.hops[link].next_node
                if beyond not in self.height:
                    self.height[beyond] = self.height[node] + 1
                    waiting.append(beyond)

    def _is_edge(self, node: str, tiers: set[int | None], identity: Identity) -> bool:
        """Whether a node is an adapter: some source found it on a host, or its links say so.

        All links of an adapter are of tier 0, and its neighbours, switches, join more nodes than
        it does. Where tiers are unknown, an adapter is what has one neighbour.
        """
        if node in identity.host_of_guid:
            return True
        near = self._neighbours(node)
        if tiers - {0, None} or (None in tiers and len(near) > 1):
            return False
        return all(len(self._neighbours(other)) > len(near) for other in near)

    def _neighbours(self, node: str) -> set[str]:
        return {self.hops[link].next_node for link in self.out_of[node]}

    def host(self, node: str) -> str | None:
        """The host that a node is an adapter of; None where nobody said."""
        return self.identity.host_of_guid.get(node)

    def host_of_port(self, link: str) -> str:
        """The host of a port, or else its node."""
        return self.identity.host_of_link(link) or link.rpartition("/")[0]

    def is_host(self, node: str) -> bool:
        """Whether a node is an adapter of a host."""
        return self.height.get(node) == 0

    def hop(self, link: str) -> Hop | None:
        """A link's hop; None where neither the link nor its node is known.

        A port of a known node that the topology does not list leads nobody knows where.
        """
        known = self.hops.get(link)
        if known is not None:
            return known
        node = link.partition("/")[0]
        if node not in self.out_of:
            return None
        return Hop(link=link, node=node, next_node=f"?{link}", receiver=f"?{link}")

    def _hop(self, link: str) -> Hop:
        hop = self.hop(link)
        if hop is None:
            raise KeyError(link)
        return hop

    def lists(self, link: str) -> bool:
        """Whether it is known where a port leads."""
        return link in self.hops

    def rises(self, link: str) -> int:
        """1 for a link away from hosts, -1 towards them, 0 between equals or unknown."""
        if link not in self._rises:
            hop = self._hop(link)
            here, there = self.height.get(hop.node), self.height.get(hop.next_node)
            if here is None or there is None:
                self._rises[link] = 0
            else:
                self._rises[link] = (there > here) - (there < here)
        return self._rises[link]

    def feeds(self, link: str, onward: str) -> bool:
        """Whether traffic that arrives on ``link`` may leave on ``onward``.

        It does not turn back, and what came down does not go up again.
        """
        hop, next_hop = self._hop(link), self._hop(onward)
        return (
            hop.next_node == next_hop.node
            and not self.is_host(hop.next_node)
            and next_hop.next_node != hop.node
            and not (self.rises(link) < 0 and self.rises(onward) > 0)
        )

    def onward(self, link: str) -> list[str]:
        """Links that what arrives on ``link`` may leave on."""
        found = self.out_of.get(self._hop(link).next_node, [])
        return [onward for onward in found if self.feeds(link, onward)]

    def behind(self, link: str) -> list[str]:
        """Links whose traffic may leave on ``link``."""
        found = self.into.get(self._hop(link).node, [])
        return [feeder for feeder in found if self.feeds(feeder, link)]

    def distance(self, link: str, onward: str) -> int | None:
        """Hops from a link to one that its traffic may come to; None for never, 1 for the next."""
        hop, far = self._hop(link), self._hop(onward)
        # What has left a node does not come back to it.
        if self.is_host(hop.next_node) or hop.node in (far.node, far.next_node):
            return None
        if far.node == hop.next_node:
            return 1 if self.feeds(link, onward) else None
        steps = self._steps(hop.next_node, self.rises(link) < 0)
        free = None if self.rises(onward) > 0 else steps.get((far.node, True))
        climbing = steps.get((far.node, False))
        return min((s for s in (free, climbing) if s is not None), default=None)

    def _steps(self, node: str, descends: bool) -> dict[tuple[str, bool], int]:
        """(Node, whether the way to it went down) -> hops of the first link out of it."""
        start = node, descends
        if start in self._reach:
            return self._reach[start]
        steps = {start: 1}
        waiting = deque([start])
        while waiting:
            here, down = waiting.popleft()
            if self.is_host(here):
                continue
            for link in self.out_of.get(here, []):
                rise = self.rises(link)
                if down and rise > 0:
                    continue
                place = self.hops[link].next_node, down or rise < 0
                if place not in steps:
                    steps[place] = steps[here, down] + 1
                    waiting.append(place)
        self._reach[start] = steps
        return steps

    def siblings(self, link: str) -> list[str]:
        """Links that traffic of ``link`` could take instead, between the same switches' tiers.

        Upwards, and between equals, the other ports of its node that lead the same way; downwards
        the other ports into the same node, by which its traffic could have come.
        """
        if link not in self._siblings:
            self._siblings[link] = self._find_siblings(link)
        return self._siblings[link]

    def _find_siblings(self, link: str) -> list[str]:
        hop, rise = self._hop(link), self.rises(link)
        if not self.lists(link) or self.is_host(hop.next_node) or self.is_host(hop.node):
            return []
        near = self.into[hop.next_node] if rise < 0 else self.out_of[hop.node]
        return [
            other
            for other in near
            if other != link
            and self.rises(other) == rise
            and not self.is_host(self.hops[other].next_node)
            and not self.is_host(self.hops[other].node)
        ]
