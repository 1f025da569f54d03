"""NCCL Inspector (plugins/profiler/inspector, NCCL 2.28+): JSON lines of finished operations.

What it assumes: ``id`` in the header is the hash of the communicator's unique id, equal on all its
ranks; sizes are the count of the call times the element size, per rank.

When it lies: ``dump_timestamp_us`` is when a line was written, so an operation has a start only in
verbose mode (``event_trace_ts``). Operations below 8192 bytes, without GPU timing, or beyond the
ring are dropped in silence: gaps in ``coll_sn`` show it. ``coll_sn`` counts **each kind of
operation by itself** (``comm->seqNumber[func]`` in NCCL): ``(comm, op, seq)`` is unique,
``(comm, seq)`` is not; ``extra`` says so (``seq_of`` = ``op``).
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
from xtune.collectors._collective import canonical_op, named_comm, size_from_call
from xtune.collectors._json_lines import json_objects
from xtune.collectors._textlines import Lines
from xtune.collectors._values import as_extra, member, natural, real, scaled, small, text

_KEYS = {"header", "metadata", "coll_perf", "p2p_perf"}
_LISTED = 100
_MARKS = (b'"coll_perf"', b'"p2p_perf"', b'"inspector_output_format_version"')


class NcclInspector(Collector):
    """Reads the JSON output of NCCL Inspector."""

    name = "nccl_inspector"
    title = "NCCL Inspector JSON lines"
    produce = (
        "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1"
        " NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500000 NCCL_INSPECTOR_DUMP_DIR=DIR"
    )
    gives = "operation, size, execution time and bandwidths of each finished collective"
    lacks = "start times without NCCL_INSPECTOR_DUMP_VERBOSE=1; operations below 8192 bytes"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where a JSON line has Inspector's own words."""
        if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            return 0.0
        return 0.97 if sum(mark in head for mark in _MARKS) >= 2 else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a line with ``coll_perf`` or ``p2p_perf``."""
        rows = RowBuffer("collectives", context)
        lines = Lines(source)
        header: dict[str, Any] = {}
        metadata: dict[str, Any] = {}
        coverage = _Coverage()
        unknown: Counter[str] = Counter()
        found = False
        for item in json_objects(lines):
            if isinstance(item, Reject):
                yield item
                continue
            line, record = item
            # Format 4.2 and 4.3 write the header once, before the operations it is of.
            header = _object(record, "header") or header
            metadata = _object(record, "metadata") or metadata
            unknown.update(key for key in record.keys() - _KEYS if len(unknown) < _LISTED)
            for kind in ("coll", "p2p"):
                performance = _object(record, f"{kind}_perf")
                if performance is None:
                    continue
                found = True
                row = _row(kind, performance, header, metadata, context)
                if row is None:
                    yield Reject(line.place, "an operation without name or communicator")
                    continue
                if kind == "coll":
                    coverage.add(row)
                rows.add(row)
            if rows.full:
                yield from rows.flush()
        yield from rows.flush()
        yield from lines.rejects
        yield from coverage.notes()
        yield from (Unknown(name, count) for name, count in unknown.items())
        if not found and not lines.rejects:
            yield Note("no operation in this NCCL Inspector file")


def _object(record: dict[str, Any], key: str) -> dict[str, Any] | None:
    value = record.get(key)
    return value if isinstance(value, dict) else None


def _row(
    kind: str,
    performance: dict[str, Any],
    header: dict[str, Any],
    metadata: dict[str, Any],
    context: Context,
) -> dict[str, Any] | None:
    name = text(performance.get(kind), 256)
    comm = _comm(header.get("id"))
    if not name or comm is None:
        return None
    op = canonical_op(name) or name
    ranks = small(header.get("n_ranks")) or None
    call_bytes = natural(performance.get(f"{kind}_msg_size_bytes"))
    host = text(metadata.get("hostname"), 256) or context.host
    start, enqueue = _times(kind, performance)
    return {
        "start_ts": start,
        "enqueue_ts": enqueue,
        "duration_ns": scaled(performance.get(f"{kind}_exec_time_us"), 1000),
        "job": context.job,
        "host": host.lower() if host else None,
        "rank": context.rank,
        "comm_rank": member(header.get("rank"), ranks),
        "comm": comm,
        "comm_size": ranks,
        "seq": natural(performance.get("coll_sn")) if kind == "coll" else None,
        "op": op,
        "message_bytes": None
        if call_bytes is None
        else natural(size_from_call(op, call_bytes, ranks)),
        "algorithm": _choice(performance.get(f"{kind}_algo")),
        "protocol": _choice(performance.get(f"{kind}_proto")),
        "algbw_gigabytes_s": _bandwidth(performance.get(f"{kind}_algobw_gbs")),
        "busbw_gigabytes_s": _bandwidth(performance.get(f"{kind}_busbw_gbs")),
        "state": "completed",
        "extra": as_extra(
            {
                "seq_of": "op" if kind == "coll" else None,
                "timing_source": text(performance.get(f"{kind}_timing_source"), 64),
                "dump_timestamp_us": natural(metadata.get("dump_timestamp_us")),
                "format_version": text(metadata.get("inspector_output_format_version"), 64),
                "pid": natural(metadata.get("pid")),
                "comm_name": text(header.get("comm_name"), 256),
                "nnodes": natural(header.get("nnodes")),
                "p2p_seq": natural(performance.get("p2p_sn")),
                "peer": natural(performance.get("p2p_peer")),
            }
        ),
    }


def _choice(value: Any) -> str | None:
    """An algorithm or protocol, which format 4.2 names; UNKNOWN where NCCL had chosen none."""
    name = (text(value, 64) or "").upper()
    return name if name not in ("", "UNKNOWN", "N/A") else None


def _comm(value: Any) -> str | None:
    name = text(value, 256)
    return named_comm(name) if name else None


def _times(kind: str, performance: dict[str, Any]) -> tuple[int | None, int | None]:
    """Start of the first kernel and time of the enqueue, where verbose mode gives them.

    Without kernel events the operation was timed on the host, whose start is the enqueue.
    """
    trace = _object(performance, "event_trace_ts") or {}
    enqueue = scaled(trace.get(f"{kind}_start_ts"), 1000)
    events = trace.get("kernel_events")
    starts = [
        start
        for event in (events if isinstance(events, list) else ())
        if isinstance(event, dict) and (start := scaled(event.get("kernel_start_ts"), 1000))
    ]
    if starts:
        return min(starts), enqueue
    on_host = str(performance.get(f"{kind}_timing_source")).endswith("collective_cpu")
    return (enqueue if on_host else None), enqueue


def _bandwidth(value: Any) -> float | None:
    """1e9 byte/s; Inspector writes 0 and "nan" where it knows no formula or no time."""
    number = real(value)
    return number if number is not None and 0 < number < float("inf") else None


class _Coverage:
    """How many of the operations of each communicator, rank and kind were recorded."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], tuple[int, int, int, int]] = {}

    def add(self, row: dict[str, Any]) -> None:
        seq = row["seq"]
        if seq is None:
            return
        key = (row["comm"], row["comm_rank"], row["op"], row["extra"].get("pid"))
        low, high, last, count = self._seen.get(key, (seq, seq, -1, 0))
        self._seen[key] = (min(low, seq), max(high, seq), seq, count + (seq != last))

    def notes(self) -> Iterator[Note]:
        captured = sum(count for *_, count in self._seen.values())
        numbered = sum(high - low + 1 for low, high, *_ in self._seen.values())
        if captured < numbered:
            yield Note(
                f"Inspector captured {captured} of {numbered} operations:"
                " the others were dropped at the source"
            )


COLLECTOR = NcclInspector()
