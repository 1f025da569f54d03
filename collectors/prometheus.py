"""Responses of a Prometheus server: ``query_range`` (matrix) and ``query`` (vector) as JSON.

What it assumes: series of raw counters (``node_infiniband_port_data_transmitted_bytes_total``),
not of ``rate()``; times in float seconds with at most microseconds. Series come metric by metric,
rows are port by port: the file is indexed first, then each port's series are read, so memory
holds one port's samples, whatever the size of the file. When it lies: the values passed through
doubles, so counters beyond 2^53 are rounded.
"""

from __future__ import annotations

import json
import mmap
import re
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from xtune.collectors._base import Collector, Context, Item, Note, Reject, Source
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import MAX_NS, content_id
from xtune.collectors._prometheus import Group
from xtune.collectors._prometheus_names import (
    GAUGES,
    NODE,
    NODE_RATE,
    PORTS,
    TOLD,
    TREYDOCK,
    count,
    recognise,
)
from xtune.collectors._prometheus_rows import NOTHING, Key, Others, Writer, key_of, meaning_of
from xtune.collectors._prometheus_samples import Ints
from xtune.collectors._values import text as as_text

_GZIP = b"\x1f\x8b"
_SERIES = re.compile(
    rb'\{\s*"metric"\s*:\s*(\{(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+\})\s*,\s*"(values?|histograms?)"\s*:\s*(?=\[)',
    re.DOTALL,
)
_PAIRS = re.compile(rb"\[\s*(?:\[[^\[\]]*+\]\s*+,?+\s*+)*+\]")
_PAIR = re.compile(rb'\[\s*([0-9.eE+-]+)\s*,\s*"([^"\[\]]*)"\s*\]')
#: After a series' values: the next series, or the next of several responses in one file.
_BETWEEN = re.compile(
    rb'\s*\}\s*,?\s*(?:\]\s*\}.{0,2000}?\}\s*\{.{0,2000}?"result"\s*:\s*\[\s*)?', re.DOTALL
)
_ENVELOPE = re.compile(rb'"resultType"\s*:\s*"(matrix|vector)"')
_ERROR = re.compile(rb'"error"\s*:\s*"((?:[^"\\]|\\.){0,500})')
#: Pages read are given back after so many bytes, so that the process does not grow with the file.
_RELEASE_BYTES = 16 << 20
_BATCH_BYTES = 4 << 20
_START = re.compile(rb'\{\s*"metric"\s*:')
#: All that pairs of a plain answer are made of, NaN and Inf included.
_PAIR_BYTES = b'0123456789.eE+-[]," \r\n\tNaInf'
_EMPTY = (
    rb'\{\s*"status"\s*:\s*"success"\s*,\s*"data"\s*:\s*\{\s*"resultType"\s*:\s*'
    rb'"(?:matrix|vector)"\s*,\s*"result"\s*:\s*\[\s*\]\s*\}.*\}'
)
#: Rows are made of so many samples, or groups, at once.
_HELD_SAMPLES = 500_000
_HELD_GROUPS = 5_000
_EXACT = 2.0**53
_MAX_S = MAX_NS / 1e9 - 1


@dataclass(slots=True)
class _Index:
    """Where the series of each port, GPU or kind of operation are.

    ``groups``: by key, then (meaning, start of the pairs, end).
    """

    groups: dict[Key, list[tuple[str, int, int]]] = field(default_factory=dict)
    others: Others = field(default_factory=Others)
    expressions: int = 0
    ours: int = 0


def _spool(source: Source, damage: list[Reject]) -> IO[bytes]:
    """The content as a file that can be mapped: itself, or undone gzip in a temporary file."""
    raw = source.path.open("rb")
    if raw.peek(2)[:2] != _GZIP:
        return raw
    raw.close()
    plain = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with source.open() as stream:
            while block := stream.read1(1 << 20):
                plain.write(block)
    except (OSError, EOFError, zlib.error) as error:
        reason = f"the gzip stream ends here: {error}"
        damage.append(Reject(f"byte {plain.tell()}", reason, "what was before is kept"))
    plain.flush()
    return plain


