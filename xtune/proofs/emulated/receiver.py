"""The receiving end of a flow, a process of its own: ``receiver '{"local": [address, port]}'``.

UDP and TCP on the same port. On the command ``{"do": "report"}`` it tells of each burst since the
last report what has arrived.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import sys
from array import array
from collections.abc import Iterator
from typing import Any

from xtune.proofs.emulated.measures import quantile
from xtune.proofs.emulated.traffic import HEAD, Commands, tell

_BUFFER_BYTES = 1 << 23  # what waits while this process is not scheduled
_RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE of asm-generic/socket.h
_TIMESTAMPNS = 35  # SO_TIMESTAMPNS
_TIMESPEC = struct.Struct("@ll")
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size)
_WAIT_S = 0.05
_QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


class Burst:
    """What has arrived of one burst of packets."""

    def __init__(self) -> None:
        self.received = self.size = self.reordered = 0
        self._highest = -1
        self._last_ns: int | None = None
        self._longest_gap_ns = 0
        self._delays = array("q")

    def take(self, number: int, sent_ns: int, arrived_ns: int, size: int) -> None:
        """One packet; times by the wall clock."""
        self.received += 1
        self.size += size
        self.reordered += number < self._highest
        self._highest = max(self._highest, number)
        if self._last_ns is not None:
            self._longest_gap_ns = max(self._longest_gap_ns, arrived_ns - self._last_ns)
        self._last_ns = arrived_ns
        self._delays.append(arrived_ns - sent_ns)

    def told(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "received": self.received, "bytes": self.size, "reordered": self.reordered,
            "longest_gap_ns": self._longest_gap_ns,
            "delay_ns": {f"{q:g}": quantile(self._delays, q) for q in _QUANTILES},
        }  # fmt: skip


class Receiver:
    """One port.

    Args:
        local: Address and port.
    """

    def __init__(self, local: tuple[str, int]) -> None:
        self._packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._packets.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        with contextlib.suppress(PermissionError):
            self._packets.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, _BUFFER_BYTES)
        self._packets.bind(local)
        self._door = socket.create_server(local)
        self._stream: socket.socket | None = None
        self._stream_bytes = 0  # of TCP since the last report
        self._bursts: dict[int, Burst] = {}

    def turn(self) -> None:
        """Take what is there, after waiting a little for it."""
        files = [self._packets, self._door]
        if self._stream is not None:
            files.append(self._stream)
        ready, _, _ = select.select([sys.stdin, *files], [], [], _WAIT_S)
        if self._packets in ready:
            for payload, arrived_ns in self._arrivals():
                self._take(payload, arrived_ns)
        if self._stream in ready:
            self._read()
        if self._door in ready:
            self._stream, _ = self._door.accept()

    def report(self) -> None:
        """Tell what has arrived since the last report."""
        bursts, self._bursts = self._bursts, {}
        stream, self._stream_bytes = self._stream_bytes, 0
        tell("report", bursts={str(k): v.told() for k, v in bursts.items()}, stream_bytes=stream)

    def _arrivals(self) -> Iterator[tuple[bytes, int]]:
        for _ in range(256):
            try:
                payload, ancillary, _, _ = self._packets.recvmsg(65536, _ANCILLARY)
            except BlockingIOError:
                return
            seconds, rest = _TIMESPEC.unpack_from(ancillary[0][2])
            yield payload, seconds * 1_000_000_000 + rest

    def _take(self, payload: bytes, arrived_ns: int) -> None:
        if len(payload) < HEAD.size:
            return
        burst, number, sent_ns = HEAD.unpack_from(payload)
        if burst not in self._bursts:
            self._bursts[burst] = Burst()
        self._bursts[burst].take(number, sent_ns, arrived_ns, len(payload))

    def _read(self) -> None:
        assert self._stream is not None
        try:
            size = len(self._stream.recv(1 << 20))
        except OSError:
            size = 0
        if not size:
            self._stream.close()
            self._stream = None
            return
        self._stream_bytes += size


def main() -> None:
    """Receive until the standard input ends."""
    address, port = json.loads(sys.argv[1])["local"]
    receiver = Receiver((address, port))
    commands = Commands()
    tell("ready")
    while not commands.ended:
        receiver.turn()
        for _ in commands.take(0.0):
            receiver.report()


if __name__ == "__main__":
    main()
