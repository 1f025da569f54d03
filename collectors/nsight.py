"""Nsight Systems, exported to SQLite: NCCL's kernels on the device, and the calls behind them.

What it assumes: times count nanoseconds from the session's start, whose time of day is in
``TARGET_INFO_SESSION_START_TIME``; without that table ``start_ts`` is null. A kernel is tied to
NCCL's call (NVTX domain NCCL, 2.19 and later with a payload) by the thread that launched it: the
call tells communicator, message size and, where its making is in the report, ranks. A kernel of a
group of several calls has only its own name. Without NCCL kernels (no ``--trace=cuda``) the calls
themselves are rows: enqueued, without a duration.

When it lies: a kernel's duration includes waiting for the slowest rank; NCCL runs many of its
functions in one generic kernel, whose name tells no operation.

The schema is NVIDIA's documented one (2021 to 2026); no public file was found to try it on.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._collective import POINT_TO_POINT, canonical_op, hash_comm, size_from_call
from xtune.collectors._kineto_ops import kernel_op
from xtune.collectors._nsight_db import (
    DAMAGE,
    ENVIRONMENT,
    KERNEL,
    MAGIC,
    NVTX,
    RUNTIME,
    START,
    STRINGS,
    Database,
)
from xtune.collectors._nsight_nvtx import Call, Calls, process_of
from xtune.collectors._textlines import READ_ERRORS
from xtune.collectors._values import as_extra, member, natural, positive, small, text, whole


class Nsight(Collector):
    """Reads NCCL kernels and calls of an Nsight Systems export."""

    name = "nsight"
    title = "Nsight Systems reports exported to SQLite"
    produce = "nsys profile --trace=cuda,nvtx ...; nsys export --type sqlite report.nsys-rep"
    gives = "start and duration of each NCCL kernel, message size where NVTX is traced"
    lacks = "sequence numbers; the .nsys-rep itself; tried on a hand-made database only"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where a SQLite database has Nsight's tables."""
        if not head.startswith(MAGIC):
            return 0.0
        words = (KERNEL.encode(), NVTX.encode(), START.encode(), b"EXPORT_SCHEMA_VERSION")
        if any(word in head for word in words):
            return 0.95
        try:
            with Database(path) as database:
                return 0.95 if database.tables.keys() & {KERNEL, NVTX, START} else 0.0
        except (*DAMAGE, OSError):
            return 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row an NCCL kernel, or one a call where no kernel was traced."""
        try:
            with source.path.open("rb") as stream:
                plain = stream.read(len(MAGIC)) == MAGIC
            if plain:
                yield from _read(source.path, context)
                return
            # SQLite reads files, not streams: a packed one is unpacked beside.
            with tempfile.TemporaryDirectory(prefix="xtune-") as folder:
                copy = Path(folder) / "report.sqlite"
                with source.open() as packed, copy.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
                yield from _read(copy, context)
        except READ_ERRORS as error:
            yield Reject("byte 0", f"cannot be read: {error}")


def _read(path: Path, context: Context) -> Iterator[Item]:
    rows = RowBuffer("collectives", context)
    try:
        with Database(path) as database:
            yield from _Report(database, context).items(rows)
    except DAMAGE as error:
        yield from rows.flush()
        yield Reject("database", f"SQLite stopped: {error}", "export the report again")


class _Report:
    """What an export says of the session, and the rows made of its kernels or calls."""

    def __init__(self, database: Database, context: Context) -> None:
        self._database = database
        self._context = context
        self._began = self._session_start()
        self._host = self._hostname() or context.host
        self._calls = Calls(database)
        self._several = context.rank is not None and self._processes() > 1

    def items(self, rows: RowBuffer) -> Iterator[Item]:
        count = 0
        for row in self._kernels():
            count += 1
            rows.add(row)
            if rows.full:
                yield from rows.flush()
        if not count:
            for call in self._calls.operations:
                count += 1
                rows.add(self._row_of_call(call))
                if rows.full:
                    yield from rows.flush()
            if count:
                yield Note("no NCCL kernel was traced: rows are of the calls, without durations")
        yield from rows.flush()
        if not count:
            yield Note("no NCCL kernel and no NCCL call in this report")
            return
        if self._began is None:
            yield Note("the report does not say when its session began: times are null", count)
        if self._calls.too_many:
            yield Note("too many NCCL calls to tie them to kernels: sizes are null")
        if self._context.rank is None:
            yield Note("the report does not say its rank: null; give --rank")
        elif self._several:
            yield Note("the report has several processes: the rank given is not used")

    def _session_start(self) -> int | None:
        if not self._database.has(START, "utcEpochNs"):
            return None
        for (value,) in self._database.rows(f"SELECT utcEpochNs FROM {START} LIMIT 1"):
            return positive(value)
        return None

    def _processes(self) -> int:
        """How many processes launched kernels or called NCCL; two stand for more."""
        found = {process_of(call.thread) for call in self._calls.operations}
        if self._database.has(KERNEL, "globalPid"):
            query = f"SELECT DISTINCT globalPid >> 24 FROM {KERNEL} LIMIT 2"
            return max(len(found), len(list(self._database.rows(query))))
        return len(found)

    def _hostname(self) -> str | None:
        if not self._database.has(ENVIRONMENT, "name", "value"):
            return None
        query = f"SELECT value FROM {ENVIRONMENT} WHERE name = 'Hostname' LIMIT 16"
        found = {text(value, 255) for (value,) in self._database.rows(query)} - {None, ""}
        name = found.pop() if len(found) == 1 else None
        return name.lower() if name else None

    def _kernels(self) -> Iterator[dict[str, Any]]:
        database = self._database
        names = database.names("%ccl%")
        names_of = [
            column
            for column in ("demangledName", "shortName", "mangledName")
            if database.has(KERNEL, column)
        ]
        if not names or not names_of or not database.has(KERNEL, "start", "end"):
            return
        device, stream, process = (
            database.column("k", KERNEL, name) for name in ("deviceId", "streamId", "globalPid")
        )
        launch, join = "NULL, NULL", ""
        if database.has(KERNEL, "correlationId") and database.has(
            RUNTIME, "correlationId", "start", "globalTid"
        ):
            launch = 'r.start, r."globalTid"'
            join = f" LEFT JOIN {RUNTIME} r ON r.correlationId = k.correlationId"
            if database.has(KERNEL, "globalPid"):
                join += " AND (r.globalTid >> 24) = (k.globalPid >> 24)"
        found = f"SELECT id FROM {STRINGS} WHERE value LIKE '%ccl%'"
        where = " OR ".join(f'k."{name}" IN ({found})' for name in names_of)
        query = (
            f"SELECT k.start, k.end, {device}, {stream}, {process}, {launch}, "
            + ", ".join(f'k."{name}"' for name in names_of)
            + f" FROM {KERNEL} k{join} WHERE {where}"
        )
        seen: tuple[Any, ...] | None = None
        for row in database.rows(query):
            called = [names.get(ident) for ident in row[7:]]
            name = next((name for name in called if name), None)
            if name is None or kernel_op(name) is None:
                continue
            # One launch may be seen twice, by the runtime and by the driver under it.
            if (row[0], row[1], row[2], row[3]) == seen:
                continue
            seen = row[:4]
            yield self._row_of_kernel(name, row)

    def _row_of_kernel(self, name: str, row: tuple[Any, ...]) -> dict[str, Any]:
        start, end, device, stream, process, launched, thread = row[:7]
        start, end, launched = natural(start), natural(end), natural(launched)
        thread = natural(thread)
        pid = process_of(thread if thread is not None else natural(process))
        call = self._calls.launching(thread, launched)
        spent = end - start if start is not None and end is not None and end > start else None
        said = kernel_op(name) or ""
        made = self._row(
            call.op if call is not None and canonical_op(said) is None else said, call, pid
        )
        made["start_ts"] = self._time(start)
        made["enqueue_ts"] = self._time(launched)
        made["duration_ns"] = spent
        made["state"] = "completed" if spent is not None else None
        made["extra"] |= as_extra(
            {
                "event": text(name, 256),
                "device": small(device),
                "stream": natural(stream),
                "pid": pid,
                "start_ns": start if self._began is None else None,
            }
        )
        return made

    def _row_of_call(self, call: Call) -> dict[str, Any]:
        pid = process_of(call.thread)
        made = self._row(call.op, call, pid)
        made["enqueue_ts"] = self._time(call.start)
        made["extra"] |= as_extra(
            {
                "event": f"nccl{call.name}",
                "pid": pid,
                "start_ns": call.start if self._began is None else None,
            }
        )
        return made

    def _row(self, op: str | None, call: Call | None, pid: int | None) -> dict[str, Any]:
        comm = call.comm if call is not None else None
        ranks, own = self._calls.comms.get((pid, comm), (None, None)) if comm else (None, None)
        call_bytes = call.call_bytes if call is not None else None
        known = op is not None and canonical_op(op) is not None and call_bytes is not None
        size = size_from_call(op, call_bytes, ranks) if known and op and call_bytes else None
        alone = op in POINT_TO_POINT
        return {
            "job": self._context.job,
            "host": self._host,
            "rank": None if self._several else self._context.rank,
            "comm_rank": member(own, ranks),
            "comm": hash_comm(comm) if comm else None,
            "comm_size": ranks or None,
            "op": text(op, 256),
            "message_bytes": natural(size),
            "extra": as_extra(
                {
                    "call_bytes": call_bytes,
                    "peer": call.peer if call is not None and alone else None,
                }
            ),
        }

    def _time(self, since: int | None) -> int | None:
        if since is None or self._began is None:
            return None
        return whole(self._began + since, low=1)


COLLECTOR = Nsight()
