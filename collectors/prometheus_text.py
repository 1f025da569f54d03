"""Prometheus text exposition and OpenMetrics: one scrape, as from ``/metrics``.

What it assumes: one scrape a file; a scrape has no time of its own, so it is null unless samples
carry one or ``--time-from`` says it. Histograms and summaries are nothing of ours. Several scrapes
in one file contradict each other, which is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Note, Reject, Source
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import content_id, fallback_time, scale_epoch
from xtune.collectors._prometheus import Group
from xtune.collectors._prometheus_lines import LineBlocks
from xtune.collectors._prometheus_names import GAUGES, HOSTS, PORTS, count, recognise
from xtune.collectors._prometheus_rows import NOTHING, Key, Others, Writer, key_of, meaning_of
from xtune.collectors._prometheus_samples import NO_TIME

_NAME = rb"[a-zA-Z_:][\w:]*+"
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_SAMPLE = re.compile(
    rb"(?:(" + _NAME + rb")\s*(?:\{((?:[^\"}]|" + _STRING + rb")*+)\})?|"
    rb"\{\s*(" + _STRING + rb")((?:[^\"}]|" + _STRING + rb")*+)\})"
    rb"\s*(?<=[\s}])(\S+)(?:\s+(-?[\d.]+(?:[eE][+-]?\d+)?))?\s*(?:#.*)?",
    re.ASCII,
)
_LABEL = re.compile(r'[\s,]*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*+)"\s*,?', re.ASCII)
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_TYPE = re.compile(rb"#\s+TYPE\s+(\S+)\s+(\w+)\s*")
_SURE = re.compile(
    r"^(?:node_infiniband_\w+|infiniband_(?:switch|hca|port|link|symbol)\w+|DCGM_FI_\w+"
    r"|XPU_TIMER_\w+|nccl_(?:bus_bandwidth_gbs|p2p_\w+|collectives?_\w+))\{",
    re.M,
)
#: What dcgm-exporter writes for a field of a kind it cannot write (``pkg/dcgmexporter``).
_NO_VALUE = b"ERROR - FAILED TO CONVERT TO STRING"
#: Samples held before rows are made: no scrape has so many, a dump of many scrapes has.
_HELD = 4_000_000


def parse_labels(text: str) -> dict[str, str] | None:
    """Labels between the braces of a sample; ``None`` where they are malformed."""
    labels = {}
    position = 0
    end = len(text.rstrip(" \t,"))
    while position < end:
        match = _LABEL.match(text, position)
        if not match:
            return None
        value = match[2]
        if "\\" in value:
            value = re.sub(r'\\[\\"n]', lambda m: _ESCAPES[m[0]], value)
        labels[match[1]] = value
        position = match.end()
    return labels


def _own_time(text: bytes) -> int | None:
    """Milliseconds as the text format has them, or OpenMetrics' seconds with a fraction."""
    try:
        if text.lstrip(b"-").isdigit():
            ns = scale_epoch(int(text))[0] if len(text) < 20 else None
        else:
            ns = round(float(text) * 1e6) * 1000
    except (ValueError, OverflowError):
        return None
    return ns if ns is not None and 0 <= ns < 2**63 else None


class PrometheusText(Collector):
    """Holds one scrape, some tens of bytes a sample."""

    name = "prometheus_text"
    title = "Prometheus text exposition (node_exporter, InfiniBand exporters, DCGM, xpu_timer)"
    produce = (
        "curl -s http://NODE:9100/metrics > NODE.prom (9400 dcgm-exporter, 9315, 9683, 18889)"
    )
    gives = "port counters and states, GPU samples, means of collectives"
    lacks = "times, unless --time-from says them; one scrape a file"
    version = 3

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where one of our metrics is in the head, plausible of any exposition."""
        text = head.decode("utf-8", "replace")
        if _SURE.search(text):
            return 0.95
        if re.search(r"^# TYPE [a-zA-Z_:][\w:]* [a-z]+\s*$", text, re.M):
            return 0.6 if re.search(r"^(?:node_|dcgm_|nccl_)\w+", text, re.M) else 0.3
        return 0.5 if re.search(r"^dcgm_\w+\{", text, re.M) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield rows of ``link_counters``, ``ports``, ``gpu_samples`` and ``collectives``."""
        yield from _Reading(source, context).items()


@dataclass(slots=True)
class _Metric:
    """A metric of ours: exporter, meaning, index of the counter (-1: no count).

    ``groups``: group by the text of the labels, shared by the counters of one exporter.
    """

    exporter: str
    meaning: str
    counter: int
    groups: dict[bytes, tuple[int, Group]]


