"""Routes and nexthop objects by raw netlink (``linux/rtnetlink.h``, ``linux/nexthop.h``).

Just the messages that the nexthop actuator needs, without a library: a replacement is one system
call with a message of some 50 bytes.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .._netlink import aligned, attributes  # noqa: TID252 - exported under another name
from .base import Refused
from .watcher import ANSWER_S, ERROR

NEW_ROUTE, DELETE_ROUTE, GET_ROUTE = 24, 25, 26
NEW_NEXTHOP, DELETE_NEXTHOP, GET_NEXTHOP = 104, 105, 106
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
_REQUEST, _ACKNOWLEDGE, _DUMP = 0x1, 0x4, 0x300
_CAPPED, _HAS_ATTRIBUTES = 0x100, 0x200
_DONE = 3
_INTERRUPTED = 0x10  # NLM_F_DUMP_INTR: what was told so far is of several states
_MOST_DUMPS = 20
_SOL_NETLINK, _EXTENDED_ERRORS = 270, 11
_TEXT_OF_ERROR = 1

NHA_ID, NHA_GROUP, NHA_GROUP_TYPE, NHA_OIF, NHA_GATEWAY, NHA_RES_GROUP = 1, 2, 3, 5, 6, 12
_RESILIENT = 1
_RES_BUCKETS, _RES_IDLE_TIMER = 1, 2
_NESTED = 0x8000
MOST_WEIGHT = 256

RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY = 1, 2, 4, 5, 6
RTA_NH_ID = 30
_RTA_CACHEINFO = 12
_RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT = 27, 28, 29
_PATH_OF_ROUTE = {RTA_OIF, RTA_GATEWAY, 9, 18, 21, 22}  # MULTIPATH, VIA, ENCAP_TYPE, ENCAP
_CLONED, _ONLINK = 0x200, 0x4
_MAIN_TABLE, _STATIC, _UNICAST, _ANY_SCOPE = 254, 4, 1, 255
_KINDS = {1: "unicast", 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
_METRIC_OF_IPV6 = 1024  # IP6_RT_PRIO_USER: what the kernel makes of 0
_UDP = 17

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, flags: int, body: bytes) -> bytes:
    """A request that is acknowledged."""
    return (
        struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST | _ACKNOWLEDGE, 1, 0) + body
    )


def family(address: Address | Network) -> int:
    """The address family as the kernel numbers it."""
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def nexthop(number: int, gateway: Address, device: int) -> bytes:
    """Create a nexthop; refused where the number is taken."""
    return message(
        NEW_NEXTHOP,
        CREATE | EXCLUSIVE,
        struct.pack("=BBBBI", family(gateway), 0, _STATIC, 0, 0)
        + attribute(NHA_ID, struct.pack("=I", number))
        + attribute(NHA_OIF, struct.pack("=I", device))
        + attribute(NHA_GATEWAY, gateway.packed),
    )


def group(
    number: int,
    members: Iterable[tuple[int, int]],
    *,
    buckets: int | None = None,
    idle_s: float = 0.0,
    replace: bool = False,
) -> bytes:
    """Create a group of nexthops, or replace one.

    Args:
        number: Its number.
        members: Nexthop and weight (1 to 256) of each.
        buckets: Hash buckets of a resilient group; None for one by hash thresholds.
        idle_s: A bucket of a resilient group moves when it was idle for so long.
        replace: It exists.

    Returns:
        The request.
    """
    # The ninth bit of a weight came with Linux 6.12; 256 is the largest that eight hold.
    packed = b"".join(struct.pack("=IBBH", n, weight - 1, 0, 0) for n, weight in members)
    body = struct.pack("=BBBBI", 0, 0, _STATIC, 0, 0)
    body += attribute(NHA_ID, struct.pack("=I", number)) + attribute(NHA_GROUP, packed)
    if buckets is not None:
        ticks = round(idle_s * 100)  # clock_t: hundredths of a second on every architecture
        inner = attribute(_RES_BUCKETS, struct.pack("=H", buckets))
        inner += attribute(_RES_IDLE_TIMER, struct.pack("=I", ticks))
        body += attribute(NHA_GROUP_TYPE, struct.pack("=H", _RESILIENT))
        body += attribute(NHA_RES_GROUP | _NESTED, inner)
    return message(NEW_NEXTHOP, REPLACE if replace else CREATE | EXCLUSIVE, body)


def delete_nexthop(number: int) -> bytes:
    """Delete a nexthop or a group, and with it the routes that use it."""
    body = struct.pack("=BBBBI", 0, 0, 0, 0, 0) + attribute(NHA_ID, struct.pack("=I", number))
    return message(DELETE_NEXTHOP, 0, body)


@dataclass(frozen=True, slots=True)
class Route:
    """One route as the kernel told it.

    Attributes:
        head: Its ``rtmsg``.
        tail: Kind and value of its attributes.
    """

    head: bytes
    tail: tuple[tuple[int, bytes], ...]

    def value(self, kind: int) -> bytes | None:
        """The value of one attribute."""
        return next((value for own, value in self.tail if own == kind), None)

    @property
    def metric(self) -> int:
        """Lower is preferred."""
        value = self.value(RTA_PRIORITY)
        return 0 if value is None else int(struct.unpack("=I", value)[0])

    @property
    def kind(self) -> str:
        """What it does with packets, as iproute2 calls it; ``unicast`` sends them on."""
        return _KINDS.get(self.head[7], f"type {self.head[7]}")

    def is_through(self, number: int) -> bool:
        """Whether it goes through this nexthop or group."""
        return self.value(RTA_NH_ID) == struct.pack("=I", number)

    def restored(self) -> bytes:
        """A request that puts it back; refused where its destination and metric are taken."""
        drop = {_RTA_CACHEINFO}
        if self.value(RTA_NH_ID) is not None:
            drop |= _PATH_OF_ROUTE  # told beside the number, not taken beside it
        return self._new(self.head, [(k, v) for k, v in self.tail if k not in drop], EXCLUSIVE)

    def through(self, number: int) -> bytes:
        """A request that sends it through a nexthop group; metric and source address stay."""
        drop = {_RTA_CACHEINFO, RTA_NH_ID, *_PATH_OF_ROUTE}
        head = self.head[:6] + bytes([0]) + self.head[7:8] + bytes(4)  # scope: everywhere
        kept = [(k, v) for k, v in self.tail if k not in drop]
        return self._new(head, [*kept, (RTA_NH_ID, struct.pack("=I", number))], REPLACE)

    def with_metric(self, metric: int) -> Route:
        """The same route with another metric, beside which both may be there."""
        tail = [(kind, value) for kind, value in self.tail if kind != RTA_PRIORITY]
        return Route(self.head, (*tail, (RTA_PRIORITY, struct.pack("=I", metric))))

    def deleted(self) -> bytes:
        """A request that deletes the route of its destination and metric, whatever its path."""
        head = struct.pack("=BBBBBBBBI", *self.head[:2], 0, 0, self.head[4], 0, _ANY_SCOPE, 0, 0)
        kept = [(k, v) for k, v in self.tail if k in (RTA_DST, RTA_PRIORITY)]
        return message(DELETE_ROUTE, 0, head + b"".join(attribute(k, v) for k, v in kept))

    def _new(self, head: bytes, tail: Sequence[tuple[int, bytes]], where: int) -> bytes:
        flags = struct.unpack("=I", head[8:12])[0] & _ONLINK
        body = head[:8] + struct.pack("=I", flags) + b"".join(attribute(k, v) for k, v in tail)
        return message(NEW_ROUTE, CREATE | where, body)


def new_route(destination: Network) -> Route:
    """A static route of the main table with the kernel's own metric, without a path yet."""
    head = struct.pack("=BBBBBBBBI", family(destination), destination.prefixlen, 0, 0,
                       _MAIN_TABLE, _STATIC, 0, _UNICAST, 0)  # fmt: skip
    tail = [(RTA_DST, destination.network_address.packed)]
    if destination.version == 6:
        tail.append((RTA_PRIORITY, struct.pack("=I", _METRIC_OF_IPV6)))
    return Route(head, tuple(tail))


