"""Responses of a Prometheus server: ``query_range`` (matrix) and ``query`` (vector) as JSON.

What it assumes: series of raw counters (``node_infiniband_port_data_transmitted_bytes_total``),
not of ``rate()``; times in float seconds with at most microseconds. Series come metric by metric,
rows are port by port: the file is indexed first, then each port's series are read, so memory
holds one port's samples, whatever the size of the file. When it lies: the values passed through
doubles, so counters beyond 2^53 are rounded.
"""

from __future__ import annotations

import mmap
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from xtune.collectors._base import (
    GZIP_MAGIC,
    Collector,
    Context,
    Item,
    Note,
    Reject,
    Source,
)
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import content_id
from xtune.collectors._prometheus import Group
from xtune.collectors._prometheus_index import SERIES, Index, fill
from xtune.collectors._prometheus_names import GAUGES, HOSTS, PORTS, TREYDOCK, count
from xtune.collectors._prometheus_pairs import (
    PAIR,
    Place,
    batches,
    last_value,
    parse_pairs,
    slices,
    time_ns,
)
from xtune.collectors._prometheus_rows import NOTHING, Key, Writer
from xtune.collectors._prometheus_samples import Ints
from xtune.collectors._textlines import READ_ERRORS

_ENVELOPE = re.compile(rb'"resultType"\s*:\s*"(matrix|vector)"')
_ERROR = re.compile(rb'"error"\s*:\s*"((?:[^"\\]|\\.){0,500})')
_EMPTY = (
    rb'\{\s*"status"\s*:\s*"success"\s*,\s*"data"\s*:\s*\{\s*"resultType"\s*:\s*'
    rb'"(?:matrix|vector)"\s*,\s*"result"\s*:\s*\[\s*\]\s*\}.*\}'
)
#: Rows are made of so many samples, or groups, at once.
_HELD_SAMPLES = 100_000
_HELD_GROUPS = 5_000
_EXACT = 2.0**53


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
    except READ_ERRORS as error:
        reason = f"the gzip stream ends here: {error}"
        damage.append(Reject(f"byte {plain.tell()}", reason, "what was before is kept"))
    plain.flush()
    return plain


class Prometheus(Collector):
    """Memory holds the index and some ports' samples; gzip goes through a temporary file."""

    name = "prometheus"
    title = "Prometheus query_range/query JSON, as a file or from a server (--url)"
    produce = (
        "xtune collect --kind prometheus --url http://SERVER:9090 --since 2026-01-31T08:00:00Z"
    )
    gives = "port counters and states over time, GPU samples, means of collectives"
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
        return 0.7 if SERIES.search(head) else 0.0

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
    index = Index()
    writer = Writer(context, "")
    yield from fill(data, index, writer)
    if not index.ours and not index.others:
        yield from _nothing(data)
        return
    nameless = any(
        key.exporter in HOSTS and "instance" not in dict(key.labels) for key in index.groups
    )
    if nameless and not context.host:
        writer.ports.unknown = content_id(source)
    series = _Series(data, writer)
    series.weigh(index.groups)
    for key, places in index.groups.items():
        for part in slices(data, places):
            yield from series.add(key, part)
            if len(writer.ports.samples) >= _HELD_SAMPLES or series.groups >= _HELD_GROUPS:
                yield from writer.flush("byte")
                series.groups = 0
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
        self.infinite = 0
        self._data = data
        self._writer = writer

    def weigh(self, groups: Mapping[Key, Sequence[Place]]) -> None:
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

    def add(self, key: Key, places: Sequence[Place]) -> Iterator[Item]:
        """Take all series of one key."""
        number, group = self._writer.group(key.exporter, dict(key.labels))
        self.groups += 1
        for meaning, start, end in places:
            counts = key.exporter in PORTS and meaning not in GAUGES
            bad: Counter[str] = Counter()
            for text in batches(self._data, start, end):
                fast = parse_pairs(text)
                if counts and fast and self._counts(number, meaning, fast, start):
                    continue
                if not counts and fast:
                    self._gauge(meaning, group, fast)
                    continue
                for time, value in PAIR.findall(text):
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
        ts = time_ns(time)
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
