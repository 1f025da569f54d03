"""Linux nexthop groups: a route's traffic is shared over gateways by weights.

The kernel gives each flow a path by the hash of its addresses and ports. A change of weights is
one netlink message on a group that stays in use, so no packet is without a route meanwhile.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from . import netlink
from .base import Actuator, AfterKill, Refused, checked
from .lease import Lease, cannot_watch
from .netlink import Netlink, Route
from .watcher import Step

FIRST_NUMBER = 0x78000000  # ours are numbered from here on, or after the largest in use
LEASE_S = 5.0
_ADMINISTER_NETWORK = 1 << 12  # CAP_NET_ADMIN
_BY_PORTS = "1"  # fib_multipath_hash_policy: layer 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Gateway:
    """One path.

    Attributes:
        address: Of the next router.
        device: The interface it is reached on.
    """

    address: str
    device: str


class NexthopGroup(Actuator):
    """Shares of one destination's traffic over gateways.

    Changes the network namespace of the thread that calls: it adds a nexthop for each gateway, a
    group of them, and sends the destination's route through it; the route's metric and source
    address stay. Where the hash ignores ports, that is changed for the namespace as well.

    Args:
        destination: Network in CIDR notation; the preferred route of the main table to exactly it
            is replaced, and made where there is none.
        paths: The gateways.
        lease_s: Without `apply` or `renew` for so long, the watcher undoes all of it.
        buckets: Of a resilient group, in which a change of weights moves as few flows as it can;
            None for a group by hash thresholds.
        idle_s: In a resilient group only flows that paused for so long are moved.

    Attributes:
        expired: How often the watcher had undone it, or was gone, when `apply` came.

    Raises:
        ValueError: No gateway, or addresses of two families.
    """

    name: ClassVar[str] = "nexthop group"
    needs: ClassVar[tuple[str, ...]] = (
        "Linux with nexthop objects (5.3), resilient groups from 5.13",
        "CAP_NET_ADMIN in the network namespace",
        "the gateways' interfaces",
        "a Python interpreter for the watcher",
    )
    after_kill: ClassVar[AfterKill] = AfterKill.WATCHER

    def __init__(
        self,
        destination: str,
        paths: Sequence[Gateway],
        *,
        lease_s: float = LEASE_S,
        buckets: int | None = None,
        idle_s: float = 0.0,
    ) -> None:
        self._destination = ipaddress.ip_network(destination)
        self._gateways = [ipaddress.ip_address(path.address) for path in paths]
        if not paths or {a.version for a in self._gateways} != {self._destination.version}:
            raise ValueError(f"gateways to {destination} must be of its own address family")
        self._paths = list(paths)
        self.lease_s = lease_s
        self.expired = 0
        self._buckets, self._idle_s = buckets, idle_s
        self._lease: Lease | None = None
        self._group = 0
        self._members: list[int] = []

    def check(self) -> str | None:
        """See `Actuator.check`."""
        if not sys.platform.startswith("linux"):
            return f"needs Linux, not {sys.platform}"
        if not _may_administer():
            return "needs the right to administer the network (CAP_NET_ADMIN)"
        for path in self._paths:
            try:
                socket.if_nametoindex(path.device)
            except OSError:
                return f"no interface {path.device} in this network namespace"
        if not self._policy_file().exists():
            return f"needs {self._policy_file()}, to hash by ports"
        try:
            with _kernel() as kernel:
                kernel.nexthops()
        except (Refused, OSError) as error:
            return f"needs nexthop objects in the kernel (CONFIG_IP_ROUTE_MULTIPATH): {error}"
        return cannot_watch()

    def apply(self, shares: Sequence[float]) -> None:
        """See `Actuator.apply`; a share is met to about one part in 256 of the largest."""
        weights = weights_of(checked(shares, len(self._paths)))
        if self._lease is not None and not self._lease.alive:
            self.expired += 1
            self.undo()
        with _kernel() as kernel:
            if self._lease is None:
                self._set_up(kernel, weights)
                return
            self._lease.renew()
            kernel.request(self._group_request(weights, replace=True))

    def undo(self) -> None:
        """See `Actuator.undo`.

        Raises:
            Refused: The kernel did not take a step; the others were done.
        """
        lease, self._lease = self._lease, None
        failed = [] if lease is None else lease.undo()
        if failed:
            raise Refused(f"{self.name}: not undone: {'; '.join(failed)}")

    def renew(self) -> bool:
        """See `Actuator.renew`."""
        if self._lease is None:
            return True
        self._lease.renew()
        return self._lease.alive

    def path_of(
        self, source_port: int, *, port: int = 4791, source: str | None = None
    ) -> int | None:
        """The path that a UDP packet takes, by the kernel's own hash; for `source_ports.spread`.

        Args:
            source_port: Its source port.
            port: Its destination port; RoCE's by default.
            source: The address that its socket is bound to, part of the hash; None for none.

        Returns:
            Index of the path, None where it takes none of them.

        Raises:
            Refused: The kernel has no route at all.
        """
        bound = None if source is None else ipaddress.ip_address(source)
        with _kernel() as kernel:
            route = kernel.path_of(self._destination.network_address, source_port, port, bound)
        gateway = route.value(netlink.RTA_GATEWAY)
        packed = [address.packed for address in self._gateways]
        return packed.index(gateway) if gateway in packed else None

    def _set_up(self, kernel: Netlink, weights: list[int]) -> None:
        first = max(FIRST_NUMBER, *kernel.nexthops(), 0) + 1
        self._members = list(range(first, first + len(self._paths)))
        self._group = first + len(self._paths)
        found = kernel.routes(self._destination)
        route = found[0] if found else netlink.new_route(self._destination, 0)
        policy = self._policy_file().read_text(encoding="ascii")
        assert self.lease_s is not None
        lease = Lease(self._undoing(route if found else None, route, policy), self.lease_s)
        self._lease = lease
        try:
            for number, gateway, path in zip(
                self._members, self._gateways, self._paths, strict=True
            ):
                device = socket.if_nametoindex(path.device)
                kernel.request(netlink.nexthop(number, gateway, device))
            kernel.request(self._group_request(weights, replace=False))
            if policy.strip() == "0":
                self._policy_file().write_text(f"{_BY_PORTS}\n", encoding="ascii")
            kernel.request(route.through(self._group))
        except (Refused, OSError):
            with contextlib.suppress(Refused):  # what was refused first is what to tell
                self.undo()
            raise

    def _undoing(self, before: Route | None, route: Route, policy: str) -> list[Step]:
        """Steps that put back what was there. The route first: it goes with its nexthops."""
        requests = [route.deleted() if before is None else before.restored()]
        requests += [netlink.delete_nexthop(n) for n in (self._group, *self._members)]
        steps: list[Step] = [{"netlink": request.hex()} for request in requests]
        if policy.strip() == "0":
            steps.append({"file": str(self._policy_file()), "text": policy})
        return steps

    def _group_request(self, weights: list[int], *, replace: bool) -> bytes:
        members = [(n, w) for n, w in zip(self._members, weights, strict=True) if w]
        return netlink.group(
            self._group, members, buckets=self._buckets, idle_s=self._idle_s, replace=replace
        )

    def _policy_file(self) -> Path:
        version = f"ipv{self._destination.version}"
        return Path("/proc/sys/net") / version / "fib_multipath_hash_policy"


def weights_of(shares: Sequence[float]) -> list[int]:
    """Weights of a nexthop group, 1 to 256; 0 for a share of 0.

    Args:
        shares: One for each path.

    Returns:
        The largest is 256; one that would round to 0 gets 1.
    """
    largest = max(shares)
    most = netlink.MOST_WEIGHT
    return [max(1, round(most * share / largest)) if share else 0 for share in shares]


def _may_administer() -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    line = next((x for x in status.splitlines() if x.startswith("CapEff:")), "CapEff: 0")
    return bool(int(line.split()[1], 16) & _ADMINISTER_NETWORK)


@contextlib.contextmanager
def _kernel() -> Iterator[Netlink]:
    kernel = Netlink()
    try:
        yield kernel
    finally:
        kernel.close()
