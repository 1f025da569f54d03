"""Loss curves in tables: JSON lines, CSV or TSV, Hugging Face trainer_state.json, golden values.

Assumes that a column called loss is the loss of one optimizer step. Names that could mean another
thing need ``--map loss=NAME``. A trainer's closing row (``train_loss`` with ``train_runtime``) is
a mean over the whole run and is left out.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._json_lines import json_objects
from xtune.collectors._mapping import Mapped
from xtune.collectors._stamps import StampReader
from xtune.collectors._steps import MAPPABLE, Attempts, Plan
from xtune.collectors._textlines import READ_ERRORS, Line, Lines
from xtune.collectors._values import MAX_HELD_BYTES, held_bytes, natural

_MAX_DOCUMENT = 1 << 28


class LossTable(Collector):
    """Reads loss curves from tables."""

    name = "loss_table"
    title = "loss curves: JSON lines, CSV, Hugging Face trainer_state.json"
    produce = "trainer_state.json of a Hugging Face checkpoint, or any CSV or JSONL with a step"
    gives = "the measures whose names are unmistakable, and those that --map names"
    lacks = "columns whose name could mean another thing, without --map"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """High for a trainer's state, middling where the columns have a step and a loss."""
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if start[:1] == b"{":
            if b'"log_history"' in head and b'"global_step"' in head:
                return 0.95
            if b'"start_step"' in head and b'"values"' in head and b'"step_interval"' in head:
                return 0.9
            names = _json_names(Line(1, 0, start.partition(b"\n")[0], True))
        else:
            names = _cells(Line(1, 0, start.partition(b"\n")[0].rstrip(b"\r"), True))
        plan = Plan.of(names, {})
        losses = any(measure.column == "loss" for measure in plan.measures.values())
        return 0.7 if plan.useful and losses else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a step and split."""
        table = _Table(context)
        lines = Lines(source)
        iterator = iter(lines)
        first = next((line for line in iterator if line.data.strip()), None)
        if first is None:
            yield from lines.rejects
            if not lines.rejects:
                yield Reject("byte 0", "the file is empty")
            return
        second = next((line for line in iterator if line.data.strip()), None)
        rest = chain(() if second is None else (second,), iterator)
        if first.data.lstrip()[:1] != b"{":
            yield from _delimited(first, rest, table)
            yield from lines.rejects
        elif _json_names(first) or (second and second.data.lstrip()[:1] == b"{"):
            yield from _json_lines(chain((first,), rest), table)
            yield from lines.rejects
        else:
            yield from _document(source, table)
        yield from table.end()


class _Table:
    """Turns records into rows and remembers what a user should know."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rows = RowBuffer("steps", context)
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._stamps = StampReader(context)
        self._attempts = Attempts()
        self._mapped = Mapped(context.column_map, MAPPABLE)
        self._useless = 0
        self._records = 0
        self._left: dict[str, None] = {}

    def add(self, record: Mapping[str, Any]) -> Iterator[Item]:
        """Add the rows of one record; counts it where it has none."""
        self._records += 1
        names = tuple(key for key in record if isinstance(key, str))
        plan = self._plans.get(names)
        if plan is None:
            self._mapped.see(names)
            plan = Plan.of(names, self._context.column_map)
            if len(self._plans) < 4096:
                self._plans[names] = plan
        found = False
        for row in plan.rows(record, self._context, self._stamps):
            found = True
            self._rows.add(self._attempts.mark(row))
        if not found:
            self._useless += 1
            for name in plan.left[:20]:
                if len(self._left) < 20:
                    self._left[name] = None
        if self._rows.full:
            yield from self._rows.flush()

    def end(self) -> Iterator[Item]:
        """Rows still held, and notes."""
        yield from self._rows.flush()
        yield from self._stamps.notes()
        yield from self._attempts.notes()
        yield from self._mapped.notes()
        if not self._records:
            yield Note("no records in this table")
        if self._useless:
            names = ", ".join(name[:40] for name in self._left)
            yield Note(
                "records without a step and a measure that xtune knows"
                + (f" (fields: {names}); name them with --map" if names else ""),
                self._useless,
            )


