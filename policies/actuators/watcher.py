"""The watcher: a process of its own that undoes an actuator's changes when its owner is gone.

Run by path, so that it needs the standard library alone. It reads one line of JSON from its
standard input, ``{"lease_s": 5.0, "steps": [...]}``, answers ``ready``, and then waits: a ``.`` is
a renewal, a ``q`` the owner's own undoing. At the end of the input (the owner ended, however), or
where nothing comes for the length of the lease, it carries out the steps.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

ANSWER_S = 2.0  # the kernel answers within microseconds
ERROR = 2  # NLMSG_ERROR, also the acknowledgement
# What is to be deleted is not there, or somebody put another route where ours was: as wanted.
SETTLED = (errno.ENOENT, errno.ESRCH, errno.EEXIST)

# {"netlink": hexadecimal message, "what": its words} or {"file": path, "text": contents}; with
# "optional" it is no failure where it cannot be done.
Step = dict[str, str]


def carry_out(steps: Sequence[Step]) -> list[str]:
    """Do each step, whatever became of the ones before.

    Args:
        steps: Netlink requests, and files to be written, in order.

    Returns:
        What did not work, in words; what is settled already is no failure.
    """
    failed = []
    for step in steps:
        try:
            if "netlink" in step:
                _send(bytes.fromhex(step["netlink"]))
            else:
                with open(step["file"], "w", encoding="ascii") as file:
                    file.write(step["text"])
        except OSError as error:
            if error.errno not in SETTLED and "optional" not in step:
                what = step.get("what") or step.get("file", "netlink")
                failed.append(f"{what}: {error.strerror or error}")
    return failed


def _send(message: bytes) -> None:
    """Send one request to the kernel and wait for its acknowledgement."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(ANSWER_S)
        kernel.bind((0, 0))
        kernel.send(message)
        answer = kernel.recv(65536)
        _, kind, _, _, _, code = struct.unpack_from("=IHHIIi", answer)
        if kind == ERROR and code:
            raise OSError(-code, os.strerror(-code))


def wait(lease_s: float) -> bool:
    """Wait for the owner's end.

    Args:
        lease_s: How long it may be silent.

    Returns:
        Whether the changes are to be undone; False where the owner has done it.
    """
    while True:
        try:
            ready, _, _ = select.select([0], [], [], lease_s)
            said = os.read(0, 4096) if ready else b""
        except OSError:  # what the owner's end of the pipe says does not matter any more
            said = b""
        if not said:
            return True
        if b"q" in said:
            return False


def main() -> None:
    """Read the steps, wait, undo."""
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # they are meant for the job, not for its undoing
    told = b""
    while not told.endswith(b"\n"):
        more = os.read(0, 65536)
        if not more:
            return  # the owner ended before it changed anything
        told += more
    job: dict[str, Any] = json.loads(told)
    os.write(1, b"ready\n")
    if wait(job["lease_s"]):
        sys.exit(len(carry_out(job["steps"])))


if __name__ == "__main__":
    main()
