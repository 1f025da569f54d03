"""A file of ``link_rates`` that the kernel's rows are written to, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from xtune.pipelines._kernel import FIGURES
from xtune.tables import LINK_RATES

_ROW_GROUP = 122_880


class RatesFile:
    """A Parquet file of one part of a chunk; a context manager that closes it.

    Attributes:
        path: Where it is.
        rows: Rows in it.
    """

    def __init__(self, path: Path, metadata: Mapping[str, str]) -> None:
        self.path = path
        self.rows = 0
        self._schema = LINK_RATES.schema.with_metadata(dict(metadata))
        self._names: pa.Array = pa.array([], pa.string())

    def __enter__(self) -> Self:
        self._writer = pq.ParquetWriter(
            self.path,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=["link", "level"],
            store_schema=False,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def links(self, names: Sequence[str]) -> None:
        """What link numbers stand for."""
        self._names = pa.array(names, pa.string())

    def write(self, times: Any, links: Any, figures: Any, levels: Any) -> None:
        """Add rows; figures are (figure, row), NaN where they are unknown."""
        given = {name: figures[i] for i, name in enumerate(FIGURES)}
        columns = []
        for field in self._schema:
            if field.name == "ts":
                column = pa.array(times).cast(field.type)
            elif field.name == "link":
                column = self._names.take(pa.array(links))
            elif field.name == "level":
                column = pa.array(levels, mask=levels < 0)
            else:
                values = given[field.name]
                unknown = np.isnan(values)
                column = pa.array(values, mask=unknown) if unknown.any() else pa.array(values)
            columns.append(column)
        batch = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(batch, row_group_size=_ROW_GROUP)
        self.rows += len(times)
