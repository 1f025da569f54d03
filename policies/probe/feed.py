"""From shared memory to the router: each probe's outcome once, without a system call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .readings import HISTORY, ReadingsError, ReadingsReader, ended, reading_of
from .table import STALE_NS

REOPEN_NS = 1_000_000_000  # a dead agent's successor is looked for at most so often


class Observer(Protocol):
    """What takes readings: `Router`."""

    def observe(
        self,
        link: str,
        *,
        occupancy: float | None = None,
        error_rate: float | None = None,
        marks: float | None = None,
        at_ns: int | None = None,
        lost: bool = False,
    ) -> None:
        """Take one reading of a link, or the timeout of a probe."""


class Feed:
    """Hands an observer what is new; call `poll` before each choice, or every few of them.

    Of a table that goes stale, because its agent has died, nothing is handed on: the router's
    readings grow old and it routes as without probes. Once a second at most, and only while stale,
    the file is looked for again, which are the only system calls.

    Args:
        path: The agent's readings; the file need not exist yet.
        router: Takes the readings.
        links: For each probed path the links that its probes speak for; by default the path's name
            is the link's.
        clock: CLOCK_MONOTONIC in ns, the router's clock.
        stale_ns: Without a heartbeat for so long the agent counts as dead.

    Attributes:
        skipped: Outcomes that a late poll could not see any more.
    """

    def __init__(
        self,
        path: str | Path,
        router: Observer,
        links: Mapping[str, Sequence[str]] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        stale_ns: int = STALE_NS,
    ) -> None:
        self.skipped = 0
        self._path = path
        self._router = router
        self._given = links
        self._clock = clock
        self._stale_ns = stale_ns
        self._reader: ReadingsReader | None = None
        self._looked_ns: int | None = None
        self._updates = -1
        self._links: list[Sequence[str]] = []
        self._versions: list[int] = []
        self._finished: list[int] = []

    @property
    def alive(self) -> bool:
        """Whether an agent writes."""
        return self._reader is not None and self._reader.alive()

    def poll(self) -> int:
        """Hand on the outcomes since the last call; never raises for a file's sake.

        Returns:
            How many.
        """
        if not self.alive and not self._look():
            return 0
        reader = self._reader
        assert reader is not None
        updates = reader.updates()  # before the entries: what changes meanwhile is seen next time
        if updates == self._updates:
            return 0
        self._updates = updates
        count = 0
        versions, known = reader.versions(), self._versions
        for index, version in enumerate(versions):
            if version == known[index]:
                continue
            values = reader.values(index)
            if values is None:
                self._updates = -1  # try again, though nothing else may come
                continue
            known[index] = version
            count += self._hand_on(index, values)
        return count

    def close(self) -> None:
        """Let go of the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _hand_on(self, index: int, values: tuple[Any, ...]) -> int:
        finished: int = values[0]
        history: int = values[1]
        new = finished - self._finished[index]
        self._finished[index] = finished
        links, observe = self._links[index], self._router.observe
        if new == 1 and not history & 1:  # the common case, one answer: unknown values as they are
            for link in links:
                observe(
                    link,
                    occupancy=values[6],
                    error_rate=values[7],
                    marks=values[12],
                    at_ns=values[3],
                    lost=False,
                )
            return 1
        seen = min(new, HISTORY)
        self.skipped += new - seen
        reading = reading_of(values)
        for probe in ended(reading, seen):
            for link in links:
                observe(
                    link,
                    occupancy=reading.occupancy if probe.newest else None,
                    error_rate=reading.error_rate if probe.newest else None,
                    marks=reading.marks if probe.newest else None,
                    at_ns=probe.at_ns,
                    lost=probe.lost,
                )
        return seen

    def _look(self) -> bool:
        """Whether a living table is there after a look, or it is too early for one."""
        now_ns = self._clock()
        if self._looked_ns is not None and now_ns - self._looked_ns < REOPEN_NS:
            return False
        self._looked_ns = now_ns
        if self._reader is not None:
            if not self._reader.reopen():
                return False
        else:
            try:
                self._reader = ReadingsReader(self._path, self._clock, stale_ns=self._stale_ns)
            except (OSError, ReadingsError):
                return False
        names = self._reader.names
        self._links = [
            (name,) if self._given is None else self._given.get(name, ()) for name in names
        ]
        self._updates = -1
        self._versions = [0] * len(names)
        self._finished = [0] * len(names)
        return self._reader.alive()
