"""Cuts the time of ``link_counters`` into chunks: a day, or its hours where a day is large."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date as date_type
from datetime import timedelta
from functools import lru_cache

from xtune.lake import DataFile

NS_PER_HOUR = 3_600_000_000_000
NS_PER_DAY = 24 * NS_PER_HOUR
# Rows of a day up to which it is one chunk: few enough to sort in memory, many enough that a
# year of a small fabric is no heap of small files.
DAY_ROWS = 4_000_000
# The same for a day that is not over yet: one more hour of it computes all of the day anew.
OPEN_ROWS = 250_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """One partition of ``link_rates``: a day or an hour, and the raw files that touch it.

    Attributes:
        key: ``2026-01-31`` or ``2026-01-31T05``.
        date: Its date.
        start_ns: First instant, nanoseconds since the epoch.
        end_ns: First instant after it.
        files: Raw files with rows in it.
    """

    key: str
    date: str
    start_ns: int
    end_ns: int
    files: tuple[DataFile, ...]


def plan(
    files: Sequence[DataFile], day_rows: int = DAY_ROWS, recorded: Iterable[str] = ()
) -> list[Chunk]:
    """Chunks in the order of time; rows without a time are in none.

    Args:
        files: Raw files of counters.
        day_rows: Rows of a day up to which it is one chunk.
        recorded: Chunks that were computed before; a day of some size that was once cut into
            hours stays so.
    """
    once_cut = {key[:10] for key in recorded if "T" in key}
    by_date: dict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.min_ts_ns is not None:
            by_date[file.date].append(file)
    chunks: list[Chunk] = []
    last = max(by_date, default="")
    for date, found in sorted(by_date.items()):
        start = day_start_ns(date)
        rows = sum(file.rows for file in found)
        grows = date == last or date in once_cut
        if rows <= (min(day_rows, OPEN_ROWS) if grows else day_rows):
            spans = [(date, start, start + NS_PER_DAY)]
        else:
            spans = [
                (
                    f"{date}T{hour:02d}",
                    start + hour * NS_PER_HOUR,
                    start + (hour + 1) * NS_PER_HOUR,
                )
                for hour in range(24)
            ]
        for key, begin, end in spans:
            touching = tuple(file for file in found if touches(file, begin, end))
            if touching:
                chunks.append(
                    Chunk(key=key, date=date, start_ns=begin, end_ns=end, files=touching)
                )
    return sorted(chunks, key=lambda chunk: chunk.start_ns)


def touches(file: DataFile, begin_ns: int, end_ns: int) -> bool:
    """Whether a file may have rows in ``[begin_ns, end_ns)``."""
    if file.min_ts_ns is None or file.max_ts_ns is None:
        return False
    return file.min_ts_ns < end_ns and file.max_ts_ns >= begin_ns


def day_start_ns(date: str) -> int:
    """First instant of a date, UTC."""
    return (date_type.fromisoformat(date) - date_type(1970, 1, 1)).days * NS_PER_DAY


def ns_date(ns: int) -> str:
    """The date, UTC, of an instant."""
    return str(date_type(1970, 1, 1) + timedelta(days=ns // NS_PER_DAY))


@lru_cache(maxsize=10_000)
def key_span_ns(key: str) -> tuple[int, int]:
    """First instant of a chunk and first after it, from its key."""
    date, _, hour = key.partition("T")
    start = day_start_ns(date) + (int(hour) * NS_PER_HOUR if hour else 0)
    return start, start + (NS_PER_HOUR if hour else NS_PER_DAY)


def by_time(keys: Iterable[str]) -> list[str]:
    """Keys of chunks in the order of time: by their ends, a day after its hours."""
    return sorted(keys, key=lambda key: key_span_ns(key)[::-1])