def _labels(text: bytes) -> dict[str, str] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        return None
    # JSON may escape half a pair, which no column holds.
    return {as_text(key) or "": as_text(value) or "" for key, value in found.items()}


def _index(data: mmap.mmap, index: _Index, writer: Writer) -> Iterator[Reject]:
    """Fill the index; yield a reject for each stretch that is no series."""
    position = 0
    released = 0
    previous_end: int | None = None
    while match := _SERIES.search(data, position):
        if previous_end is not None:
            gap = data[previous_end : min(match.start(), previous_end + 8192)]
            if not _BETWEEN.fullmatch(gap) and not gap.startswith(b',"histogram'):
                what = clip(gap[:80].decode("utf-8", "replace"))
                yield Reject(f"byte {previous_end}", f"not a series: {what!r}", "others are kept")
        start = match.end()
        if match[2].startswith(b"histogram"):
            found = _labels(match[1]) or {}
            index.others.add(found.get("__name__", "(a histogram without a name)"))
            position, previous_end = start, None
            continue
        end, whole = _values_end(data, start, single=match[2] == b"value")
        if not whole:
            where = "cut or damaged here: what can be read of it is kept"
            yield Reject(f"byte {start}", f"values of a series without an end: {where}")
        position = end
        if position - released > _RELEASE_BYTES:
            data.madvise(mmap.MADV_DONTNEED)
            released = position
        previous_end = end if whole else None
        labels = _labels(match[1])
        if labels is None:
            yield Reject(f"byte {match.start(1)}", "labels that are not a JSON object of strings")
            continue
        name = labels.get("__name__", "")
        known = recognise(name)
        if known is None:
            index.expressions += not name
            index.others.add(name or "(no name: an expression such as rate())")
            continue
        index.ours += 1
        exporter, meaning = known
        if meaning in TOLD or meaning == NODE_RATE:
            last = last_value(data, end) or 0
            writer.tell(exporter, meaning, labels, float(last))
        else:
            told = meaning_of(exporter, meaning, labels)
            index.groups.setdefault(key_of(exporter, labels), []).append((told, start, end))
    if previous_end is None and position:
        return  # cut inside the last series, which was said
    if _START.search(data, position):
        yield Reject(f"byte {position}", "a series that is cut or damaged", "query again")
    elif position and not _is_closed(data, position):
        yield Reject(f"byte {len(data)}", "the response is cut: its end is missing", "query again")


def _is_closed(data: mmap.mmap, position: int) -> bool:
    """Whether what follows the last series' values closes what the file opened."""
    rest = re.sub(rb'"(?:[^"\\]|\\.)*+"', b"", data[position : position + 65536])
    braces = rest.count(b"}") - rest.count(b"{")
    brackets = rest.count(b"]") - rest.count(b"[")
    head = data[:4096].lstrip()
    if _START.match(head):
        return braces == 1
    return (braces, brackets) == ((1, 1) if head.startswith(b"[") else (3, 1))


def _values_end(data: mmap.mmap, start: int, *, single: bool) -> tuple[int, bool]:
    """Where the values that begin at ``start`` end, and whether they are whole."""
    if single:
        pair = _PAIR.match(data, start)
        if pair:
            return pair.end(), True
    elif data[start : start + 2] == b"[[":
        end = data.find(b"]]", start) + 2
        if end > 1 and data.find(b'"metric"', start, end) < 0 and _tidy(data, start, end):
            return end, True
    pairs = None if single else _PAIRS.match(data, start)
    if pairs:
        return pairs.end(), True
    following = _START.search(data, start)
    return (following.start() if following else len(data)), False


