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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = ".rebuild"
STATE_SCHEMA = 4


def digest(*parts: Any) -> str:
    """Hash of JSON-able parts, 24 hex digits."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(kw_only=True, slots=True)
class PartRecord:
    """A finished partition of ``link_rates``, for one range of links.

    Attributes:
        low: First link of the range; None for the first of all.
        high: First link after it; None for no end.
        inputs: Digest of what it was made from.
        files: Its files, relative to the lake.
        rows: Rows in them.
        runs: Name of the stored runs.
        carry: Name of what it hands to the next partition.
        packets: Rows of model ``packet_check``.
    """

    low: str | None
    high: str | None
    inputs: str
    rows: int
    runs: str
    carry: str
    files: list[str] = field(default_factory=list)
    packets: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartRecord:
        """Undo :meth:`to_json`."""
        return cls(**data)


@dataclass(kw_only=True, slots=True)
class ChunkRecord:
    """One finished partition of ``link_rates``.

    Attributes:
        base: Digest of what it was made from, beside what the one before hands on.
        sources: Ids of the inputs its counters came from.
        parts: It, by rising range of links.
    """

    base: str
    sources: list[str]
    parts: list[PartRecord]

    @property
    def files(self) -> list[str]:
        """Its files, relative to the lake."""
        return [name for part in self.parts for name in part.files]

    @property
    def rows(self) -> int:
        """Rows in them."""
        return sum(part.rows for part in self.parts)

    @property
    def stored(self) -> list[str]:
        """Names of its stored runs and of what it hands on."""
        return [name for part in self.parts for name in (part.runs, part.carry)]


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
        sources: Ids of the inputs that the rows it was made from came from, with table and date.
        own_sources: Those of the day itself.
        files: ``<table>/<date>`` -> its file, relative to the lake.
        contents: ``<table>/<date>`` -> digest of its rows.
        rows: Rows in all.
    """

    inputs: str
    own: str = ""
    sources: list[str] = field(default_factory=list)
    own_sources: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    rows: int = 0


@dataclass(kw_only=True, slots=True)
class JointRecord:
    """Stretches that became final in a few partitions of ``link_rates``.

    Attributes:
        inputs: Digest of what they were joined from.
        keys: The partitions.
        closed: Name of the stored stretches.
        after: Name of the runs of each port's last stretch so far.
        tail: The same while they are stored; empty afterwards.
    """

    inputs: str
    keys: list[str]
    closed: str
    after: str
    tail: str


@dataclass(kw_only=True, slots=True)
class PieceRecord:
    """Components that begin on one date.

    Attributes:
        name: Name of the stored components with their episodes.
        from_ns: Earliest instant that one of them rests on.
        until_ns: Latest instant that one of them rests on.
    """

    name: str
    from_ns: int
    until_ns: int


@dataclass(kw_only=True)
class State:
    """All records, and the folder of what they name.

    Attributes:
        folder: Where it is kept.
        chunks: Partition of ``link_rates`` -> its record.
        raw: Raw file of counters -> what it holds.
        origins: Raw file that compaction wrote -> sum of what it was written from.
        hosts: Raw file of other tables -> name of the stored hosts in it.
        jobs: Raw file of steps or collectives -> name of the stored jobs in it.
        joints: Last of a few partitions of ``link_rates`` -> stretches that became final in them.
        pieces: Date -> components that begin on it.
        pieces_of: Digest of what the components rest on beside stretches.
        pieces_from: Names of the stored stretches that the components were made from.
        memos: Question about stored pieces -> digest of their names, and the answer.
        tables: Derived table, or a day of it -> its record.
        notes: What a user should know, by what it is of.
    """

    folder: Path
    chunks: dict[str, ChunkRecord] = field(default_factory=dict)
    raw: dict[str, RawRecord] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    joints: dict[str, JointRecord] = field(default_factory=dict)
    pieces: dict[str, PieceRecord] = field(default_factory=dict)
    pieces_of: str = ""
    pieces_from: list[str] = field(default_factory=list)
    memos: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, TableRecord] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> State:
        """Read the state of a lake; an unreadable one counts as none."""
        folder = root / FOLDER
        try:
            data = orjson.loads((folder / "state.json").read_bytes())
            if data.pop("schema") != STATE_SCHEMA:
                return cls(folder=folder)
            kinds: dict[str, Callable[..., Any]] = {
                "raw": RawRecord,
                "joints": JointRecord,
                "pieces": PieceRecord,
                "tables": TableRecord,
                "chunks": _chunk_record,
            }
            for name, record in kinds.items():
                data[name] = {key: record(**value) for key, value in data[name].items()}
            return cls(folder=folder, **data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(folder=folder)

    def save(self, *, sweep: bool = True) -> None:
        """Write it so that it is there whole or as it was.

        Args:
            sweep: Delete what nothing names; not while another process reads this state.
        """
        self.folder.mkdir(exist_ok=True)
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "folder"}
        _write(self.folder / "state.json", orjson.dumps({"schema": STATE_SCHEMA, **data}))
        if not sweep:
            return
        named = {"state.json", *self.hosts.values(), *self.jobs.values()}
        for chunk in self.chunks.values():
            named.update(chunk.stored)
        for joint in self.joints.values():
            named |= {joint.closed, joint.tail}
        named |= {piece.name for piece in self.pieces.values()} | {*self.pieces_from}
        named |= {raw.links for raw in self.raw.values()}
        for path in self.folder.iterdir():
            if path.name not in named and path.is_file():
                path.unlink()

    def origin(self, files: Iterable[str]) -> str:
        """What raw files stem from: the same before and after compaction of those of a chunk."""
        total = 0
        for name in files:
            known = self.origins.get(name)
            total += int(known or hashlib.sha256(name.encode()).hexdigest()[:32], 16)
        return f"{total % 2**128:x}"

    def keep_table(self, kind: str, table: pa.Table) -> str:
        """Store rows under the hash of their content; the name they can be read by."""
        self.folder.mkdir(exist_ok=True)
        return write_table(self.folder, kind, table)

    def keep_bytes(self, kind: str, content: bytes) -> str:
        """Store bytes under their hash; the name they can be read by."""
        self.folder.mkdir(exist_ok=True)
        return _keep(self.folder, f"{kind}-{_hash(content)}", content)

    def take(self, path: Path) -> None:
        """Take over a file that :func:`write_table` made in another folder of the lake."""
        os.replace(path, self.folder / path.name)

    def path(self, name: str) -> Path:
        """Where stored rows are."""
        return self.folder / name

    def has(self, names: Iterable[str]) -> bool:
        """Whether all stored rows are still there."""
        return all((self.folder / name).exists() for name in names)


def write_table(folder: Path, kind: str, table: pa.Table) -> str:
    """Write rows to a file named by the hash of their content; its name.

    The same rows have the same name whatever their buffers look like: Parquet stores neither
    bitmaps nor values of what is null.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks(), sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    return _keep(folder, f"{kind}-{_hash(content)}.parquet", content)


def _chunk_record(base: str, sources: list[str], parts: list[dict[str, Any]]) -> ChunkRecord:
    records = [PartRecord.from_json(part) for part in parts]
    return ChunkRecord(base=base, sources=sources, parts=records)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _keep(folder: Path, name: str, content: bytes) -> str:
    if not (folder / name).exists():
        _write(folder / name, content)
    return name


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{secrets.token_hex(6)}.tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
