"""Fabrics of the simulator: what the kernel asks of one, and the two-tier leaf-spine.

Port numbers of a leaf-spine, lowest first (the order in which bytes travel)::

    nic(host)               host -> its leaf
    uplink(leaf, spine)     leaf -> spine
    downlink(spine, leaf)   spine -> leaf
    delivery(host)          leaf -> host
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
IntArray = NDArray[np.integer]

# IEEE 802.1Qbb thresholds of a switch input, as the packet simulator of bench/reference had them.
PACKET_BYTES = 4096
XOFF_PACKETS = 100
XON_PACKETS = 80

# A 400 Gb/s port fills 1 MB in 20 us at 2:1 overload, the depth the founding document's
# thresholds are meant for.
BUFFER_BYTES = 1_000_000

# What the simulator's compact records can hold: 12-bit paths, 16-bit hosts, 31-bit byte counts.
MOST_PATHS = 1 << 12
_MAX_HOSTS = 1 << 16
_MAX_STEP_BYTES = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Backpressure:
    """Lossless flow control of each link, for each lane by itself.

    ``pfc``: the bytes resident in a switch that came through one port stop that whole port above
    ``xoff_bytes`` and start it again below ``xon_bytes``. ``credit``: a port never sends what
    would bring them above ``xoff_bytes``. ``none``: unbounded queues (only for checks).
    Head-of-line blocking, victims and spreading follow from the whole port standing still.

    ``signal_ns`` is the time that a pause, and its end, take back to the port that they are for:
    the latency of its link. Meanwhile the port goes on, so the switch holds more than
    ``xoff_bytes``, and it stands still for longer. Without it (None) both act in the next step;
    a step too long to show it is refused.
    """

    kind: str = "pfc"  # pfc | credit | none
    xoff_bytes: int = XOFF_PACKETS * PACKET_BYTES
    xon_bytes: int = XON_PACKETS * PACKET_BYTES
    signal_ns: int | None = None

    def __post_init__(self) -> None:
        """Check the thresholds.

        Raises:
            UsageError: an unknown kind, or Xon above Xoff.
        """
        if self.kind not in ("pfc", "credit", "none"):
            raise UsageError(f"backpressure {self.kind!r} is unknown", "pfc, credit or none")
        if not 0 < self.xon_bytes <= self.xoff_bytes:
            raise UsageError(
                f"xon_bytes {self.xon_bytes} and xoff_bytes {self.xoff_bytes} do not fit",
                "0 < xon_bytes <= xoff_bytes",
            )
        if self.signal_ns is not None and (self.kind != "pfc" or self.signal_ns < 0):
            raise UsageError(
                f"a pause of {self.kind!r} takes no {self.signal_ns} ns",
                "give signal_ns >= 0, with pfc alone",
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Routes:
    """Where each flow of a phase may go.

    Attributes:
        count: Paths of each flow, int64; 0 where there is none.
        links: Links on any of them, those of the hosts included, int64.
        row: Row of a flow's path 0 in ``table``, uint32; its other paths follow.
        table: Port that a path takes at each stage between the switches, uint32 of shape
            (paths, stages); the highest number where it takes none. Without rows where port
            numbers follow from leaf and spine (``LeafSpine``).
    """

    count: I64
    links: I64
    row: NDArray[np.uint32]
    table: NDArray[np.uint32]


class Fabric(ABC):
    """Hosts below leaves, and directed ports in stages that every path passes upwards.

    Ports are numbered stage by stage: the hosts' own (``nic``), the stages between switches, the
    leaves' ports to the hosts (``delivery``). A port is the sending end of a link, with its queue.

    Attributes:
        hosts: Number of hosts: end points with one link.
        leaves: Number of switches with hosts.
        gbps: Rate of a host's link (the commonest, where they differ), Gb/s.
        link_latency_ns: Propagation time of any link.
        header_bytes: Wire overhead of each packet of 4096 B payload; rates are wire rates.
        buffer_bytes: What an occupancy of 1.0 means for a port's queue.
        slow_ports: Ports that run at a share of their rate: (port number, share in (0, 1]).
    """

    __slots__ = ()

    hosts: int
    leaves: int
    gbps: float
    link_latency_ns: int
    header_bytes: int
    buffer_bytes: int
    slow_ports: tuple[tuple[int, float], ...]

    @property
    @abstractmethod
    def hosts_per_leaf(self) -> int:
        """Hosts below each leaf."""

    @property
    @abstractmethod
    def stage_first(self) -> tuple[int, ...]:
        """First port of each stage, the hosts' and the deliveries' too, and then their number."""

    @abstractmethod
    def leaves_of(self, hosts: IntArray) -> I64:
        """The leaf above each of some hosts, int64."""

    @abstractmethod
    def port_gbps(self) -> F64:
        """Wire rate of each port in Gb/s, without ``slow_ports``; float64."""

    @abstractmethod
    def port_ends(self) -> I64:
        """Switches that each port's link leaves and reaches, int64 of shape (ports, 2).

        -1 for hosts. Switches are numbered leaves first.
        """

    @abstractmethod
    def port_name(self, port: int) -> str:
        """A port by its two ends."""

    @abstractmethod
    def routes(self, src: IntArray, dst: IntArray) -> Routes:
        """The equal-cost paths of each pair of hosts.

        Args:
            src: Sending hosts.
            dst: Receiving hosts.
        """

    @abstractmethod
    def path(self, src: int, dst: int, number: int) -> tuple[int, ...]:
        """Ports from ``src`` to ``dst``, the host's own and the delivery too, on one path.

        Args:
            src: Sending host.
            dst: Receiving host.
            number: Of the path, as in ``Flows.spine``.
        """

    @abstractmethod
    def between(self, src: IntArray, dst: IntArray, path: IntArray) -> I64:
        """Ports between switches on given paths; -1 at a stage that a path skips.

        Args:
            src: Sending hosts.
            dst: Receiving hosts.
            path: Number of each one's path; of no account below one leaf.

        Returns:
            int64 of shape (flows, stages between switches).
        """

    @abstractmethod
    def groups(self) -> list[I64]:
        """Ways to cut the fabric: the group of each switch, for groups that hang together.

        Leaves by themselves; then pods, and so on below the top tier.
        """

    @property
    def ports(self) -> int:
        """Number of directed ports."""
        return self.stage_first[-1]

    def port_switch(self) -> I64:
        """The switch that holds each port's queue, int64; -1 for hosts. Leaves come first."""
        return self.port_ends()[:, 0]

    @property
    def first_delivery(self) -> int:
        """Number of the first leaf -> host port."""
        return self.ports - self.hosts

    def leaf_of(self, host: int) -> int:
        """The leaf above ``host``."""
        return int(self.leaves_of(np.array([host]))[0])

    def nic(self, host: int) -> int:
        """Port number of host -> leaf."""
        return host

    def delivery(self, host: int) -> int:
        """Port number of leaf -> host."""
        return self.first_delivery + host

    def latency_ns(self, links: int) -> float:
        """Time from first bit sent to last bit of the first packet, less its own serialisation.

        Propagation on each link, and a packet stored on each but the slowest: there the flow
        itself passes. Of links of one tier that differ in rate, the fastest counts.

        Args:
            links: Links on the path (2 below one leaf).
        """
        gbps, first = self.port_gbps(), self.stage_first
        stages = [gbps[a:b].max() if b > a else self.gbps for a, b in pairwise(first)]
        up, down = stages[: links - links // 2], stages[len(stages) - links // 2 :]
        packet_ns = (PACKET_BYTES + self.header_bytes) * 8 / np.array(up + down)
        return float(links * self.link_latency_ns + packet_ns.sum() - packet_ns.max())

    def payload_rates(self) -> F64:
        """Payload bytes a nanosecond of each port, slow ones at their share; float64."""
        payload = PACKET_BYTES / (PACKET_BYTES + self.header_bytes)
        rate = self.port_gbps() / 8 * payload
        for port, share in self.slow_ports:
            rate[port] *= share
        return rate

    def step_bytes(self, dt_ns: int) -> I64:
        """Payload bytes that each port can send in one step.

        Args:
            dt_ns: Length of a step.

        Returns:
            int64, shape (ports,). Rounded down: at 400 Gb/s and 1 us the error is under 20 ppm.

        Raises:
            UsageError: a port would send less than one byte, or more than 2 GiB, a step.
        """
        rate = self.payload_rates() * dt_ns
        if rate.min() < 1 or rate.max() > _MAX_STEP_BYTES:
            raise UsageError(
                f"a step of {dt_ns} ns does not fit the link rates", "use 500 or 1000"
            )
        # The small term undoes binary fractions such as 49999.999999999993.
        return np.asarray(np.floor(rate + 1e-6), dtype=np.int64)

    def _check_common(self) -> None:
        if self.hosts > _MAX_HOSTS:
            raise UsageError(f"{self.hosts} hosts are too many", f"at most {_MAX_HOSTS}")
        if self.link_latency_ns < 0 or self.header_bytes < 0 or self.buffer_bytes < 1:
            raise UsageError("a latency or size of the fabric is negative", "see LeafSpine")
        for port, share in self.slow_ports:
            if not 0 <= port < self.ports or not 0.0 < share <= 1.0:
                raise UsageError(
                    f"slow port ({port}, {share}) does not fit",
                    f"ports are 0..{self.ports - 1}, the share is in (0, 1]",
                )


@dataclass(frozen=True, slots=True)
class LeafSpine(Fabric):
    """A two-tier leaf-spine fabric with one link between each leaf and each spine.

    Hosts are numbered leaf by leaf. ``slow_ports`` scales the rate of single ports (a link that
    trained down, a slow receiver): pairs of (port number, share of the rate, in (0, 1]).

    Attributes:
        hosts: Number of hosts, a multiple of ``leaves``.
        leaves: Number of leaf switches.
        spines: Number of spine switches.
        gbps: Rate of a host's link, Gb/s.
        link_latency_ns: Propagation time of any link.
        uplink_gbps: Rate of leaf-spine links; None means ``gbps``.
        header_bytes: Wire overhead of each packet of 4096 B payload; rates are wire rates.
        buffer_bytes: What an occupancy of 1.0 means for a port's queue.
    """

    hosts: int
    leaves: int
    spines: int
    gbps: float = 400.0
    link_latency_ns: int = 500
    uplink_gbps: float | None = None
    header_bytes: int = 0
    buffer_bytes: int = BUFFER_BYTES
    slow_ports: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            UsageError: sizes that do not make a fabric.
        """
        if min(self.hosts, self.leaves, self.spines) < 1 or self.hosts % self.leaves:
            raise UsageError(
                f"{self.hosts} hosts do not fill {self.leaves} leaves and {self.spines} spines",
                "hosts must be a positive multiple of leaves, spines at least 1",
            )
        if self.spines > MOST_PATHS:
            raise UsageError(f"{self.spines} spines are too many", f"at most {MOST_PATHS}")
        if not self.gbps > 0 or (self.uplink_gbps is not None and not self.uplink_gbps > 0):
            raise UsageError("a link rate is not positive", "give gbps and uplink_gbps in Gb/s")
        self._check_common()

    @classmethod
    def square(cls, hosts: int, gbps: float = 400.0) -> LeafSpine:
        """A non-blocking fabric with as many leaves as spines as hosts on a leaf.

        Args:
            hosts: A square number: 64 gives 8 x 8, 1024 gives 32 x 32.
            gbps: Rate of every link.

        Raises:
            UsageError: ``hosts`` is not a square number.
        """
        side = math.isqrt(max(hosts, 0))
        if side * side != hosts:
            raise UsageError(f"{hosts} hosts are not a square fabric", "take 16, 64, 256, 1024")
        return cls(hosts, side, side, gbps)

    @property
    def hosts_per_leaf(self) -> int:
        """Hosts below one leaf."""
        return self.hosts // self.leaves

    @property
    def first_uplink(self) -> int:
        """Number of the first leaf -> spine port; uplinks and downlinks follow without a gap."""
        return self.hosts

    @property
    def first_downlink(self) -> int:
        """Number of the first spine -> leaf port."""
        return self.hosts + self.leaves * self.spines

    @property
    def stage_first(self) -> tuple[int, ...]:
        """First port of each stage: NICs, uplinks, downlinks, deliveries; and their number."""
        out = self.hosts + 2 * self.leaves * self.spines
        return 0, self.hosts, self.first_downlink, out, out + self.hosts

    def leaves_of(self, hosts: IntArray) -> I64:
        """The leaf above each of some hosts, int64."""
        return hosts.astype(np.int64) // self.hosts_per_leaf

    def uplink(self, leaf: int, spine: int) -> int:
        """Port number of leaf -> spine."""
        return self.first_uplink + leaf * self.spines + spine

    def downlink(self, spine: int, leaf: int) -> int:
        """Port number of spine -> leaf."""
        return self.first_downlink + spine * self.leaves + leaf

    def path(self, src: int, dst: int, number: int) -> tuple[int, ...]:
        """Ports from ``src`` to ``dst``: two inside a leaf, four through spine ``number``."""
        up, down = self.leaf_of(src), self.leaf_of(dst)
        if up == down:
            return (self.nic(src), self.delivery(dst))
        return (
            self.nic(src),
            self.uplink(up, number),
            self.downlink(number, down),
            self.delivery(dst),
        )

    def port_gbps(self) -> F64:
        """Wire rate of each port in Gb/s, without ``slow_ports``; float64."""
        rate = np.full(self.ports, self.gbps)
        if self.uplink_gbps is not None:
            rate[self.first_uplink : self.first_delivery] = self.uplink_gbps
        return rate

    def port_ends(self) -> I64:
        """Switches that each port's link leaves and reaches, int64: leaves, then spines.

        -1 for hosts.
        """
        leaf, spine = np.arange(self.leaves), self.leaves + np.arange(self.spines)
        near, host = np.repeat(leaf, self.hosts_per_leaf), np.full(self.hosts, -1)
        up = np.repeat(leaf, self.spines), np.tile(spine, self.leaves)
        down = np.repeat(spine, self.leaves), np.tile(leaf, self.spines)
        ends = ((host, near), up, down, (near, host))
        return np.concatenate([np.stack(pair, axis=1) for pair in ends])

    def between(self, src: IntArray, dst: IntArray, path: IntArray) -> I64:
        """Uplink and downlink of given paths; -1 below one leaf.

        Args:
            src: Sending hosts.
            dst: Receiving hosts.
            path: Spine of each.
        """
        up, down = self.leaves_of(src), self.leaves_of(dst)
        ports = np.stack(
            [
                self.first_uplink + up * self.spines + path,
                self.first_downlink + path.astype(np.int64) * self.leaves + down,
            ],
            axis=1,
        )
        return np.asarray(np.where((up == down)[:, None], -1, ports))

    def groups(self) -> list[I64]:
        """Each switch by itself."""
        return [np.arange(self.leaves + self.spines)]

    def port_name(self, port: int) -> str:
        """A port by its two ends."""
        if port < self.first_uplink:
            return f"host {port} -> leaf {self.leaf_of(port)}"
        if port < self.first_downlink:
            leaf, spine = divmod(port - self.first_uplink, self.spines)
            return f"leaf {leaf} -> spine {spine}"
        if port < self.first_delivery:
            spine, leaf = divmod(port - self.first_downlink, self.leaves)
            return f"spine {spine} -> leaf {leaf}"
        host = port - self.first_delivery
        return f"leaf {self.leaf_of(host)} -> host {host}"

    def routes(self, src: IntArray, dst: IntArray) -> Routes:
        """The paths of each pair of hosts, one a spine; below one leaf they are all the same.

        Args:
            src: Sending hosts.
            dst: Receiving hosts.
        """
        near = self.leaves_of(src) == self.leaves_of(dst)
        return Routes(
            count=np.full(len(src), self.spines, dtype=np.int64),
            links=np.where(near, 2, 4),
            row=np.zeros(len(src), dtype=np.uint32),
            table=np.empty((0, 0), dtype=np.uint32),
        )
