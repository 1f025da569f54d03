"""The fabric that was discovered, from rows of ``topology_links``."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from xtune.errors import UsageError
from xtune.policies.paths import DirectedLink
from xtune.policies.topology import TopologyError, fabric_of
from xtune.sim.up_down import LinkOptions, UpDown

Row = Mapping[str, Any]

_ENDS = ("src_guid", "src_port", "dst_guid", "dst_port")


def from_links(
    rows: Iterable[Row], *, gbps: float | None = None, **options: Unpack[LinkOptions]
) -> UpDown:
    """The fabric of a lake's ``topology_links``.

    Each port of an adapter is a host of the fabric; it has the node's description as its name
    where no other node has that, else the GUID. Hosts are numbered leaf by leaf. A link has the
    lake's name of its sending port, GUID/port, as ``port_name`` gives it. As in the engine's own
    reader, of a port that was discovered several times the latest row counts; a cable that one
    end alone told of has both directions. Adapters that reduce inside the network, and nodes that
    only hang on one other, carry no traffic of jobs and are left out.

    Args:
        rows: Rows of the table, as ``frame.iter_rows(named=True)`` gives them.
        gbps: Rate of links of which none is told, Gb/s.
        options: What all links have in common, see ``Fabric``.

    Raises:
        UsageError: no row, no host on a switch, or a link of unknown rate and no ``gbps``.
    """
    cables = _both_ways(rows)
    names = _names(cables)
    try:
        found = fabric_of(cables.values(), names)
    except TopologyError as error:
        raise UsageError(str(error), "collect the topology first, see xtune collect") from error
    near: dict[str, set[str]] = defaultdict(set)
    for link in found.links:
        near[link.src].add(link.dst)
    hosts = _hosts(cables.values(), near, names)
    kept = {node for node in near if node in hosts or len(near[node] & near.keys()) > 1}
    degree = Counter(str(row["src_guid"]) for row in cables.values())
    links: list[DirectedLink] = []
    ends: dict[str, str] = {}
    for link in found.links:
        if _useful(link, kept, hosts):
            links.append(_by_port(link, cables[link.name], hosts, degree))
            if link.src in hosts:
                ends[links[-1].src] = link.dst
    links.sort(key=lambda link: (_natural(link.src), _natural(link.name)))
    if not ends:
        raise UsageError("no host on a switch in topology_links", "collect the topology first")
    order = sorted(ends, key=lambda host: (_natural(ends[host]), _natural(host)))
    rates = {link.name: found.gbps.get(link.name, gbps) for link in links}
    return UpDown(order, links, {k: v for k, v in rates.items() if v is not None}, **options)


def _both_ways(rows: Iterable[Row]) -> dict[str, Row]:
    """The latest row of each sending port by its name, also of ports that only receive in one."""
    latest: dict[str, Row] = {}
    for row in rows:
        if any(row.get(end) in (None, "") for end in _ENDS):
            continue  # leads nobody knows where
        name = f"{row['src_guid']}/{row['src_port']}"
        if name not in latest or str(latest[name].get("ts") or "") <= str(row.get("ts") or ""):
            latest[name] = row
    for row in list(latest.values()):
        turned = {
            **row,
            **{f"src_{what}": row.get(f"dst_{what}") for what in ("guid", "name", "port")},
            **{f"dst_{what}": row.get(f"src_{what}") for what in ("guid", "name", "port")},
        }
        latest.setdefault(f"{turned['src_guid']}/{turned['src_port']}", turned)
    return latest


def _names(cables: Mapping[str, Row]) -> dict[str, str]:
    """Description of each node by GUID, where it has one for itself."""
    told = {
        str(row[f"{end}_guid"]): str(row.get(f"{end}_name") or "").strip()
        for row in cables.values()
        for end in ("src", "dst")
    }
    bearers = Counter(told.values())
    return {guid: name for guid, name in told.items() if name and bearers[name] == 1}


def _hosts(
    cables: Iterable[Row], near: Mapping[str, set[str]], names: Mapping[str, str]
) -> set[str]:
    """Nodes that are adapters of hosts, as the episodes' topology tells them.

    All links of an adapter are of tier 0, and its neighbours, switches, join more nodes than it
    does. Where no tier is known at all, an adapter is what has one neighbour.
    """
    tiers: dict[str, set[int | None]] = defaultdict(set)
    for row in cables:
        for end in ("src_guid", "dst_guid"):
            guid = str(row[end])
            tiers[names.get(guid, guid)].add(row.get("tier"))
    known = any(tier is not None for tier_set in tiers.values() for tier in tier_set)
    return {
        node
        for node, others in near.items()
        if (tiers[node] == {0} if known else len(others) == 1)
        and all(len(near[other]) > len(others) for other in others)
    }


def _useful(link: DirectedLink, kept: set[str], hosts: set[str]) -> bool:
    return {link.src, link.dst} <= kept and not {link.src, link.dst} <= hosts


def _by_port(
    link: DirectedLink, row: Row, hosts: set[str], degree: Mapping[str, int]
) -> DirectedLink:
    """The link with an adapter's port as its end, where the adapter has several."""
    ports = {
        end: f"{getattr(link, end)}/{row[f'{end}_port']}"
        for end in ("src", "dst")
        if getattr(link, end) in hosts and degree[str(row[f"{end}_guid"])] > 1
    }
    return replace(link, **ports)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts numbers within names by value."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]
