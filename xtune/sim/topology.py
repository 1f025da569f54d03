"""Generated fabrics beyond the leaf-spine: two and three tiers, parallel links, rails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Unpack

import numpy as np

from xtune.errors import UsageError
from xtune.policies.paths import DirectedLink
from xtune.sim.fabric import I64, Fabric
from xtune.sim.up_down import LinkOptions, UpDown, natural


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cables:
    """Links of a fabric in the making, both directions of each cable."""

    links: list[DirectedLink] = field(default_factory=list)
    gbps: dict[str, float] = field(default_factory=dict)

    def lay(self, lower: str, upper: str, gbps: float, parallel: int = 1) -> None:
        for number in range(1, parallel + 1):
            suffix = "" if number == 1 else f" #{number}"
            for src, dst in ((lower, upper), (upper, lower)):
                name = f"{src} -> {dst}{suffix}"
                self.links.append(DirectedLink(name=name, src=src, dst=dst))
                self.gbps[name] = gbps

    def lay_hosts(self, hosts_per_leaf: int, leaves: int, gbps: float) -> list[str]:
        names = [f"host {host}" for host in range(hosts_per_leaf * leaves)]
        for host, name in enumerate(names):
            self.lay(name, f"leaf {host // hosts_per_leaf}", gbps)
        return names


class TwoTier(UpDown):
    """A leaf-spine with several links between each leaf and each spine.

    Args:
        leaves: Number of leaves.
        spines: Number of spines.
        hosts_per_leaf: Hosts below each leaf; they are numbered leaf by leaf.
        parallel: Links between each leaf and each spine.
        gbps: Rate of a host's link, Gb/s.
        uplink_gbps: Rate of a leaf-spine link; None means ``gbps``.
        options: What all links have in common, see ``Fabric``.

    Raises:
        UsageError: sizes or rates that do not make a fabric.
    """

    def __init__(
        self,
        *,
        leaves: int,
        spines: int,
        hosts_per_leaf: int,
        parallel: int = 1,
        gbps: float = 400.0,
        uplink_gbps: float | None = None,
        **options: Unpack[LinkOptions],
    ) -> None:
        _positive(leaves=leaves, spines=spines, hosts_per_leaf=hosts_per_leaf, parallel=parallel)
        cables = _Cables()
        names = cables.lay_hosts(hosts_per_leaf, leaves, gbps)
        for leaf in range(leaves):
            for spine in range(spines):
                cables.lay(f"leaf {leaf}", f"spine {spine}", uplink_gbps or gbps, parallel)
        super().__init__(names, cables.links, cables.gbps, **options)


class FatTree(UpDown):
    """A three-tier fat tree: pods of leaves and spines, planes of cores above them.

    Spine s of each pod is joined to the ``cores`` cores of plane s (Al-Fares et al. 2008, Facebook
    2014). Non-blocking: as many spines as hosts on a leaf, as many cores a plane as leaves in a
    pod, all links alike; fewer of either, or slower links, oversubscribe that tier.

    Args:
        pods: Number of pods.
        leaves: Leaves of a pod.
        spines: Spines (aggregation switches) of a pod; each leaf has a link to each.
        cores: Cores above each spine.
        hosts_per_leaf: Hosts below each leaf; they are numbered leaf by leaf.
        gbps: Rate of a host's link, Gb/s.
        leaf_gbps: Rate of a leaf-spine link; None means ``gbps``.
        core_gbps: Rate of a spine-core link; None means ``gbps``.
        options: What all links have in common, see ``Fabric``.

    Raises:
        UsageError: sizes or rates that do not make a fabric.
    """

    def __init__(
        self,
        *,
        pods: int,
        leaves: int,
        spines: int,
        cores: int,
        hosts_per_leaf: int,
        gbps: float = 400.0,
        leaf_gbps: float | None = None,
        core_gbps: float | None = None,
        **options: Unpack[LinkOptions],
    ) -> None:
        _positive(
            pods=pods, leaves=leaves, spines=spines, cores=cores, hosts_per_leaf=hosts_per_leaf
        )
        cables = _Cables()
        names = cables.lay_hosts(hosts_per_leaf, pods * leaves, gbps)
        for leaf in range(pods * leaves):
            for spine in range(spines):
                upper = f"spine {leaf // leaves * spines + spine}"
                cables.lay(f"leaf {leaf}", upper, leaf_gbps or gbps)
        for spine in range(pods * spines):
            for core in range(cores):
                upper = f"core {spine % spines * cores + core}"
                cables.lay(f"spine {spine}", upper, core_gbps or gbps)
        super().__init__(names, cables.links, cables.gbps, **options)
        self.hosts_per_pod = leaves * hosts_per_leaf

    @classmethod
    def of_switches(cls, ports: int, **options: Unpack[LinkOptions]) -> FatTree:
        """The non-blocking fat tree of k-port switches: k^3 / 4 hosts.

        Args:
            ports: k, an even number.
            options: What all links have in common.

        Raises:
            UsageError: ``ports`` is odd.
        """
        if ports % 2:
            raise UsageError(f"no fat tree of {ports}-port switches", "take an even number")
        half = ports // 2
        return cls(
            pods=ports, leaves=half, spines=half, cores=half, hosts_per_leaf=half, **options
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rails:
    """Nodes with one NIC on each rail; each NIC is a host of the fabric.

    Attributes:
        number: Host of each node (row) on each rail (column), int64; -1 where it has none.
    """

    number: I64

    @classmethod
    def by_leaf(cls, fabric: Fabric, rails: int) -> Rails:
        """Rail-optimised cabling: NIC r of every node of a group hangs on leaf r of the group.

        Args:
            fabric: A fabric whose hosts are numbered leaf by leaf, as many below each.
            rails: NICs of a node; must divide the number of leaves.

        Raises:
            UsageError: the leaves are no whole groups.
        """
        if rails < 1 or fabric.leaves % rails or fabric.hosts % fabric.leaves:
            raise UsageError(f"{fabric.leaves} leaves are no groups of {rails} rails", "see Rails")
        per_leaf = fabric.hosts // fabric.leaves
        hosts = np.arange(fabric.hosts).reshape(-1, rails, per_leaf)
        if not (fabric.leaves_of(hosts) == np.arange(fabric.leaves).reshape(-1, rails, 1)).all():
            raise UsageError("hosts of this fabric are not numbered leaf by leaf", "see Rails")
        return cls(hosts.transpose(0, 2, 1).reshape(-1, rails))

    @classmethod
    def by_name(cls, fabric: UpDown) -> Rails:
        """The rails of a discovered fabric: adapters of one name are on one rail.

        A host's name is that of its node and, after the last space, of its adapter, as
        InfiniBand's node descriptions are. Nodes are in the order of their first host.

        Args:
            fabric: A fabric, see ``from_links``.

        Raises:
            UsageError: a name is not of a node and an adapter.
        """
        split = [name.rpartition(" ")[::2] for name in fabric.host_names]
        for name, (node, _) in zip(fabric.host_names, split, strict=True):
            if not node:
                raise UsageError(f"host {name!r} names no adapter of a node", "see Rails.number")
        nodes = {node: i for i, node in enumerate(dict.fromkeys(node for node, _ in split))}
        rails = {
            rail: i for i, rail in enumerate(sorted({rail for _, rail in split}, key=natural))
        }
        number = np.full((len(nodes), len(rails)), -1)
        for host, (node, rail) in enumerate(split):
            number[nodes[node], rails[rail]] = host
        return cls(number)

    def host(self, node: int, rail: int) -> int:
        """The host that is NIC ``rail`` of ``node``; -1 where the node has none."""
        return int(self.number[node, rail])

    def of_host(self, host: int) -> tuple[int, int]:
        """(node, rail) of a host.

        Raises:
            UsageError: the host is no node's.
        """
        found = np.argwhere(self.number == host)
        if not len(found):
            raise UsageError(f"host {host} is on no rail", "see Rails.number")
        return int(found[0, 0]), int(found[0, 1])


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name} is {size}", "a fabric has at least one of each")