class Netlink:
    """A socket to the kernel's routing, in the network namespace of the thread that opens it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.settimeout(ANSWER_S)
        self._socket.setsockopt(_SOL_NETLINK, _EXTENDED_ERRORS, 1)
        self._socket.bind((0, 0))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(self, request: bytes) -> None:
        """Send a request and wait for the acknowledgement.

        Args:
            request: As made here.

        Raises:
            Refused: With the kernel's own words.
            OSError: No answer.
        """
        self._socket.send(request)
        for _ in self._answers(until_acknowledged=True):
            pass

    def routes(self, destination: Network) -> list[Route]:
        """The main table's routes to exactly this destination, the preferred one first.

        Of any kind, but for packets of any type of service alone.
        """
        body = struct.pack("=BBBBBBBBI", family(destination), 0, 0, 0, 0, 0, 0, 0, 0)
        wanted = (destination.prefixlen, 0, _MAIN_TABLE)
        any_address = bytes(len(destination.network_address.packed))
        found = []
        for data in self._dump(message(GET_ROUTE, _DUMP, body)):
            route = Route(data[:12], tuple(attributes(data[12:])))
            flags = struct.unpack("=I", data[8:12])[0]
            address = route.value(RTA_DST) or any_address
            if (
                (data[1], data[3], data[4]) == wanted
                and address == destination.network_address.packed
                and not flags & _CLONED
            ):
                found.append(route)
        return sorted(found, key=lambda route: route.metric)

    def nexthops(self) -> set[int]:
        """The numbers of all nexthops and groups.

        Raises:
            Refused: The kernel has none.
        """
        found = set()
        body = struct.pack("=BBBBI", 0, 0, 0, 0, 0)
        for data in self._dump(message(GET_NEXTHOP, _DUMP, body)):
            values = dict(attributes(data[8:]))
            found.add(struct.unpack("=I", values[NHA_ID])[0])
        return found

    def members(self, number: int) -> list[int] | None:
        """The nexthops of a group, none for a single nexthop; None where the number is free."""
        body = struct.pack("=BBBBI", 0, 0, 0, 0, 0) + attribute(NHA_ID, struct.pack("=I", number))
        self._socket.send(message(GET_NEXTHOP, 0, body))
        try:
            (answer,) = self._answers(until_acknowledged=True)
        except Refused:
            return None
        packed = dict(attributes(answer[2][8:])).get(NHA_GROUP, b"")
        return [member[0] for member in struct.iter_unpack("=IBBH", packed)]

    def path_of(
        self, destination: Address, source_port: int, port: int, source: Address | None
    ) -> Route:
        """The route that a UDP packet takes, by the kernel's own hash.

        Raises:
            Refused: It has none.
        """
        bits = destination.max_prefixlen
        source_bits = 0 if source is None else bits
        body = struct.pack("=BBBBBBBBI", family(destination), bits, source_bits, 0, 0, 0, 0, 0, 0)
        body += attribute(RTA_DST, destination.packed)
        if source is not None:
            body += attribute(RTA_SRC, source.packed)
        body += attribute(_RTA_IP_PROTO, bytes([_UDP]))
        body += attribute(_RTA_SPORT, struct.pack("!H", source_port))
        body += attribute(_RTA_DPORT, struct.pack("!H", port))
        self._socket.send(message(GET_ROUTE, 0, body))
        (answer,) = self._answers(until_acknowledged=True)
        return Route(answer[2][:12], tuple(attributes(answer[2][12:])))

    def _dump(self, request: bytes) -> list[bytes]:
        """All entries of a table as of one moment; asked again where it changed meanwhile.

        Raises:
            Refused: The kernel has no such table.
            OSError: No answer, or it changed each time.
        """
        for _ in range(_MOST_DUMPS):
            self._socket.send(request)
            answers = list(self._answers())
            if not any(flags & _INTERRUPTED for _, flags, _ in answers):
                return [body for kind, _, body in answers if kind != _DONE]
        raise OSError(errno.EBUSY, "the kernel's tables change while they are read")

    def _answers(self, *, until_acknowledged: bool = False) -> Iterator[tuple[int, int, bytes]]:
        """Kind, flags and body of each answer, to a dump's end itself or the acknowledgement."""
        while True:
            data = self._socket.recv(1 << 18)
            at = 0
            while at + 16 <= len(data):
                length, kind, flags, _, _ = struct.unpack_from("=IHHII", data, at)
                body = data[at + 16 : at + length]
                at += aligned(length)
                if kind == ERROR:
                    _raise(body, flags)
                    if until_acknowledged:
                        return
                    continue
                yield kind, flags, body
                if kind == _DONE:
                    return


def _raise(body: bytes, flags: int) -> None:
    """Raise what an error message says; nothing for an acknowledgement."""
    code = struct.unpack_from("=i", body)[0]
    if code == 0:
        return
    words = os.strerror(-code)
    if flags & _HAS_ATTRIBUTES:
        repeated = struct.unpack_from("=I", body, 4)[0]
        at = 4 + (16 if flags & _CAPPED else aligned(repeated))
        text = dict(attributes(body[at:])).get(_TEXT_OF_ERROR)
        if text:
            words += f" ({text.rstrip(bytes(1)).decode('ascii', 'replace')})"
    raise Refused(f"the kernel refuses: {words}")
