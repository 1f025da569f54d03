"""Samples of ports in a text of the management tools: merged, timed and turned into rows.

Two attributes of a port that follow each other are one sample; the same attribute again is the
next one. Such texts have no times of their own; a user's loop often prints one between the runs
(``date``), which then counts for what follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, Item, Note, RowBuffer, Source
from xtune.collectors._fabric_counters import Gathered
from xtune.collectors._ib import has_counters
from xtune.collectors._ib_time import content_id, fallback_time

#: Lines of the tools' error stream, which end up between the counters (libibmad, libibnetdisc).
TOOL_MESSAGE = re.compile(
    r"\s*(ibwarn|ibpanic|ibdebug|ibibmad|libibmad|libibumad)\b|\S*iberror|src/\w+\.c:\d+;"
    r"|(perfquery|ibqueryerrors|ibnetdiscover|sudo)(\[\d+\])?:|Query SA failed|Failed to |Cannot "
    r"|discover failed|loading cached fabric failed|WARN"
)
#: Ports that are held at a time: more than a fabric has; a text that makes up more is not kept.
MOST_PORTS = 1 << 16


@dataclass(slots=True)
class Sample:
    """One port at one instant.

    Attributes:
        key: What tells ports of one text apart.
        port: Port number.
        node_guid: The node's GUID, where the text says it.
        guid: A GUID to name the link by, the node's or, failing that, the port's.
        device: Stands for the node where no GUID is known (``lid-5``).
        labels: What has no column: ``lid``, ``port_guid``.
        rate_gbps: The port's rate where given.
        gathered: Its counters.
        kinds: Attributes seen, to tell the next sample from more of this one.
        ts: When it was read, where the text says so.
    """

    key: tuple[str, int]
    port: int
    node_guid: str | None = None
    guid: str | None = None
    device: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    rate_gbps: float | None = None
    gathered: Gathered = field(default_factory=Gathered)
    kinds: set[str] = field(default_factory=set)
    ts: int | None = None


class Samples:
    """Merges samples by port and yields ``link_counters``.

    Memory is bounded by the number of ports, not by the text.
    """

    def __init__(self, source: Source, context: Context) -> None:
        self._source = source
        self._context = context
        self._host = context.host.lower() if context.host else None
        self._file_ts = fallback_time(source, context)
        self._open: dict[tuple[str, int], Sample] = {}
        self._buffer = RowBuffer("link_counters", context)
        self._unknown = ""
        self._earlier = 0
        self._untimed = 0
        self.ts: int | None = None
        self.rows = 0

    def add(self, sample: Sample, kind: str) -> Iterator[Item]:
        """Take one attribute of a port; yields rows of samples that are over."""
        sample.ts = self.ts
        sample.kinds = {kind}
        held = self._open.get(sample.key)
        if held is not None and kind not in held.kinds and held.ts == sample.ts:
            held.kinds.add(kind)
            held.gathered.narrow |= sample.gathered.narrow
            held.gathered.wide |= sample.gathered.wide
            held.gathered.details |= sample.gathered.details
            held.gathered.stuck += sample.gathered.stuck
            held.labels |= sample.labels
            held.rate_gbps = held.rate_gbps or sample.rate_gbps
            return
        if held is not None:
            yield from self._emit(held, held.ts)
        elif len(self._open) >= MOST_PORTS:
            oldest = self._open.pop(next(iter(self._open)))
            yield from self._emit(oldest, self._last_ts(oldest), True)
        self._open[sample.key] = sample

    def finish(self) -> Iterator[Item]:
        """Yield what is held. The last sample of each port gets the file's time, if any."""
        for sample in self._open.values():
            yield from self._emit(sample, self._last_ts(sample), True)
        self._open.clear()
        yield from self._buffer.flush()
        if self._untimed:
            yield Note("counters without a time: ts is null (--time-from says otherwise)")
        if self._earlier:
            yield Note("earlier samples of a port have no time: ts is null", self._earlier)

    def _last_ts(self, sample: Sample) -> int | None:
        """Time of the last sample of a port: the text's, else the file's."""
        return self._file_ts if sample.ts is None else sample.ts

    def _emit(self, sample: Sample, ts: int | None, is_last: bool = False) -> Iterator[Item]:
        row = sample.gathered.row()
        if not has_counters(row):
            return
        if ts is None:
            self._untimed += is_last
            self._earlier += not is_last
        self.rows += 1
        self._buffer.add(
            {
                "ts": ts,
                "link": self._link(sample),
                "host": self._host if sample.guid is None else None,
                "device": None if sample.guid else sample.device,
                "port": sample.port,
                "node_guid": sample.node_guid,
                "rate_gbps": sample.rate_gbps,
                "labels": dict(sample.labels),
                **row,
            }
        )
        if self._buffer.full:
            yield from self._buffer.flush()

    def _link(self, sample: Sample) -> str:
        if sample.guid:
            return f"{sample.guid}/{sample.port}"
        if self._host is None and not self._unknown:
            self._unknown = content_id(self._source)
        return f"{self._host or self._unknown}/{sample.device}/{sample.port}"


def named(sample_labels: dict[str, Any]) -> dict[str, str]:
    """Labels without those that are not known."""
    return {key: str(value) for key, value in sample_labels.items() if value is not None}
