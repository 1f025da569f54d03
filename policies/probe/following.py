"""A table in shared memory is followed: while its writer lives, and when a successor comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from .table import TableError, TableReader

REOPEN_NS = 1_000_000_000  # a dead writer's successor is looked for at most so often

Reader = TypeVar("Reader", bound=TableReader)


class Follower(ABC, Generic[Reader]):
    """Follows the table of whoever writes it.

    Once a second at most, and only while nobody writes, the file is looked for again, which are
    the only system calls.

    Args:
        open_table: Opens the file, which need not exist yet.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(self, open_table: Callable[[], Reader], clock: Callable[[], int]) -> None:
        self._open_table = open_table
        self._clock = clock
        self._reader: Reader | None = None
        self._looked_ns: int | None = None

    @property
    def alive(self) -> bool:
        """Whether anybody writes."""
        return self._reader is not None and self._reader.alive()

    def close(self) -> None:
        """Let go of the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @abstractmethod
    def _begin(self, reader: Reader) -> None:
        """Forget what an earlier table had: this one is new."""

    def _living(self) -> Reader | None:
        """The table, if somebody writes it."""
        reader = self._reader
        if reader is not None and reader.alive():
            return reader
        return self._look()

    def _look(self) -> Reader | None:
        """The table, if it lives after a look; None also where it is too early for one."""
        now_ns = self._clock()
        if self._looked_ns is not None and now_ns - self._looked_ns < REOPEN_NS:
            return None
        self._looked_ns = now_ns
        if self._reader is None:
            try:
                self._reader = self._open_table()
            except (OSError, TableError):
                return None
        elif not self._reader.reopen():
            return None
        self._begin(self._reader)
        return self._reader if self._reader.alive() else None