class _Reading:
    """One file as it is read."""

    def __init__(self, source: Source, context: Context) -> None:
        self.source = source
        self.context = context
        self.others = Others()
        self.writer = Writer(context, "")
        self.samples = self.writer.ports.samples
        self.fallback = fallback_time(source, context)
        self.without_time = 0
        self.infinite = self.blank = 0
        self.ours = 0
        self._groups: dict[Key, tuple[int, Group]] = {}
        self._by_labels: dict[str, dict[bytes, tuple[int, Group]]] = {}
        self._known: dict[bytes, _Metric | None] = {}

    def items(self) -> Iterator[Item]:
        """Yield all rows, rejects and notes."""
        blocks = LineBlocks(self.source)
        nothing = True
        for first, lines in blocks:
            nothing = nothing and not any(map(bytes.strip, lines))
            yield from self._block(first, lines)
            if len(self.samples) >= _HELD:
                yield from self._flush()
                self._groups.clear()
                for groups in self._by_labels.values():
                    groups.clear()
        yield from self._flush()
        yield from self.writer.finish()
        yield from self.others.items()
        if nothing and not blocks.rejects:
            yield Reject("file", "empty")
        elif not self.ours:
            yield Note(NOTHING)
        if self.without_time and self.fallback is None:
            yield Note("scrape without a time: ts is null (--time-from says otherwise)")
        if self.infinite:
            yield Note("NaN or infinite: null", self.infinite)
        if self.blank:
            yield Note("value that dcgm-exporter could not write: null", self.blank)
        yield from blocks.rejects

    def _block(self, first: int, lines: list[bytes]) -> Iterator[Reject]:
        """Take some lines; counts without a time, which are nearly all, by a short way."""
        known, add = self._known.get, self.samples.add
        ts = NO_TIME if self.fallback is None else self.fallback
        for number, line in enumerate(lines, first):
            name, _, rest = line.partition(b"{")
            metric = known(name)
            if metric is not None and metric.counter >= 0:
                labels, _, value = rest.rpartition(b"} ")
                found = metric.groups.get(labels)
                if found is not None and value.isdigit() and len(value) < 20:
                    add(found[0], metric.counter, ts, int(value), number)
                    self.without_time += 1
                    continue
            problem = self._line(line.strip(), number)
            if problem is not None:
                yield Reject(f"line {number}", problem)

    def _line(self, data: bytes, number: int) -> str | None:
        """Take one line; what is wrong with it, if anything."""
        if not data:
            return None
        if data[0] == 35:  # '#'
            kind = _TYPE.fullmatch(data)
            if kind and kind[2] in (b"histogram", b"summary", b"gaugehistogram"):
                self.others.summaries.add(kind[1].decode("utf-8", "replace")[:200])
            return None
        return self._sample(data, number)

    def _flush(self) -> Iterator[Item]:
        ports = self.writer.ports
        nameless = any(
            group.exporter in HOSTS and "instance" not in group.labels
            for _, group in self._groups.values()
        )
        if nameless and not ports.unknown and not self.context.host:
            ports.unknown = content_id(self.source)
        yield from self.writer.flush("line")

    def _sample(self, data: bytes, number: int) -> str | None:
        """Take one sample; what is wrong with it, if anything."""
        head, brace, rest = data.partition(b"{")
        labels, closed, tail = rest.rpartition(b"} ")
        parts = tail.split() if closed else head.split()[1:]
        name = head if brace else head.split()[0]
        if name not in self._known or b"#" in tail or not 1 <= len(parts) <= 2:
            match = _SAMPLE.fullmatch(data)
            if match is None and data.endswith(_NO_VALUE):
                self.blank += 1
                return None
            if match is None:
                return f"not a sample: {clip(data.decode('utf-8', 'replace'))!r}"
            if match[1] is None:
                self.others.add(match[3][1:-1].decode("utf-8", "replace")[:200])
                return None
            name, labels = match[1], match[2] or b""
            parts = [match[5]] if match[6] is None else [match[5], match[6]]
            self._learn(name)
        elif not brace:
            labels = b""
        metric = self._known[name]
        try:
            value = count(parts[0].decode("ascii", "replace"))
        except (ValueError, OverflowError):
            return f"not a number: {clip(parts[0].decode('utf-8', 'replace'))!r}"
        if metric is None:
            self.others.add(name.decode("ascii"))
            return None
        return self._ours(metric, labels, value, parts, number)

    def _learn(self, name: bytes) -> None:
        if name in self._known:
            return
        known = recognise(name.decode("ascii"))
        if known is None:
            # Names of others are remembered to be quick, within bounds.
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[name] = None
            return
        exporter, meaning = known
        counts = exporter in PORTS and meaning not in GAUGES
        counter = self.samples.name(meaning) if counts else -1
        groups = self._by_labels.setdefault(exporter, {})
        self._known[name] = _Metric(exporter, meaning, counter, groups)

    def _ours(
        self,
        metric: _Metric,
        labels: bytes,
        value: int | float | None,
        parts: list[bytes],
        number: int,
    ) -> str | None:
        exporter, meaning, counter = metric.exporter, metric.meaning, metric.counter
        found = metric.groups.get(labels) if counter >= 0 else None
        if found is None:
            parsed = parse_labels(labels.decode("utf-8", "replace"))
            if parsed is None:
                return f"labels that are malformed: {clip(labels.decode('utf-8', 'replace'))!r}"
            self.ours += 1
            if value is not None and self.writer.tell(exporter, meaning, parsed, float(value)):
                return None
            key = key_of(exporter, parsed)
            found = self._groups.get(key)
            if found is None:
                found = self._groups[key] = self.writer.group(exporter, dict(key.labels))
            if counter >= 0:
                metric.groups[labels] = found
            else:
                meaning = meaning_of(exporter, meaning, parsed)
        ts = self.fallback
        if len(parts) == 2:
            own = _own_time(parts[1])
            ts = self.fallback if own is None else own
        if ts is None:
            self.without_time += 1
            ts = NO_TIME
        if value is None:
            self.infinite += 1
            return None
        if counter >= 0:
            if isinstance(value, float) or not 0 <= value < 2**64:
                return f"not a count: {clip(parts[0].decode('utf-8', 'replace'))!r}"
            self.samples.add(found[0], counter, ts, value, number)
            return None
        gauge = found[1].gauges.setdefault(meaning, {})
        if gauge.setdefault(ts, value) != value:
            return "said before, with another value: one scrape a file"
        return None


COLLECTOR = PrometheusText()
