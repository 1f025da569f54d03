"""From shared memory to the router: each probe's outcome once, without a system call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .following import Follower
from .readings import HISTORY, ReadingsReader, ended, reading_of
from .table import STALE_NS


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


class Feed(Follower[ReadingsReader]):
    """Hands an observer what is new; call `poll` before each choice, or every few of them.

    Of a table that goes stale, because its agent has died, nothing is handed on: the router's
    readings grow old and it routes as without probes.

    Args:
        path: The agent's readings; the file need not exist yet.
        router: Takes the readings.
        links: For each probed path the links that its probes speak for; by default the path's name
            is the link's.
        clock: CLOCK_MONOTONIC in ns, the router's clock.
        stale_ns: Without a heartbeat for so long the agent counts as dead.

    Attributes:
        skipped: Outcomes that a late poll could not see any more; at the first poll all of the
            agent's before but the last 64 of each path.
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
        super().__init__(lambda: ReadingsReader(path, clock, stale_ns=stale_ns), clock)
        self.skipped = 0
        self._router = router
        self._given = links
        self._updates = -1
        self._links: list[Sequence[str]] = []
        self._versions: list[int] = []
        self._finished: list[int] = []

    def poll(self) -> int:
        """Hand on the outcomes since the last call; never raises for a file's sake.

        Returns:
            How many.
        """
        reader = self._living()
        if reader is None:
            return 0
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

    def _begin(self, reader: ReadingsReader) -> None:
        self._links = [
            (name,) if self._given is None else self._given.get(name, ()) for name in reader.names
        ]
        self._updates = -1
        self._versions = [0] * len(reader.names)
        self._finished = [0] * len(reader.names)
