"""The contract of a collector: bytes in, Arrow batches and rejects out.

A collector is one module of this folder that defines ``COLLECTOR``, an instance of a subclass of
:class:`Collector`. Modules whose name starts with an underscore are helpers. Values stay raw
(kernel names, kernel units); conversion happens in SQL, once.
"""

from __future__ import annotations

import gzip
import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from xtune.collectors._gzip import GZIP_MAGIC as GZIP_MAGIC
from xtune.collectors._gzip import GzipBombError, inflated
from xtune.tables import TABLES

HEAD_BYTES = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What the user says that a file does not.

    Attributes:
        host, job, run, rank: Whose data it is, used only where the content does not say.
        tz: IANA zone for local times without one; without it such times are null and counted.
        time_from: ``mtime``, ``name`` or ``now`` for files without times, else null times.
        column_map: xtune's column -> the file's, for CSV and JSONL (``loss=train/loss``).
        labels: Put into ``labels`` of each row.
        now_ns: The clock, nanoseconds since the epoch, UTC.
    """

    host: str | None = None
    job: str | None = None
    run: str | None = None
    rank: int | None = None
    tz: str | None = None
    time_from: str | None = None
    column_map: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    now_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Source:
    """One input: a file or a folder that a collector claims whole (a sysfs tree).

    Attributes:
        path: Where the bytes are.
        name: How to call it in messages (as the user typed it, or the path below that).
    """

    path: Path
    name: str

    def open(self) -> io.BufferedReader:
        """Open for reading bytes; gzip is undone by content, whatever the name says."""
        raw = self.path.open("rb")
        return inflated(raw) if raw.peek(2)[:2] == GZIP_MAGIC else raw

    def head(self) -> bytes:
        """The first HEAD_BYTES of the (decompressed) content; empty for a folder.

        Of a cut or damaged gzip stream, what can be undone of it.
        """
        if self.path.is_dir():
            return b""
        found = b""
        with self.open() as stream:
            try:
                while len(found) < HEAD_BYTES and (part := stream.read1(HEAD_BYTES - len(found))):
                    found += part
            except (EOFError, gzip.BadGzipFile, zlib.error, GzipBombError):
                pass
        return found


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for one table. ``source`` may be left out: the writer fills it."""

    table: str
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Reject:
    """One piece of an input that could not be read.

    Attributes:
        offset: Where: ``byte 4711``, ``line 12``, ``mlx5_0/ports/1/counters/VL15_dropped``.
        reason: What is wrong with it.
        hint: What to do about it.
    """

    offset: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something a user should know that loses no data: ``12 times without a zone: null``.

    ``count`` is summed over notes of one ``text`` in the summary.
    """

    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Unknown:
    """A name in the input that the collector does not know: a metric, a counter, a key, an op.

    Its value is in ``extra`` where the table has room for it, else left out; the summary lists
    the names, so that nobody mistakes silence for absence.
    """

    name: str
    count: int = 1


Item = Rows | Reject | Note | Unknown


class Collector(ABC):
    """Base of all collectors."""

    #: Name on the command line (``--kind``), equal to the module's name.
    name: ClassVar[str]
    #: One line for ``xtune collect --list``.
    title: ClassVar[str]
    #: How to produce it on a cluster: the exact command, environment variable or endpoint.
    produce: ClassVar[str] = ""
    #: What it gives, and what it cannot.
    gives: ClassVar[str] = ""
    lacks: ClassVar[str] = ""
    #: Rises when the rows made from the same bytes change.
    version: ClassVar[int] = 1
    #: The rows depend on the file's name too (a rank in it): equal files of two names are two.
    name_tells: ClassVar[bool] = False
    #: Set where it takes its own lines out of a log that other programs write to as well: one
    #: word for all collectors of the same kind of lines. Those of other kinds read it too.
    lines_of: ClassVar[str] = ""
    #: Each line gives its rows whatever stands before it: of a file that grows the tail is read.
    tail_lines: ClassVar[bool] = False

    @abstractmethod
    def claim(self, path: Path, head: bytes) -> float:
        """Confidence (0 no .. 1 certain) that this collector reads ``path``.

        Decides by content: ``head`` is the first bytes after gzip, empty for a folder. For a
        folder the collector may look inside, cheaply. Never raises.
        """

    @abstractmethod
    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield rows in batches, rejects and notes; memory does not grow with the file.

        Raises nothing for bad content: a bad piece is a :class:`Reject`, and what is good beside
        it is kept.
        """


def rows_of(table: str, context: Context, columns: Mapping[str, Any], count: int) -> Rows:
    """Rows from whole columns, for collectors that parse many records at once.

    Args:
        table: The table.
        context: Its labels go into each row.
        columns: Column -> Arrow array or sequence of ``count`` values; absent ones are null.
        count: Number of rows.

    Raises:
        KeyError: A column that the table does not have (a bug of the collector).
    """
    fields = [f for f in TABLES[table].schema if f.name != "source"]
    if unknown := columns.keys() - {f.name for f in fields}:
        raise KeyError(f"{table} has no column {sorted(unknown)}")
    given: dict[str, Any] = dict(columns)
    if context.labels and "labels" not in given:
        given["labels"] = [list(context.labels.items())] * count
    arrays = []
    for field_ in fields:
        values = given.get(field_.name)
        if values is None:
            values = pa.nulls(count, field_.type)
        elif not isinstance(values, pa.Array):
            try:
                values = pa.array(values, field_.type)
            except UnicodeEncodeError:
                values = pa.array([_utf8(value) for value in values], field_.type)
        arrays.append(values.cast(field_.type))
    return Rows(table, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))


def _utf8(value: Any) -> Any:
    """Text in a cell as UTF-8 can hold it; anything else as it is."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list | tuple):
        return [tuple(map(_utf8, v)) if isinstance(v, tuple) else _utf8(v) for v in value]
    return value


class RowBuffer:
    """Collects rows of one table as columns and hands out batches of the table's schema."""

    def __init__(self, table: str, context: Context, capacity: int = 16384) -> None:
        self.table = table
        schema = TABLES[table].schema
        self._schema = pa.schema([f for f in schema if f.name != "source"])
        self._names = set(self._schema.names)
        self._capacity = capacity
        self._rows: list[dict[str, Any]] = []
        self._labels = dict(context.labels)

    def add(self, row: dict[str, Any]) -> None:
        """Add one row; absent columns are null, ``extra`` and ``labels`` are dicts.

        Raises:
            KeyError: A column that the table does not have (a bug of the collector).
        """
        unknown = row.keys() - self._names
        if unknown:
            raise KeyError(f"{self.table} has no column {sorted(unknown)}")
        labels = row.get("labels")
        if self._labels or labels:
            row["labels"] = list({**(labels or {}), **self._labels}.items())
        extra = row.get("extra")
        if extra is not None:
            row["extra"] = list(extra.items()) or None
        self._rows.append(row)

    @property
    def full(self) -> bool:
        """Whether it is time to :meth:`flush`."""
        return len(self._rows) >= self._capacity

    def flush(self) -> Iterator[Rows]:
        """Yield what is held as one batch, if anything, and start anew."""
        if self._rows:
            try:
                batch = pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
            except UnicodeEncodeError:  # JSON may escape half a pair, a file's name be any bytes
                rows = [{key: _utf8(value) for key, value in row.items()} for row in self._rows]
                batch = pa.RecordBatch.from_pylist(rows, schema=self._schema)
            self._rows = []
            yield Rows(self.table, batch)
