"""What ``rebuild`` remembers between runs: which inputs each partition was made from.

A cache beside the tables, in ``lake/.rebuild``: nothing in the tables rests on it, and without it
everything is computed anew. It is written after the ledger, so a process killed between the two
computes a partition twice, never not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = ".rebuild"
STATE_SCHEMA = 2


def digest(*parts: Any) -> str:
    """Hash of JSON-able parts, 24 hex digits."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(kw_only=True, slots=True)
class ChunkRecord:
    """One finished partition of ``link_rates``.

    Attributes:
        inputs: Digest of what it was made from.
        files: Its files, relative to the lake.
        rows: Rows in them.
        sources: Ids of the inputs its counters came from.
        runs: Name of the stored runs.
        carry: Name of what it hands to the next partition.
    """

    inputs: str
    files: list[str]
    rows: int
    sources: list[str]
    runs: str
    carry: str


@dataclass(kw_only=True, slots=True)
class RawRecord:
    """What one raw file of counters holds, so that it is looked through once.

    Attributes:
        links: Name of the stored list of (link, host).
        null_rate: Whether a row lacks its port's rate.
        deltas: Whether a row holds deltas.
    """

    links: str
    null_rate: bool
    deltas: bool


@dataclass(kw_only=True, slots=True)
class TableRecord:
    """One derived table, or one day of it.

    Attributes:
        inputs: Digest of what it was made from.
        own: Digest of the input files of the day itself, without its reach.
        sources: Ids of the inputs that the rows it was made from came from.
        own_sources: Those of the day itself.
        files: Date -> its file, relative to the lake.
        contents: Date -> digest of its rows.
        rows: Rows in all.
    """

    inputs: str
    own: str = ""
    sources: list[str] = field(default_factory=list)
    own_sources: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    rows: int = 0


@dataclass(kw_only=True)
class State:
    """All records, and the folder of what they name."""

    folder: Path
    chunks: dict[str, ChunkRecord] = field(default_factory=dict)
    raw: dict[str, RawRecord] = field(default_factory=dict)
    tables: dict[str, TableRecord] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> State:
        """Read the state of a lake; an unreadable one counts as none."""
        folder = root / FOLDER
        state = cls(folder=folder)
        try:
            data = json.loads((folder / "state.json").read_text())
            if data["schema"] == STATE_SCHEMA:
                state.chunks = {k: ChunkRecord(**v) for k, v in data["chunks"].items()}
                state.raw = {k: RawRecord(**v) for k, v in data["raw"].items()}
                state.tables = {k: TableRecord(**v) for k, v in data["tables"].items()}
                state.notes = data["notes"]
        except (OSError, ValueError, KeyError, TypeError):
            return cls(folder=folder)
        return state

    def save(self) -> None:
        """Write it so that it is there whole or as it was, and delete what nothing names."""
        self.folder.mkdir(exist_ok=True)
        data = {
            "schema": STATE_SCHEMA,
            "chunks": {k: asdict(v) for k, v in self.chunks.items()},
            "raw": {k: asdict(v) for k, v in self.raw.items()},
            "tables": {k: asdict(v) for k, v in self.tables.items()},
            "notes": self.notes,
        }
        _write(self.folder / "state.json", json.dumps(data).encode())
        named = {"state.json"}
        for chunk in self.chunks.values():
            named |= {chunk.runs, chunk.carry}
        named |= {raw.links for raw in self.raw.values()}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink()

    def keep_table(self, kind: str, table: pa.Table) -> str:
        """Store rows under the hash of their content; the name they can be read by."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        name = f"{kind}-{hashlib.sha256(sink.getvalue()).hexdigest()[:24]}.parquet"
        if not (self.folder / name).exists():
            self.folder.mkdir(exist_ok=True)
            temporary = self.folder / f".{secrets.token_hex(6)}.tmp"
            pq.write_table(table, temporary, compression="zstd")
            os.replace(temporary, self.folder / name)
        return name

    def path(self, name: str) -> Path:
        """Where stored rows are."""
        return self.folder / name

    def has(self, names: Iterable[str]) -> bool:
        """Whether all stored rows are still there."""
        return all((self.folder / name).exists() for name in names)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{secrets.token_hex(6)}.tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
