"""Runs one collector on one input, and builds sysfs trees."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from xtune.collectors import Context, Note, Reject, Rows, Source, Unknown, all_collectors
from xtune.collectors._base import Item
from xtune.tables import TABLES

NOW = 1_700_000_000_000_000_000


@dataclass
class Result:
    """What a collector made of an input."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.tables.get(table, [])

    @property
    def counters(self) -> list[dict[str, Any]]:
        return self.rows("link_counters")

    @property
    def links(self) -> dict[tuple[str, int | None], dict[str, Any]]:
        """Topology by sending end; fails where an end appears twice."""
        rows = self.rows("topology_links")
        found = {(row["src_guid"], row["src_port"]): row for row in rows}
        assert len(found) == len(rows), "a direction was said twice"
        return found


def gather(items: Any) -> Result:
    """Sort a collector's items, checking each batch against the table's schema."""
    result = Result()
    item: Item
    for item in items:
        if isinstance(item, Rows):
            wanted = [f for f in TABLES[item.table].schema if f.name != "source"]
            assert [(f.name, f.type) for f in item.batch.schema] == [
                (f.name, f.type) for f in wanted
            ]
            result.tables.setdefault(item.table, []).extend(
                _row(row) for row in _plain_times(item.batch).to_pylist()
            )
        elif isinstance(item, Reject):
            assert item.offset and item.reason
            result.rejects.append(item)
        elif isinstance(item, Unknown):
            result.unknown[item.name] += item.count
        else:
            assert isinstance(item, Note)
            result.notes[item.text] += item.count
    return result


def _plain_times(batch: Any) -> Any:
    for index, field_ in enumerate(batch.schema):
        if pa.types.is_timestamp(field_.type):
            plain = batch.column(index).cast("int64")
            batch = batch.set_column(index, field_.name, plain)
    return batch


def _row(row: dict[str, Any]) -> dict[str, Any]:
    for name in ("extra", "labels"):
        row[name] = dict(row[name]) if row[name] else {}
    row["saturated"] = row.get("saturated") or []
    return row


def context(**kwargs: Any) -> Context:
    return Context(now_ns=lambda: NOW, **kwargs)


def run(kind: str, path: Path, **kwargs: Any) -> Result:
    """Read ``path`` with a collector."""
    return gather(all_collectors()[kind].read(Source(path, path.name), context(**kwargs)))


def run_text(kind: str, folder: Path, text: str | bytes, **kwargs: Any) -> Result:
    """Read a file of this content."""
    path = folder / "input"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return run(kind, path, **kwargs)


def claims(path: Path) -> dict[str, float]:
    """Confidence of every collector that claims a path."""
    head = Source(path, path.name).head()
    found = {name: c.claim(path, head) for name, c in all_collectors().items()}
    assert all(0 <= confidence <= 1 for confidence in found.values())
    return {name: confidence for name, confidence in found.items() if confidence}


def damaged(kind: str, data: st.DataObject, base: str) -> Result:
    """Read ``base`` with some bytes changed, after every collector was asked for its claim."""
    raw = bytearray(base.encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(raw)
        claims(path)
        return run(kind, path)


def port_tree(
    devices: Path,
    device: str = "mlx5_0",
    port: int = 1,
    *,
    counters: Mapping[str, object] | None = None,
    hw_counters: Mapping[str, object] | None = None,
    counters_ext: Mapping[str, object] | None = None,
    rate: str = "400 Gb/sec (4X NDR)",
    state: str = "4: ACTIVE",
    link_layer: str = "InfiniBand",
    **attributes: str,
) -> Path:
    """Write one port of a device as sysfs would, and return the device's folder."""
    here = devices / device / "ports" / str(port)
    here.mkdir(parents=True, exist_ok=True)
    for name, text in attributes.items():
        (devices / device / name).write_text(f"{text}\n")
    for name, text in (("rate", rate), ("state", state), ("link_layer", link_layer)):
        (here / name).write_text(f"{text}\n")
    for kind, values in (
        ("counters", counters),
        ("hw_counters", hw_counters),
        ("counters_ext", counters_ext),
    ):
        if values is not None:
            (here / kind).mkdir()
            for name, value in values.items():
                (here / kind / name).write_text(f"{value}\n")
    return devices / device
