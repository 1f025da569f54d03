"""Takes over a Parquet file that something else, such as DuckDB, wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xtune.errors import LakeError
from xtune.files import fsync
from xtune.lake._parquet import conform, file_metadata
from xtune.lake._part import Part
from xtune.lake._records import DataFile
from xtune.tables import Table


def adopt_file(table: Table, path: Path, temporary: Callable[[], Path]) -> DataFile:
    """Check a Parquet file and make it durable, rewriting it only where it does not fit as it is.

    Returns:
        Its record; ``path`` in it is where the temporary file is now, ``date`` is empty.

    Raises:
        LakeError: It is not Parquet, or its columns do not fit the table.
    """
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise LakeError(f"{path}: cannot be taken into the lake: {error}") from error
    with file:
        if _fits(table, file):
            part = Part(table, "", path, compacted=False)
            columns = [table.time] if table.derived else [table.time, "source"]
            for batch in file.iter_batches(columns=columns):
                part.note(batch)
        else:
            part = Part(table, "", temporary(), compacted=False)
            for batch in file.iter_batches():
                part.add(conform(table, batch))
            part.close()
            path.unlink()
    fsync(part.temporary)
    return part.data_file(part.temporary)


def _fits(table: Table, file: pq.ParquetFile) -> bool:
    """Whether a file can be kept as it is: same columns, in order and type, and our metadata."""
    schema = file.schema_arrow
    metadata: Mapping[bytes, bytes] = schema.metadata or {}
    return (
        schema.names == table.schema.names
        and all(schema.field(f.name).type.equals(f.type) for f in table.schema)
        and all(metadata.get(k.encode()) == v.encode() for k, v in file_metadata(table).items())
        and not any(_has_null(file, f.name) for f in table.schema if not f.nullable)
    )


def _has_null(file: pq.ParquetFile, column: str) -> bool:
    return any(
        pc.any(pc.is_null(batch.column(0))).as_py()
        for batch in file.iter_batches(columns=[column])
    )
