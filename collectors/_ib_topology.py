"""A discovered fabric: links with both directions, and how far each is from the hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, Item, Note, RowBuffer

#: An in-network reduction node looks like an adapter but no job runs on it.
_AGGREGATION = "aggregation node"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link. ``port_guid_only``: the source gave the port's GUID, not the node's."""

    guid: str
    port: int | None
    port_guid_only: bool = False


@dataclass(slots=True)
class Fabric:
    """Nodes and links as discovered. ``ca`` and ``description`` are by GUID."""

    ca: dict[str, bool] = field(default_factory=dict)
    description: dict[str, str] = field(default_factory=dict)
    links: dict[End, tuple[End, str | None, float | None, bool]] = field(default_factory=dict)
    disagreements: int = 0

    def node(self, guid: str, is_ca: bool, description: str | None) -> None:
        """Note what a node is; a description that is already known stays."""
        self.ca[guid] = is_ca
        if description:
            self.description.setdefault(guid, description)

    def link(self, src: End, dst: End, width: str | None, rate_gbps: float | None) -> str | None:
        """Add a link as seen from ``src``, and its reverse unless ``dst`` has told of it.

        Returns:
            What is odd, else ``None``. A port that leads to itself is no link. Where ``src``
            itself said before that it leads elsewhere, the first word stays; where the far end
            says it leads elsewhere, both are kept.
        """
        if (src.guid, src.port) == (dst.guid, dst.port):
            return "this port is said to lead to itself"
        known = self.links.get(src)
        if known is not None and known[3] and known[0] != dst:
            return "this port was said to lead elsewhere"
        self.links[src] = (dst, width, rate_gbps, True)
        back = None if dst.port is None else self.links.get(dst)
        if dst.port is not None and back is None:
            self.links[dst] = (src, width, rate_gbps, False)
        agrees = known is None or known[0] == dst
        if back is not None and back[0] != src:
            agrees = False
        if not agrees:
            self.disagreements += 1
        return None

    def is_aggregation(self, guid: str) -> bool:
        """Whether a node is one of the switches' own reduction nodes."""
        return self.ca.get(guid, False) and _AGGREGATION in self.description.get(guid, "").lower()

    def _levels(self) -> dict[str, int]:
        """Hops from the nearest host: 0 a host, 1 a leaf, 2 a spine, ..."""
        near: dict[str, set[str]] = {}
        for src, (dst, *_) in self.links.items():
            near.setdefault(src.guid, set()).add(dst.guid)
            near.setdefault(dst.guid, set()).add(src.guid)
        level = {g: 0 for g, ca in self.ca.items() if ca and not self.is_aggregation(g)}
        queue = deque(level)
        while queue:
            here = queue.popleft()
            for there in near.get(here, ()):
                if there not in level and not self.ca.get(there, False):
                    level[there] = level[here] + 1
                    queue.append(there)
        return level

    def rows(self, ts: int | None, context: Context) -> Iterator[Item]:
        """Yield ``topology_links``: each direction once.

        ``tier`` is 0 where an end is a host, else the lower of both ends' hops from the nearest
        host; null towards an aggregation node, and where no host was seen at all.
        """
        level = self._levels()
        buffer = RowBuffer("topology_links", context)
        for src, (dst, width, rate, _) in self.links.items():
            ends = (level.get(src.guid), level.get(dst.guid))
            known = [hops for hops in ends if hops is not None]
            reducing = self.is_aggregation(src.guid) or self.is_aggregation(dst.guid)
            row: dict[str, Any] = {
                "ts": ts,
                "src_guid": src.guid,
                "src_name": self.description.get(src.guid),
                "src_port": src.port,
                "dst_guid": dst.guid,
                "dst_name": self.description.get(dst.guid),
                "dst_port": dst.port,
                "width": width,
                "rate_gbps": rate,
                "tier": min(known) if known and not reducing else None,
            }
            extra = {}
            if src.port_guid_only:
                extra["src_guid_is"] = "port"
            if dst.port_guid_only:
                extra["dst_guid_is"] = "port"
            if reducing:
                extra["kind"] = "aggregation node"
            buffer.add({**row, "extra": extra or None})
            if buffer.full:
                yield from buffer.flush()
        yield from buffer.flush()
        if self.disagreements:
            yield Note("ends of a link name different neighbours: kept", self.disagreements)
