"""Prometheus text exposition of InfiniBand exporters: one scrape, as from ``/metrics``.

What it assumes: one scrape a file; a scrape has no time of its own, so it is null unless samples
carry one or ``--time-from`` says it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Note, Reject, Source
from xtune.collectors._ib_text import clip, read_lines
from xtune.collectors._ib_time import content_id, fallback_time, scale_epoch
from xtune.collectors._prometheus import Group, Key, Names, Writer, key_of
from xtune.collectors._prometheus_names import GAUGES, INFO, NODE, count, recognise

_SAMPLE = re.compile(
    r'([a-zA-Z_:][\w:]*)\s*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?\s+(\S+)'
    r"(?:\s+(-?[\d.]+))?\s*(?:#.*)?",
    re.ASCII,
)
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*+)"\s*,?', re.ASCII)
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse_labels(text: str) -> dict[str, str] | None:
    """Labels between the braces of a sample; ``None`` where they are malformed."""
    labels = {}
    position = 0
    while position < len(text.rstrip()):
        match = _LABEL.match(text, position)
        if not match:
            return None
        labels[match[1]] = re.sub(r'\\[\\"n]', lambda m: _ESCAPES[m[0]], match[2])
        position = match.end()
    return labels


def _own_time(text: str | None) -> int | None:
    """Milliseconds as the text format has them, or OpenMetrics' seconds with a fraction."""
    if text is None:
        return None
    try:
        ns = round(float(text) * 1e6) * 1000 if "." in text else scale_epoch(int(text))[0]
    except ValueError:
        return None
    return ns if ns is not None and 0 <= ns < 2**63 else None


class PrometheusText(Collector):
    """Holds one scrape, which the ports of a host or fabric bound."""

    name = "prometheus_text"
    title = "Prometheus text exposition of InfiniBand exporters"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where an InfiniBand metric is in the head, plausible of any exposition."""
        text = head.decode("utf-8", "replace")
        if re.search(r"^(node_infiniband_|infiniband_)\w+\{", text, re.M):
            return 0.95
        if re.search(r"^# TYPE [a-zA-Z_:][\w:]* (counter|gauge|untyped|summary)\s*$", text, re.M):
            return 0.6 if re.search(r"^node_\w+", text, re.M) else 0.3
        return 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield rows of ``link_counters`` and ``ports``."""
        damage: list[Reject] = []
        groups: dict[Key, Group] = {}
        names = Names()
        others = 0
        notes: Counter[str] = Counter()
        fallback = fallback_time(source, context)
        for number, line in read_lines(source, damage):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _SAMPLE.fullmatch(line.strip())
            labels = parse_labels(match[2] or "") if match else None
            if match is None or labels is None:
                yield Reject(f"line {number}", f"not a sample: {clip(line)!r}")
                continue
            known = recognise(match[1])
            if known is None:
                others += 1
                continue
            exporter, meaning = known
            try:
                value = count(match[3])
            except (ValueError, OverflowError):
                yield Reject(f"line {number}", f"not a number: {clip(match[3])!r}")
                continue
            if meaning == INFO:
                names.learn(exporter, labels)
                continue
            if value is None:
                notes["NaN or infinite: null"] += 1
                continue
            if meaning not in GAUGES and (isinstance(value, float) or not 0 <= value < 2**64):
                yield Reject(f"line {number}", f"not a count: {clip(match[3])!r}")
                continue
            own = _own_time(match[4])
            ts = fallback if own is None else own
            group = groups.setdefault(key_of(exporter, labels), Group(exporter, dict(labels)))
            samples = group.series.setdefault(meaning, {})
            if ts in samples:
                yield Reject(f"line {number}", "said before: one scrape a file", "split the file")
                continue
            samples[ts] = value
        if not groups:
            if not damage:
                yield Reject("file", f"no InfiniBand metric among {others} samples")
            yield from damage
            return
        nameless = any(g.exporter == NODE and "instance" not in g.labels for g in groups.values())
        unknown = content_id(source) if nameless and not context.host else ""
        writer = Writer(context, names, unknown)
        for group in groups.values():
            yield from writer.add(group)
        yield from writer.finish()
        if fallback is None and any(None in s for g in groups.values() for s in g.series.values()):
            yield Note("scrape without a time: ts is null (--time-from says otherwise)")
        if others:
            yield Note("samples of other metrics: left", others)
        for text, times in {**notes, **writer.notes}.items():
            yield Note(text, times)
        yield from damage


COLLECTOR = PrometheusText()
