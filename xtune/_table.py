"""What a table of the lake is: its columns, their types, and the Arrow schema they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

SCHEMA_VERSION = 1

TS = pa.timestamp("ns", tz="UTC")
STR = pa.string()
I32 = pa.int32()
I64 = pa.int64()
U64 = pa.uint64()
F64 = pa.float64()
BOOL = pa.bool_()


def list_of(kind: pa.DataType) -> pa.DataType:
    """List type whose element field is called ``element``, as Parquet writes it back."""
    return pa.list_(pa.field("element", kind))


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Arrow type, unit ("" where none) and meaning in one line."""

    name: str
    type: pa.DataType
    unit: str = ""
    meaning: str = ""
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """One table of the lake.

    Attributes:
        name: ``link_counters``, or ``derived/link_rates`` for a derived table.
        grain: What one row is.
        time: The column that gives a row its ``date=`` partition.
        sort: Columns that compaction sorts by.
        key: Columns that together identify a row of a derived table (audited after each rebuild).
    """

    name: str
    grain: str
    time: str
    columns: tuple[Column, ...]
    sort: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    extra_type: pa.DataType = field(default_factory=lambda: pa.map_(STR, STR))

    @property
    def derived(self) -> bool:
        """Whether a pipeline, not a collector, fills this table."""
        return self.name.startswith("derived/")

    @property
    def bare_name(self) -> str:
        """The name by which ``xtune query`` knows the table."""
        return self.name.removeprefix("derived/")

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema; each field carries its unit and meaning as metadata."""
        columns = self.columns
        if not self.derived:
            columns += (
                Column("source", STR, "", "ledger id of the input this row came from"),
                Column("labels", pa.map_(STR, STR), "", "labels the source or the user gave"),
                Column("extra", self.extra_type, "", "what the source says and no column holds"),
            )
        fields = [
            pa.field(c.name, c.type, c.nullable, {"unit": c.unit, "meaning": c.meaning})
            for c in columns
        ]
        metadata = {"xtune.table": self.name, "xtune.schema": str(SCHEMA_VERSION)}
        return pa.schema(fields, metadata=metadata)
