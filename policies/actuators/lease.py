"""A lease on a change: while it is renewed the change stays, after that a watcher undoes it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .base import Refused
from .watcher import Step, carry_out

START_S = 30.0  # a Python process on a busy machine
_WATCHER = Path(__file__).with_name("watcher.py")


def cannot_watch() -> str | None:
    """Why no watcher can be started here; None where one can."""
    if not sys.executable or not _WATCHER.is_file():
        return "needs a Python interpreter and its own watcher.py as a file, to undo after a kill"
    return None


class Lease:
    """Starts a watcher that knows how to undo, before anything is changed.

    The watcher runs in the network namespace of the thread that starts it. It sees its owner end
    by the end of a pipe; where a child of the owner still holds that pipe, by the lease. A
    scheduler that kills a whole control group kills the watcher too.

    Args:
        steps: What undoes the change; must do no harm where it was not made.
        lease_s: How long the owner may be silent.
        claim: Kept open by the watcher as well, so that whoever waits for it to be closed waits
            for the undoing, too.

    Raises:
        Refused: The watcher did not start.
    """

    def __init__(
        self, steps: Sequence[Step], lease_s: float, claim: socket.socket | None = None
    ) -> None:
        self._steps = list(steps)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WATCHER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=() if claim is None else (claim.fileno(),),
            start_new_session=True,  # a signal to the job's process group is not for the watcher
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        told = json.dumps({"lease_s": lease_s, "steps": self._steps}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # it then says nothing, either
            self._in.write(told)
        ready, _, _ = select.select([self._out], [], [], START_S)
        if not ready or self._out.read(6) != b"ready\n":
            self._end(kill=True)
            raise Refused("the watcher process did not start")
        os.set_blocking(self._in.fileno(), False)

    @property
    def pid(self) -> int:
        """Process number of the watcher."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the watcher still waits; if not, it has undone the change or was killed."""
        return self._process.poll() is None

    def renew(self) -> None:
        """Say that the owner lives."""
        # A full pipe holds renewals that the watcher has yet to read; a broken one: see `alive`.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self._in.write(b".")

    def undo(self, steps: Sequence[Step] | None = None, *, again: bool = False) -> list[str]:
        """Undo in this process, then send the watcher away.

        Does nothing where the watcher has done it: what was changed since is somebody else's.

        Args:
            steps: Instead of those that the watcher knows.
            again: Also where the watcher has done it: the owner made the change once more.

        Returns:
            What did not work, in words.
        """
        if self._process.poll() == 0 and not again:
            self._end(kill=False)
            return []
        failed = carry_out(self._steps if steps is None else steps)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self._in.write(b"q")
        self._end(kill=False)
        return failed

    def _end(self, *, kill: bool) -> None:
        self._in.close()
        self._out.close()
        if kill:
            self._process.kill()
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
