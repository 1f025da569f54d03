"""What sender and receiver agree on: the head of a packet, and lines of JSON."""

from __future__ import annotations

import json
import os
import select
import struct
import sys
from collections.abc import Iterator
from typing import Any

HEAD = struct.Struct("!IQQ")  # burst, number in it, time of sending by the wall clock in ns


class Commands:
    """Lines of JSON on the standard input, looked at without waiting; the end of it is the end.

    Attributes:
        ended: Whether there will be no more of them.
    """

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""

    def take(self, wait_s: float) -> Iterator[dict[str, Any]]:
        """The commands that are there, after waiting at most so long for one."""
        ready, _, _ = select.select([0], [], [], wait_s)
        if not ready:
            return
        said = os.read(0, 65536)
        self.ended = not said
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            yield json.loads(line)


def tell(event: str, **values: Any) -> None:
    """One line of JSON on the standard output."""
    print(json.dumps({"event": event, **values}), file=sys.stdout, flush=True)
