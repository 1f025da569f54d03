"""How a command that runs until somebody ends it is ended, and what it says meanwhile."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from xtune.console import note, visible

REPORT_S = 60.0  # a line in a log, where no terminal shows a status line
_LOOK_S = 0.1  # a request to stop is seen within


class Stop:
    """Turns an interrupt (Ctrl-C) or SIGTERM into a request, so that no write is torn apart.

    A second one no longer waits for the write that is under way. A context manager: the signals
    are taken over inside, where this is the main thread; another cannot.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self.asked = False

    def install(self) -> None:
        """Take the signals over."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._take)

    def __enter__(self) -> Stop:
        self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> bool:
        """Sleep, at most until somebody asks to stop; whether somebody did."""
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            # A handler must not touch what the wait may hold: an Event's set waits for itself.
            time.sleep(min(left, _LOOK_S))
        return self.asked

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


class Status:
    """One line on stderr that says how it goes: in place on a terminal, else now and then.

    Args:
        every_s: Time between lines where stderr is no terminal.
    """

    def __init__(self, every_s: float = REPORT_S) -> None:
        self._every_s = every_s
        self._said_s = -every_s
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """Say it now, or leave it out where a line was said just before."""
        if self._terminal:
            print(f"\r{visible(text)}\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = True
        elif time.monotonic() - self._said_s >= self._every_s:
            self._said_s = time.monotonic()
            note(text)

    def note(self, text: str) -> None:
        """Say something in a line of its own."""
        self.end()
        note(text)

    def end(self) -> None:
        """Leave the status line as it is and go to the next."""
        if self._shown:
            print(file=sys.stderr)
            self._shown = False
