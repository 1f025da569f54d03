"""PyTorch profiler traces (Kineto, Chrome trace JSON): collectives on one rank.

What it assumes: ``ts`` and ``dur`` are microseconds, after ``baseTimeNanoseconds`` where the trace
has it, else since the epoch. The rank is ``distributedInfo.rank``, else what the user says; a file
name says nothing.

When it lies: a kernel's duration includes waiting for the slowest rank, so the shortest kernel
among the ranks of one ``seq`` is nearest the transfer. A trace without ``Seq`` (before PyTorch
2.4, and gloo) numbers the operations of a group in the order of this trace (``seq_source`` in
``extra``): ranks agree only where their traces start at the same operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, RowBuffer, Source
from xtune.collectors._collective import POINT_TO_POINT, group_comm
from xtune.collectors._json_events import Event, as_utf8, events, header_values
from xtune.collectors._kineto_ops import GLOO, KERNEL, Op, join, op_of, ranks_of
from xtune.collectors._values import as_extra, positive, scaled, small, text

_HELD = 200_000
_YEAR_2000_NS = 946_684_800_000_000_000


class Kineto(Collector):
    """Reads collectives of PyTorch profiler traces."""

    name = "kineto"
    title = "PyTorch profiler traces (Kineto, Chrome trace JSON)"

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
        """One row a collective; two passes, the first for what stands after the events."""
        trace = _Trace(source, context)
        yield from trace.notes
        held: list[Op] = []
        for item in events(source):
            if not isinstance(item, Event):
                yield item
                continue
            op = op_of(item.value)
            if op is not None:
                held.append(op)
                if len(held) >= _HELD:
                    yield from trace.rows(held)
                    held = []
        yield from trace.rows(held)
        yield from trace.end()


class _Trace:
    """What a trace says of itself, and the rows made of its operations."""

    def __init__(self, source: Source, context: Context) -> None:
        found = header_values(
            source,
            ("baseTimeNanoseconds", "distributedInfo", "host_name"),
            frozenset({"baseTimeNanoseconds", "distributedInfo"}),
        )
        self._context = context
        self._base = positive(found.get("baseTimeNanoseconds"))
        host = text(as_utf8(found.get("host_name")), 256) or context.host
        self._host = host.lower() if host else None
        info = found.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        self._groups = _groups(info.get("pg_config"))
        self.notes: list[Note] = []
        self._rank = small(info.get("rank"))
        if self._rank is None:
            self._rank = context.rank
            if context.rank is None:
                self.notes.append(Note("the trace does not say its rank: null; give --rank"))
        elif context.rank not in (None, self._rank):
            self.notes.append(
                Note(f"rank {self._rank} is what the trace says, not the rank given")
            )
        self._numbers: dict[str, int] = {}
        self._count = self._left_out = self._timeless = 0

    def rows(self, held: list[Op]) -> Iterator[Item]:
        """Rows of the operations held, each once."""
        joined = join(held)
        self._left_out += joined.left_out
        for op in joined.ops:
            if op.group is None and len(self._groups) == 1:
                op.group = next(iter(self._groups))
            ranks = self._groups.get(op.group or "")
            op.ranks = op.ranks or ranks
            op.size = op.size or (len(ranks) if ranks else None)
        numbered = {op.group for op in joined.ops if op.seq is not None}
        rows = RowBuffer("collectives", self._context)
        for op in sorted(joined.ops, key=lambda op: op.order):
            rows.add(self._row(op, op.group in numbered))
            if rows.full:
                yield from rows.flush()
        yield from rows.flush()

    def end(self) -> Iterator[Note]:
        """What a user should know of the whole trace."""
        if not self._count:
            yield Note("no collective in this trace")
        if self._left_out:
            yield Note(
                "CPU ops that could not be joined with a kernel: left out, their kernels are kept",
                self._left_out,
            )
        if self._timeless:
            yield Note("times since an unknown start: null", self._timeless)

    def _row(self, op: Op, has_seq: bool) -> dict[str, Any]:
        self._count += 1
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
        return {
            "start_ts": started,
            "enqueue_ts": enqueued,
            "duration_ns": scaled(op.duration, 1000) if done else None,
            "job": self._context.job,
            "host": self._host,
            "rank": self._rank,
            "comm_rank": op.ranks.index(self._rank)
            if op.ranks and self._rank is not None and self._rank in op.ranks
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
                    "seq_source": source,
                }
            ),
        }

    def _ns(self, ts: float | None) -> int | None:
        """Nanoseconds since the epoch of a time of the trace."""
        ns = scaled(ts, 1000)
        if ns is None or ns >= _YEAR_2000_NS:
            return ns
        return None if self._base is None else positive(self._base + ns)


def _groups(config: Any) -> dict[str, list[int] | None]:
    """Process groups by name with their ranks."""
    groups: dict[str, list[int] | None] = {}
    for group in config if isinstance(config, list) else ():
        if isinstance(group, dict):
            name = text(as_utf8(group.get("pg_name")), 256)
            if name:
                groups[name] = ranks_of(group.get("ranks"))
    return groups


COLLECTOR = Kineto()
