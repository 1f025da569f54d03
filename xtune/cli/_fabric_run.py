"""Runs the management tools side by side and stamps their lines as they come."""

from __future__ import annotations

import errno
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xtune.collectors._fabric import Output

#: No reading of a fabric takes longer; a tool that does is ended, and what it said is kept.
TIMEOUT_S = 120.0
#: Of one command; 2048 nodes of 40 ports write 25 MB.
MAX_BYTES = 256 << 20
_PIECE = 1 << 16
_WAIT_S = 0.2


@dataclass(slots=True)
class _Stream:
    """One stream of a process."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    rest: bytes = b""
    size: int = 0

    def add(self, piece: bytes, now_ns: int) -> None:
        """Take bytes that have just arrived; what is beyond the limit is dropped."""
        self.size += len(piece)
        if self.size > MAX_BYTES:
            return
        *whole, self.rest = (self.rest + piece).split(b"\n")
        for line in whole:
            self.lines.append((now_ns, line.decode("utf-8", "replace").rstrip("\r")))


@dataclass(slots=True)
class _Child:
    """A process and its two streams."""

    process: subprocess.Popen[bytes]
    terminal: int
    out: _Stream = field(default_factory=_Stream)
    errors: _Stream = field(default_factory=_Stream)


def run_side_by_side(
    commands: Sequence[Sequence[str]],
    *,
    now_ns: Callable[[], int] = time.time_ns,
    stopped: Callable[[], bool] = lambda: False,
    timeout_s: float = TIMEOUT_S,
) -> list[Output]:
    """Run ``commands`` at once and return what each wrote.

    Standard output is a terminal to them, so that each line comes when it is written, not when a
    buffer is full: its time is then that of the reading.

    Args:
        commands: Few: all of them run at the same time.
        now_ns: The clock that lines are stamped with.
        stopped: Asked now and then; where it says yes the processes are ended.
        timeout_s: Time for all of them.
    """
    from xtune.collectors._fabric import Output

    children: list[_Child | None] = []
    try:
        with selectors.DefaultSelector() as selector:
            for command in commands:
                child = _start(command)
                children.append(child)
                if child is not None:
                    assert child.process.stderr is not None
                    errors = child.process.stderr.fileno()
                    selector.register(child.terminal, selectors.EVENT_READ, child.out)
                    selector.register(errors, selectors.EVENT_READ, child.errors)
            until = time.monotonic() + timeout_s
            while selector.get_map() and time.monotonic() < until and not stopped():
                for key, _ in selector.select(_WAIT_S):
                    piece = _read(key.fd)
                    if piece:
                        key.data.add(piece, now_ns())
                    else:
                        selector.unregister(key.fd)
        return [_output(child) if child else Output(missing=True) for child in children]
    finally:
        for child in children:
            if child is not None:
                _end(child)


def _start(command: Sequence[str]) -> _Child | None:
    """Start a command; None where there is none of that name."""
    try:
        terminal, theirs = os.openpty()
    except OSError:  # none to be had in this container: lines then come by the buffer
        terminal, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt is for us; the lines read until then are kept
        )
    except OSError:
        os.close(terminal)
        return None
    finally:
        os.close(theirs)
    return _Child(process, terminal)


def _read(handle: int) -> bytes:
    """What a stream has now; empty at its end."""
    try:
        return os.read(handle, _PIECE)
    except OSError as error:
        if error.errno != errno.EIO:  # how a terminal ends
            raise
        return b""


def _output(child: _Child) -> Output:
    from xtune.collectors._fabric import Output

    try:
        status: int | None = child.process.wait(timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        status = None
    return Output(
        lines=child.out.lines,  # a last line without its end is cut: not a line
        errors=[text for _, text in child.errors.lines],
        status=status,
    )


def _end(child: _Child) -> None:
    if child.process.poll() is None:
        child.process.kill()
    child.process.wait()
    os.close(child.terminal)
    if child.process.stderr is not None:
        child.process.stderr.close()
