"""Compaction: closed hours of raw counters into files sorted by (link, ts)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from xtune.lake import ConflictError, DataFile, Lake
from xtune.pipelines._chunks import DAY_ROWS, NS_PER_DAY, NS_PER_HOUR, Chunk, plan, touches
from xtune.pipelines._engine import Session, files_relation, moment

TABLE = "link_counters"
# An hour counts as closed this long after its end: collectors flush late.
GRACE_NS = 300_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Compacted:
    """What compaction did: files before and after, rows in them."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0


def compact(lake: Lake, session: Session, day_rows: int = DAY_ROWS) -> Compacted:
    """Sort what is closed and not sorted yet; what another process changes meanwhile, later."""
    open_from_ns = (lake.clock() - GRACE_NS) // NS_PER_HOUR * NS_PER_HOUR
    by_date: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in plan(lake.files(TABLE), day_rows):
        by_date[chunk.date].append(chunk)
    total = Compacted()
    for chunks in by_date.values():
        done = _compact_date(lake, session, chunks, open_from_ns)
        total = Compacted(
            files_before=total.files_before + done.files_before,
            files_after=total.files_after + done.files_after,
            rows=total.rows + done.rows,
        )
    return total


def _compact_date(
    lake: Lake, session: Session, chunks: list[Chunk], open_from_ns: int
) -> Compacted:
    closed = [chunk for chunk in chunks if chunk.start_ns < open_from_ns]
    files = _dirty_files(closed, open_from_ns)
    if not files:
        return Compacted()
    relation = files_relation(file.path for file in files)
    metadata = lake.metadata(TABLE)
    after = rows = 0
    with lake.begin() as transaction:
        spans = [
            (c.start_ns, min(c.end_ns, open_from_ns), True)
            for c in closed
            if any(touches(file, c.start_ns, min(c.end_ns, open_from_ns)) for file in files)
        ]
        if any(file.max_ts_ns is not None and file.max_ts_ns >= open_from_ns for file in files):
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
                after += 1
                rows += written
            else:
                path.unlink()
        for file in files:
            transaction.remove(file)
        try:
            transaction.commit()
        except ConflictError:
            return Compacted()
    return Compacted(files_before=len(files), files_after=after, rows=rows)


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
