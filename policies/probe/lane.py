"""One path of an agent: its socket, and what its probes came to."""

from __future__ import annotations

import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable

from .arrivals import ANCILLARY, Arrivals
from .config import Path
from .delay import Delay
from .packet import (
    ECN_CAPABLE,
    PAYLOAD_BYTES,
    RECEIVE_BUFFER,
    SEQUENCES,
    Codec,
    Drop,
    Packet,
    ends,
)
from .sources import Sources
from .tally import Outcome, Tally

_LOG = logging.getLogger("xtune")
_BATCH = 256  # packets taken from one socket before the others have their turn
# This host's own queue is full: nothing left it, so nothing was lost on the path.
_NOT_SENT = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)


class Lane:
    """Sends the probes of one path and takes their answers.

    Args:
        path: The path.
        codec: Under the key that the reflector has too.
        timeout_ns: A probe without an answer for so long is lost.
        sources: Of this end.
        clock: CLOCK_MONOTONIC in ns.
        wall: CLOCK_REALTIME in ns, as the kernel stamps packets.
        delay: Tells occupancy by round trips.

    Attributes:
        counts: Drops by reason, ``unsent``, ``send_failed`` and ``receive_failed``.
    """

    def __init__(
        self,
        path: Path,
        codec: Codec,
        timeout_ns: int,
        sources: Sources,
        clock: Callable[[], int],
        wall: Callable[[], int],
        delay: Delay | None = None,
    ) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.sources = sources
        self.socket: socket.socket | None = None
        self._tally = Tally(timeout_ns, delay)
        self._codec = codec
        self._clock, self._wall = clock, wall
        self._sequence = 0
        self._stamp_ns = 0
        self._arrivals = Arrivals(clock, wall)
        self._out = self._back = b""
        self._said = False
        self.reading = self._tally.reading

    def send(self) -> None:
        """Send one probe; a path that cannot even be sent on loses it in time, like any other."""
        signal = self.sources.signal()
        # A time never comes twice and never goes back, which is what tells a replayed packet.
        self._stamp_ns = max(self._wall(), self._stamp_ns + 1)
        sequence, self._sequence = self._sequence, (self._sequence + 1) % SEQUENCES
        packet = Packet(False, sequence, self.path.number, self._stamp_ns, signal)
        now_ns = self._clock()
        try:
            self._transmit(packet)
        except OSError as error:
            if error.errno in _NOT_SENT:
                self.counts["unsent"] += 1
                return
            self._fail(error)
        self._tally.sent(sequence, self._stamp_ns, now_ns)

    def drain(self, outcomes: list[Outcome]) -> bool:
        """Take the answers that have arrived.

        Args:
            outcomes: Grows by what became of the probes.

        Returns:
            Whether the socket is empty now.
        """
        channel = self.socket
        if channel is None:
            return True
        for _ in range(_BATCH):
            try:
                payload, ancillary, _, _ = channel.recvmsg(PAYLOAD_BYTES + 1, ANCILLARY)
            except BlockingIOError:
                self._arrivals.emptied()
                return True
            except OSError:  # an unreachable port or host, as told by ICMP: the probe times out
                self.counts["receive_failed"] += 1
                continue
            self._take(payload, self._arrivals.when(ancillary), outcomes)
        return False

    def expire(self, now_ns: int, outcomes: list[Outcome]) -> None:
        """Give up the probes that have waited too long.

        Args:
            now_ns: A time before which all that had arrived was drained.
            outcomes: Grows by them.
        """
        outcomes += self._tally.expire(now_ns)

    def close(self) -> None:
        """Close the socket."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _transmit(self, packet: Packet) -> None:
        channel = self.socket or self._open()
        payload = self._codec.pack(packet, self._out)
        try:
            channel.send(payload)
        except ConnectionRefusedError:  # tells of an earlier probe, and this one did not leave
            channel.send(payload)

    def _open(self) -> socket.socket:
        channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._arrivals.watch(channel)
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            if self.path.ecn:
                channel.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECN_CAPABLE)
            if self.path.device is not None:
                name = self.path.device.encode()
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
            channel.bind(self.path.local)
            channel.connect(self.path.remote)  # the kernel drops what others send
        except OSError:
            channel.close()
            raise
        own = channel.getsockname()
        self._out, self._back = ends(own, self.path.remote), ends(self.path.remote, own)
        self.socket = channel
        return channel

    def _take(self, payload: bytes, arrived_ns: int, outcomes: list[Outcome]) -> None:
        packet = self._codec.unpack(payload, self._back, answer=True)
        if isinstance(packet, Drop):
            self.counts[packet] += 1
            return
        if packet.path != self.path.number:
            self.counts[Drop.MISDIRECTED] += 1
            return
        outcome = self._tally.answered(packet, self.sources.signal(), arrived_ns)
        if isinstance(outcome, Drop):
            self.counts[outcome] += 1
        elif outcome is not None:
            outcomes.append(outcome)

    def _fail(self, error: OSError) -> None:
        self.counts["send_failed"] += 1
        if not isinstance(error, ConnectionRefusedError):
            self.close()  # its address may have gone; the next probe asks for it anew
        if not self._said:
            self._said = True
            _LOG.warning("xtune: path %s cannot be sent on: %s", self.path.name, error)
