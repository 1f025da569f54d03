"""The fabric that was discovered, from rows of ``topology_links``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from xtune.errors import UsageError
from xtune.policies.paths import DirectedLink
from xtune.policies.topology import TopologyError, fabric_of
from xtune.sim.up_down import LinkOptions, UpDown, natural

Row = Mapping[str, Any]

_ENDS = ("src_guid", "src_port", "dst_guid", "dst_port")


def from_links(
    rows: Iterable[Row], *, gbps: float | None = None, **options: Unpack[LinkOptions]
) -> UpDown:
    """The fabric of a lake's ``topology_links``.

    Each port of an adapter is a host of the fabric; it has the node's description as its name
    where no other node has that, else the GUID. Hosts are numbered leaf by leaf. A link has the
    lake's name of its sending port, GUID/port, as ``port_name`` gives it. As in the engine's own
    reader, of a port that was discovered several times the latest row counts, and the last that
    told a rate of this cable. A cable that one end alone told of has both directions; one whose
    other end was later found elsewhere is gone. Adapters that reduce inside the network, and
    nodes that only hang on one other, carry no traffic of jobs and are left out.

    Args:
        rows: Rows of the table, as ``frame.iter_rows(named=True)`` gives them.
        gbps: Rate of links of which none is told, Gb/s.
        options: What all links have in common, see ``Fabric``.

    Raises:
        UsageError: no row, no host on a switch, or a link of unknown rate and no ``gbps``.
    """
    told = [row for row in rows if not any(row.get(end) in (None, "") for end in _ENDS)]
    cables = _cables(told)
    told = [row for row in told if _sender(row) in cables] + _unsaid(cables)
    cables = _cables(told)
    names = _names(told)
    try:
        found = fabric_of(told, names)
    except TopologyError as error:
        raise UsageError(str(error), "collect the topology first, see xtune collect") from error
    near: dict[str, set[str]] = defaultdict(set)
    for link in found.links:
        near[link.src].add(link.dst)
    hosts = _hosts(told, near, names)
    kept = {node for node in near if node in hosts or len(near[node] & near.keys()) > 1}
    degree = Counter(str(row["src_guid"]) for row in cables.values())
    links: list[DirectedLink] = []
    ends: dict[str, str] = {}
    for link in found.links:
        if _useful(link, kept, hosts):
            links.append(_by_port(link, cables[link.name], hosts, degree))
            if link.src in hosts:
                ends[links[-1].src] = link.dst
    links.sort(key=lambda link: (natural(link.src), natural(link.name)))
    if not ends:
        raise UsageError("no host on a switch in topology_links", "collect the topology first")
    order = sorted(ends, key=lambda host: (natural(ends[host]), natural(host)))
    rates = {link.name: found.gbps.get(link.name, gbps) for link in links}
    return UpDown(order, links, {k: v for k, v in rates.items() if v is not None}, **options)


def _sender(row: Row) -> str:
    return f"{row['src_guid']}/{row['src_port']}"


def _when(row: Row) -> str:
    return str(row.get("ts") or "")


def _cables(told: Sequence[Row]) -> dict[str, Row]:
    """The latest row of each sending port, unless its other end was found elsewhere since."""
    latest = {_sender(row): row for row in sorted(told, key=_when)}

    def holds(row: Row) -> bool:
        back = latest.get(f"{row['dst_guid']}/{row['dst_port']}", row)
        return _when(back) <= _when(row) or f"{back['dst_guid']}/{back['dst_port']}" == _sender(
            row
        )

    return {sender: row for sender, row in latest.items() if holds(row)}


def _unsaid(cables: Mapping[str, Row]) -> list[Row]:
    """The other direction of cables that one end alone told of."""
    turned = [
        {
            **row,
            **{f"src_{what}": row.get(f"dst_{what}") for what in ("guid", "name", "port")},
            **{f"dst_{what}": row.get(f"src_{what}") for what in ("guid", "name", "port")},
        }
        for row in cables.values()
    ]
    return [row for row in turned if _sender(row) not in cables]


def _names(told: Sequence[Row]) -> dict[str, str]:
    """Description of each node by GUID, where it has one for itself."""
    found = {
        str(row[f"{end}_guid"]): name
        for row in told
        for end in ("src", "dst")
        if (name := str(row.get(f"{end}_name") or "").strip())
    }
    bearers = Counter(found.values())
    return {guid: name for guid, name in found.items() if bearers[name] == 1}


def _hosts(
    told: Sequence[Row], near: Mapping[str, set[str]], names: Mapping[str, str]
) -> set[str]:
    """Nodes that are adapters of hosts, as the episodes' topology tells them.

    All links of an adapter are of tier 0, and its neighbours, switches, join more nodes than it
    does. Where no tier is known at all, an adapter is what has one neighbour.
    """
    tiers: dict[str, set[int | None]] = defaultdict(set)
    for row in told:
        for end in ("src_guid", "dst_guid"):
            guid = str(row[end])
            tiers[names.get(guid, guid)].add(row.get("tier"))
    known = any(of_node - {None} for of_node in tiers.values())
    return {
        node
        for node, others in near.items()
        if (tiers[node] - {None} == {0} if known else len(others) == 1)
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
