"""Compaction: closed hours of raw counters into files sorted by (link, ts)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from xtune.lake import ConflictError, DataFile, Lake
from xtune.pipelines._chunks import DAY_ROWS, NS_PER_DAY, NS_PER_HOUR, Chunk, plan, touches
from xtune.pipelines._engine import Session, connect, files_relation, moment
from xtune.pipelines._state import State

TABLE = "link_counters"
# An hour counts as closed this long after its end: collectors flush late.
GRACE_NS = 300_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Compacted:
    """What compaction did: files before and after, rows in them."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            files_before=self.files_before + other.files_before,
            files_after=self.files_after + other.files_after,
            rows=self.rows + other.rows,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DateTask:
    """A date to compact; can be sent to another process.

    Attributes:
        root: The lake.
        chunks: Its closed chunks.
        files: What has to be read together so that each of them becomes one sorted file.
        open_from_ns: Where the open hours begin.
        memory: Most memory that DuckDB uses.
        threads: Threads that DuckDB uses.
    """

    root: Path
    chunks: tuple[Chunk, ...]
    files: tuple[DataFile, ...]
    open_from_ns: int
    memory: str | None = None
    threads: int | None = None


# A new file's name, and the names of the files it was written from.
Origins = list[tuple[str, list[str]]]


def compact(
    lake: Lake,
    session: Session,
    day_rows: int = DAY_ROWS,
    *,
    state: State | None = None,
    executor: Executor | None = None,
    memory: str | None = None,
    threads: int | None = None,
) -> Compacted:
    """Sort what is closed and not sorted yet; what another process changes meanwhile, later.

    Args:
        lake: Where.
        session: Does it, where there is no executor.
        day_rows: Rows of a day up to which it is one chunk.
        state: Is told what new files stem from.
        executor: Does the dates side by side.
        memory: Most memory that each of its workers uses.
        threads: Threads that each of its workers uses.
    """
    open_from_ns = (lake.clock() - GRACE_NS) // NS_PER_HOUR * NS_PER_HOUR
    by_date: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in plan(lake.files(TABLE), day_rows, state.chunks if state else ()):
        by_date[chunk.date].append(chunk)
    tasks = []
    for chunks in by_date.values():
        closed = [chunk for chunk in chunks if chunk.start_ns < open_from_ns]
        files = _dirty_files(closed, open_from_ns)
        if files:
            task = DateTask(
                root=lake.root,
                chunks=tuple(closed),
                files=tuple(files),
                open_from_ns=open_from_ns,
                memory=memory,
                threads=threads,
            )
            tasks.append(task)
    if executor is None:
        results: Iterable[tuple[Compacted, Origins]] = (
            _compact_date(lake, session, task) for task in tasks
        )
    else:
        results = executor.map(compact_date, tasks)
    total = Compacted()
    for done, origins in results:
        total += done
        if state is not None:
            state.origins |= {name: state.origin(files) for name, files in origins}
    if state is not None:
        live = {lake.name_of(file) for file in lake.files(TABLE)}
        for name in state.origins.keys() - live:
            del state.origins[name]
    return total


def compact_date(task: DateTask) -> tuple[Compacted, Origins]:
    """Compact one date, in a process of a pool."""
    lake = Lake.open(task.root)
    scratch = lake.scratch(TABLE)
    with connect(threads=task.threads, memory=task.memory, scratch=scratch) as session:
        return _compact_date(lake, session, task)


def _compact_date(lake: Lake, session: Session, task: DateTask) -> tuple[Compacted, Origins]:
    relation = files_relation(file.path for file in task.files)
    metadata = lake.metadata(TABLE)
    open_from_ns, closed = task.open_from_ns, task.chunks
    rows = 0
    read: list[list[str]] = []
    with lake.begin() as transaction:
        spans = [
            (c.start_ns, min(c.end_ns, open_from_ns), True)
            for c in closed
            if any(touches(f, c.start_ns, min(c.end_ns, open_from_ns)) for f in task.files)
        ]
        if any(f.max_ts_ns is not None and f.max_ts_ns >= open_from_ns for f in task.files):
            spans.append((open_from_ns, closed[0].start_ns + NS_PER_DAY * 2, False))
        for begin, end, compacted in spans:
            path = lake.scratch(TABLE) / f"{begin}.parquet.tmp"
            written = session.copy(
                f"SELECT * FROM {relation} WHERE ts >= {moment(begin)} AND ts < {moment(end)}"
                " ORDER BY link, ts, source",
                path,
                metadata,
            )
            if written:
                transaction.adopt(TABLE, path, date=closed[0].date, compacted=compacted)
                read.append([lake.name_of(f) for f in task.files if touches(f, begin, end)])
                rows += written
            else:
                path.unlink()
        for file in task.files:
            transaction.remove(file)
        try:
            names = transaction.commit()
        except ConflictError:
            return Compacted(), []
    done = Compacted(files_before=len(task.files), files_after=len(read), rows=rows)
    return done, list(zip(names, read, strict=True))


def _dirty_files(closed: list[Chunk], open_from_ns: int) -> list[DataFile]:
    """Files that must be read together so that each closed chunk becomes one sorted file."""
    dirty: dict[str, DataFile] = {}
    for chunk in closed:
        if not _is_compact(chunk, open_from_ns):
            dirty |= {str(file.path): file for file in chunk.files}
    grew = bool(dirty)
    while grew:
        found = {
            str(file.path): file
            for chunk in closed
            if any(str(file.path) in dirty for file in chunk.files)
            for file in chunk.files
        }
        grew = len(found) > len(dirty)
        dirty |= found
    return sorted(dirty.values(), key=lambda file: file.path)


def _is_compact(chunk: Chunk, open_from_ns: int) -> bool:
    """Whether the closed part of a chunk is one sorted file that reaches no further."""
    end = min(chunk.end_ns, open_from_ns)
    inside = [file for file in chunk.files if touches(file, chunk.start_ns, end)]
    if not inside:
        return True
    file = inside[0]
    return (
        len(inside) == 1
        and file.compacted
        and (file.min_ts_ns or 0) >= chunk.start_ns
        and (file.max_ts_ns or 0) < end
    )