def _tidy(data: mmap.mmap, start: int, end: int) -> bool:
    """Whether the values hold nothing but pairs, judged a piece at a time."""
    for at in range(start, end, _BATCH_BYTES):
        if data[at : min(end, at + _BATCH_BYTES)].translate(None, _PAIR_BYTES):
            return False
    return True


def _batches(data: mmap.mmap, start: int, end: int) -> Iterator[bytes]:
    """The pairs between two places, those of some megabytes at once."""
    while start < end:
        stop = data.rfind(b"]", start, min(end, start + _BATCH_BYTES)) + 1 or end
        yield data[start:stop]
        start = stop


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
    pairs = _PAIR.findall(data[max(0, end - 200) : end])
    try:
        value = count(pairs[-1][1].decode("ascii")) if pairs else None
    except (ValueError, OverflowError):
        return None
    return value if isinstance(value, int) and value >= 0 else None


def _time_ns(text: bytes) -> int | None:
    """Exact for the milliseconds that Prometheus has, where a plain product is off by 100 ns."""
    try:
        ns = round(float(text) * 1e6) * 1000
    except (ValueError, OverflowError):
        return None
    return ns if 0 <= ns <= MAX_NS else None


class Prometheus(Collector):
    """Memory holds the index and some ports' samples; gzip goes through a temporary file."""

    name = "prometheus"
    title = "Prometheus query_range/query JSON, as a file or from a server (--url)"
    produce = (
        "xtune collect --kind prometheus --url http://SERVER:9090 --since 2026-01-31T08:00:00Z"
    )
    gives = "port counters and states, GPU samples, means of collectives, over time"
    lacks = "what the server's scrape interval and doubles leave out"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain of the envelope of a matrix or vector; plausible of a bare list of series."""
        if not head.lstrip().startswith((b"{", b"[")):
            return 0.0
        if _ENVELOPE.search(head):
            return 0.95
        if b'"errorType"' in head and b'"status"' in head:
            return 0.7
        return 0.7 if _SERIES.search(head) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield rows of ``link_counters``, ``ports``, ``gpu_samples`` and ``collectives``."""
        damage: list[Reject] = []
        try:
            stream = _spool(source, damage)
        except OSError as error:
            yield Reject("file", f"cannot be read: {error.strerror}")
            return
        with stream:
            stream.seek(0, 2)
            if stream.tell() == 0:
                yield Reject("file", "empty")
                return
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield from _read(data, source, context)
        yield from damage


def _read(data: mmap.mmap, source: Source, context: Context) -> Iterator[Item]:
    index = _Index()
    writer = Writer(context, "")
    yield from _index(data, index, writer)
    if not index.ours and not index.others:
        yield from _nothing(data)
        return
    nameless = any(
        key.exporter == NODE and "instance" not in dict(key.labels) for key in index.groups
    )
    if nameless and not context.host:
        writer.ports.unknown = content_id(source)
    series = _Series(data, writer)
    series.weigh(index.groups)
    for key, places in index.groups.items():
        yield from series.add(key, places)
        if len(writer.ports.samples) >= _HELD_SAMPLES or series.groups >= _HELD_GROUPS:
            yield from writer.flush("byte")
            series.groups = series.held = 0
            data.madvise(mmap.MADV_DONTNEED)
    yield from writer.flush("byte")
    yield from writer.finish()
    yield from index.others.items()
    if series.infinite:
        yield Note("NaN or infinite: null", series.infinite)
    if index.expressions:
        yield Note(f"{_EXPRESSIONS}: left", index.expressions)
    if not index.ours:
        yield Note(NOTHING)


