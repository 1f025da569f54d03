"""A process beside the benches of servers: one that sends back what it gets, or the server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

KEY = bytes(32)
ECHO = """
import socket
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind(("127.0.0.1", 0))
print(echo.getsockname()[1], flush=True)
while True:
    data, peer = echo.recvfrom(1400)
    echo.sendto(data, peer)
"""


@contextmanager
def running(*words: str) -> Iterator[tuple[str, int]]:
    """A Python process until the end of the block; gives its first line and its number."""
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"XTUNE_PROBE_KEY": KEY.hex()},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline(), process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port() -> int:
    """A UDP port of the loopback that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
