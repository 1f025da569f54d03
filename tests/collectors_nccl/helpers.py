"""Run a collector over bytes and look at what it yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from xtune.collectors._base import Collector, Context, Note, Reject, Rows, Source, Unknown
from xtune.tables import TABLES


@dataclass
class Read:
    """All a collector said about one input; times are integers, nanoseconds since the epoch.

    ``busy`` are the rows of ``gpu_busy``, ``rows`` those of all other tables.
    """

    rows: list[dict[str, Any]]
    rejects: list[Reject]
    notes: list[Note]
    unknown: dict[str, int] = field(default_factory=dict)
    busy: list[dict[str, Any]] = field(default_factory=list)

    def note(self, words: str) -> Note:
        """The one note that has ``words`` in it."""
        (found,) = [note for note in self.notes if words in note.text]
        return found


def context(**values: Any) -> Context:
    return Context(now_ns=lambda: 0, **values)


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with times as integers and maps as dicts."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        if pa.types.is_map(column.type):
            values = [None if value is None else dict(value) for value in values]
        columns[name] = values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def read_path(collector: Collector, path: Path, ctx: Context | None = None) -> Read:
    """Read ``path``; checks that each batch has the schema of its table."""
    found = Read([], [], [])
    for item in collector.read(Source(path, path.name), ctx or context()):
        if isinstance(item, Rows):
            schema = TABLES[item.table].schema
            assert item.batch.schema == pa.schema([f for f in schema if f.name != "source"])
            item.batch.validate(full=True)
            rows = found.busy if item.table == "gpu_busy" else found.rows
            rows += as_rows(item.batch)
        elif isinstance(item, Reject):
            found.rejects.append(item)
        elif isinstance(item, Unknown):
            found.unknown[item.name] = item.count
        else:
            found.notes.append(item)
    return found


def read_bytes(
    collector: Collector,
    data: bytes,
    folder: Path,
    name: str = "input",
    ctx: Context | None = None,
) -> Read:
    path = folder / name
    path.write_bytes(data)
    return read_path(collector, path, ctx)


def some(row: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """The named columns of a row."""
    return tuple(row[name] for name in names)


def read_lines(tmp_path: Path, collector: Collector, *lines: str, **ctx: Any) -> Read:
    data = "".join(line + "\n" for line in lines).encode()
    return read_bytes(collector, data, tmp_path, ctx=context(**ctx))


def hugging_face(step: int, total: int = 100) -> list[str]:
    return [
        f"{{'loss': {step / 4}, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': {step / 50}}}",
        f" {step}%|█         | {step}/{total} [00:10<01:30,  1.00it/s]",
    ]
