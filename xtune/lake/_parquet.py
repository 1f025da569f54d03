"""One Parquet file of the lake: its schema, its metadata and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import xtune
from xtune.errors import LakeError
from xtune.lake._records import UNKNOWN_DATE
from xtune.lake._rejected import REJECTED
from xtune.tables import SCHEMA_VERSION, TABLES, Table

COMPRESSION = "zstd"
NS_PER_DAY = 86_400_000_000_000


def table_named(name: str) -> Table:
    """The contract of a table, by its full name.

    Raises:
        LakeError: There is no such table.
    """
    if name == REJECTED.name:
        return REJECTED
    if name not in TABLES:
        raise LakeError(f"no table {name}", f"one of {', '.join([*TABLES, REJECTED.name])}")
    return TABLES[name]


def file_metadata(table: Table) -> dict[str, str]:
    """What each Parquet file says of itself, as key and value metadata."""
    return {
        "xtune.table": table.name,
        "xtune.schema": str(SCHEMA_VERSION),
        "xtune.version": xtune.__version__,
    }


def file_schema(table: Table) -> pa.Schema:
    """The table's Arrow schema with :func:`file_metadata`."""
    return table.schema.with_metadata(file_metadata(table))


def conform(table: Table, data: pa.Table | pa.RecordBatch, source: str | None = None) -> pa.Table:
    """``data`` with the table's columns in order and type; absent columns are null.

    Args:
        table: The contract.
        data: Rows; any subset of the columns.
        source: Fills the column ``source`` where ``data`` does not have it.

    Raises:
        LakeError: A column is unknown, cannot be cast, or is null where it must not be.
    """
    schema = file_schema(table)
    unknown = set(data.schema.names) - set(schema.names)
    if unknown:
        raise LakeError(f"{table.name} has no column {', '.join(sorted(unknown))}")
    columns = []
    for field in schema:
        index = data.schema.get_field_index(field.name)
        if index >= 0:
            column = data.column(index)
        elif field.name == "source" and source is not None:
            column = pa.repeat(pa.scalar(source, field.type), data.num_rows)
        else:
            column = pa.nulls(data.num_rows, field.type)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise LakeError(f"{table.name}.{field.name}: {error}") from error
        if not field.nullable and column.null_count:
            raise LakeError(f"{table.name}.{field.name} is null in {column.null_count} rows")
        columns.append(column)
    return pa.table(columns, schema=schema)


def split_by_date(table: Table, data: pa.Table) -> list[tuple[str, pa.Table]]:
    """Rows by the date (UTC) of the table's time column, in their order; null goes to unknown."""
    if data.num_rows == 0:
        return []
    # Cast to int64, not date32: a floor of times before 1970 must round down, and pyarrow's does.
    days = pc.cast(pc.floor_temporal(data.column(table.time), unit="day"), pa.int64())
    found = pc.unique(days)
    if len(found) == 1:
        return [(_date(found[0]), data)]
    parts = []
    for day in found:
        mask = pc.equal(days, day) if day.is_valid else pc.is_null(days)
        parts.append((_date(day), data.filter(mask)))
    return parts


def _date(day_ns: pa.Scalar) -> str:
    if not day_ns.is_valid:
        return UNKNOWN_DATE
    days = day_ns.as_py() // NS_PER_DAY
    return str(pa.scalar(days, pa.int32()).cast(pa.date32()).as_py())


def check_metadata(path: Path, metadata: Mapping[bytes, bytes] | None) -> None:
    """Refuse a Parquet file of another table schema.

    Raises:
        LakeError: It says another schema version, or none.
    """
    schema = (metadata or {}).get(b"xtune.schema", b"none").decode()
    if schema != str(SCHEMA_VERSION):
        version = (metadata or {}).get(b"xtune.version", b"?").decode()
        raise LakeError(
            f"{path}: table schema {schema} of xtune {version}, this xtune reads {SCHEMA_VERSION}",
            "use that version of xtune, or collect into a new lake",
        )


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a live file for reading.

    Raises:
        LakeError: It is missing, damaged or of another table schema.
    """
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise LakeError(
            f"{path}: the ledger names it and it is gone",
            "restore it from a backup, or collect and rebuild into a new lake",
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise LakeError(
            f"{path}: {error}", "restore it from a backup, or collect and rebuild into a new lake"
        ) from error
    check_metadata(path, file.schema_arrow.metadata)
    return file
