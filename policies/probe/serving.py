"""A server as a process: ready, until a signal, its counts at the end."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from typing import Protocol


class Server(Protocol):
    """What is served: an agent, a reflector, a decider."""

    def run(self, stop: Callable[[], bool]) -> None:
        """Serve until told to stop."""

    def counters(self) -> Mapping[str, int]:
        """Counts by name."""

    def close(self) -> None:
        """Close what it holds."""


class _Stop:
    """Set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self._told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)

    def __call__(self) -> bool:
        return self._told

    def _tell(self, number: int, frame: object) -> None:
        self._told = True


def serve(server: Server) -> None:
    """Run a server until a signal; prints ``ready``, and its counts at the end.

    Args:
        server: Closed at the end, however that comes.
    """
    try:
        stop = _Stop()
        print("ready", flush=True)
        server.run(stop)
        print(json.dumps(server.counters()), flush=True)
    finally:
        server.close()
