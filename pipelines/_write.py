"""Writes a model's rows to the lake: one file a date, and only dates whose rows changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xtune.lake import DataFile, Lake, Transaction
from xtune.pipelines._engine import Session, literal
from xtune.tables import TABLES, Table

UNDATED = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows of one date of a table.

    Attributes:
        content: Digest of the rows, whatever their order.
        rows: How many.
        path: The file that holds them, not yet in the lake; None where the lake has them already.
    """

    content: str
    rows: int
    path: Path | None


def write_rows(
    lake: Lake,
    session: Session,
    table: str,
    *,
    known: Mapping[str, str],
    date: str | None = None,
    only: str | None = None,
) -> dict[str, Rows]:
    """Write the relation of a table's name, sorted, one file a date.

    Args:
        lake: Where the files are to go.
        session: Has the relation.
        table: ``derived/episodes``.
        known: Date -> digest of the rows that the lake has; the same rows are not written again.
        date: The date of all rows; None for each row's own, by the table's time.
        only: Rows of other dates than this are left out.
    """
    contract = TABLES[table]
    name = contract.bare_name
    own = f"coalesce(strftime({contract.time}::DATE, '%Y-%m-%d'), '{UNDATED}')"
    of_row = own if date is None else literal(date)
    found = session.rows(
        f"SELECT {of_row} AS date, count(*), sum(hash(rows)::HUGEINT), bit_xor(hash(rows))"
        f" FROM {name} AS rows{f' WHERE {of_row} = {literal(only)}' if only else ''}"
        " GROUP BY date ORDER BY date"
    )
    written = {}
    for day, count, total, mixed in found:
        content = f"{count}-{total:x}-{mixed:x}"
        path = None
        if known.get(day) != content:
            path = lake.scratch(table) / f"{day}.parquet.tmp"
            test = f"{own} = {literal(day)}" if date is None else "true"
            session.copy(
                f"FROM {name} WHERE {test} ORDER BY {_order(contract)}",
                path,
                lake.metadata(table),
            )
        written[day] = Rows(content=content, rows=count, path=path)
    return written


def publish(
    transaction: Transaction,
    table: str,
    written: Mapping[str, Rows],
    live: Mapping[str, list[DataFile]],
) -> bool:
    """Put changed dates in the place of what is live, and take dates without rows out.

    Args:
        transaction: Makes all of it visible at once.
        table: ``derived/episodes``.
        written: What :func:`write_rows` gave.
        live: Date -> live files, of all dates that ``written`` speaks of or leaves empty.

    Returns:
        Whether there is anything to commit.
    """
    changed = False
    for date, rows in written.items():
        if rows.path is not None:
            transaction.adopt(table, rows.path, date=date, compacted=True)
            changed = True
    for date, files in live.items():
        if date not in written or written[date].path is not None:
            for file in files:
                transaction.remove(file)
                changed = True
    return changed


def live_files(lake: Lake, table: str) -> dict[str, list[DataFile]]:
    """Live files of a table by date."""
    found: dict[str, list[DataFile]] = defaultdict(list)
    for file in lake.files(table):
        found[file.date].append(file)
    return dict(found)


def names_of(lake: Lake, live: Mapping[str, list[DataFile]]) -> dict[str, str]:
    """Date -> its file, relative to the lake; what has more than one is no work of ours."""
    return {date: " ".join(lake.name_of(file) for file in files) for date, files in live.items()}


def _order(contract: Table) -> str:
    names = contract.schema.names
    return ", ".join([*contract.sort, *(name for name in names if name not in contract.sort)])