def _json_names(line: Line) -> list[str]:
    """Keys of a line that is one JSON object; empty where it is not."""
    try:
        record = json.loads(line.text)
    except (ValueError, RecursionError):
        return []
    return list(record) if isinstance(record, dict) and not _is_document(record) else []


def _is_document(record: dict[str, Any]) -> bool:
    if isinstance(record.get("log_history"), list):
        return True
    return any(isinstance(v, dict) and "start_step" in v for v in record.values())


def _json_lines(lines: Iterator[Line], table: _Table) -> Iterator[Item]:
    for found in json_objects(lines):
        if isinstance(found, Reject):
            yield found
        else:
            yield from table.add(found[1])


def _document(source: Source, table: _Table) -> Iterator[Item]:
    """A file that is one JSON object: a trainer's state or Megatron-LM's golden values."""
    try:
        with source.open() as stream:
            data = stream.read(_MAX_DOCUMENT + 1)
    except READ_ERRORS as error:
        yield Reject("byte 0", f"cannot be read: {error}")
        return
    if len(data) > _MAX_DOCUMENT:
        yield Reject(f"byte {_MAX_DOCUMENT}", "one JSON object larger than any trainer's state")
        return
    if held_bytes(data) > MAX_HELD_BYTES:
        yield Reject("byte 0", "one JSON object of more values than any trainer's state")
        return
    try:
        document = json.loads(data.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError) as error:
        place = f"character {error.pos}" if isinstance(error, json.JSONDecodeError) else "byte 0"
        yield Reject(place, f"not JSON: {error}", "the file was cut or is not a loss table")
        return
    history = document.get("log_history") if isinstance(document, dict) else None
    if isinstance(history, list):
        yield from _trainer_state(history, table)
    elif isinstance(document, dict) and _is_document(document):
        for record in _golden_values(document):
            yield from table.add(record)
    else:
        yield Reject("byte 0", "a JSON object without log_history or values by step")


def _trainer_state(history: list[Any], table: _Table) -> Iterator[Item]:
    for index, record in enumerate(history):
        if not isinstance(record, dict):
            yield Reject(f"log_history[{index}]", "not a JSON object")
        elif "train_runtime" in record:
            yield Note("closing row of a trainer left out: its loss is a mean over the run")
        elif "step" in record:
            yield from table.add(record)


def _golden_values(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Megatron-LM's golden values: one object a measure, its values by step.

    Until 2024 they were a list, from ``start_step`` on at each ``step_interval``, from 0.
    """
    by_step: dict[str, dict[str, Any]] = {}
    for name, series in document.items():
        values = series.get("values") if isinstance(series, dict) else None
        if isinstance(values, list):
            start, every = natural(series.get("start_step")), natural(series.get("step_interval"))
            if start is None or not every:
                continue
            values = {str(start + i * every): value for i, value in enumerate(values)}
        if isinstance(values, dict):
            for step, value in values.items():
                by_step.setdefault(step, {"step": step})[name] = value
    return list(by_step.values())


def _delimiter(line: Line) -> str:
    return max(",\t;", key=line.text.count)


def _cells(line: Line) -> list[str]:
    try:
        return next(csv.reader([line.text], delimiter=_delimiter(line)), [])
    except csv.Error:
        return []


def _delimited(header: Line, rest: Iterator[Line], table: _Table) -> Iterator[Item]:
    names = _cells(header)
    delimiter = _delimiter(header)
    for line in rest:
        if not line.data.strip():
            continue
        try:
            cells = next(csv.reader([line.text], delimiter=delimiter), [])
        except csv.Error as error:
            yield Reject(line.place, f"not a row of a table: {error}")
            continue
        if not line.whole:
            yield Reject(line.place, "row without an end: it may be cut")
            continue
        if len(cells) != len(names):
            yield Reject(line.place, f"{len(cells)} cells under {len(names)} columns")
            continue
        yield from table.add(dict(zip(names, cells, strict=True)))


COLLECTOR = LossTable()
