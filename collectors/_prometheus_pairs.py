"""The samples of a series in a Prometheus answer: pairs of a time and a value in quotes."""

from __future__ import annotations

import mmap
import re
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from xtune.collectors._ib_time import MAX_NS
from xtune.collectors._prometheus_names import count
from xtune.collectors._prometheus_samples import Ints

PAIR = re.compile(rb'\[\s*([0-9.eE+-]+)\s*,\s*"([^"\[\]]*)"\s*\]')
BATCH_BYTES = 4 << 20
#: A port's series beyond are read a stretch of time after the other.
_SLICE_BYTES = 32 << 20
_MAX_S = MAX_NS / 1e9 - 1

Place = tuple[str, int, int]


def find(data: mmap.mmap, text: bytes, start: int, end: int) -> int:
    """Where ``text`` stands, -1 where it does not; pages that were looked through are given back.

    In pieces that grow: quicker than a map's own search, near or far.
    """
    size = 4096
    while start < end:
        found = data[start : min(end, start + size + len(text) - 1)].find(text)
        if found >= 0:
            return start + found
        start += size
        if size < BATCH_BYTES:
            size *= 8
        else:
            data.madvise(mmap.MADV_DONTNEED)
    return -1


def batches(data: mmap.mmap, start: int, end: int) -> Iterator[bytes]:
    """The pairs between two places, those of some megabytes at once."""
    while start < end:
        limit = min(end, start + BATCH_BYTES)
        piece = data[start:limit]
        stop = limit if limit == end else start + piece.rfind(b"]") + 1
        if stop == start:  # no pair ends in so many bytes
            stop = limit
        yield piece[: stop - start]
        start = stop
        if limit < end:
            data.madvise(mmap.MADV_DONTNEED)


def parse_pairs(text: bytes) -> tuple[Ints, npt.NDArray[np.float64]] | None:
    """Times in nanoseconds and values of compact pairs; ``None`` where they are not plain.

    Values passed through doubles in the server, so that reading them as such loses nothing below
    2^53; beyond, and for times out of range, the slow way decides.
    """
    count = text.count(b"[") - text.startswith(b"[[")
    closed = text.count(b"]") - text.endswith(b"]]")
    if closed != count or text.count(b'"') != 2 * count or text.count(b",") < 2 * count - 1:
        return None
    plain = text.translate(None, b'[]"').strip(b", \r\n\t")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            numbers = np.fromstring(plain, np.float64, sep=",")
    except (ValueError, DeprecationWarning):
        return None
    if len(numbers) != 2 * count or not count:
        return None
    times, values = numbers[::2], numbers[1::2]
    if not np.isfinite(times).all() or times.min() < 0 or times.max() >= _MAX_S:
        return None
    return np.rint(times * 1e6).astype(np.int64) * 1000, values


def last_value(data: mmap.mmap, end: int) -> int | None:
    """The last count of the pairs that end at ``end``."""
    pairs = PAIR.findall(data[max(0, end - 200) : end])
    try:
        value = count(pairs[-1][1].decode("ascii")) if pairs else None
    except (ValueError, OverflowError):
        return None
    return value if isinstance(value, int) and value >= 0 else None


def time_ns(text: bytes) -> int | None:
    """Exact for the milliseconds that Prometheus has, where a plain product is off by 100 ns."""
    try:
        ns = round(float(text) * 1e6) * 1000
    except (ValueError, OverflowError):
        return None
    return ns if 0 <= ns <= MAX_NS else None


def slices(data: mmap.mmap, places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    """Series in stretches of time, so that memory does not grow with their length.

    Args:
        data: The answer.
        places: Meaning, start and end of the series that share rows.
    """
    total = sum(end - start for _, start, end in places)
    if total <= _SLICE_BYTES:
        yield places
        return
    first = min(filter(None, (_time_at(data, start, end) for _, start, end in places)), default=0)
    last = max(
        filter(None, (_time_at(data, max(start, end - 200), end) for _, start, end in places)),
        default=0,
    )
    parts = -(-total // _SLICE_BYTES)
    begins = [start for _, start, _ in places]
    for part in range(1, parts + 1):
        limit = first + (last - first) * part // parts
        ends = [
            end if part == parts else _seek(data, begin, end, limit)
            for begin, (_, _, end) in zip(begins, places, strict=True)
        ]
        yield [
            (meaning, begin, end)
            for (meaning, _, _), begin, end in zip(places, begins, ends, strict=True)
            if end > begin
        ]
        begins = ends


def _time_at(data: mmap.mmap, start: int, end: int) -> int | None:
    """Time of the first pair after a place."""
    pair = PAIR.search(data, start, min(end, start + 4096))
    return time_ns(pair[1]) if pair else None


def _seek(data: mmap.mmap, start: int, end: int, limit: int) -> int:
    """Where the first pair at or after a time begins, among pairs in the order of time."""
    low, high = start, end
    while high - low > 256:
        middle = (low + high) // 2
        pair = PAIR.search(data, middle, min(end, middle + 4096))
        ts = time_ns(pair[1]) if pair else None
        if pair is None or ts is None or ts >= limit or pair.start() >= high:
            high = middle
        else:
            low = pair.start()
    for pair in PAIR.finditer(data, low, end):
        ts = time_ns(pair[1])
        if ts is None or ts >= limit:
            return pair.start()
    return end
