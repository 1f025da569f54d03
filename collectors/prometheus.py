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
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from xtune.collectors._base import GZIP_MAGIC, Collector, Context, Item, Note, Reject, Source
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import MAX_NS, content_id
from xtune.collectors._prometheus import Group, Key, Names, Writer, key_of
from xtune.collectors._prometheus_names import GAUGES, INFO, NODE, count, recognise

_SERIES = re.compile(
    rb'\{\s*"metric"\s*:\s*(\{(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+\})\s*,\s*"(values?)"\s*:\s*(?=\[)',
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


@dataclass(slots=True)
class _Index:
    """Where each port's series are: by key, then (meaning, start, end) of the pairs."""

    groups: dict[Key, list[tuple[str, int, int]]] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    others: Counter[str] = field(default_factory=Counter)
    ours: int = 0


def _spool(source: Source, damage: list[Reject]) -> IO[bytes]:
    """The content as a file that can be mapped: itself, or undone gzip in a temporary file."""
    raw = source.path.open("rb")
    if raw.peek(2)[:2] != GZIP_MAGIC:
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
    except ValueError:
        return None
    ok = isinstance(found, dict) and all(isinstance(v, str) for v in found.values())
    return found if ok else None


def _index(data: mmap.mmap, index: _Index) -> Iterator[Reject]:
    """Fill the index; yield a reject for each stretch that is no series."""
    position = 0
    released = 0
    previous_end: int | None = None
    while match := _SERIES.search(data, position):
        if previous_end is not None:
            gap = data[previous_end : min(match.start(), previous_end + 8192)]
            if not _BETWEEN.fullmatch(gap):
                what = clip(gap[:80].decode("utf-8", "replace"))
                yield Reject(f"byte {previous_end}", f"not a series: {what!r}", "others are kept")
        start = match.end()
        if match[2] == b"value":
            pairs: re.Match[bytes] | None = _PAIR.match(data, start)
        else:
            pairs = _PAIRS.match(data, start)
        if pairs:
            end = pairs.end()
        else:
            following = _START.search(data, start)
            end = following.start() if following else len(data)
            where = "cut or damaged here: what can be read of it is kept"
            yield Reject(f"byte {start}", f"values of a series without an end: {where}")
        position = end
        if position - released > _RELEASE_BYTES:
            data.madvise(mmap.MADV_DONTNEED)
            released = position
        previous_end = end if pairs else None
        labels = _labels(match[1])
        if labels is None:
            yield Reject(f"byte {match.start(1)}", "labels that are not a JSON object of strings")
            continue
        name = labels.get("__name__", "")
        known = recognise(name)
        if known is None:
            index.others[name or "(no name: an expression such as rate())"] += 1
            continue
        index.ours += 1
        exporter, meaning = known
        if meaning == INFO:
            index.names.learn(exporter, labels)
        else:
            index.groups.setdefault(key_of(exporter, labels), []).append((meaning, start, end))
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


def _batches(data: mmap.mmap, start: int, end: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Times and values between two places, those of some megabytes at once."""
    while start < end:
        stop = data.rfind(b"]", start, min(end, start + _BATCH_BYTES)) + 1 or end
        yield _PAIR.findall(data, start, stop)
        start = stop


def _take_counts(
    pairs: list[tuple[bytes, bytes]], samples: dict[int | None, int | float | None]
) -> bool:
    """Take samples that are counts all, many at once; ``False``, having done nothing, if not."""
    try:
        times = [round(float(time) * 1e6) * 1000 for time, _ in pairs]
        values = [int(value) for _, value in pairs]
    except (ValueError, OverflowError):
        return False
    if not times or min(times) < 0 or max(times) > MAX_NS:
        return False
    if min(values) < 0 or max(values) >= 2**64 or len(set(times)) < len(times):
        return False
    samples.update(zip(times, values, strict=True))
    return True


def _time_ns(text: bytes) -> int | None:
    """Exact for the milliseconds that Prometheus has, where a plain product is off by 100 ns."""
    try:
        ns = round(float(text) * 1e6) * 1000
    except (ValueError, OverflowError):
        return None
    return ns if 0 <= ns <= MAX_NS else None


class Prometheus(Collector):
    """Memory holds the index and one port's samples; gzip goes through a temporary file."""

    name = "prometheus"
    title = "Prometheus query_range/query JSON of InfiniBand exporters"

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
        """Yield a row of ``link_counters`` per port and time, whatever metrics it comes from."""
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
                yield from self._read(data, source, context)
        yield from damage

    def _read(self, data: mmap.mmap, source: Source, context: Context) -> Iterator[Item]:
        index = _Index()
        yield from _index(data, index)
        if not index.ours:
            yield _nothing(data, index)
            return
        if index.others:
            yield Note("series of other metrics: left", index.others.total())
        nameless = any(
            key.exporter == NODE and "instance" not in dict(key.labels) for key in index.groups
        )
        unknown = content_id(source) if nameless and not context.host else ""
        writer = Writer(context, index.names, unknown)
        for key, places in index.groups.items():
            group = Group(key.exporter, dict(key.labels))
            for meaning, start, end in places:
                samples = group.series.setdefault(meaning, {})
                bad: Counter[str] = Counter()
                for pairs in _batches(data, start, end):
                    if samples or not _take_counts(pairs, samples):
                        for time, value in pairs:
                            self._sample(meaning, time, value, samples, bad, writer)
                for text, times in bad.items():
                    yield Reject(f"byte {start}", f"{meaning}: {text} ({times} times)", _RAW)
            yield from writer.add(group)
            data.madvise(mmap.MADV_DONTNEED)
        yield from writer.finish()
        for text, times in writer.notes.items():
            yield Note(text, times)

    @staticmethod
    def _sample(
        meaning: str,
        time: bytes,
        text: bytes,
        samples: dict[int | None, int | float | None],
        bad: Counter[str],
        writer: Writer,
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
            writer.notes["NaN or infinite: null"] += 1
        elif meaning not in GAUGES and (isinstance(value, float) or not 0 <= value < 2**64):
            bad["not a count"] += 1
        elif samples.setdefault(ts, value) != value:
            bad["said before, with another value"] += 1


_RAW = "export the counters themselves, not a rate() of them"


def _nothing(data: mmap.mmap, index: _Index) -> Reject:
    """Why a response holds nothing for us."""
    error = _ERROR.search(data, 0, 65536)
    if error and not index.others:
        return Reject("file", f"the server's error: {clip(error[1].decode('utf-8', 'replace'))}")
    if not index.others:
        return Reject("file", "no series in it", "check the query and its time range")
    names = clip(", ".join(sorted(index.others)))
    reason = f"none of {index.others.total()} series is an InfiniBand counter: {names}"
    return Reject("file", reason, _RAW)


COLLECTOR = Prometheus()
