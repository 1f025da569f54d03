"""How full a device's queue is, from the kernel by route netlink: what ``tc -s qdisc`` shows.

Message numbers and structures: linux/rtnetlink.h, linux/pkt_sched.h, linux/gen_stats.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

from .._netlink import aligned, attributes  # noqa: TID252 - exported under another name

_GET_QDISC, _NEW_QDISC, _ERROR, _DONE = 38, 36, 2, 3
_REQUEST, _DUMP = 0x1, 0x300
_ROOT = 0xFFFFFFFF
_KIND, _OPTIONS, _STATS2 = 1, 2, 7
_STATS_QUEUE = 3
_TBF_PARMS = 1
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_QDISC = struct.Struct("=B3xiIII")  # family, device, handle, parent, info
_QUEUE = struct.Struct("=II")  # packets, bytes
_U32 = struct.Struct("=I")
_TBF_LIMIT_AT = 24  # after two struct tc_ratespec of 12 bytes
_BUFFER_BYTES = 1 << 16
_WAIT_S = 0.05  # the kernel answers within the call; this bounds a lost answer


class Queue:
    """Backlog over limit of a device's root queue.

    tbf and bfifo are limited in bytes, pfifo in packets. Of other queues (mq, fq_codel,
    pfifo_fast) the kernel tells no limit of the whole: give it, in bytes.

    Args:
        device: The interface, in the network namespace of the process.
        limit: In the queue's unit; the kernel's own by default.
    """

    def __init__(self, device: str, limit: float | None = None) -> None:
        self._device = device
        self._limit = limit
        self._sequence = 0
        self._socket: socket.socket | None = None

    def read(self) -> float | None:
        """Occupancy 0..1; None where the limit is unknown.

        Raises:
            OSError: No such device, or netlink failed.
            ValueError: It has no queue.
        """
        try:
            index = socket.if_nametoindex(self._device)
        except OSError as error:  # its own text does not say which
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), self._device) from error
        for device, parent, found in self._dump():
            if device == index and parent == _ROOT:
                return _share(found, self._limit)
        raise ValueError(f"{self._device} has no queue")

    def _dump(self) -> list[tuple[int, int, dict[int, bytes]]]:
        try:
            return list(self._answers())
        except OSError:
            if self._socket is not None:
                self._socket.close()  # what it still holds belongs to a question that has failed
                self._socket = None
            raise

    def _answers(self) -> Iterator[tuple[int, int, dict[int, bytes]]]:
        if self._socket is None:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
            )
            self._socket.settimeout(_WAIT_S)
        self._sequence += 1
        body = _QDISC.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        length = _HEADER.size + len(body)
        self._socket.sendto(
            _HEADER.pack(length, _GET_QDISC, _REQUEST | _DUMP, self._sequence, 0) + body, (0, 0)
        )
        while True:
            data, (port, _) = self._socket.recvfrom(_BUFFER_BYTES)
            if port != 0:  # only the kernel is asked
                continue
            for kind, sequence, message in _messages(data):
                if sequence != self._sequence:
                    continue
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", message)[0] or errno.EPROTO
                    raise OSError(number, os.strerror(number))
                if kind == _NEW_QDISC:
                    _, device, _, parent, _ = _QDISC.unpack_from(message)
                    yield device, parent, dict(attributes(message[_QDISC.size :]))


def _share(found: dict[int, bytes], given: float | None) -> float | None:
    kind = found.get(_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
    queue = dict(attributes(found.get(_STATS2, b""))).get(_STATS_QUEUE)
    if queue is None:
        return None
    packets, backlog = _QUEUE.unpack_from(queue)
    limit = _limit(kind, found.get(_OPTIONS, b"")) if given is None else given
    if not limit:
        return None
    filled: int = packets if kind == "pfifo" else backlog
    return min(1.0, filled / limit)


def _limit(kind: str, options: bytes) -> int | None:
    if kind in ("pfifo", "bfifo") and len(options) >= _U32.size:
        return int(_U32.unpack_from(options)[0])
    if kind == "tbf":
        parameters = dict(attributes(options)).get(_TBF_PARMS, b"")
        if len(parameters) >= _TBF_LIMIT_AT + _U32.size:
            return int(_U32.unpack_from(parameters, _TBF_LIMIT_AT)[0])
    return None


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, sequence and body of each message."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, sequence, data[at + _HEADER.size : at + length]
        at += aligned(length)
