"""Where an episode is: the hosts at the ends of its links, and those below the leaves there.

And whom it holds up: the hosts whose own ports are in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pyarrow as pa

from xtune.pipelines._episodes import Episode
from xtune.pipelines._identity import Identity, split_link
from xtune.pipelines._stretches import Stretch
from xtune.pipelines._topology import Topology

EPISODE_WAITS = pa.schema(
    [
        ("episode_id", pa.string()),
        ("host", pa.string()),
        ("receiver", pa.string()),
        ("passes", pa.bool_()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
    ]
)
EPISODE_HOSTS = pa.schema([("episode_id", pa.string()), ("host", pa.string())])


def episode_hosts(episodes: Iterable[Episode], topology: Topology, identity: Identity) -> pa.Table:
    """Pairs of an episode and a host that it touches; an episode without any has no row."""

    @cache
    def near(node: str) -> frozenset[str]:
        around = {topology.hops[link].next_node for link in topology.out_of.get(node, ())}
        adapters = {other for other in (node, *around) if topology.is_host(other)}
        # An adapter of a host that nobody named is some host, no job's for certain.
        return frozenset(identity.host_of_guid.get(guid, guid) for guid in adapters)

    @cache
    def touched(link: str) -> frozenset[str]:
        hop = topology.hops.get(link)
        if hop is None:
            host = identity.host_of_link(link)
            return frozenset([host] if host else ())
        return near(hop.node) | near(hop.next_node)

    rows = [
        {"episode_id": episode.id, "host": host}
        for episode in episodes
        for host in sorted(
            frozenset[str]().union(*{touched(member.link) for member in episode.members})
        )
    ]
    return pa.Table.from_pylist(rows, schema=EPISODE_HOSTS)


def episode_waits(episodes: Iterable[Episode], topology: Topology, identity: Identity) -> pa.Table:
    """Spans of an episode in which a port that a host sends on was held up, one a port.

    ``receiver`` is the host that the root leads to, where the port feeds the root at once: what it
    sends to others does not wait there. Nor, from anywhere, is what it sends to others marked or
    dropped there; so also where marks or discards alone, and no wait, tell of the port.
    ``passes`` is whether what the port sends can come to a root; null where no root or no way is
    known. What cannot is marked by what it receives.
    """

    @cache
    def sender(link: str) -> str | None:
        hop = topology.hops.get(link)
        return identity.host_of_guid.get(hop.node) if hop else identity.host_of_link(link)

    def receiver(member: Stretch, root: str | None) -> str | None:
        hop, last = topology.hops.get(member.link), topology.hops.get(root or "")
        if hop is None or last is None:
            return None
        told = member.signal in ("marks", "discards") and not member.mean_wait_fraction
        if not told and hop.next_node != last.node:
            return None
        return identity.host_of_guid.get(last.next_node)

    @cache
    def passes(link: str, roots: frozenset[str]) -> bool | None:
        if link in roots:
            return True
        if link not in topology.hops or not roots or not roots <= topology.hops.keys():
            return None
        # What has left a node does not come back to it.
        node = topology.hops[link].next_node
        return any(
            topology.hops[root].next_node != node and topology.distance(link, root) is not None
            for root in roots
        )

    rows = [
        {
            "episode_id": episode.id,
            "host": host,
            "receiver": receiver(member, episode.root),
            "passes": passes(
                member.link, episode.roots or frozenset([episode.root] if episode.root else ())
            ),
            "start_ns": start,
            "end_ns": end,
        }
        for episode in episodes
        for member in episode.members
        if (host := sender(member.link))
        and (start := max(member.start_ns, episode.start_ns))
        < (end := min(member.end_ns, episode.end_ns))
    ]
    return pa.Table.from_pylist(rows, schema=EPISODE_WAITS)


def fabric_hosts(identity: Identity) -> pa.Table:
    """Hosts of which some port is known: where those of a job are, its episodes are."""
    named = {parts[0] for link in identity.host_of if (parts := split_link(link))}
    hosts = {*identity.host_of_guid.values(), *identity.host_of.values(), *named}
    return pa.table({"host": pa.array(sorted(hosts), pa.string())})
