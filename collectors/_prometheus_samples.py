"""Counts of many ports at many moments, held in a few bytes each, as rows of columns.

Series come metric by metric, rows are port by port and moment by moment: samples are gathered in
flat arrays, then sorted once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
#: Groups, names and values in; names to use instead and which samples to keep out.
Rename = Callable[[Ints, Ints, Counts], tuple[Ints, Flags]]

#: Stands for "no time" in the arrays; times are not below zero.
NO_TIME = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Samples sorted into rows: one group at one moment.

    Attributes:
        group: Group of each row.
        ts: Time of each row, nanoseconds since the epoch or NO_TIME.
        row, name, value: The samples: row, index of the name, count.
        conflicts: (place, index of the name) of samples that contradict an earlier one of the
            same name, group and moment.
    """

    group: Ints
    ts: Ints
    row: Ints
    name: Ints
    value: Counts
    conflicts: list[tuple[int, int]]

    def column(self, name: int) -> tuple[Counts, Flags]:
        """Values of one name by row, and which rows have one."""
        values = np.zeros(len(self.ts), np.uint64)
        known = np.zeros(len(self.ts), np.bool_)
        mine = self.name == name
        rows = self.row[mine]
        values[rows] = self.value[mine]
        known[rows] = True
        return values, known


class Samples:
    """Gathers samples; :meth:`take` sorts them and starts anew."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._ids: dict[str, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._group, self._name = array("i"), array("i")
        self._ts, self._value, self._place = array("q"), array("Q"), array("q")

    def __len__(self) -> int:
        return len(self._ts)

    def name(self, name: str) -> int:
        """Index of a counter's name."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found

    def add(self, group: int, name: int, ts: int, value: int, place: int) -> None:
        """Take one sample; ``place`` is where it is said: a line or byte."""
        self._group.append(group)
        self._name.append(name)
        self._ts.append(ts)
        self._value.append(value)
        self._place.append(place)

    def extend(self, group: int, name: int, ts: Ints, value: Counts, place: int) -> None:
        """Take many samples of one series."""
        count = len(ts)
        self._group.frombytes(np.full(count, group, np.int32).tobytes())
        self._name.frombytes(np.full(count, name, np.int32).tobytes())
        self._ts.frombytes(ts.tobytes())
        self._value.frombytes(value.tobytes())
        self._place.frombytes(np.full(count, place, np.int64).tobytes())

    def peek(self) -> tuple[Ints, Ints, Counts]:
        """Groups, names and values as gathered, in no order; to be dropped before the next add."""
        return (
            np.array(self._group, np.int64),
            np.array(self._name, np.int64),
            np.array(self._value, np.uint64),
        )

    def take(self, rename: Rename | None = None) -> Table:
        """All samples as rows, sorted by group and time.

        Args:
            rename: Last changes before the sort.
        """
        group = np.frombuffer(self._group, np.int32).astype(np.int64)
        name = np.frombuffer(self._name, np.int32).astype(np.int64)
        ts = np.frombuffer(self._ts, np.int64)
        value = np.frombuffer(self._value, np.uint64)
        place = np.frombuffer(self._place, np.int64)
        if rename is not None:
            name, keep = rename(group, name, value)
            group, name, ts, place = (a[keep] for a in (group, name, ts, place))
            value = value[keep]
        order = np.lexsort((name, ts, group))
        group, name, ts, place = (a[order] for a in (group, name, ts, place))
        value = value[order]
        self._clear()
        same_row = np.zeros(len(ts), np.bool_)
        same_row[1:] = (group[1:] == group[:-1]) & (ts[1:] == ts[:-1])
        row = np.cumsum(~same_row) - 1
        again = np.zeros(len(ts), np.bool_)
        again[1:] = same_row[1:] & (name[1:] == name[:-1])
        conflicts: list[tuple[int, int]] = []
        if again.any():
            first = np.maximum.accumulate(np.where(again, 0, np.arange(len(ts))))
            other = again & (value != value[first])
            conflicts = list(zip(place[other].tolist(), name[other].tolist(), strict=True))
        starts, kept = ~same_row, ~again
        return Table(
            group=group[starts],
            ts=ts[starts],
            row=row[kept],
            name=name[kept],
            value=value[kept],
            conflicts=conflicts,
        )
