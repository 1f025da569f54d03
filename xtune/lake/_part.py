"""One Parquet file being written: rows of one table and one date, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xtune.files import fsync
from xtune.lake._parquet import COMPRESSION, file_schema
from xtune.lake._records import DataFile
from xtune.tables import Table

# Rows of a row group: DuckDB's own size, the unit that its threads share out.
GROUP_ROWS = 122_880


class Part:
    """Buffers rows and writes them as row groups to a temporary file."""

    def __init__(self, table: Table, date: str, temporary: Path, *, compacted: bool) -> None:
        self.table = table
        self.date = date
        self.temporary = temporary
        self.compacted = compacted
        self.buffered_bytes = 0
        self.rows = 0
        self._buffer: list[pa.Table] = []
        self._buffered_rows = 0
        self._sources: set[str] = set()
        self._min_ns: int | None = None
        self._max_ns: int | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def open(self) -> bool:
        """Whether it holds a file descriptor."""
        return self._writer is not None

    def add(self, data: pa.Table) -> None:
        """Add rows that :func:`conform` has put in order."""
        self._buffer.append(data)
        self._buffered_rows += data.num_rows
        self.buffered_bytes += data.nbytes
        self.note(data)
        if self._buffered_rows >= GROUP_ROWS:
            self.flush()

    def note(self, data: pa.Table | pa.RecordBatch) -> None:
        """Count rows, times and sources of ``data`` without writing it."""
        self.rows += data.num_rows
        if not self.table.derived:
            self._sources.update(pc.unique(data.column("source")).drop_null().to_pylist())
        times = pc.min_max(data.column(self.table.time).cast(pa.int64()))
        low, high = times["min"].as_py(), times["max"].as_py()
        if low is not None:
            self._min_ns = low if self._min_ns is None else min(self._min_ns, low)
            self._max_ns = high if self._max_ns is None else max(self._max_ns, high)

    def flush(self) -> None:
        """Write what is buffered as one row group."""
        if not self._buffer:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self.temporary, file_schema(self.table), compression=COMPRESSION
            )
        self._writer.write_table(pa.concat_tables(self._buffer), row_group_size=GROUP_ROWS)
        self._buffer = []
        self._buffered_rows = 0
        self.buffered_bytes = 0

    def close(self) -> None:
        """Finish the file and flush it to the disk."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            fsync(self.temporary)

    def discard(self) -> None:
        """Give the file up."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.temporary.unlink(missing_ok=True)

    def data_file(self, path: Path) -> DataFile:
        """The record of the finished file, once it is at ``path``."""
        return DataFile(
            path=path,
            table=self.table.name,
            date=self.date,
            rows=self.rows,
            bytes=self.temporary.stat().st_size,
            sources=tuple(sorted(self._sources)),
            min_ts_ns=self._min_ns,
            max_ts_ns=self._max_ns,
            compacted=self.compacted,
        )
