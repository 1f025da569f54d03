"""When a packet arrived, by the kernel, however late this process woke."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

_TIMESTAMPNS = 35  # SO_TIMESTAMPNS of linux/asm-generic/socket.h; Python has no name for it
_TIMESPEC = struct.Struct("@ll")
ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size)  # bytes that `recvmsg` is to have room for


class Arrivals:
    """Arrival times of the packets of one socket.

    Args:
        clock: CLOCK_MONOTONIC in ns.
        wall: CLOCK_REALTIME in ns, as the kernel stamps packets.
    """

    def __init__(self, clock: Callable[[], int], wall: Callable[[], int]) -> None:
        self._clock, self._wall = clock, wall
        self._emptied_ns = clock()

    def watch(self, channel: socket.socket) -> None:
        """Have the kernel stamp what a socket receives."""
        channel.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)

    def emptied(self) -> None:
        """Nothing waits in the socket now."""
        self._emptied_ns = self._clock()

    def when(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        """When the kernel had a packet, on CLOCK_MONOTONIC.

        The kernel stamps with the wall clock. Where that was set in between, the packet seems to
        have come later than now, or before the socket was last empty: then it came now.

        Args:
            ancillary: As `recvmsg` gave it with the packet.
        """
        now_ns = self._clock()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPNS) and len(data) >= _TIMESPEC.size:
                seconds, rest = _TIMESPEC.unpack_from(data)
                waited_ns: int = self._wall() - (seconds * 1_000_000_000 + rest)
                if 0 <= waited_ns <= now_ns - self._emptied_ns:
                    return now_ns - waited_ns
        return now_ns
