"""NCCL's example profiler plugin (``ext-profiler/example``): a Chrome trace of one communicator.

What it assumes: the events of an operation stand between its begin (``ph`` b) and end (e), as the
plugin prints them. An operation's time on the device is from the first channel's start to the
last channel's stop by the GPU's clock, else as the proxy thread saw them, else from the host's
enqueue to its completion: ``timing_source`` in ``extra`` is then ``kernel_gpu``, ``kernel_cpu`` or
``collective_cpu``, as NCCL Inspector calls them. Compare like with like.

When it lies: ``ts`` counts microseconds since the plugin's start in that process, so there is no
time of day and no comparing among ranks (``start_us`` in ``extra``); 0 stands for a time that was
never taken. ``SeqNum`` counts each kind of operation by itself (``seq_of`` = ``op``). The number
of ranks is not written: the size of an all-gather or the like stays null, its count is in
``extra``. Only the last operations of a small pool are in the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from xtune.collectors._collective import (
    DTYPE_BYTES,
    POINT_TO_POINT,
    canonical_op,
    hash_comm,
    size_from_call,
    torch_dtype,
)
from xtune.collectors._json_items import Elements, as_utf8
from xtune.collectors._values import as_extra, natural, positive, real, scaled, small, text

_OURS = re.compile(
    rb'"cat"\s*:\s*"(?:COLL|P2P|COLL_API|P2P_API|GROUP_API|KERNEL_LAUNCH|CE_COLL|PROXY)"'
)
_GROUP = re.compile(rb'"cat"\s*:\s*"GROUP"[^}]*"groupId"', re.S)
#: A value that RCCL's plugin prints without quotes: a type's name, a pointer.
_BARE = re.compile(
    r'("[A-Za-z]\w*"\s*:\s*)(?!(?:true|false|null)\s*[,}])'
    r"(0x[0-9a-fA-F]+|\(nil\)|-?[A-Za-z_]\w*)(?=\s*[,}])"
)
_OPERATIONS = frozenset({"COLL", "P2P", "CE_COLL"})
_KNOWN = _OPERATIONS | {
    "GROUP",
    "GROUP_API",
    "COLL_API",
    "P2P_API",
    "KERNEL_LAUNCH",
    "GPU",
    "PROXY",
    "NET",
    "NET_IB",
    "NET_SOCK",
    "CE_SYNC",
    "CE_BATCH",
}
_FLOAT8 = {"float8e4m3": "fp8e4m3", "float8e5m2": "fp8e5m2"}


class NcclProfiler(Collector):
    """Reads traces of NCCL's example profiler plugin."""

    name = "nccl_profiler"
    title = "NCCL example profiler plugin traces (Chrome trace JSON)"
    produce = (
        "NCCL_PROFILER_PLUGIN=example NCCL_PROFILE_EVENT_MASK=4095 NCCL_PROFILE_DUMP_FILE=/tmp/t"
    )
    gives = "each collective's algorithm, protocol, size and time on the device"
    lacks = "no time of day, no number of ranks; the last 256 operations only"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where an array of events has the plugin's categories."""
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not start.startswith(b"[") or b'"ph"' not in head:
            return 0.0
        return 0.95 if _OURS.search(head) or _GROUP.search(head) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row an operation; what RCCL's plugin leaves unquoted is mended."""
        trace = _Trace(context)
        events = Elements(source, None, start=r'\{\s*"name"\s*:', mend=_mend)
        count = 0
        for event in events:
            if isinstance(event, Reject):
                yield event
                continue
            count += 1
            yield from trace.event(event.value)
        yield from trace.end()
        if events.cut is not None:
            yield Reject(
                f"byte {events.cut}",
                f"the trace is cut here: {count} whole events are kept",
                "the process ended before the plugin was done",
            )


def _mend(event: str) -> str:
    return _BARE.sub(r'\1"\2"', event)


@dataclass(slots=True)
class _Open:
    """An operation whose end has not come yet, and what its channels said so far."""

    category: str
    identity: int | None
    name: str
    began: float | None
    pid: int | None
    given: dict[str, Any]
    gpu: list[tuple[int, int]] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    channels: int = 0
    whole: bool = True


