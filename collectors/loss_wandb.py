"""Weights & Biases' transaction log (``run-*.wandb``): every row of a run's history.

Source of the format: wandb/sdk/internal/datastore.py (a LevelDB log with its own header and
CRC-32) and wandb_internal.proto. ``run.history()`` samples 500 rows; the log has all of them.

When it lies: ``_step`` counts calls of ``wandb.log``, which are optimizer steps only where a run
logs once a step; a column that the run logs itself (``train/global_step``) is better, and is used
where it is there (``--map step=NAME`` names another).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._mapping import Mapped
from xtune.collectors._protowire import BYTES, VARINT, fields
from xtune.collectors._stamps import StampReader
from xtune.collectors._steps import MAPPABLE, Attempts, Plan
from xtune.collectors._textlines import READ_ERRORS
from xtune.collectors._values import text

_HEADER = b":W&B\xe1\xbe"
_BLOCK = 32768
_RECORD_HEADER = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MAX_RECORD = 1 << 26
# Fields of Record, HistoryRecord, HistoryItem and RunRecord.
_HISTORY, _RUN, _ITEM, _STEP, _KEY, _NESTED, _VALUE, _RUN_ID = 2, 17, 1, 2, 1, 2, 16, 1


class LossWandb(Collector):
    """Reads the history of a Weights & Biases transaction log."""

    name = "loss_wandb"
    title = "Weights & Biases transaction logs (run-*.wandb)"
    produce = "wandb/run-*/run-*.wandb, which wandb.init() writes beside the job (also offline)"
    gives = "every row of the history, with its time and the run's id"
    lacks = "what a run logged without a step; artefacts, media, system metrics"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the file has the log's own header."""
        return 0.99 if head.startswith(_HEADER) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a history record and split that holds a measure."""
        rows = RowBuffer("steps", context)
        stamps = StampReader(context)
        attempts = Attempts()
        mapped = Mapped(context.column_map, MAPPABLE)
        run = context.run
        records = found = 0
        for item in _log(source):
            if not isinstance(item, bytes):
                yield item
                continue
            try:
                run, history = _record(item, run)
            except ValueError as error:
                yield Reject("record", f"not a record of a run: {error}")
                continue
            if history is None:
                continue
            records += 1
            mapped.see(history)
            plan = Plan.of(_preferred(history), context.column_map)
            for row in plan.rows(history, context, stamps):
                found += 1
                rows.add(attempts.mark({**row, "run": row["run"] or run}))
            if rows.full:
                yield from rows.flush()
        yield from rows.flush()
        yield from stamps.notes()
        yield from attempts.notes()
        yield from mapped.notes()
        if not found:
            yield Note(f"no loss or other measure of a step in {records} history records")


def _preferred(history: dict[str, Any]) -> list[str]:
    """Names with the log's own counter left out where the run logged its step itself."""
    own = {"train/global_step", "trainer/global_step", "global_step", "step", "iteration"}
    return [name for name in history if name != "_step" or not own & history.keys()]


def _record(data: bytes, run: str | None) -> tuple[str | None, dict[str, Any] | None]:
    history: dict[str, Any] | None = None
    for number, kind, value in fields(data):
        if kind != BYTES or not isinstance(value, bytes):
            continue
        if number == _RUN:
            for inner, inner_kind, name in fields(value):
                if inner == _RUN_ID and inner_kind == BYTES and isinstance(name, bytes):
                    run = run or text(name.decode("utf-8", "replace"), 256) or None
        elif number == _HISTORY:
            history = _history(value)
    return run, history


def _history(data: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    step: int | None = None
    for number, kind, value in fields(data):
        if number == _STEP and isinstance(value, bytes):
            for inner, inner_kind, count in fields(value):
                if inner == 1 and inner_kind == VARINT and isinstance(count, int):
                    step = count
        elif number == _ITEM and kind == BYTES and isinstance(value, bytes):
            name = ""
            nested: list[str] = []
            body = b""
            for inner, _, part in fields(value):
                if isinstance(part, bytes):
                    if inner == _KEY:
                        name = part.decode("utf-8", "replace")
                    elif inner == _NESTED:
                        nested.append(part.decode("utf-8", "replace"))
                    elif inner == _VALUE:
                        body = part
            try:
                values[name or ".".join(nested)] = json.loads(body)
            except (ValueError, RecursionError):
                continue
    if step is not None:
        values.setdefault("_step", step)
    return values


def _log(source: Source) -> Iterator[bytes | Reject | Note]:
    """Records of the log; a damaged piece costs its block."""
    try:
        with source.open() as stream:
            block = stream.read(_BLOCK)
            if not block.startswith(_HEADER):
                yield Reject("byte 0", "not a Weights & Biases log")
                return
            base, position = 0, len(_HEADER) + 1
            whole: bytes | None = None
            while block:
                for item, kind in _pieces(block, position, base):
                    if isinstance(item, Reject):
                        whole = None
                        yield item
                    elif kind in (_FULL, _FIRST):
                        whole = item
                    elif whole is not None and len(whole) < _MAX_RECORD:
                        whole += item
                    if isinstance(item, bytes) and kind in (_FULL, _LAST) and whole is not None:
                        yield whole
                        whole = None
                base += len(block)
                position = 0
                last_size, block = len(block), stream.read(_BLOCK)
                if block and last_size < _BLOCK:
                    return
            if whole is not None:
                yield Note("cut last record: the writer was alive or was killed")
    except READ_ERRORS as error:
        yield Reject("end of file", f"cannot be read further: {error}")


def _pieces(block: bytes, position: int, base: int) -> Iterator[tuple[bytes | Reject, int]]:
    while position + _RECORD_HEADER <= len(block):
        crc, length, kind = struct.unpack_from("<IHB", block, position)
        start = position + _RECORD_HEADER
        data = block[start : start + length]
        if kind == 0 and length == 0:
            return  # zeros up to the end of the block
        if len(data) < length:
            yield Reject(f"byte {base + position}", "record cut by the end of the file"), kind
            return
        if zlib.crc32(data, zlib.crc32(bytes([kind]))) != crc:
            place = f"byte {base + position}"
            yield Reject(place, "wrong checksum: the rest of this block is left out"), kind
            return
        yield data, kind
        position = start + length


COLLECTOR = LossWandb()
