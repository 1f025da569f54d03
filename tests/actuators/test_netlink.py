"""Dumps that the kernel says it could not tell as of one moment."""

from __future__ import annotations

import ipaddress
import socket
import struct

import pytest

from xtune.policies.actuators import netlink

NET = ipaddress.ip_network("198.19.0.0/16")
DONE, INTERRUPTED = 3, 0x10


def answer(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2 | flags, 1, 0) + body


def told(metrics: list[int], flags: int = 0) -> list[bytes]:
    """A dump of routes to one destination; the flags are those of its last messages."""
    head = struct.pack("=BBBBBBBBI", 2, 16, 0, 0, 254, 4, 0, 1, 0)
    destination = netlink.attribute(netlink.RTA_DST, NET.network_address.packed)
    routes = [
        answer(
            netlink.NEW_ROUTE,
            head
            + destination
            + netlink.attribute(netlink.RTA_PRIORITY, struct.pack("=I", metric)),
        )
        for metric in metrics
    ]
    return [*routes, answer(DONE, bytes(4), flags)]


class Kernel:
    """Stands for the kernel's end: each request gets the next dump."""

    def __init__(self, dumps: list[list[bytes]]) -> None:
        self.dumps, self.waiting, self.asked = dumps, list[bytes](), 0

    def settimeout(self, value: float) -> None: ...

    def setsockopt(self, *values: int) -> None: ...

    def bind(self, address: tuple[int, int]) -> None: ...

    def close(self) -> None: ...

    def send(self, request: bytes) -> None:
        assert not self.waiting  # all of the last dump was read
        self.waiting = list(self.dumps[min(self.asked, len(self.dumps) - 1)])
        self.asked += 1

    def recv(self, size: int) -> bytes:
        return self.waiting.pop(0)


def test_an_interrupted_dump_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([told([], INTERRUPTED), told([7, 7], INTERRUPTED), told([9, 7])])
    monkeypatch.setattr(socket, "socket", lambda *_: kernel)
    assert [route.metric for route in netlink.Netlink().routes(NET)] == [7, 9]
    assert kernel.asked == 3


def test_a_table_that_never_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([told([7], INTERRUPTED)])
    monkeypatch.setattr(socket, "socket", lambda *_: kernel)
    with pytest.raises(OSError, match="change while they are read"):
        netlink.Netlink().routes(NET)
