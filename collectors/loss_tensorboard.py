"""TensorBoard event files: scalars of training as steps.

Source of the format: tensorflow/core/util/event.proto and summary.proto. ``wall_time`` is in
seconds, when the value was written.

After a resume a writer goes back to an earlier step in the same file. As TensorBoard itself does,
the newer values are kept: a value of a tag is dropped where the same tag comes again later at the
same or an earlier step. A first pass finds these places. Tags per epoch (``epoch_loss``) count
epochs as steps and are left out, unless ``--map loss=TAG`` names one.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._protowire import BYTES, FIXED32, FIXED64, VARINT, fields, signed
from xtune.collectors._steps import Measure, Plan, as_column
from xtune.collectors._textlines import READ_ERRORS
from xtune.collectors._tfrecord import Record, records, valid_header
from xtune.collectors._values import scaled

# Numbers of tensorflow/core/framework/types.proto.
_DT_FLOAT, _DT_DOUBLE = 1, 2
_OPEN_STEPS = 4096


class LossTensorboard(Collector):
    """Reads scalars of TensorBoard event files."""

    name = "loss_tensorboard"
    title = "TensorBoard event files (events.out.tfevents.*)"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the file starts with a record that says it holds events."""
        if valid_header(head) is None:
            return 0.0
        return 0.98 if b"brain.Event:" in head[:64] else 0.6

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a step and split."""
        measures = _Measures(context)
        later = _restarts(source, measures)
        log = _Rows(context, later)
        for item in _scalars(source, measures):
            if isinstance(item, _Scalar):
                yield from log.add(item)
            else:
                yield item
        yield from log.end()
        yield from measures.notes()


@dataclass(frozen=True, slots=True)
class _Scalar:
    """One value of a tag that is a measure; ``index`` counts them in the file."""

    index: int
    tag: str
    measure: Measure
    step: int
    wall_time: float
    value: float


class _Measures:
    """Which tags are read, and which were met and are not."""

    def __init__(self, context: Context) -> None:
        self._mapping = context.column_map
        self._known: dict[str, Measure | None] = {}
        self.found = 0

    def of(self, tag: str) -> Measure | None:
        if tag not in self._known:
            if len(self._known) > 10_000:
                return None
            measure = Plan.of([tag], self._mapping).measures.get(tag)
            if measure is not None and measure.split == "train":
                # A tag that the user names for a column stands in for the usual ones.
                named = self._mapping.get(measure.column, tag)
                measure = measure if named == tag else None
            self._known[tag] = measure
        return self._known[tag]

    def notes(self) -> Iterator[Note]:
        left = [tag for tag, measure in self._known.items() if measure is None]
        if left:
            names = ", ".join(tag[:40] for tag in left[:12]) + (", ..." if left[12:] else "")
            yield Note(f"tags that are no measure of a step: {names} (name one with --map)")
        if not self.found:
            yield Note("no loss or other measure of a step in this event file")


def _scalars(source: Source, measures: _Measures) -> Iterator[_Scalar | Reject | Note]:
    index = 0
    try:
        with source.open() as stream:
            for item in records(stream):
                if not isinstance(item, Record):
                    yield item
                    continue
                try:
                    for scalar in _event(item.data, measures, index):
                        index += 1
                        yield scalar
                except ValueError as error:
                    yield Reject(f"byte {item.offset}", f"not an event: {error}")
    except READ_ERRORS as error:
        yield Reject("end of file", f"cannot be read further: {error}")


def _event(data: bytes, measures: _Measures, index: int) -> Iterator[_Scalar]:
    wall_time = 0.0
    step = 0  # proto3 leaves a zero out
    summaries: list[bytes] = []
    for number, kind, value in fields(data):
        if number == 1 and kind == FIXED64 and isinstance(value, bytes):
            (wall_time,) = struct.unpack("<d", value)
        elif number == 2 and kind == VARINT and isinstance(value, int):
            step = signed(value)
        elif number == 5 and kind == BYTES and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, kind, value in fields(summary):
            if number == 1 and kind == BYTES and isinstance(value, bytes):
                tag, scalar = _summary_value(value)
                measure = measures.of(tag) if scalar is not None else None
                if measure is not None and scalar is not None and step >= 0:
                    yield _Scalar(index, tag, measure, step, wall_time, scalar)
                    index += 1


def _summary_value(data: bytes) -> tuple[str, float | None]:
    tag = ""
    scalar: float | None = None
    for number, kind, value in fields(data):
        if number == 1 and kind == BYTES and isinstance(value, bytes):
            tag = value[:1024].decode("utf-8", "replace")
        elif number == 2 and kind == FIXED32 and isinstance(value, bytes):
            (scalar,) = struct.unpack("<f", value)
        elif number == 8 and kind == BYTES and isinstance(value, bytes):
            scalar = _tensor(value)
    return tag, scalar


def _tensor(data: bytes) -> float | None:
    """The one float of a TensorProto, as writers since TensorFlow 2 have it; else null."""
    dtype = 0
    raw = b""
    for number, kind, value in fields(data):
        if number == 1 and kind == VARINT and isinstance(value, int):
            dtype = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            raw = value  # tensor_content, float_val or double_val, packed or not
    if dtype == _DT_FLOAT and len(raw) == 4:
        return float(struct.unpack("<f", raw)[0])
    if dtype == _DT_DOUBLE and len(raw) == 8:
        return float(struct.unpack("<d", raw)[0])
    return None


class _Restarts:
    """For each tag, where it went back and to which step."""

    def __init__(self) -> None:
        self.back: dict[str, list[tuple[int, int]]] = {}
        self._last: dict[str, int] = {}

    def see(self, scalar: _Scalar) -> None:
        if scalar.step <= self._last.get(scalar.tag, -1):
            places = self.back.setdefault(scalar.tag, [])
            # A restart at or before the step of earlier ones supersedes all they do.
            while places and places[-1][1] >= scalar.step:
                places.pop()
            places.append((scalar.index, scalar.step))
        self._last[scalar.tag] = scalar.step

    def superseded(self, scalar: _Scalar) -> bool:
        """Whether the same tag comes again later at this step or before it."""
        places = self.back.get(scalar.tag, [])
        # Places rise in step and in index: the last one at or before the step decides.
        at = bisect_right(places, scalar.step, key=lambda place: place[1])
        return at > 0 and places[at - 1][0] > scalar.index


def _restarts(source: Source, measures: _Measures) -> _Restarts:
    found = _Restarts()
    for item in _scalars(source, measures):
        if isinstance(item, _Scalar):
            measures.found += 1
            found.see(item)
    return found


class _Rows:
    """Joins the values of one step and split, which a writer writes one by one."""

    def __init__(self, context: Context, restarts: _Restarts) -> None:
        self._context = context
        self._restarts = restarts
        self._rows = RowBuffer("steps", context)
        self._open: OrderedDict[tuple[int, str], dict[str, Any]] = OrderedDict()
        self._dropped = 0

    def add(self, scalar: _Scalar) -> Iterator[Item]:
        if self._restarts.superseded(scalar):
            self._dropped += 1
            return
        key = (scalar.step, scalar.measure.split)
        row = self._open.get(key)
        if row is None:
            row = self._open[key] = {
                "ts": scaled(scalar.wall_time, 1_000_000_000),
                "job": self._context.job,
                "run": self._context.run,
                "step": scalar.step,
                "split": scalar.measure.split,
            }
        row.setdefault(scalar.measure.column, as_column(scalar.measure, scalar.value))
        if len(self._open) > _OPEN_STEPS:
            self._rows.add(self._open.popitem(last=False)[1])
        if self._rows.full:
            yield from self._rows.flush()

    def end(self) -> Iterator[Item]:
        for row in self._open.values():
            self._rows.add(row)
        yield from self._rows.flush()
        if self._dropped:
            yield Note("values of steps that a resumed run wrote again: newer kept", self._dropped)


COLLECTOR = LossTensorboard()
