"""Two leaves, some spines and some hosts as network namespaces, with shaped links between them.

A host has one cable to its leaf for each spine, and its leaf hands what comes in by a cable to
that cable's spine: so a host chooses the spine by the cable, as a RoCE host does by the source
port. Each cable end has an address, by which probes are bound to a spine there and back; the
host's own address, which data is sent to, is reached over any. All are of 198.18.0.0/15, the
range for benchmarks (RFC 2544).

Each direction between leaf and spine is shaped by a token bucket before a queue of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from xtune.proofs.emulated.namespaces import Namespaces

LEAVES = 2
MOST_SPINES = 40  # a third octet each, twice
MOST_HOSTS = 62  # a /30 each of 256 addresses
_BURST_BYTES = 32_000  # the kernel wants at least a packet's size
_TABLE = 100  # routing table of the first spine


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What a fabric is like.

    Attributes:
        spines: How many.
        hosts: On each leaf.
        rate_mbps: Of each direction between a leaf and a spine, in 1e6 bit/s.
        queue_bytes: Before each of them.
        mtu: Of all devices, in bytes; large, so that few packets a second fill a link.
    """

    spines: int = 2
    hosts: int = 2
    rate_mbps: float = 200.0
    queue_bytes: int = 512_000
    mtu: int = 9000

    def __post_init__(self) -> None:
        if not 1 <= self.spines <= MOST_SPINES:
            raise ValueError(f"spines: {self.spines} is not within 1 and {MOST_SPINES}")
        if not 1 <= self.hosts * LEAVES <= MOST_HOSTS:
            raise ValueError(f"hosts: {self.hosts} a leaf are not within 1 and {MOST_HOSTS // 2}")

    @property
    def full_delay_s(self) -> float:
        """How long the last packet of a full queue waits."""
        return self.queue_bytes * 8 / (self.rate_mbps * 1e6)


