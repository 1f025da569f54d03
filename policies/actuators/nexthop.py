"""Linux nexthop groups: a route's traffic is shared over gateways by weights.

The kernel gives each flow a path by the hash of its addresses and ports. A change of weights is
one netlink message on a group that stays in use, so no packet is without a route meanwhile.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from . import netlink
from .base import Actuator, AfterKill, Refused, checked
from .lease import Lease, cannot_watch
from .netlink import Netlink, Route
from .watcher import Step

NUMBERS = range(0x78000000, 0x7FFFFFFF)  # of our nexthops and groups
LEASE_S = 5.0
LOOK_S = 1.0  # so often `renew` asks the kernel
_LONGEST_LEASE_S = 86400.0
_MOST_BUCKETS, _LONGEST_IDLE_S = 0xFFFF, 0xFFFFFFFF / 100
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
    address stay. Where the hash ignores ports, that is changed for the namespace as well. A link
    that goes down takes its nexthop with it, the last one the group and the route; the next
    `apply` makes again what is missing, once the links of the paths with a share are up. A route
    that others put in its place is the one to put back from then on; where they withdraw such a
    later one, it is not put back.

    Args:
        destination: Network in CIDR notation; the preferred route of the main table to exactly it
            is replaced, and made where there is none. One that drops packets (a blackhole) is
            refused; one for a type of service is left as it is, with the packets it takes.
        paths: The gateways.
        lease_s: Without `apply` or `renew` for so long, the watcher undoes all of it.
        buckets: Of a resilient group, in which a change of weights moves as few flows as it can;
            None for a group by hash thresholds.
        idle_s: In a resilient group only flows that paused for so long are moved.
        clock: Seconds, monotonic.

    Attributes:
        expired: How often the watcher had undone it, or was gone, when `apply` came.

    Raises:
        ValueError: No gateway, addresses of two families, or a number that cannot be.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._destination = ipaddress.ip_network(destination)
        self._gateways = [ipaddress.ip_address(path.address) for path in paths]
        if not paths or {a.version for a in self._gateways} != {self._destination.version}:
            raise ValueError(f"gateways to {destination} must be of its own address family")
        if not 0 < lease_s <= _LONGEST_LEASE_S:
            raise ValueError(f"lease_s: {lease_s} is not above 0 and at most {_LONGEST_LEASE_S:g}")
        if buckets is not None and not 1 <= buckets <= _MOST_BUCKETS:
            raise ValueError(f"buckets: {buckets} is not 1 to {_MOST_BUCKETS}")
        if not 0 <= idle_s <= _LONGEST_IDLE_S:
            raise ValueError(f"idle_s: {idle_s} is not 0 to {_LONGEST_IDLE_S:g}")
        self._paths = list(paths)
        self.path_count = len(paths)
        self.lease_s = lease_s
        self.expired = 0
        self._buckets, self._idle_s = buckets, idle_s
        self._clock = clock
        self._applied = False  # shares, and not undone since
        self._first: set[bytes] | None = None  # requests that put back what there was at first
        self._adopted = False  # the route to put back is not one of those
        self._made = False  # all of it, as far as is known
        self._lease: Lease | None = None
        self._policy_lease: Lease | None = None  # where the policy was changed later on
        self._restores_policy = False
        self._claim: socket.socket | None = None
        self._route = netlink.new_route(self._destination)
        self._group = 0
        self._members: list[int] = []
        self._in_use: set[int] = set()
        self._holds = True
        self._look_s = 0.0

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
        if not self._is_watched():
            self.expired += 1
            self._undo()
        with _kernel() as kernel:
            if self._lease is not None:
                self._give_way(kernel)
            if self._lease is not None:
                for lease in self._leases():
                    lease.renew()
                self._change(kernel, weights)
            if not self._is_watched():  # the watcher ended before it heard of that
                self.expired += 1
                self._undo()
            if self._lease is None:
                self._set_up(kernel, weights)
        self._applied = True
        self._in_use = {n for n, w in zip(self._members, weights, strict=True) if w}
        self._holds, self._look_s = True, self._clock() + LOOK_S

    def undo(self) -> None:
        """See `Actuator.undo`; a route that somebody else put in its place stays.

        Raises:
            Refused: The kernel did not take a step; the others were done.
        """
        self._applied, self._first = False, None
        self._undo()

    def _undo(self) -> None:
        failed = []
        if self._lease is not None:
            there, withdrawn = self._found()
            steps = self._undoing(existed=False) if withdrawn else None
            failed = self._lease.undo(steps, again=there)
            if self._policy_lease is not None:
                failed += self._policy_lease.undo(again=there)
        self._lease = self._policy_lease = None
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        if failed:
            raise Refused(f"{self.name}: not undone: {'; '.join(failed)}")

    def renew(self) -> bool:
        """See `Actuator.renew`; asks the kernel each `LOOK_S` whether it has it still."""
        leases = self._leases()
        if not leases:
            return not self._applied  # False: undone to be set up again, which then failed
        for lease in leases:
            lease.renew()
        now_s = self._clock()
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            self._holds = self._holds and self._is_there()
        return self._holds and self._is_watched()

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
        try:
            self._claim = self._claimed()
            *self._members, self._group = _free_numbers(kernel.nexthops(), len(self._paths) + 1)
            found = kernel.routes(self._destination)
            self._route = self._replaceable(found)
            first = {route.restored() for route in found} if self._first is None else self._first
            self._adopted = bool(found) and self._route.restored() not in first
            self._restores_policy = self._ignores_ports()
            assert self.lease_s is not None
            steps = self._undoing(existed=bool(found))
            self._lease = Lease(steps, self.lease_s, self._claim)
            self._make(kernel, weights)
            self._first = first
        except (Refused, OSError):
            with contextlib.suppress(Refused):  # what was refused first is what to tell
                self._undo()
            raise

    def _give_way(self, kernel: Netlink) -> None:
        """Undo where others took or withdrew the route: what they left is what to begin with."""
        routed = self._is_routed(kernel)
        if routed is False or (routed is None and self._found()[1]):
            self._undo()

    def _change(self, kernel: Netlink, weights: list[int]) -> None:
        if self._holds and not self._ignores_ports() and self._is_routed(kernel):
            with contextlib.suppress(Refused):  # of a nexthop that went with its link
                kernel.request(self._group_request(weights, replace=True))
                return
        self._holds = False  # until all of it is there
        self._make(kernel, weights)

    def _make(self, kernel: Netlink, weights: list[int]) -> None:
        """Whatever is missing of what the weights need; a path without a share needs nothing."""
        self._made = False
        paths = zip(self._members, weights, self._gateways, self._paths, strict=True)
        for number, weight, gateway, path in paths:
            if weight and kernel.members(number) is None:
                device = socket.if_nametoindex(path.device)
                kernel.request(netlink.nexthop(number, gateway, device))
        known = kernel.members(self._group) is not None
        kernel.request(self._group_request(weights, replace=known))
        if self._ignores_ports():
            self._hash_by_ports()
        kernel.request(self._route.through(self._group))
        self._made = True

    def _replaceable(self, found: Sequence[Route]) -> Route:
        """The preferred of the routes that were found, a new one where there is none.

        Raises:
            Refused: It drops packets, which nobody wants undone unasked, or another one has its
                metric, beside which it could not be put back.
        """
        if not found:
            return netlink.new_route(self._destination)
        if found[0].kind != "unicast":
            raise Refused(f"{self.name}: {self._destination} has a {found[0].kind} route")
        if any(other.metric == found[0].metric for other in found[1:]):
            raise Refused(f"{self.name}: {self._destination} has two routes of one metric")
        return found[0]

    def _is_routed(self, kernel: Netlink) -> bool | None:
        """Whether the destination's route is the group's; None where it is just missing."""
        found = kernel.routes(self._destination)
        if not found or found[0].metric > self._route.metric:
            return None
        return found[0].is_through(self._group)

    def _is_there(self) -> bool:
        """Whether the kernel has what was applied; a link that goes down takes it away."""
        try:
            with _kernel() as kernel:
                members = kernel.members(self._group)
                routed = self._is_routed(kernel)
            return members is not None and set(members) == self._in_use \
                and bool(routed) and not self._ignores_ports()  # fmt: skip
        except OSError:  # no answer says nothing
            return True

    def _found(self) -> tuple[bool, bool]:
        """Whether the group is there, and whether its route was withdrawn by who brought it.

        A group without its route has lost it to somebody: the kernel takes it with the group. A
        route that was there at the first `apply` is put back all the same.
        """
        try:
            with _kernel() as kernel:
                there = kernel.members(self._group) is not None
                routes = kernel.routes(self._destination)
        except OSError:
            return False, False
        gone = not any(route.is_through(self._group) for route in routes)
        return there, there and gone and self._made and self._adopted

    def _is_watched(self) -> bool:
        return all(lease.alive for lease in self._leases())

    def _claimed(self) -> socket.socket:
        """A name that the kernel keeps once for each network namespace, while this process lives.

        Two for one destination would put back each other's routes. The watcher keeps it too: who
        comes after a killed one begins when the route is back.
        """
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0xtune nexthop group {self._destination}")
        except OSError:
            claim.close()
            raise Refused(
                f"{self.name}: another one has {self._destination} already, or is being undone"
            ) from None
        return claim

    def _undoing(self, *, existed: bool) -> list[Step]:
        """Steps that put back what was there, and leave alone what is somebody else's by then.

        With the group goes the route as long as it is through the group, and no other route. So
        that packets have one all the time, the old one stands by meanwhile with a metric that is
        worse than usual ones, and by chance nobody else's.
        """
        spare = self._route.with_metric(self._group)
        steps: list[Step] = [{"netlink": netlink.delete_nexthop(self._group).hex()}]
        if existed:
            what = f"the route to {self._destination}"
            steps.insert(0, {"netlink": spare.restored().hex(), "optional": what})
            steps.append({"netlink": self._route.restored().hex(), "what": what})
            steps.append({"netlink": spare.deleted().hex()})
        steps += [{"netlink": netlink.delete_nexthop(n).hex()} for n in self._members]
        return [*steps, self._policy_step()] if self._restores_policy else steps

    def _leases(self) -> list[Lease]:
        return [lease for lease in (self._lease, self._policy_lease) if lease is not None]

    def _ignores_ports(self) -> bool:
        return self._policy_file().read_text(encoding="ascii").strip() == "0"

    def _hash_by_ports(self) -> None:
        """Also where another group changed the policy first, and put it back at its end."""
        if not self._restores_policy:
            assert self.lease_s is not None
            self._policy_lease = Lease([self._policy_step()], self.lease_s, self._claim)
            self._restores_policy = True
        self._policy_file().write_text(f"{_BY_PORTS}\n", encoding="ascii")

    def _policy_step(self) -> Step:
        return {"file": str(self._policy_file()), "text": "0\n"}

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


def _free_numbers(used: set[int], count: int) -> list[int]:
    """Numbers in a row that are not in use, by chance.

    Counting on from the largest in use would give somebody else the numbers of a group whose links
    are down just now.
    """
    while True:
        first = NUMBERS.start + secrets.randbelow(len(NUMBERS) - count)
        numbers = list(range(first, first + count))
        if used.isdisjoint(numbers):
            return numbers


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
