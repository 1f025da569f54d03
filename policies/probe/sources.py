"""What one end knows of its own link: queue, errors and margin, from the kernel's files and tc.

A source that fails, or cannot know yet, gives None; failures are counted and said once, never
raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .._files import at_once  # noqa: TID252 - exported under another name
from .packet import UNKNOWN, Signal

_LOG = logging.getLogger("xtune")
_NUMBER_BYTES = 4096  # more than any counter's digits; a page of sysfs


class SourceError(ValueError):
    """A source is described wrongly; the text names what."""


class Source(Protocol):
    """One measured value."""

    def read(self) -> float | None:
        """The value now, None if unknown.

        Raises:
            OSError, ValueError: It cannot be read.
        """


class Gauge:
    """A file that holds the value itself: a queue's depth, a module's margin.

    Args:
        path: The file; its first word is the number.
        unit: The value that counts as 1.
    """

    def __init__(self, path: str | Path, unit: float = 1.0) -> None:
        self._path, self._unit = Path(path), unit

    def read(self) -> float | None:
        """The file's number over the unit."""
        return number(self._path) / self._unit


class Waited:
    """The share of time that a counter of waiting ticks (``tx_wait``, ``port_xmit_wait``) grew.

    A stand-in for occupancy: a port that waits all the time has a full queue behind it.

    Args:
        path: The counter.
        tick_ns: Length of a tick.
        clock: Nanoseconds.
    """

    def __init__(
        self, path: str | Path, tick_ns: float, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._path, self._tick_ns, self._clock = Path(path), tick_ns, clock
        self._last: tuple[float, int] | None = None

    def read(self) -> float | None:
        """Since the last reading; unknown at the first, and where the counter went back."""
        now = number(self._path), self._clock()
        last, self._last = self._last, now
        if last is None or now[0] < last[0] or now[1] <= last[1]:
            return None
        return min(1.0, (now[0] - last[0]) * self._tick_ns / (now[1] - last[1]))


class ErrorRate:
    """Growth of error counters over that of all packets, the good ones and those with errors.

    Args:
        errors: Counters that are added up.
        packets: Counters of good packets that are added up.
    """

    def __init__(self, errors: Sequence[str | Path], packets: Sequence[str | Path]) -> None:
        self._errors, self._packets = [Path(p) for p in errors], [Path(p) for p in packets]
        self._last: tuple[float, float] | None = None

    def read(self) -> float | None:
        """Since the last packet that was counted; unknown before, and after a reset."""
        now = sum(map(number, self._errors)), sum(map(number, self._packets))
        last = self._last
        if last is None or now[0] < last[0] or now[1] < last[1]:
            self._last = now
            return None
        errors, good = now[0] - last[0], now[1] - last[1]
        if errors + good == 0:
            return None
        self._last = now
        return errors / (errors + good)


class MarkShare:
    """Share of packets that carried a congestion mark, by counters of both.

    Of what arrives: ``np_ecn_marked_roce_packets`` over packets received. Of what a host's own
    flows provoke: ``rp_cnp_handled`` over packets sent, an underestimate, since a receiver paces
    its notifications.

    Args:
        marked: Counters of marked packets, or of notifications, that are added up.
        packets: Counters of all packets that are added up.
    """

    def __init__(self, marked: Sequence[str | Path], packets: Sequence[str | Path]) -> None:
        self._marked, self._packets = [Path(p) for p in marked], [Path(p) for p in packets]
        self._last: tuple[float, float] | None = None

    def read(self) -> float | None:
        """Since the last packet that was counted; unknown before, and after a reset."""
        now = sum(map(number, self._marked)), sum(map(number, self._packets))
        last = self._last
        if last is not None and now[0] >= last[0] and now[1] == last[1]:
            return None  # without packets nothing could be marked
        self._last = now
        if last is None or now[0] < last[0] or now[1] < last[1]:
            return None
        return min(1.0, (now[0] - last[0]) / (now[1] - last[1]))


class Sources:
    """The sources of one end of a link, read no more often than their interval.

    Args:
        occupancy, error_rate, margin, marks: Sources, None where there is none.
        interval_ns: Least time between two readings.
        clock: CLOCK_MONOTONIC in ns.

    Attributes:
        failed: Readings that failed.
    """

    def __init__(
        self,
        occupancy: Source | None = None,
        error_rate: Source | None = None,
        margin: Source | None = None,
        marks: Source | None = None,
        *,
        interval_ns: int = 1_000_000,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.failed = 0
        self._sources = (occupancy, error_rate, margin, marks)
        self._said: set[str] = set()
        self._interval_ns = interval_ns
        self._clock = clock
        self._read_ns: int | None = None
        self._signal = UNKNOWN

    def signal(self) -> Signal:
        """The values of the last reading, which is now where that is long ago."""
        if self._sources == (None, None, None, None):
            return UNKNOWN
        now_ns = self._clock()
        if self._read_ns is None or now_ns - self._read_ns >= self._interval_ns:
            self._read_ns = now_ns
            self._signal = Signal(*map(self._value, Signal._fields, self._sources))
        return self._signal

    def _value(self, name: str, source: Source | None) -> float | None:
        if source is None:
            return None
        try:
            return source.read()
        except (OSError, ValueError) as error:
            self.failed += 1
            if name not in self._said:
                self._said.add(name)
                _LOG.warning("xtune: %s cannot be read, and is unknown: %s", name, error)
            return None


def number(path: Path) -> float:
    """The first word of a kernel file as a number.

    Raises:
        OSError, ValueError: There is none.
    """
    with open(path, "rb", buffering=0, opener=at_once) as file:
        words = (file.read(_NUMBER_BYTES) or b"").split(None, 1)
    if not words:
        raise ValueError(f"{path} is empty")
    try:
        return float(words[0])
    except ValueError as error:
        raise ValueError(f"{path} holds no number") from error


def make_sources(said: Mapping[str, Any], interval_ns: int) -> Sources:
    """Sources as a configuration describes them.

    Args:
        said: ``occupancy`` is one of ``{"tc": device, "limit": n}`` (n in the queue's own unit,
            where the kernel does not tell it), ``{"file": path, "limit": n}`` and ``{"wait": path,
            "tick_ns": t}``; ``errors`` is ``{"errors": [paths], "packets": [paths]}``; ``margin``
            is ``{"file": path, "unit": u}``; ``marks`` is ``{"marked": [paths], "packets":
            [paths]}``.
        interval_ns: Least time between two readings.

    Raises:
        SourceError: Anything else.
    """
    _only(said, "sources", "occupancy", "errors", "margin", "marks")
    errors, margin, marks = said.get("errors"), said.get("margin"), said.get("marks")
    if errors is not None:
        _only(errors, "errors", "errors", "packets")
    if margin is not None:
        _only(margin, "margin", "file", "unit")
    if marks is not None:
        _only(marks, "marks", "marked", "packets")
    try:
        return Sources(
            _occupancy(said.get("occupancy")),
            None if errors is None else ErrorRate(errors["errors"], errors["packets"]),
            None if margin is None else Gauge(margin["file"], float(margin.get("unit", 1.0))),
            None if marks is None else MarkShare(marks["marked"], marks["packets"]),
            interval_ns=interval_ns,
        )
    except KeyError as error:
        raise SourceError(f"a source lacks {error}") from error


def _occupancy(said: Any) -> Source | None:
    if said is None:
        return None
    if "tc" in said:
        from .queue import Queue  # its socket exists where tc is asked alone

        _only(said, "occupancy", "tc", "limit")
        return Queue(said["tc"], said.get("limit"))
    if "wait" in said:
        _only(said, "occupancy", "wait", "tick_ns")
        return Waited(said["wait"], float(said["tick_ns"]))
    _only(said, "occupancy", "file", "limit")
    return Gauge(said["file"], float(said["limit"]))


def _only(said: Any, where: str, *known: str) -> None:
    if not isinstance(said, Mapping):
        raise SourceError(f"{where}: a table is wanted")
    if unknown := said.keys() - set(known):
        raise SourceError(f"{where}: unknown: {', '.join(sorted(unknown))}")
