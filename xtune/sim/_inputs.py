"""What a calibration reads from the lake, and a digest of it that ignores the order of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import polars as pl

    from xtune.lake import Lake

# Columns that say when a row was, the first known one of which counts.
TIMES = ("ts", "start_ts", "enqueue_ts")
TIMELESS = ("ports", "topology_links")  # what they say holds at all times


def digest(table: pa.Table) -> str:
    """12 hex digits over a table of plain columns, whatever the order of its rows."""
    order = [(name, "ascending") for name in table.column_names]
    table = table.sort_by(order).combine_chunks()
    content = hashlib.sha256(str(table.num_rows).encode())
    for name in table.column_names:
        column = table.column(name)
        content.update(name.encode())
        content.update(np.packbits(pc.is_null(column).to_numpy(zero_copy_only=False)).tobytes())
        if pa.types.is_string(column.type):
            content.update("\x00".join(pc.fill_null(column, "").to_pylist()).encode())
            continue
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        elif pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        content.update(pc.fill_null(column, 0).to_numpy(zero_copy_only=False).tobytes())
    return content.hexdigest()[:12]


@dataclass
class Inputs:
    """Reads tables and remembers the digest of what it read.

    Attributes:
        lake: Where they are.
        digests: Of each table, whole: a window of time has the digests of all times.
        first_ns: Rows before it are left out; None for no bound. Rows without a time count as
            first ones.
        end_ns: Rows at or after it are left out; None for no bound.
    """

    lake: Lake
    digests: dict[str, str] = field(default_factory=dict)
    first_ns: int | None = None
    end_ns: int | None = None
    _frames: dict[tuple[str, ...], pl.DataFrame] = field(default_factory=dict, repr=False)

    def within(self, first_ns: int | None, end_ns: int | None) -> Inputs:
        """The same lake, but for rows of other times; each table is still read once."""
        return replace(self, first_ns=first_ns, end_ns=end_ns)

    def read(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of a table as a Polars frame; times become int64 nanoseconds."""
        import polars as pl

        key = (table, *columns)
        if key not in self._frames:
            self._frames[key] = self._read(table, columns)
        frame = self._frames[key]
        times = [name for name in TIMES if name in frame.columns]
        if not times or table in TIMELESS:
            return frame
        at = pl.coalesce(times)
        if self.first_ns is not None:
            frame = frame.filter((at >= self.first_ns).fill_null(False))
        if self.end_ns is not None:
            frame = frame.filter((at < self.end_ns).fill_null(True))
        return frame

    def _read(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        import polars as pl

        data = self.lake.read(table, list(columns)).replace_schema_metadata(None)
        seen = digest(_plain(data))
        if table in self.digests:  # read before for other columns
            seen = hashlib.sha256(f"{self.digests[table]}{seen}".encode()).hexdigest()[:12]
        self.digests[table] = seen
        frame = pl.from_arrow(data)
        assert isinstance(frame, pl.DataFrame)
        return frame.with_columns(pl.col(pl.Datetime).dt.epoch("ns"))


def _plain(data: pa.Table) -> pa.Table:
    """List columns as text, so that every column can be sorted and hashed."""
    for i, column in enumerate(data.columns):
        if pa.types.is_list(column.type):
            text = [None if v is None else "\x01".join(map(str, v)) for v in column.to_pylist()]
            data = data.set_column(i, data.column_names[i], pa.array(text, pa.string()))
    return data
