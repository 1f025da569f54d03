"""The reflector: answers each authenticated probe once, with a packet of the same size."""

from __future__ import annotations

import select
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from .config import Config
from .packet import (
    ECN_MASK,
    NOT_ECN,
    PAYLOAD_BYTES,
    RECEIVE_BUFFER,
    Address,
    Codec,
    Drop,
    Packet,
    ReplayWindow,
    ends,
)
from .readings import ReadingsWriter
from .sources import Sources, make_sources

_RECVTOS = 13  # IP_RECVTOS of linux/in.h; Python has no name for it before 3.12
_ANCILLARY = socket.CMSG_SPACE(1)
_WAIT_S = 0.1
_BATCH = 256
MOST_WINDOWS = 1 << 16  # paths of peers that are remembered; only who has the key adds one

#: What is counted, and published beside no readings.
COUNTED = (*Drop, "answered", "unsent", "receive_failed", "source_failed", "forgotten")


class Reflector:
    """Answers probes on all addresses that a configuration names.

    Args:
        config: The configuration.
        key: The shared secret.
        clock: CLOCK_MONOTONIC in ns.

    Raises:
        ValueError: No address.
        ReadingsError: Another reflector publishes its counts there.
        OSError: An address is taken or not this host's.
    """

    def __init__(
        self, config: Config, key: bytes, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        if not config.listen:
            raise ValueError("no address to listen on")
        source_ns = round(config.source_interval_s * 1e9)
        self._codec = Codec(key)
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._windows: OrderedDict[tuple[bytes, int], ReplayWindow] = OrderedDict()
        self._writer = ReadingsWriter(f"{config.readings}.reflector", (), COUNTED, clock)
        self._sockets: dict[socket.socket, tuple[Address, Sources]] = {}
        try:
            for listen in config.listen:
                channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
                self._sockets[channel] = (listen.local, make_sources(listen.sources, source_ns))
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
                channel.setsockopt(socket.IPPROTO_IP, _RECVTOS, 1)
                channel.bind(listen.local)
        except OSError:
            self.close()
            raise

    def run(self, stop: Callable[[], bool]) -> None:
        """Answer until told to stop.

        Args:
            stop: Asked ten times a second at least.
        """
        while not stop():
            ready, _, _ = select.select(self._sockets, (), (), _WAIT_S)
            for channel in ready:
                self._drain(channel)
            self._writer.beat()
            for place, value in enumerate(self.counters().values()):
                self._writer.count(place, value)

    def counters(self) -> dict[str, int]:
        """Counts by name."""
        failed = sum(sources.failed for _, sources in self._sockets.values())
        return {name: self._counts[name] for name in COUNTED} | {"source_failed": failed}

    def close(self) -> None:
        """Close sockets and the table of counts."""
        for channel in self._sockets:
            channel.close()
        self._writer.close()

    def _drain(self, channel: socket.socket) -> None:
        local, sources = self._sockets[channel]
        for _ in range(_BATCH):
            try:
                payload, ancillary, _, peer = channel.recvmsg(PAYLOAD_BYTES + 1, _ANCILLARY)
            except BlockingIOError:
                return
            except OSError:
                self._counts["receive_failed"] += 1
                continue
            request = self._accept(payload, ends(peer, local))
            if isinstance(request, Drop):
                self._counts[request] += 1
                continue
            answer = request._replace(answer=True, signal=sources.signal(), ecn=_ecn_of(ancillary))
            try:
                channel.sendto(self._codec.pack(answer, ends(local, peer)), peer)
                self._counts["answered"] += 1
            except OSError:  # the way back is gone, or full: the peer sees a lost probe
                self._counts["unsent"] += 1

    def _accept(self, payload: bytes, between: bytes) -> Packet | Drop:
        request = self._codec.unpack(payload, between, answer=False)
        if isinstance(request, Drop):
            return request
        key = between, request.path
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= MOST_WINDOWS:
                self._windows.popitem(last=False)
                self._counts["forgotten"] += 1
            window = self._windows[key] = ReplayWindow()
        else:
            self._windows.move_to_end(key)
        return request if window.take(request.sequence, request.stamp_ns) else Drop.REPLAYED


def _ecn_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The ECN field that a packet arrived with."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS) and data:
            return data[0] & ECN_MASK
    return NOT_ECN
