"""The column map (``--map loss=train/loss``): which of our names it may give, what it missed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from xtune.collectors._base import Note
from xtune.collectors._counter_columns import column
from xtune.tables import TABLES


def unknown_columns(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that xtune has no column, counter or role of."""
    ours = {c.name for table in TABLES.values() for c in table.columns}
    return [name for name in names if name not in ours and column(name).role == "other"]


class Mapped:
    """Notices which fields that the user named never came.

    Args:
        mapping: Our name -> the file's.
        ours: Our names that this collector takes; others are for files of another kind.
    """

    def __init__(self, mapping: Mapping[str, str], ours: Iterable[str]) -> None:
        kept = set(ours)
        self._missing = {theirs: name for name, theirs in mapping.items() if name in kept}

    def see(self, names: Iterable[str]) -> None:
        """Fields that a record has."""
        if self._missing:
            for name in names:
                self._missing.pop(name, None)

    def notes(self) -> Iterator[Note]:
        """Say which fields no record had."""
        for theirs, ours in self._missing.items():
            yield Note(f"no field {theirs[:80]!r} in this file, which --map gives for {ours}")
