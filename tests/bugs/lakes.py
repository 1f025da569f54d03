"""Collects inputs as a user does, and looks at what is in the lake then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from xtune.collectors import Context
from xtune.ingest import IngestSummary, collect
from xtune.ingest.summary import FileResult
from xtune.lake import Lake

NOW_NS = 1_750_000_000_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What a run of collect said, and its lake."""

    summary: IngestSummary
    lake: Lake

    def file(self, name: str = "") -> FileResult:
        """The result of the one input whose path ends in ``name``."""
        (found,) = [file for file in self.summary.files if file.path.endswith(name)]
        return found

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table: times as nanoseconds, maps as dicts."""
        found = self.lake.read(table)
        columns: dict[str, list[Any]] = {}
        for name, column in zip(found.column_names, found.columns, strict=True):
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.int64())
            values = column.to_pylist()
            if pa.types.is_map(column.type):
                values = [dict(value or ()) for value in values]
            columns[name] = values
        return [{name: values[i] for name, values in columns.items()} for i in range(len(found))]

    @property
    def counters(self) -> list[dict[str, Any]]:
        """Rows of ``link_counters``."""
        return self.rows("link_counters")

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """Rows of ``collectives``, in the order they were read."""
        return self.rows("collectives")

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Rows of ``steps``, in the order they were read."""
        return self.rows("steps")


def collected(folder: Path, inputs: Mapping[str, str | bytes], **context: Any) -> Collected:
    """Write files below ``folder`` and collect them.

    Args:
        folder: An empty folder.
        inputs: Content by path; all below ``tree/`` are one sysfs tree, collected as a folder.
        context: What the user says.
    """
    root = folder / "in"
    for name, content in inputs.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return collect_paths(folder, root, **context)


def collect_paths(folder: Path, *paths: Path, **context: Any) -> Collected:
    """Collect files and folders that are there."""
    lake = Lake.open(folder / "lake", create=True)
    given = Context(now_ns=lambda: NOW_NS, **context)
    summary = collect(lake, [str(path) for path in paths], context=given)
    return Collected(summary=summary, lake=lake)


def port(
    device: str,
    counters: Mapping[str, str | int] | None,
    hw: Mapping[str, str | int] | None = None,
    *,
    guid: str | None = None,
    link_layer: str = "InfiniBand",
) -> dict[str, str]:
    """Files of one port of a device, as sysfs has them."""
    base = f"tree/class/infiniband/{device}"
    found = {
        f"{base}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        f"{base}/ports/1/state": "4: ACTIVE\n",
        f"{base}/ports/1/link_layer": f"{link_layer}\n",
    }
    if guid:
        found[f"{base}/node_guid"] = f"{guid}\n"
    for kind, values in (("counters", counters), ("hw_counters", hw)):
        for name, value in (values or {}).items():
            found[f"{base}/ports/1/{kind}/{name}"] = f"{value}\n"
    return found
