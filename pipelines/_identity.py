"""One name for each port and host, whatever each source called it.

``<host>/<device>/<port>`` becomes ``<node_guid>/<port>`` where some source knows both, and so does
``<port_guid>/<port>``. A host loses its domain where no other host of the lake has the same first
label. What fits two is left as it was read: nothing is guessed. The order of the rows does not
matter.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_IPV4 = re.compile(r"\d+(\.\d+){3}")
_DEVICE = re.compile(r"[a-z][a-z0-9]*_[a-z0-9_]+|rocep\w+|ibp\w+")
# Byte times on the whole port per tick of port_xmit_wait where no source says. 8 for Quantum
# and the adapters of its time, whatever the width; 32 per lane for Switch-X and Switch-IB (NVIDIA
# ibdiagnet manual 2.13, "Congestion Assessment"); 8 for Omni-Path's flits of 64 bits. All others,
# and adapters nobody knows, are taken as the first.
DEFAULT_TICK = 8.0
_TICK_PER_LANE = {"SwitchX": 32.0, "Switch-X": 32.0, "Switch-IB": 32.0, "Switch-IB 2": 32.0}
_LANES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PortFacts:
    """What is known of one port, under its one name.

    Attributes:
        link: The name.
        rate_gbps: Rate as printed; None unknown.
        tick: Byte times on the whole port per wait tick where the counters do not say.
        ethernet: Whether it is an Ethernet port.
        shifts: Where the clock of its host is off: (from, to, offset), nanoseconds, ``from`` and
            ``to`` by that clock. For rows that the host itself stamped.
    """

    link: str
    rate_gbps: float | None
    tick: float
    ethernet: bool
    shifts: tuple[tuple[int, int, int], ...] = ()


@dataclass(kw_only=True)
class Identity:
    """Names and facts of all ports and hosts of a lake; made by :func:`identify`.

    Attributes:
        hosts: Host as read -> its one name.
        guids: (host, device, port) -> node GUID.
        facts: Link (one name) -> what is known of the port.
        host_of: Link (one name) -> host, for ports of hosts.
        host_of_guid: Node GUID -> host.
        nodes: Port GUID -> node GUID, where they differ.
        notes: What could not be told apart, for the summary.
    """

    hosts: dict[str, str] = field(default_factory=dict)
    guids: dict[tuple[str, str, int], str] = field(default_factory=dict)
    facts: dict[str, PortFacts] = field(default_factory=dict)
    host_of: dict[str, str] = field(default_factory=dict)
    host_of_guid: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def host(self, name: str) -> str:
        """A host's one name."""
        return self.hosts.get(name, name)

    def link(self, raw: str) -> str:
        """A link's one name."""
        parts = split_link(raw)
        if parts is None:
            own, _, number = raw.partition("/")
            return f"{self.nodes[own]}/{number}" if own in self.nodes else raw
        host, device, port = self.host(parts[0]), parts[1], parts[2]
        guid = self.guids.get((host, device, port))
        return f"{guid}/{port}" if guid else f"{host}/{device}/{port}"

    def cable(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of ``topology_links`` with the GUIDs of nodes at both ends."""
        ends = {name: self.nodes.get(row[name], row[name]) for name in ("src_guid", "dst_guid")}
        return {**row, **ends}

    def port(self, raw: str) -> PortFacts:
        """Facts of a port under any of its names."""
        link = self.link(raw)
        known = self.facts.get(link)
        return known or PortFacts(link=link, rate_gbps=None, tick=DEFAULT_TICK, ethernet=False)

    def host_of_link(self, link: str) -> str | None:
        """The host that a port belongs to; None for a switch or where nobody said."""
        if link in self.host_of:
            return self.host_of[link]
        parts = split_link(link)
        if parts is not None:
            return parts[0]
        return self.host_of_guid.get(link.partition("/")[0])


def split_link(link: str) -> tuple[str, str, int] | None:
    """(host, device, port) of a link named that way; None for a GUID or a tree without a host."""
    parts = link.rsplit("/", 2)
    if len(parts) != 3 or link.startswith(("0x", "unknown-")) or not parts[2].isdigit():
        return None
    return parts[0], parts[1], int(parts[2])


def short_names(hosts: Iterable[str]) -> dict[str, str]:
    """Each host without its domain, where its first label is one host's only."""
    domains: dict[str, set[str]] = defaultdict(set)
    names = set(hosts)
    for name in names:
        label, _, domain = name.partition(".")
        if not _IPV4.fullmatch(name) and domain:
            domains[label].add(domain)
    return {
        name: name if _IPV4.fullmatch(name) or len(domains[label]) > 1 else label
        for name in names
        if (label := name.partition(".")[0])
    }


def identify(
    ports: Iterable[Mapping[str, Any]],
    topology: Iterable[Mapping[str, Any]],
    hosts: Iterable[str],
    links: Iterable[str],
) -> Identity:
    """Join what all sources say of ports.

    Args:
        ports: Rows of ``ports``; ``seen`` says when, nanoseconds, and what is newer counts.
        topology: Rows of ``topology_links``.
        hosts: Hosts that other tables name.
        links: Links that ``link_counters`` names.
    """
    ports = sorted(ports, key=_age)
    topology = list(topology)
    named = [parts for link in links if (parts := split_link(link))]
    every = {*hosts, *(parts[0] for parts in named)}
    every |= {row["host"] for row in ports if row["host"]}
    identity = Identity(hosts=short_names(every))
    _join_nodes(identity, ports)
    topology = [identity.cable(row) for row in topology]
    known = set(identity.hosts.values())
    devices = {(identity.host(host), device) for host, device, _ in named}
    devices |= {
        (identity.host(r["host"]), r["device"]) for r in ports if r["host"] and r["device"]
    }
    _join_guids(identity, ports, topology, known, devices)
    _collect_facts(identity, ports, topology)
    return identity


def _age(row: Mapping[str, Any]) -> tuple[bool, int, list[tuple[str, bool, str]]]:
    """Oldest first, undated before; what was seen at once by its content."""
    seen = row.get("seen")
    content = [(name, row[name] is not None, str(row[name])) for name in sorted(row)]
    return seen is not None, seen or 0, content


def _join_nodes(identity: Identity, ports: list[Mapping[str, Any]]) -> None:
    """Learn which node a port's GUID belongs to; the GUID of a node itself is no port's."""
    nodes = {row["node_guid"] for row in ports if row["node_guid"]}
    of_port: dict[str, set[str]] = defaultdict(set)
    for row in ports:
        own = row.get("port_guid")
        if own and row["node_guid"] and own not in nodes:
            of_port[own].add(row["node_guid"])
    for own, found in sorted(of_port.items()):
        if len(found) == 1:
            identity.nodes[own] = next(iter(found))
        else:
            identity.notes.append(f"port GUID {own} is of {len(found)} nodes: kept apart")


def _join_guids(
    identity: Identity,
    ports: list[Mapping[str, Any]],
    topology: list[Mapping[str, Any]],
    known: set[str],
    devices: set[tuple[str, str]],
) -> None:
    direct: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    on_host: dict[str, set[str]] = defaultdict(set)
    for row in ports:
        guid = _node(identity, row)
        if guid and row["host"]:
            host = identity.host(row["host"])
            on_host[guid].add(host)
            if row["device"] and row["port"] is not None:
                direct[host, row["device"], row["port"]].add(guid)
    described = {(_node(identity, row), row["node_description"], row["port"]) for row in ports}
    described |= {(row["src_guid"], row["src_name"], row["src_port"]) for row in topology}
    described |= {(row["dst_guid"], row["dst_name"], row["dst_port"]) for row in topology}
    told: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    said: dict[str, set[str]] = defaultdict(set)
    adapters: dict[tuple[str, str], set[str]] = defaultdict(set)
    for guid, description, port in described:
        words = set((description or "").replace("'", " ").lower().split())
        found = {name for word in words if (name := identity.hosts.get(word, word)) in known}
        if guid is None or len(found) != 1:
            continue
        host = found.pop()
        others = {word for word in words if identity.host(word) != host}
        device = {word for word in others if (host, word) in devices or _DEVICE.fullmatch(word)}
        if len(device) == 1:
            adapters[host, *device].add(guid)
        if len(device) == 1 and port is not None:
            told[host, next(iter(device)), port].add(guid)
        said[guid].add(host)
    # Two adapters that call themselves the same device of one host: one of the two is wrong.
    doubtful = {guid for guids in adapters.values() if len(guids) > 1 for guid in guids}
    for guid in sorted(said.keys() | on_host.keys()):
        hosts = on_host.get(guid) or (set() if guid in doubtful else said[guid])
        if len(hosts) == 1:
            identity.host_of_guid[guid] = next(iter(hosts))
        elif hosts:
            identity.notes.append(f"adapter {guid} is on {len(hosts)} hosts: on none for certain")
    for place, guids in sorted({**told, **direct}.items()):
        if len(guids) == 1:
            identity.guids[place] = next(iter(guids))
        else:
            host, name, port = place
            identity.notes.append(
                f"{host}/{name}/{port} is {len(guids)} different adapters: kept apart"
            )


def _collect_facts(
    identity: Identity, ports: list[Mapping[str, Any]], topology: list[Mapping[str, Any]]
) -> None:
    rates: dict[str, float] = {
        f"{row['src_guid']}/{row['src_port']}": row["rate_gbps"]
        for row in sorted(topology, key=_age)
        if row["rate_gbps"]
    }
    layers: dict[str, str] = {}
    ticks: dict[str, float] = {}
    on_host: dict[str, set[str]] = defaultdict(set)
    for row in ports:
        link = identity.link(row["link"] or "")
        if row["rate_gbps"]:
            rates[link] = row["rate_gbps"]
        if row["link_layer"]:
            layers[link] = row["link_layer"]
        if row["device_family"] in _TICK_PER_LANE:
            digits = (row["width"] or "").upper().removesuffix("X")
            lanes = int(digits) if digits.isdigit() else _LANES
            ticks[link] = _TICK_PER_LANE[row["device_family"]] * lanes
        if row["host"]:
            on_host[link].add(identity.host(row["host"]))
    identity.host_of = {
        link: next(iter(hosts)) for link, hosts in sorted(on_host.items()) if len(hosts) == 1
    }
    for link in sorted({*rates, *layers, *ticks}):
        identity.facts[link] = PortFacts(
            link=link,
            rate_gbps=rates.get(link),
            tick=ticks.get(link, DEFAULT_TICK),
            ethernet=layers.get(link) == "Ethernet",
        )


def _node(identity: Identity, row: Mapping[str, Any]) -> str | None:
    """The node GUID of a row of ``ports``, from its own column or from its link's name."""
    if row["node_guid"]:
        return str(row["node_guid"])
    link = identity.link(row["link"] or "")
    return link.partition("/")[0] if link.startswith("0x") else None
