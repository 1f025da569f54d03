"""Reads an Nsight Systems SQLite export without trusting it.

Source: NVIDIA's "SQLite Export Schema Reference". Tables are made only where there is data, and
columns come and go with the version: what is absent is null. A database is a program of sorts
(views, generated columns, pages that point in circles): only plain tables are read, read-only,
and work is bounded by the file's size.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

MAGIC = b"SQLite format 3\x00"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
START = "TARGET_INFO_SESSION_START_TIME"
ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
#: What SQLite raises on damage; its message, or a name in the file, may be no UTF-8.
DAMAGE = (sqlite3.Error, OverflowError, UnicodeDecodeError)
OURS = frozenset({KERNEL, RUNTIME, NVTX, STRINGS, START, ENVIRONMENT, ENTRIES})

_MAX_VALUE = 1 << 22
_STEPS = 100_000  # virtual machine steps between looks at the budget
_STEPS_FREE, _STEPS_A_BYTE = 200_000_000, 50
_MAX_SCHEMA = 10_000


class Database:
    """An open export; closes with the block."""

    def __init__(self, path: Path) -> None:
        """Open.

        Raises:
            One of DAMAGE: Not a database, or a damaged one.
        """
        where = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(where, uri=True, check_same_thread=False)
        try:
            self._prepare(path.stat().st_size)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, size: int) -> None:
        connection = self._connection
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        for limit, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        ):
            connection.setlimit(limit, value)
        left = (_STEPS_FREE + _STEPS_A_BYTE * size) // _STEPS

        def spend() -> int:
            nonlocal left
            left -= 1
            return int(left < 0)

        connection.set_progress_handler(spend, _STEPS)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
            connection.execute(f"PRAGMA {pragma}")
        # Views and virtual tables run code of the file's choice: they are no tables here.
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%' "
            f"LIMIT {_MAX_SCHEMA}"
        )
        self.tables: dict[str, frozenset[str]] = {
            name: frozenset() for (name,) in found if name in OURS
        }
        for name in self.tables:
            columns = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
            self.tables[name] = frozenset(str(column[1]) for column in columns)

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with all these columns."""
        return table in self.tables and set(columns) <= self.tables[table]

    def column(self, alias: str, table: str, name: str) -> str:
        """A column, or NULL where this version of the table has none."""
        return f'{alias}."{name}"' if self.has(table, name) else "NULL"

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Rows of a query, one by one.

        Raises:
            One of DAMAGE: The database is damaged, or the query does not end.
        """
        yield from self._connection.execute(query, values)

    def names(self, pattern: str) -> dict[int, str]:
        """Strings that match ``pattern`` (LIKE), by their id."""
        if not self.has(STRINGS, "id", "value"):
            return {}
        query = f"SELECT id, value FROM {STRINGS} WHERE value LIKE ? LIMIT 100000"
        return {
            ident: value[:1024]
            for ident, value in self.rows(query, pattern)
            if isinstance(ident, int) and isinstance(value, str)
        }
