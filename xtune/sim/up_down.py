"""Any fabric whose paths go up and then down, from its links.

It runs on the same kernel as ``LeafSpine``, which gets the ports of each path from a table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.policies.paths import DirectedLink
from xtune.sim._ways import NONE, Fan, fan, groups, heights, join
from xtune.sim.fabric import BUFFER_BYTES, F64, I64, Fabric, IntArray, Routes

_MOST_ROUTE_PORTS = 1 << 28  # 1 GiB: all pairs of 512 leaves with 256 paths of four ports


def natural(name: str) -> list[tuple[int, str]]:
    """Key that sorts numbers within names by value."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


class LinkOptions(TypedDict, total=False):
    """What all links have in common, see ``Fabric``."""

    link_latency_ns: int
    header_bytes: int
    buffer_bytes: int
    slow_ports: tuple[tuple[int, float], ...]


class UpDown(Fabric):
    """A fabric from its links, routed up and down (``xtune.sim._ways``).

    Switches are numbered leaves first, in the order in which the links name them.

    Args:
        hosts: Names of the end points, which are numbered in this order. Each has one link to a
            switch and one back.
        links: All directed links.
        gbps: Rate of each link by its name, Gb/s.
        options: What all links have in common.

    Raises:
        UsageError: a host without its two links, a rate that is missing or not positive, or sizes
            that the simulator cannot hold.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        links: Sequence[DirectedLink],
        gbps: Mapping[str, float],
        **options: Unpack[LinkOptions],
    ) -> None:
        self.host_names = tuple(hosts)
        self.hosts = len(self.host_names)
        self.link_latency_ns = options.get("link_latency_ns", 500)
        self.header_bytes = options.get("header_bytes", 0)
        self.buffer_bytes = options.get("buffer_bytes", BUFFER_BYTES)
        self.slow_ports = options.get("slow_ports", ())
        self._given = (tuple(links), dict(gbps), options)
        nics, deliveries = self._host_links(links)
        self._number_switches(links, nics)
        self._number_ports(nics, links, deliveries)
        unknown = [link.name for link in self._links if not gbps.get(link.name, 0.0) > 0.0]
        if unknown:
            raise UsageError(f"no rate of link {unknown[0]} ({len(unknown)} such)", "give gbps")
        self._gbps = np.array([gbps[link.name] for link in self._links])
        rates = Counter(self._gbps[: self.hosts].tolist())
        self.gbps = max(sorted(rates), key=rates.__getitem__)
        self._check_common()
        self._fans: dict[tuple[int, bool], Fan] = {}
        self._paths: dict[tuple[int, int], NDArray[np.uint32]] = {}

    def _host_links(
        self, links: Sequence[DirectedLink]
    ) -> tuple[list[DirectedLink], list[DirectedLink]]:
        """The links from the hosts and to them, in the order of the hosts."""
        known = set(self.host_names)
        if not known or len(known) != self.hosts:
            raise UsageError("a fabric needs hosts with names of their own", "see UpDown")
        out: dict[str, DirectedLink] = {link.src: link for link in links if link.src in known}
        into: dict[str, DirectedLink] = {link.dst: link for link in links if link.dst in known}
        degree = Counter(end for link in links for end in (link.src, link.dst) if end in known)
        for host in self.host_names:
            if degree[host] != 2 or host not in out or host not in into:
                raise UsageError(
                    f"host {host} has not one link to a switch and one back",
                    "make each port of an adapter an end point of its own",
                )
            if out[host].dst in known or out[host].dst != into[host].src:
                raise UsageError(f"host {host} hangs on no single switch", "see UpDown")
        return [out[host] for host in self.host_names], [into[host] for host in self.host_names]

    def _number_switches(
        self, links: Sequence[DirectedLink], nics: Sequence[DirectedLink]
    ) -> None:
        below = Counter(nic.dst for nic in nics)
        named = dict.fromkeys(end for link in links for end in (link.src, link.dst))
        known = set(self.host_names)
        switches = [name for name in named if name not in known]
        self.switch_names = tuple(sorted(switches, key=lambda name: name not in below))
        self.leaves = len(below)
        number = {name: i for i, name in enumerate(self.switch_names)}
        self._number = number
        self._leaf = np.array([number[nic.dst] for nic in nics], dtype=np.int64)
        pairs = [(number[a.src], number[a.dst]) for a in links if {a.src, a.dst} <= number.keys()]
        self.heights = heights(self.leaves, [below[name] for name in self.switch_names], pairs)

    def _number_ports(
        self,
        nics: Sequence[DirectedLink],
        links: Sequence[DirectedLink],
        deliveries: Sequence[DirectedLink],
    ) -> None:
        """Stages: up from height 0, 1, ... to the top; down from the top to 0."""
        top, number, height = max(self.heights), self._number, self.heights
        staged: list[list[DirectedLink]] = [[] for _ in range(2 * top)]
        for link in sorted(
            (link for link in links if {link.src, link.dst} <= number.keys()),
            key=lambda link: number[link.src],
        ):
            src, dst = number[link.src], number[link.dst]
            if height[src] >= 0:  # a part without hosts carries nothing
                up = height[src] < height[dst]
                staged[height[src] if up else 2 * top - height[src]].append(link)
        groups = [nics, *staged, deliveries]
        self._links = [link for group in groups for link in group]
        first = np.cumsum([0, *(len(group) for group in groups)])
        self._stage_first = tuple(int(port) for port in first)
        self._stage = np.repeat(np.arange(len(groups)), np.diff(first))
        self._ends = np.array(
            [(number.get(link.src, -1), number.get(link.dst, -1)) for link in self._links]
        )
        self._up: list[list[tuple[int, int]]] = [[] for _ in self.switch_names]
        self._down: list[list[tuple[int, int]]] = [[] for _ in self.switch_names]
        for port in range(self._stage_first[1], self._stage_first[-2]):
            src, dst = self._ends[port].tolist()
            if height[src] < height[dst]:
                self._up[src].append((port, dst))
            else:
                self._down[dst].append((port, src))

    @property
    def stage_first(self) -> tuple[int, ...]:
        """First port of each stage, the hosts' and the deliveries' too, and then their number."""
        return self._stage_first

    def leaves_of(self, hosts: IntArray) -> I64:
        """The leaf above each of some hosts, int64."""
        return np.asarray(self._leaf[hosts])

    @property
    def hosts_per_leaf(self) -> int:
        """Hosts below one leaf.

        Raises:
            UsageError: leaves differ in it, or hosts are not numbered leaf by leaf.
        """
        per = self.hosts // self.leaves
        if not np.array_equal(self._leaf, np.arange(self.hosts) // per):
            raise UsageError("leaves of this fabric differ in their hosts", "name the hosts")
        return per

    def port_gbps(self) -> F64:
        """Wire rate of each port in Gb/s, without ``slow_ports``; float64."""
        return self._gbps.copy()

    def port_ends(self) -> I64:
        """Switches that each port's link leaves and reaches, int64 of shape (ports, 2).

        -1 for hosts. Switches are numbered leaves first, as ``switch_names``.
        """
        return self._ends.copy()

    def groups(self) -> list[I64]:
        """Switches that hang together up to each height below the top."""
        return [groups(self.heights, self._ends, height) for height in range(max(self.heights))]

    def port_name(self, port: int) -> str:
        """The name of a port's link."""
        return self._links[port].name

    def port(self, name: str) -> int:
        """The number of a port by its link's name.

        Raises:
            UsageError: no such link.
        """
        for port, link in enumerate(self._links):
            if link.name == name:
                return port
        raise UsageError(f"no link {name} in this fabric", "see port_name")

    def without(self, names: Collection[str]) -> UpDown:
        """The same fabric with some directed links missing, and its ports numbered anew.

        Args:
            names: Of the links, as ``port_name`` gives them.

        Raises:
            UsageError: no such link, or a host's own.
        """
        links, gbps, options = self._given
        gone = set(names)
        unknown = gone - {link.name for link in links}
        if unknown:
            raise UsageError(f"no link {min(unknown)} in this fabric", "see port_name")
        return UpDown(self.host_names, [a for a in links if a.name not in gone], gbps, **options)

    def paths(self, src_leaf: int, dst_leaf: int) -> NDArray[np.uint32]:
        """The equal-cost paths of two leaves.

        Returns:
            Port at each stage between switches, uint32 of shape (paths, stages); the highest
            number at stages that a path skips. Without rows where there is none.
        """
        key = (src_leaf, dst_leaf)
        if key not in self._paths:
            self._paths[key] = join(self._fan(src_leaf, up=True), self._fan(dst_leaf, up=False))
        return self._paths[key]

    def _fan(self, leaf: int, *, up: bool) -> Fan:
        if (leaf, up) not in self._fans:
            steps = self._up if up else self._down
            self._fans[leaf, up] = fan(leaf, steps, self._stage, len(self.stage_first) - 3)
        return self._fans[leaf, up]

    def path(self, src: int, dst: int, number: int) -> tuple[int, ...]:
        """Ports from ``src`` to ``dst`` on one of their equal-cost paths."""
        row = self.paths(self.leaf_of(src), self.leaf_of(dst))[number]
        return (self.nic(src), *(int(p) for p in row if p != NONE), self.delivery(dst))

    def routes(self, src: IntArray, dst: IntArray) -> Routes:
        """The equal-cost paths of each pair of hosts.

        Args:
            src: Sending hosts.
            dst: Receiving hosts.

        Raises:
            UsageError: together they take more memory than is reasonable.
        """
        pair = self.leaves_of(src) * self.leaves + self.leaves_of(dst)
        pairs, at = np.unique(pair, return_inverse=True)
        stages = len(self.stage_first) - 3
        tables, ports = [np.empty((0, stages), dtype=np.uint32)], 0
        for one in pairs.tolist():
            tables.append(self.paths(one // self.leaves, one % self.leaves))
            ports += tables[-1].size
            if ports > _MOST_ROUTE_PORTS:
                raise UsageError("the routes of these flows take over 1 GiB", "use fewer leaves")
        count = np.array([len(table) for table in tables[1:]], dtype=np.int64)
        hops = [int((table[:1] != NONE).sum()) for table in tables[1:]]
        row = np.cumsum(count) - count
        return Routes(
            count=count[at],
            links=np.array(hops, dtype=np.int64)[at] + 2,
            row=row[at].astype(np.uint32),
            table=np.concatenate(tables),
        )

    def between(self, src: IntArray, dst: IntArray, path: IntArray) -> I64:
        """Ports between switches on given paths; -1 at a stage that a path skips.

        Args:
            src: Sending hosts.
            dst: Receiving hosts.
            path: Number of each one's path; of no account below one leaf.
        """
        routes = self.routes(src, dst)
        ports = routes.table[routes.row + np.where(routes.links > 2, path, 0)]
        return np.where(ports == NONE, -1, ports.astype(np.int64))

    def unused_ports(self) -> list[int]:
        """Ports between switches that lie on no path of any two leaves."""
        used = {
            int(port)
            for src in range(self.leaves)
            for dst in range(self.leaves)
            for port in np.unique(self.paths(src, dst))
        }
        return [p for p in range(self.stage_first[1], self.first_delivery) if p not in used]