class _Series:
    """Reads series into a writer."""

    def __init__(self, data: mmap.mmap, writer: Writer) -> None:
        self.groups = 0
        self.held = 0
        self.infinite = 0
        self._data = data
        self._writer = writer

    def weigh(self, groups: dict[Key, list[tuple[str, int, int]]]) -> None:
        """Tell bytes from words by the last sample of each port, before the first row is made."""
        units = self._writer.ports.units
        for key, places in groups.items():
            if key.exporter != TREYDOCK:
                continue
            last = {meaning: last_value(self._data, end) for meaning, _, end in places}
            instance = dict(key.labels).get("instance", "")
            for way in ("xmit", "rcv"):
                units.weigh(
                    instance, last.get(f"port_{way}_data"), last.get(f"port_{way}_packets")
                )
        units.frozen = True

    def add(self, key: Key, places: list[tuple[str, int, int]]) -> Iterator[Item]:
        """Take all series of one key."""
        number, group = self._writer.group(key.exporter, dict(key.labels))
        self.groups += 1
        for meaning, start, end in places:
            counts = key.exporter in PORTS and meaning not in GAUGES
            bad: Counter[str] = Counter()
            for text in _batches(self._data, start, end):
                fast = parse_pairs(text)
                if counts and fast and self._counts(number, meaning, fast, start):
                    continue
                if not counts and fast:
                    self._gauge(meaning, group, fast)
                    continue
                for time, value in _PAIR.findall(text):
                    self._sample(key, meaning, number, group, time, value, start, bad)
            for text_, times in bad.items():
                yield Reject(f"byte {start}", f"{meaning}: {text_} ({times} times)", _RAW)

    def _counts(
        self, number: int, meaning: str, fast: tuple[Ints, npt.NDArray[np.float64]], start: int
    ) -> bool:
        """Take samples that are counts all, many at once; ``False``, having done nothing."""
        times, values = fast
        known = np.isfinite(values)
        if not known.all():
            times, values = times[known], values[known]
        if len(values) and (
            values.min() < 0 or values.max() >= _EXACT or (values != np.floor(values)).any()
        ):
            return False
        self.infinite += int((~known).sum())
        samples = self._writer.ports.samples
        whole = values.astype(np.uint64)
        samples.extend(number, samples.name(meaning), times, whole, start)
        return True

    def _gauge(
        self, meaning: str, group: Group, fast: tuple[Ints, npt.NDArray[np.float64]]
    ) -> None:
        times, values = fast
        known = np.isfinite(values)
        self.infinite += int((~known).sum())
        pairs = dict(zip(times[known].tolist(), values[known].tolist(), strict=True))
        group.gauges.setdefault(meaning, {}).update(pairs)

    def _sample(
        self,
        key: Key,
        meaning: str,
        number: int,
        group: Group,
        time: bytes,
        text: bytes,
        start: int,
        bad: Counter[str],
    ) -> None:
        ts = _time_ns(time)
        try:
            value = count(text.decode("utf-8", "replace"))
        except (ValueError, OverflowError):
            bad[f"not a number: {clip(text.decode('utf-8', 'replace'), 20)!r}"] += 1
            return
        if ts is None:
            bad["a time that is none"] += 1
        elif value is None:
            self.infinite += 1
        elif key.exporter not in PORTS or meaning in GAUGES:
            group.gauges.setdefault(meaning, {})[ts] = value
        elif isinstance(value, float) or not 0 <= value < 2**64:
            bad["not a count"] += 1
        else:
            samples = self._writer.ports.samples
            samples.add(number, samples.name(meaning), ts, value, start)


_RAW = "export the counters themselves, not a rate() of them"
_EXPRESSIONS = "series without a name, such as rate() gives"


def _nothing(data: mmap.mmap) -> Iterator[Item]:
    """Why a response holds no series at all."""
    error = _ERROR.search(data, 0, 65536)
    if error:
        text = clip(error[1].decode("utf-8", "replace"))
        yield Reject("file", f"the server's error: {text}", "query again")
    elif re.fullmatch(_EMPTY, data[:4096].strip()) and len(data) < 4096:
        yield Note("no series in it: check the query and its time range")
    else:
        yield Reject("file", "no series in it", "check the query and its time range")


COLLECTOR = Prometheus()
