"""Lines for people, each kind once: an engine that fails at every bucket says so at one."""

from __future__ import annotations

import logging
import threading

_LOG = logging.getLogger("xtune")


class Notes:
    """What was said on this rank, whichever thread said it."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def say(self, kind: str, line: str) -> None:
        """Log a line, unless one of its kind was logged."""
        with self._lock:
            if kind in self._said:
                return
            self._said.add(kind)
        _LOG.warning("%s", line)