class _Trace:
    """The events of one trace in order."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rows = RowBuffer("collectives", context)
        self._open: _Open | None = None
        self._mended = self._count = 0

    def event(self, event: dict[str, Any]) -> Iterator[Item]:
        category, phase = event.get("cat"), event.get("ph")
        if not isinstance(category, str) or phase not in ("b", "e"):
            return
        if category not in _KNOWN:
            yield Unknown(text(category, 64) or "")
        elif category in _OPERATIONS:
            if phase == "b":
                yield from self._close(None)
                self._begin(category, event)
            elif self._open and self._open.identity == natural(event.get("id")):
                yield from self._close(_time(event.get("ts")))
        elif category == "GPU" and self._open is not None:
            self._channel(self._open, phase, event)

    def end(self) -> Iterator[Item]:
        """The operation left open, and what a user should know of the trace."""
        yield from self._close(None)
        yield from self._rows.flush()
        if not self._count:
            yield Note("no collective in this trace: NCCL_PROFILE_EVENT_MASK must have 2 and 4")

    def _begin(self, category: str, event: dict[str, Any]) -> None:
        given = event.get("args")
        self._open = _Open(
            category,
            natural(event.get("id")),
            text(as_utf8(event.get("name")), 256) or "",
            _time(event.get("ts")),
            natural(event.get("pid")),
            given if isinstance(given, dict) else {},
        )

    def _channel(self, op: _Open, phase: str, event: dict[str, Any]) -> None:
        """One channel's kernel: by the GPU's clock, and as the proxy thread saw it."""
        time = _time(event.get("ts"))
        given = event.get("args")
        if phase == "b":
            op.channels += 1
            clocks = given if isinstance(given, dict) else {}
            start = positive(clocks.get("StartGpuClk"))
            stop = positive(clocks.get("StopGpuClk"))
            if start is not None and stop is not None and stop > start:
                op.gpu.append((start, stop))
        if time is None:
            op.whole = False
        else:
            op.seen.append(time)

    def _close(self, ended: float | None) -> Iterator[Item]:
        op, self._open = self._open, None
        if op is None:
            return
        if canonical_op(op.name) is None:
            yield Unknown(op.name or "an operation without a name")
        self._count += 1
        self._rows.add(self._row(op, ended))
        if self._rows.full:
            yield from self._rows.flush()

    def _row(self, op: _Open, ended: float | None) -> dict[str, Any]:
        given = op.given
        name = canonical_op(op.name) or op.name or "unknown"
        duration, source = _duration(op, ended)
        count = natural(_either(given, "Count", "count"))
        dtype = _dtype(_either(given, "Datatype", "datatype"))
        width = DTYPE_BYTES.get(dtype or "")
        call = count * width if count is not None and width is not None else None
        comm = natural(given.get("CommHash"))
        if comm is None and isinstance(given.get("CommHash"), int):
            comm = given["CommHash"] if 0 <= given["CommHash"] < 1 << 64 else None
        alone = name in POINT_TO_POINT
        seq = None if alone else natural(given.get("SeqNum"))
        return {
            "duration_ns": duration,
            "job": self._context.job,
            "host": self._context.host,
            "rank": self._context.rank,
            "comm_rank": small(given.get("Rank")),
            "comm": hash_comm(comm) if comm else None,
            "seq": seq,
            "op": text(name, 256),
            "dtype": dtype,
            "message_bytes": None if call is None else natural(size_from_call(name, call, None)),
            "algorithm": _word(given.get("Algorithm")),
            "protocol": _word(given.get("Protocol")),
            "state": "completed" if duration is not None else None,
            "extra": as_extra(
                {
                    "seq_of": "op" if seq is not None else None,
                    "timing_source": source,
                    "start_us": op.began,
                    "count": count,
                    "call_bytes": call,
                    "peer": natural(given.get("Peer")),
                    "channels": natural(_either(given, "nChannels", "nMaxChannels")),
                    "category": op.category,
                    "pid": op.pid,
                }
            ),
        }


def _duration(op: _Open, ended: float | None) -> tuple[int | None, str | None]:
    """How long it took, and by which clocks; all channels must have been seen to the end."""
    copied = scaled(op.given.get("duration_gpu_us"), 1000)
    if copied is not None:
        return copied, "copy_engine_gpu"
    if op.gpu and len(op.gpu) == op.channels:
        first, last = min(start for start, _ in op.gpu), max(stop for _, stop in op.gpu)
        return positive(last - first), "kernel_gpu"
    if op.channels and op.whole and len(op.seen) == 2 * op.channels:
        spent = scaled(max(op.seen) - min(op.seen), 1000)
        if spent is not None:
            return spent, "kernel_cpu"
    if op.began is not None and ended is not None and ended > op.began:
        return scaled(ended - op.began, 1000), "collective_cpu"
    return None, None


def _time(value: Any) -> float | None:
    """A time in microseconds; 0 means that none was taken."""
    number = real(value)
    return number if number is not None and math.isfinite(number) and number > 0 else None


def _either(given: dict[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if name in given), None)


def _dtype(value: Any) -> str | None:
    name = text(as_utf8(value), 64)
    if not name:
        return None
    bare = name.lower().removeprefix("nccl")
    return _FLOAT8.get(bare) or torch_dtype(bare) or (None if bare == "unknown" else name)


def _word(value: Any) -> str | None:
    name = text(as_utf8(value), 64)
    return name.upper() if name and name.lower() not in ("unknown", "n/a") else None


COLLECTOR = NcclProfiler()
