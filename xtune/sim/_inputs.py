"""What a calibration reads from the lake, and a digest of it that ignores the order of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import polars as pl

    from xtune.lake import Lake


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
        content.update(pc.fill_null(column, 0).to_numpy(zero_copy_only=False).tobytes())
    return content.hexdigest()[:12]


@dataclass
class Inputs:
    """Reads tables and remembers the digest of what it read."""

    lake: Lake
    digests: dict[str, str] = field(default_factory=dict)

    def read(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of a table as a Polars frame; times become int64 nanoseconds."""
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
