"""Hosts, leaves and spines as directed ports, and the paths between adapters.

A host has one adapter a rail; rail r of a pod of hosts has a leaf of its own. With three tiers,
spines belong to a pod of leaves and cores join the pods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

Adapter = tuple[int, int]  # host, rail
Path = tuple[int, ...]  # indices of ports, in the order in which bytes pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One directed port: ``kind`` nic, down (leaf to host), up, fall (towards hosts)."""

    index: int
    kind: str
    guid: str
    number: int
    name: str
    peer_guid: str
    peer_number: int
    peer_name: str
    tier: int
    host: str | None = None
    device: str | None = None

    @property
    def link(self) -> str:
        return f"{self.guid}/{self.number}"

    @property
    def peer(self) -> str:
        """The port at the other end, that sends the other way."""
        return f"{self.peer_guid}/{self.peer_number}"


@dataclass(kw_only=True)
class Fabric:
    """A fabric; ``leaves`` counts those of one rail."""

    hosts: int = 64
    leaves: int = 8
    spines: int = 4
    rails: int = 1
    pods: int = 1
    cores: int = 2
    gbps: float = 400.0
    ports: list[Port] = field(default_factory=list)
    of_link: dict[str, Port] = field(default_factory=dict)
    _out: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for host in range(self.hosts):
            for rail in range(self.rails):
                leaf = self.leaf_of((host, rail))
                self._cable(self.adapter((host, rail)), self.leaf(leaf), 0)
        for leaf in range(self.leaves * self.rails):
            for spine in range(self.spines):
                self._cable(self.leaf(leaf), self.spine(self.pod_of(leaf), spine), 1)
        for pod in range(self.pods if self.pods > 1 else 0):
            for spine in range(self.spines):
                for core in range(self.cores):
                    self._cable(self.spine(pod, spine), self.core(spine, core), 2)

    @property
    def line_bytes_s(self) -> float:
        """Bytes that a port moves in a second at line rate."""
        return self.gbps * 1e9 / 8

    @property
    def hosts_per_leaf(self) -> int:
        return self.hosts // self.leaves

    def host_name(self, host: int) -> str:
        return f"node{host:03d}"

    def adapter(self, at: Adapter) -> tuple[str, str]:
        """GUID and node description of an adapter."""
        host, rail = at
        return f"0x{0xE09D7303_00100000 + host * 16 + rail:016x}", (
            f"{self.host_name(host)} mlx5_{rail}"
        )

    def leaf(self, leaf: int) -> tuple[str, str]:
        return f"0x{0x2C5EAB03_00200000 + leaf * 64:016x}", f"leaf{leaf:02d}"

    def spine(self, pod: int, spine: int) -> tuple[str, str]:
        return f"0x{0x2C5EAB03_00300000 + (pod * 64 + spine) * 64:016x}", f"spine{pod}-{spine:02d}"

    def core(self, spine: int, core: int) -> tuple[str, str]:
        return (
            f"0x{0x2C5EAB03_00400000 + (spine * 64 + core) * 64:016x}",
            f"core{spine}-{core:02d}",
        )

    def leaf_of(self, at: Adapter) -> int:
        host, rail = at
        return (host // self.hosts_per_leaf) * self.rails + rail

    def pod_of(self, leaf: int) -> int:
        return (leaf // self.rails) * self.pods // self.leaves

    def hosts_of(self, leaf: int) -> list[int]:
        first = leaf // self.rails * self.hosts_per_leaf
        return list(range(first, first + self.hosts_per_leaf))

    def between(self, a: tuple[str, str], b: tuple[str, str]) -> int:
        """Index of the port of ``a`` towards ``b``."""
        return self._out[a[0], b[0]][0]

    def path(self, src: Adapter, dst: Adapter, spine: int, core: int = 0) -> Path:
        """Ports from one adapter to another of the same rail."""
        here, there = self.leaf_of(src), self.leaf_of(dst)
        nodes = [self.adapter(src), self.leaf(here)]
        if here != there:
            a, b = self.pod_of(here), self.pod_of(there)
            nodes.append(self.spine(a, spine))
            if a != b:
                nodes += [self.core(spine, core), self.spine(b, spine)]
            nodes.append(self.leaf(there))
        nodes.append(self.adapter(dst))
        return tuple(self.between(a, b) for a, b in pairwise(nodes))

    def where(self, test: Callable[[Port], bool]) -> list[Port]:
        return [port for port in self.ports if test(port)]

    def vector(self) -> np.ndarray:
        """A zero for each port."""
        return np.zeros(len(self.ports))

    def _cable(self, low: tuple[str, str], high: tuple[str, str], tier: int) -> None:
        numbers = {}
        for guid, _ in (low, high):
            self._used[guid] = numbers[guid] = self._used.get(guid, 0) + 1
        for here, there in ((low, high), (high, low)):
            rises = here is low
            kind = ("nic" if rises else "down") if tier == 0 else ("up" if rises else "fall")
            words = here[1].split()
            port = Port(
                index=len(self.ports),
                kind=kind,
                guid=here[0],
                number=numbers[here[0]],
                name=here[1],
                peer_guid=there[0],
                peer_number=numbers[there[0]],
                peer_name=there[1],
                tier=tier,
                host=words[0] if kind == "nic" else None,
                device=words[1] if kind == "nic" else None,
            )
            self.ports.append(port)
            self.of_link[port.link] = port
            self._out.setdefault((here[0], there[0]), []).append(port.index)
