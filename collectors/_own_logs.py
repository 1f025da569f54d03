"""Logs that a policy or its agents write: JSON lines, one row each, marked with a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from xtune.collectors._base import Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._json_lines import json_objects
from xtune.collectors._textlines import Lines
from xtune.collectors._values import natural

MakeRow = Callable[[dict[str, Any], Context], dict[str, Any] | None]


def rows_of_log(
    source: Source, context: Context, *, table: str, mark: str, make: MakeRow, refused: str
) -> Iterator[Item]:
    """One row a line.

    Args:
        source: The log.
        context: What flags say.
        table: Of the rows, and what a note calls them.
        mark: Field that holds the version.
        make: A record's row, None where it is none.
        refused: Reason then, and where there is no version.
    """
    rows = RowBuffer(table, context)
    lines = Lines(source)
    newer = 0
    for found in json_objects(lines):
        if isinstance(found, Reject):
            yield found
            continue
        line, record = found
        version = natural(record.get(mark))
        row = None if version is None else make(record, context)
        if row is None:
            yield Reject(line.place, refused)
            continue
        newer += version != 1
        rows.add(row)
        if rows.full:
            yield from rows.flush()
    yield from rows.flush()
    yield from lines.rejects
    if newer:
        what = table.removeprefix("link_")
        yield Note(f"{what} of a newer version: fields that are not known are in extra", newer)