class Fabric:
    """The namespaces; use it in a ``with`` block.

    Hosts are numbered through, leaf by leaf, and all numbers begin at 0.

    Args:
        shape: What it is like.

    Raises:
        NamespaceError: It cannot be made here; nothing is left.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.hosts = range(LEAVES * shape.hosts)
        nodes = [*(f"leaf{i}" for i in range(LEAVES)), *map(spine_name, range(shape.spines)),
                 *map(host_name, self.hosts)]  # fmt: skip
        self.namespaces = Namespaces(nodes)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def address(self, host: int) -> str:
        """The host's own, which data is sent to."""
        return f"198.19.0.{host + 1}"

    def cable_address(self, host: int, spine: int) -> str:
        """The host's end of its cable for a spine, which probes are sent to."""
        return f"198.18.{spine}.{4 * host + 2}"

    def gateway(self, host: int, spine: int) -> tuple[str, str]:
        """Address and interface by which a host sends over a spine."""
        return f"198.18.{spine}.{4 * host + 1}", f"up{spine}"

    def command(self, host: int) -> list[str]:
        """What to put before a command so that it runs on a host."""
        return self.namespaces.command(host_name(host))

    def cut(self, spine: int, leaf: int) -> None:
        """Take the link between a spine and a leaf down, at the spine."""
        self.namespaces.ip(spine_name(spine), [f"link set down{leaf} down"])

    def mend(self, spine: int, leaf: int) -> None:
        """Bring it up again; the kernel has dropped its routes meanwhile."""
        lines = [f"link set down{leaf} up", *self._spine_routes(spine, leaf)]
        self.namespaces.ip(spine_name(spine), lines)

    def close(self) -> None:
        """Remove all of it."""
        self.namespaces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _on(self, leaf: int) -> range:
        """The hosts of a leaf."""
        return range(leaf * self.shape.hosts, (leaf + 1) * self.shape.hosts)

    def _connect(self) -> None:
        for node in self.namespaces.names:
            self.namespaces.inside(node, _forward)
        for host in self.hosts:
            self._connect_host(host)
        for leaf in range(LEAVES):
            for spine in range(self.shape.spines):
                self._connect_leaf(leaf, spine)
        for leaf in range(LEAVES):
            self.namespaces.ip(f"leaf{leaf}", list(self._leaf_routes(leaf)))

    def _connect_host(self, host: int) -> None:
        leaf = self.namespaces.names[f"leaf{host // self.shape.hosts}"]
        lines = ["link set lo up", f"addr add {self.address(host)}/32 dev lo"]
        far = []
        for spine in range(self.shape.spines):
            gateway, device = self.gateway(host, spine)
            port = f"h{host}s{spine}"
            lines += [
                f"link add {device} mtu {self.shape.mtu} type veth peer name {port} "
                f"mtu {self.shape.mtu} netns {leaf}",
                f"addr add {self.cable_address(host, spine)}/30 dev {device}",
                f"link set {device} up",
            ]
            far += [f"addr add {gateway}/30 dev {port}", f"link set {port} up"]
        self.namespaces.ip(host_name(host), lines)
        self.namespaces.ip(f"leaf{host // self.shape.hosts}", far)
        routes = [f"route add 198.18.{spine}.0/24 via {self.gateway(host, spine)[0]}"
                  for spine in range(self.shape.spines)]  # fmt: skip
        routes.append(
            f"route add 198.19.0.0/24 via {self.gateway(host, 0)[0]} src {self.address(host)}"
        )
        self.namespaces.ip(host_name(host), routes)

    def _connect_leaf(self, leaf: int, spine: int) -> None:
        shape, far = self.shape, self.namespaces.names[f"leaf{leaf}"]
        upper, lower = _trunk(leaf, spine)
        self.namespaces.ip(spine_name(spine), [
            f"link add down{leaf} mtu {shape.mtu} type veth peer name up{spine} "
            f"mtu {shape.mtu} netns {far}",
            f"addr add {upper}/30 dev down{leaf}", f"link set down{leaf} up",
        ])  # fmt: skip
        self.namespaces.ip(f"leaf{leaf}", [
            f"addr add {lower}/30 dev up{spine}", f"link set up{spine} up",
        ])  # fmt: skip
        self.namespaces.ip(spine_name(spine), list(self._spine_routes(spine, leaf)))
        queue = (f"root tbf rate {shape.rate_mbps:g}mbit burst {_BURST_BYTES} "
                 f"limit {shape.queue_bytes}")  # fmt: skip
        self.namespaces.tc(spine_name(spine), [f"qdisc add dev down{leaf} {queue}"])
        self.namespaces.tc(f"leaf{leaf}", [f"qdisc add dev up{spine} {queue}"])

    def _spine_routes(self, spine: int, leaf: int) -> Iterator[str]:
        lower = _trunk(leaf, spine)[1]
        for host in self._on(leaf):
            yield f"route replace 198.18.{spine}.{4 * host}/30 via {lower}"
            yield f"route replace {self.address(host)}/32 via {lower}"

    def _leaf_routes(self, leaf: int) -> Iterator[str]:
        others = [host for host in self.hosts if host not in self._on(leaf)]
        for host in self._on(leaf):
            yield f"route add {self.address(host)}/32 via {self.cable_address(host, 0)}"
        for spine in range(self.shape.spines):
            upper = _trunk(leaf, spine)[0]
            for host in others:
                yield f"route add 198.18.{spine}.{4 * host}/30 via {upper}"
                yield f"route add {self.address(host)}/32 via {upper} table {_TABLE + spine}"
            for host in self._on(leaf):
                yield f"rule add iif h{host}s{spine} lookup {_TABLE + spine}"


def host_name(host: int) -> str:
    """A host's namespace."""
    return f"host{host}"


def spine_name(spine: int) -> str:
    """A spine's namespace, and what routers call the paths over it."""
    return f"spine{spine}"


def _trunk(leaf: int, spine: int) -> tuple[str, str]:
    """Addresses of spine and leaf on the link between them."""
    return f"198.18.{128 + spine}.{4 * leaf + 1}", f"198.18.{128 + spine}.{4 * leaf + 2}"


def _forward() -> None:
    """Let the namespace of the calling thread forward, over different ways there and back."""
    settings = Path("/proc/sys/net/ipv4")
    for name, value in (("ip_forward", 1), ("conf/all/rp_filter", 0),
                        ("conf/default/rp_filter", 0)):  # fmt: skip
        (settings / name).write_text(f"{value}\n", encoding="ascii")
