"""The sending end of a flow, a process of its own, with the engine inside: ``sender JSON``.

It is told where from and where to, the rate, and the engine or none. Commands are lines of JSON:
``prepare`` (a new engine, its flow on the primary), ``start`` (UDP at the rate, with ``on_s`` and
``off_s`` in bursts; with ``tcp`` as fast as it goes), ``stop``. It tells the first packet, each
move and each time in which it was not scheduled, by CLOCK_MONOTONIC, and what it has sent. The
engine decides inline, before each packet.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

from xtune.proofs.emulated.engine import HostEngine
from xtune.proofs.emulated.traffic import HEAD, Commands, tell

_TURN_S = 0.001  # the engine has its turn at least so often
_MOST_BEHIND_NS = 4_000_000  # what a late sender catches up with, an eighth of the queue
_PAUSE_NS = 20_000_000  # without a turn for so long: the machine had other things to do
_CHUNK = bytes(1 << 16)


class Paced:
    """UDP packets of one size at a steady rate, or in periodic bursts of it.

    Args:
        said: What the process was told.
        burst: Number of this burst.
        on_s: Sends for so long, then pauses for ``off_s``, and so on; 0: always.
        off_s: Length of the pauses.
    """

    def __init__(self, said: Mapping[str, Any], burst: int, on_s: float, off_s: float) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind((said["source"], 0))
        self._to = tuple(said["destination"])
        self._filling = bytes(said["packet_bytes"] - HEAD.size)
        self._gap_ns = said["packet_bytes"] * 8e3 / said["rate_mbps"]
        self._burst = burst
        self._on_ns, self._off_ns = int(on_s * 1e9), int(off_s * 1e9)
        self._begun_ns = time.monotonic_ns()
        self._due_ns = float(self._begun_ns)
        self.sent = 0
        self.unsent = 0

    def turn(self) -> float:
        """Send one packet if one is due; returns the time to the next one in s."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._send()
            self._due_ns = max(self._due_ns + self._gap_ns, now_ns - _MOST_BEHIND_NS)
            if self._on_ns:
                place = (self._due_ns - self._begun_ns) % (self._on_ns + self._off_ns)
                if place >= self._on_ns:
                    self._due_ns += self._on_ns + self._off_ns - place
        return max(0.0, (self._due_ns - time.monotonic_ns()) / 1e9)

    def close(self) -> dict[str, Any]:
        """End it; what was sent."""
        self._socket.close()
        return {
            "sent": self.sent, "unsent": self.unsent, "burst": self._burst,
            "seconds": (time.monotonic_ns() - self._begun_ns) / 1e9,
        }  # fmt: skip

    def _send(self) -> None:
        try:
            head = HEAD.pack(self._burst, self.sent, time.time_ns())
            self._socket.sendto(head + self._filling, self._to)
        except OSError:  # no route, or no room in the host itself
            self.unsent += 1
            return
        self.sent += 1


class Stream:
    """One TCP connection, as fast as it goes.

    Args:
        said: What the process was told.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._socket = socket.create_connection(
            tuple(said["destination"]), 10.0, (said["source"], 0)
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.setblocking(False)
        self._begun_ns = time.monotonic_ns()
        self.sent = 0

    def turn(self) -> float:
        """Send what the kernel takes; returns how long to wait in s."""
        try:
            while True:
                self.sent += self._socket.send(_CHUNK)
        except OSError:  # the buffer is full, or the connection is gone
            return _TURN_S

    def close(self) -> dict[str, Any]:
        """End it at once, whatever is still on the way."""
        self._socket.close()
        return {"sent": self.sent, "seconds": (time.monotonic_ns() - self._begun_ns) / 1e9}


class Sender:
    """The process.

    Args:
        said: What it was told.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said
        self._engine: HostEngine | None = None
        self._traffic: Paced | Stream | None = None
        self._burst = 0
        self._state: tuple[bool, list[str]] | None = None

    def run(self) -> None:
        """Serve until the standard input ends."""
        commands = Commands()
        tell("ready")
        wait_s = _TURN_S
        last_ns = time.monotonic_ns()
        while not commands.ended:
            for command in commands.take(min(wait_s, _TURN_S)):
                getattr(self, f"_{command.pop('do')}")(**command)
            now_ns = time.monotonic_ns()
            if self._traffic is not None:
                if now_ns - last_ns > _PAUSE_NS:
                    tell("paused", at_ns=last_ns, ms=(now_ns - last_ns) / 1e6)
                self._decide()
                wait_s = self._traffic.turn()
            elif self._engine is not None:
                self._engine.listen()
            last_ns = now_ns
        self._drop_engine()

    def _prepare(self) -> None:
        self._drop_engine()
        if self._said["engine"] is not None:
            self._engine = HostEngine(self._said["engine"])
        tell("prepared")

    def _start(self, *, on_s: float = 0.0, off_s: float = 0.0, tcp: bool = False) -> None:
        self._burst += 1
        self._decide()
        if tcp:
            self._traffic = Stream(self._said)
        else:
            self._traffic = Paced(self._said, self._burst, on_s, off_s)
        at_ns = time.monotonic_ns()
        self._traffic.turn()
        tell("first", at_ns=at_ns)

    def _stop(self) -> None:
        traffic, self._traffic = self._traffic, None
        tell("stopped", **({"sent": 0} if traffic is None else traffic.close()))

    def _decide(self) -> None:
        if self._engine is None:
            return
        moved = self._engine.turn()
        if moved is not None:
            tell("moved", at_ns=moved[0], shares=moved[1])
        state = (self._engine.alive, self._engine.dead)
        if state != self._state:
            self._state = state
            tell("state", at_ns=time.monotonic_ns(), alive=state[0], dead=state[1])

    def _drop_engine(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.__exit__(None, None, None)
            self._state = None


if __name__ == "__main__":
    Sender(json.loads(sys.argv[1])).run()
