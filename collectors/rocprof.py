"""rocprofv3's trace of calls to RCCL (``--rccl-trace``), CSV.

Source: rocprofiler-sdk, "Using rocprofv3": one line a call with its domain (``RCCL_API``, later
``RCCL_API_EXT``), function, process, thread, correlation id, start and end in nanoseconds.

When it lies: these are the host's calls, so a line's end is when the call returned, not when the
collective was done: there is no duration. The clock is the machine's own, counted from its start
(``start_ns`` in ``extra``), so there is no time of day. Sizes, communicators and ranks are not
written.
"""

from __future__ import annotations

import csv
import re
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
from xtune.collectors._collective import canonical_op
from xtune.collectors._textlines import Lines
from xtune.collectors._values import as_extra, natural, text

_COLUMNS = ("Domain", "Function", "Start_Timestamp", "End_Timestamp")
_MAX_BEFORE = 64  # lines of others, as of a launcher, that may stand before the header
_CALL = re.compile(r"^(?:nccl|rccl|mscclFunc)([A-Z]\w{1,60})$")
#: Calls that move no data.
_OTHER = re.compile(
    r"^nccl(?:Comm|Group|Get|RedOp|Mem|Register|MemAlloc|MemFree|ReportError|Bootstrap|Reset)"
)


class Rocprof(Collector):
    """Reads rocprofv3's CSV of RCCL calls."""

    name = "rocprof"
    title = "rocprofv3 RCCL API traces (CSV)"
    produce = "rocprofv3 --rccl-trace --output-format csv -- python train.py"
    gives = "the order of each process's RCCL calls, and how long the host was in them"
    lacks = "no sizes, communicators, ranks, durations of the collectives, or time of day"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the header and a call of RCCL stand in the head."""
        first = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
        if not all(name.encode() in first for name in _COLUMNS):
            return 0.0
        return 0.95 if b"RCCL_API" in head else 0.3

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a call that moves data."""
        rows = RowBuffer("collectives", context)
        lines = Lines(source)
        header: dict[str, int] | None = None
        others: Counter[str] = Counter()
        count = 0
        for line in lines:
            if not line.data.strip():
                continue
            try:
                values = next(csv.reader([line.text]))
            except (csv.Error, StopIteration) as error:
                yield Reject(line.place, f"not a line of a CSV: {error}")
                continue
            if header is None:
                found = {name.strip(): place for place, name in enumerate(values)}
                if found.keys() >= set(_COLUMNS):
                    header = found
                elif line.number > _MAX_BEFORE:
                    break
                continue
            call = {n: values[p] for n, p in header.items() if p < len(values)}
            start = natural(call.get("Start_Timestamp"))
            end = natural(call.get("End_Timestamp"))
            if any(name not in call for name in _COLUMNS):
                yield Reject(line.place, "the line is cut: it has fewer columns than the header")
                continue
            if not call["Domain"].startswith("RCCL_API"):
                continue
            if start is None or end is None or end < start:
                yield Reject(line.place, "start and end are no times in order")
                continue
            name = call["Function"]
            op = _op(name)
            if op is None:
                if not _OTHER.match(name) and len(others) < 1024:
                    others[name[:64]] += 1
                continue
            count += 1
            rows.add(_row(op, name, call, start, end, context))
            if rows.full:
                yield from rows.flush()
        yield from rows.flush()
        yield from lines.rejects
        if header is None:
            yield Reject("line 1", f"no line with the columns {', '.join(_COLUMNS)}")
            return
        for name, times in others.items():
            yield Unknown(text(name) or "", times)
        if not count:
            yield Note("no collective among the calls of this trace")


def _op(name: str) -> str | None:
    called = _CALL.match(name)
    return canonical_op(called[1]) if called else None


def _row(
    op: str, name: str, call: dict[str, Any], start: int, end: int, context: Context
) -> dict[str, Any]:
    return {
        "job": context.job,
        "host": context.host,
        "rank": context.rank,
        "op": op,
        "extra": as_extra(
            {
                "event": text(name, 64),
                "start_ns": start,
                "call_ns": end - start,
                "pid": natural(call.get("Process_Id")),
                "thread": natural(call.get("Thread_Id")),
                "correlation_id": natural(call.get("Correlation_Id")),
            }
        ),
    }


COLLECTOR = Rocprof()
