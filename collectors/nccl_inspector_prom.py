"""NCCL Inspector's Prometheus text (formats 5.x): the last figures of each kind of operation.

A file per GPU that is written anew at intervals, one line a metric and label set, without times
unless the exposition has them. Source: NVIDIA/nccl plugins/profiler/inspector/inspector_prom.cc
at 2.30, which writes the mean time and the geometric mean of the bandwidth of a window; RCCL's
adds counts, percentiles, exact sizes, communicators and its slowest operations one by one.

What it lacks: sequence numbers, and in NVIDIA's exact sizes (``message_size`` is a range like
``4-5GB`` of powers of 1024, per rank), so ``seq`` and ``message_bytes`` are null. ``comm_name`` is
a name that the framework gave, which several communicators may share, so ``comm`` is null too;
``extra`` has it. Through node_exporter or a server, the same metrics are read by
``prometheus_text`` and ``prometheus``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Note, Reject, Source
from xtune.collectors._prometheus import Group
from xtune.collectors._prometheus_collectives import Collectives
from xtune.collectors._prometheus_names import INSPECTOR, recognise
from xtune.collectors._prometheus_samples import NO_TIME
from xtune.collectors._textlines import Lines
from xtune.collectors._values import real

_LINE = re.compile(
    r"(?P<metric>nccl_\w+)\{(?P<labels>(?:[^}\"]|\"(?:[^\"\\]|\\.)*+\")*+)\}"
    r"\s+(?P<value>\S+)(?:\s+(?P<ms>\d{12,14}))?\s*"
)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_MAX_OPEN = 100_000


def _ours(line: str) -> re.Match[str] | None:
    found = _LINE.fullmatch(line)
    known = recognise(found["metric"]) if found else None
    return found if known and known[0] == INSPECTOR else None


class NcclInspectorProm(Collector):
    """Reads the Prometheus text of NCCL Inspector."""

    name = "nccl_inspector_prom"
    title = "NCCL Inspector Prometheus text"
    produce = (
        "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 "
        "NCCL_INSPECTOR_PROM_DUMP=1 NCCL_INSPECTOR_DUMP_DIR=DIR"
    )
    gives = "mean time and bus bandwidth of each kind and size range of operation"
    lacks = "single operations, start times, exact sizes"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where all lines are Inspector's metrics; not of a scrape that has others."""
        lines = head.decode("utf-8", "replace").splitlines()[:200]
        lines = [line for line in lines if line.strip() and not line.startswith("#")]
        ours = sum(_ours(line) is not None for line in lines)
        return 0.97 if ours and 2 * ours >= len(lines) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a label set: its time and bandwidth are two lines."""
        lines = Lines(source)
        writer = Collectives(context)
        held: dict[str, Group] = {}
        any_row = False
        for line in lines:
            if not line.data.strip() or line.data.startswith(b"#"):
                continue
            found = _ours(line.text)
            if found is None or not line.whole:
                yield Reject(line.place, "not a metric of NCCL Inspector, or cut")
                continue
            value = real(found["value"])
            if value is None:
                yield Reject(line.place, "not a number")
                continue
            if found["labels"] not in held and len(held) >= _MAX_OPEN:
                for group in held.values():
                    yield from writer.add(group)
                held.clear()
            if found["labels"] not in held:
                labels = dict(_LABEL.findall(found["labels"]))
                held[found["labels"]] = Group(INSPECTOR, labels)
            ts = NO_TIME if found["ms"] is None else int(found["ms"]) * 1_000_000
            held[found["labels"]].gauges.setdefault(found["metric"], {})[ts] = value
            any_row = True
        for group in held.values():
            yield from writer.add(group)
        yield from writer.finish()
        yield from lines.rejects
        for text, count in writer.notes.items():
            yield Note(text, count)
        if not any_row and not lines.rejects:
            yield Note("no operation in this NCCL Inspector file")


COLLECTOR = NcclInspectorProm()
