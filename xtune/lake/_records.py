"""What a ledger entry holds: data files and the inputs that rows came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import xtune
from xtune.tables import SCHEMA_VERSION

UNKNOWN_DATE = "unknown"

InputState = Literal["read", "rejected", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """One live Parquet file.

    Attributes:
        path: Absolute path.
        table: ``link_counters``, ``derived/episodes``, ``rejected``...
        date: ``2026-01-31``, or ``unknown`` for rows without a time.
        rows: Number of rows.
        bytes: Size on disk.
        sources: Ids of the inputs its rows came from, sorted; empty for a derived table.
        min_ts_ns: Earliest time, nanoseconds since the epoch; None where no row has one.
        max_ts_ns: Latest time.
        compacted: Sorted by the table's ``sort`` columns, by ``rebuild``.
        schema: Version of the table contract it was written with.
        xtune: Version of xtune that wrote it.
    """

    path: Path
    table: str
    date: str
    rows: int
    bytes: int
    sources: tuple[str, ...] = ()
    min_ts_ns: int | None = None
    max_ts_ns: int | None = None
    compacted: bool = False
    schema: int = SCHEMA_VERSION
    xtune: str = xtune.__version__

    def to_json(self, root: Path) -> dict[str, Any]:
        """JSON object; the path is relative to ``root``, so a lake can be moved."""
        return {
            "path": self.path.relative_to(root).as_posix(),
            "table": self.table,
            "date": self.date,
            "rows": self.rows,
            "bytes": self.bytes,
            "sources": list(self.sources),
            "min_ts_ns": self.min_ts_ns,
            "max_ts_ns": self.max_ts_ns,
            "compacted": self.compacted,
            "schema": self.schema,
            "xtune": self.xtune,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], root: Path) -> DataFile:
        """Undo :meth:`to_json`."""
        return cls(**{**data, "path": root / data["path"], "sources": tuple(data["sources"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class InputRecord:
    """One input as it was read: the ledger's key, and what came of it.

    Attributes:
        id: 12 hex digits, the ``source`` of its rows.
        name: As the user named it.
        path: Absolute path; empty for standard input.
        content: SHA-256 of the content after gzip, or of the tree where it is a folder.
        size: Length of that content, bytes.
        head: SHA-256 of its first bytes, to find earlier readings of a file that grew.
        parser: The collector; empty where none read it.
        parser_version: The collector's version.
        reading: Flags that say how to read it.
        whose: Flags that say whose it is.
        time_ns: When it was read, nanoseconds since the epoch.
        state: ``read``, ``rejected`` or ``unknown``.
        rows: Rows by table, without rejects.
        rejects: Number of rejected pieces.
        first_reject: ``offset``, ``reason`` and ``hint`` of the first of them; empty without.
        marks: Beginnings of the hashes of its first 8 KiB, 16 KiB and so on, as far as it reaches.
        begins: Contents of files at other places whose readings it replaced: it begins with them.
    """

    id: str
    name: str
    path: str
    content: str
    size: int
    head: str
    parser: str
    parser_version: int
    reading: Mapping[str, str] = field(default_factory=dict)
    whose: Mapping[str, str] = field(default_factory=dict)
    time_ns: int
    state: InputState = "read"
    rows: Mapping[str, int] = field(default_factory=dict)
    rejects: int = 0
    first_reject: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> InputRecord:
        """Undo :meth:`to_json`."""
        lists = {name: tuple(data.get(name, ())) for name in ("marks", "begins")}
        return cls(**{**data, **lists})
