"""PyTorch profiler traces (Kineto, Chrome trace JSON): collectives on one rank, and its compute.

What it assumes: ``ts`` and ``dur`` are microseconds, after ``baseTimeNanoseconds`` where the trace
has it, else since the epoch. The rank is ``distributedInfo.rank``, else what the user says; a file
name says nothing.

When it lies: a kernel's duration includes waiting for the slowest rank, so the shortest kernel
among the ranks of one ``seq`` is nearest the transfer. A trace without ``Seq`` (before PyTorch
2.4, and gloo) numbers the operations of a group in the order of this trace (``seq_source`` in
``extra``): ranks agree only where their traces start at the same operation. DeepEP's low-latency
mode launches an operation's sending and receiving halves as two kernels: two rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    RowBuffer,
    Source,
    Unknown,
)
from xtune.collectors._collective import POINT_TO_POINT, canonical_op, group_comm
from xtune.collectors._json_events import TraceScan
from xtune.collectors._kineto_busy import BusySpans
from xtune.collectors._kineto_join import Join, Joined
from xtune.collectors._kineto_metadata import Metadata, end_of
from xtune.collectors._kineto_ops import GLOO, KERNEL, Op, of_interest, op_of
from xtune.collectors._values import as_extra, positive, scaled

_YEAR_2000_NS = 946_684_800_000_000_000
_DIFFERENT = 1000


class Kineto(Collector):
    """Reads collectives of PyTorch profiler traces."""

    name = "kineto"
    title = "PyTorch profiler traces (Kineto, Chrome trace JSON)"
    produce = (
        "torch.profiler.profile(activities=[CPU, CUDA], record_shapes=True),"
        " then export_chrome_trace(f'{rank}.json.gz')"
    )
    gives = (
        "each collective with its enqueue time, kernel time, size and group; when the device"
        " computed"
    )
    lacks = "algorithm, protocol and links; numbers (Seq) before PyTorch 2.4"
    version = 3

    def claim(self, path: Path, head: bytes) -> float:
        """High where trace events start in the head, or what Kineto writes before them."""
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start.startswith(b"{"):
            if b'"traceEvents"' in head:
                return 0.95
            kineto = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
            return 0.85 if sum(word in head for word in kineto) >= 2 else 0.0
        is_array = start.startswith(b"[") and b'"ph"' in head and b'"ts"' in head
        return 0.6 if is_array else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a collective; one pass, unless there are more than can be held."""
        scan = TraceScan(source)
        join, busy = Join(), BusySpans()
        computed: list[dict[str, Any]] = []
        rows: _TraceRows | None = None
        for item in scan:
            if isinstance(item, (Reject, Note)):
                yield item
                continue
            for event in of_interest(item, computed):
                op = op_of(event)
                if op is None:
                    continue
                if op.kind == KERNEL:
                    busy.watched(op.ts, op.duration)
                if join.add(op):
                    if rows is None:
                        rows = _TraceRows(Metadata.of(scan.head, end_of(source), context), context)
                        yield Note("more collectives than are held at once: joined in pieces")
                    yield from rows.of(join.take())
            busy.add(computed)
        if rows is None:
            rows = _TraceRows(Metadata.of(scan.head, scan.tail, context), context)
        yield from rows.of(join.take())
        yield from rows.busy(busy)
        yield from rows.end()


class _TraceRows:
    """The rows made of a trace's operations, and what a user should know of them all."""

    def __init__(self, metadata: Metadata, context: Context) -> None:
        self._metadata = metadata
        self._context = context
        self._numbers: dict[str, int] = {}
        self._unknown: Counter[str] = Counter()
        self._count = self._left_out = self._timeless = 0

    def of(self, joined: Joined) -> Iterator[Item]:
        """Rows of the operations, each once, in the order in which they were enqueued."""
        groups = self._metadata.groups
        self._left_out += joined.left_out
        for op in joined.ops:
            if op.group is None and len(groups) == 1:
                op.group = next(iter(groups))
            ranks = groups.get(op.group or "")
            op.ranks = op.ranks or ranks
            op.size = op.size or (len(ranks) if ranks else None)
        numbered = {op.group for op in joined.ops if op.seq is not None}
        rows = RowBuffer("collectives", self._context)
        for op in sorted(joined.ops, key=lambda op: op.order):
            rows.add(self._row(op, op.group in numbered))
            if rows.full:
                yield from rows.flush()
        yield from rows.flush()

    def busy(self, spans: BusySpans) -> Iterator[Item]:
        """When the trace's device computed."""
        metadata = self._metadata
        yield from spans.rows(self._context, metadata.host, metadata.rank, self._ns)

    def end(self) -> Iterator[Item]:
        """What a user should know of the whole trace."""
        yield from self._metadata.notes
        if not self._count:
            yield Note("no collective in this trace")
        if self._left_out:
            yield Note(
                "CPU ops that could not be joined with a kernel: left out, their kernels are kept",
                self._left_out,
            )
        if self._timeless:
            yield Note("times since an unknown start: null", self._timeless)
        for name, count in self._unknown.items():
            yield Unknown(name, count)

    def _row(self, op: Op, has_seq: bool) -> dict[str, Any]:
        self._count += 1
        if canonical_op(op.op) is None and len(self._unknown) < _DIFFERENT:
            self._unknown[op.op] += 1
        started = self._ns(op.started)
        enqueued = self._ns(op.enqueued)
        if started is None and enqueued is None:
            self._timeless += 1
        seq, source = op.seq, None
        orderly = op.enqueued is not None or op.kind == KERNEL
        if op.group is not None and not has_seq and op.op not in POINT_TO_POINT and orderly:
            seq = self._numbers.get(op.group, 0)
            self._numbers[op.group] = seq + 1
            source = "trace order"
        done = op.started is not None
        rank = self._metadata.rank
        return {
            "start_ts": started,
            "enqueue_ts": enqueued,
            "duration_ns": scaled(op.duration, 1000) if done else None,
            "job": self._context.job,
            "host": self._metadata.host,
            "rank": rank,
            "comm_rank": op.ranks.index(rank)
            if op.ranks and rank is not None and rank in op.ranks
            else None,
            "comm": None if op.group is None else group_comm(op.group),
            "comm_size": op.size,
            "seq": seq,
            "op": op.op,
            "dtype": op.dtype,
            "message_bytes": op.message_bytes,
            "state": "completed" if done else None,
            "extra": as_extra(
                {
                    "event": op.name,
                    "backend": "gloo" if op.kind == GLOO else None,
                    "group_description": op.description,
                    "peer": op.peer,
                    "seq_source": source,
                }
            ),
        }

    def _ns(self, ts: float | None) -> int | None:
        """Nanoseconds since the epoch of a time of the trace."""
        ns, base = scaled(ts, 1000), self._metadata.base_ns
        if ns is None or ns >= _YEAR_2000_NS:
            return ns
        return None if base is None else positive(base + ns)


COLLECTOR = Kineto()
