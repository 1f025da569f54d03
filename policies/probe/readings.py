"""Readings of all paths in shared memory, one entry of a `Table` each."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .table import STALE_NS, Form, TableError, TableReader, TableWriter

ReadingsError = TableError  # the name under which it is public
HISTORY = 64  # outcomes that an entry remembers

_ENTRY = struct.Struct("=QQqqqddddQQQd")
FORM = Form(b"xtunePRB", 2, "readings", _ENTRY.size)


class Reading(NamedTuple):
    """What is known of one path; None is unknown. Times are on CLOCK_MONOTONIC.

    Attributes:
        finished: Probes that were answered in time or given up, since the writer began.
        history: The last 64 of them, bit 0 the newest; a set bit is a lost probe.
        finished_ns: When the last one was.
        answered_ns: When the last answer arrived, None before the first.
        rtt_ns: Round trip of that answer.
        jitter_ns: Smoothed difference of successive round trips (RFC 3550, 6.4.1).
        occupancy, error_rate, margin: The worse of both ends at that answer.
        sent, lost, late: Probes; a late answer's probe is among the lost.
        marks: Share of packets with a congestion mark 0..1: of the last probes, or by this end's
            counters, whichever is more.
    """

    finished: int = 0
    history: int = 0
    finished_ns: int = 0
    answered_ns: int | None = None
    rtt_ns: int | None = None
    jitter_ns: float | None = None
    occupancy: float | None = None
    error_rate: float | None = None
    margin: float | None = None
    sent: int = 0
    lost: int = 0
    late: int = 0
    marks: float | None = None


class Ended(NamedTuple):
    """What one probe came to, as far as a reading tells.

    Attributes:
        at_ns: When.
        lost: It timed out.
        newest: It is the answer that the reading's values are from.
    """

    at_ns: int
    lost: bool
    newest: bool


def ended(reading: Reading, count: int) -> list[Ended]:
    """The last probes of a path, oldest first.

    The newest answer alone has values; those before it count for the blacklist.

    Args:
        reading: What is known of the path.
        count: How many probes, at most `HISTORY`.
    """
    found = []
    for place in range(count - 1, -1, -1):
        lost = bool(reading.history >> place & 1)
        mask = (1 << place) - 1  # set bits: all probes since were lost
        newest = not lost and reading.history & mask == mask
        answered_ns = reading.answered_ns if newest else None
        at_ns = reading.finished_ns if answered_ns is None else answered_ns
        found.append(Ended(at_ns, lost, newest))
    return found


class ReadingsWriter(TableWriter):
    """The one writer of the readings, see `TableWriter`.

    Args:
        path: The file; it appears whole, in place of an earlier one.
        names: The paths, in order.
        counters: Names of counts that are published beside the readings.
        clock: CLOCK_MONOTONIC in ns.
        generation: Tells this table from earlier ones; the wall clock by default.

    Raises:
        ReadingsError: Another writer holds the path.
        OSError: The file cannot be made.
    """

    def __init__(
        self,
        path: str | Path,
        names: Sequence[str],
        counters: Sequence[str] = (),
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        generation: int | None = None,
    ) -> None:
        super().__init__(FORM, path, names, counters, clock, generation=generation)

    def publish(self, index: int, reading: Reading) -> None:
        """Replace the entry of one path.

        Args:
            index: The path's place in the names.
            reading: What is known of it.
        """
        self.write(index, _pack(reading))


class ReadingsReader(TableReader):
    """Reads the readings, see `TableReader`.

    Args:
        path: The writer's file.
        clock: CLOCK_MONOTONIC in ns.
        stale_ns: Without a heartbeat for so long the writer counts as dead.

    Raises:
        ReadingsError: No table of this version, or not one of this user or root.
        OSError: There is none, or it cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        stale_ns: int = STALE_NS,
    ) -> None:
        super().__init__(FORM, path, clock, stale_ns=stale_ns)

    def read(self, index: int) -> Reading | None:
        """The newest reading of one path, whatever its age.

        Args:
            index: The path's place in `names`.

        Returns:
            The reading, or None where none was written or none could be read whole.
        """
        values = self.values(index)
        return None if values is None else reading_of(values)

    def values(self, index: int) -> tuple[Any, ...] | None:
        """As `read`, in the order of `Reading`'s fields; what is unknown is -1 or NaN."""
        content = self.content(index)
        return None if content is None else _ENTRY.unpack_from(content)


def _pack(reading: Reading) -> bytes:
    return _ENTRY.pack(
        reading.finished,
        reading.history,
        reading.finished_ns,
        -1 if reading.answered_ns is None else reading.answered_ns,
        -1 if reading.rtt_ns is None else reading.rtt_ns,
        *(
            math.nan if value is None else value
            for value in (
                reading.jitter_ns,
                reading.occupancy,
                reading.error_rate,
                reading.margin,
            )
        ),
        reading.sent,
        reading.lost,
        reading.late,
        math.nan if reading.marks is None else reading.marks,
    )


def reading_of(values: tuple[Any, ...]) -> Reading:
    """A reading from what `ReadingsReader.values` gives."""
    (
        done,
        history,
        done_ns,
        answered_ns,
        rtt_ns,
        jitter,
        share,
        rate,
        margin,
        sent,
        lost,
        late,
        marks,
    ) = values
    return Reading(
        done,
        history,
        done_ns,
        None if answered_ns < 0 else answered_ns,
        None if rtt_ns < 0 else rtt_ns,
        None if jitter != jitter else jitter,
        None if share != share else share,
        None if rate != rate else rate,
        None if margin != margin else margin,
        sent,
        lost,
        late,
        None if marks != marks else marks,
    )
