"""TensorBoard event files: scalars of training as steps.

Source of the format: tensorflow/core/util/event.proto and summary.proto. ``wall_time`` is in
seconds, when the value was written.

After a resume a writer goes back to an earlier step in the same file. As TensorBoard itself does,
the newer values are kept: a value of a tag is dropped where the same tag comes again later at the
same or an earlier step. Up to two million values are held for that; a larger file is read twice.
Tags per epoch (``epoch_loss``) count epochs as steps and are left out, unless ``--map loss=TAG``
names one.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
from xtune.collectors._event_proto import event_class
from xtune.collectors._mapping import Mapped
from xtune.collectors._steps import MEASURES, Measure, Plan, as_column
from xtune.collectors._textlines import READ_ERRORS
from xtune.collectors._tfrecord import Record, records, valid_header
from xtune.collectors._values import scaled

# Numbers of tensorflow/core/framework/types.proto.
_DT_FLOAT, _DT_DOUBLE = 1, 2
_OPEN_STEPS = 4096
_HELD = 2_000_000
_TAGS = 1000


class LossTensorboard(Collector):
    """Reads scalars of TensorBoard event files."""

    name = "loss_tensorboard"
    title = "TensorBoard event files (events.out.tfevents.*)"
    produce = "torch.utils.tensorboard.SummaryWriter(dir).add_scalar('train/loss', loss, step)"
    gives = "loss, gradient norm and learning rate by step, with the time of writing"
    lacks = "tags whose name says no measure (name them with --map); rank"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the file starts with a record that says it holds events."""
        if valid_header(head) is None:
            return 0.0
        return 0.98 if b"brain.Event:" in head[:64] else 0.6

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a step and split."""
        measures = _Measures(context)
        restarts = _Restarts()
        held: _Held | None = _Held()
        said: list[Reject | Note] = []
        for item in _scalars(source, measures, first=True):
            if not isinstance(item, _Scalar):
                said.append(item)
                continue
            measures.found += 1
            restarts.see(item)
            if held is not None and not held.add(item):
                held = None
        log = _Rows(context, restarts)
        again = _scalars(source, measures, first=False) if held is None else held.scalars()
        for item in again:
            if isinstance(item, _Scalar):
                yield from log.add(item)
        yield from log.end()
        yield from said
        yield from measures.notes()


class _Scalar(NamedTuple):
    """One value of a tag that is a measure; ``place`` counts them in the file."""

    place: int
    tag: str
    measure: Measure
    step: int
    wall_time: float
    value: float


class _Held:
    """Scalars of a file, 32 bytes each."""

    def __init__(self) -> None:
        self._tags: dict[str, tuple[int, Measure]] = {}
        self._tag, self._step = array("q"), array("q")
        self._wall_time, self._value = array("d"), array("d")

    def add(self, scalar: _Scalar) -> bool:
        """Hold one more; false where there are too many."""
        known = self._tags.setdefault(scalar.tag, (len(self._tags), scalar.measure))
        self._tag.append(known[0])
        self._step.append(scalar.step)
        self._wall_time.append(scalar.wall_time)
        self._value.append(scalar.value)
        return len(self._step) <= _HELD

    def scalars(self) -> Iterator[_Scalar]:
        """All of them, in order."""
        tags = [(tag, measure) for tag, (_, measure) in self._tags.items()]
        columns = zip(self._tag, self._step, self._wall_time, self._value, strict=True)
        for index, (number, step, wall_time, value) in enumerate(columns):
            tag, measure = tags[number]
            yield _Scalar(index, tag, measure, step, wall_time, value)


class _Measures:
    """Which tags are read, and which were met and are not."""

    def __init__(self, context: Context) -> None:
        self._mapping = context.column_map
        self._mapped = Mapped(context.column_map, MEASURES)
        self._known: dict[str, Measure | None] = {}
        self._by_bytes: dict[bytes, tuple[str, Measure | None]] = {}
        self.found = 0
        self.left: Counter[str] = Counter()

    def of(self, raw: bytes) -> tuple[str, Measure | None]:
        """The tag as text, and its measure if it is one."""
        known = self._by_bytes.get(raw)
        if known is None:
            tag = raw[:1024].decode("utf-8", "replace")
            self._mapped.see((tag,))
            known = (tag, self._of(tag))
            if len(self._by_bytes) < 10_000 and len(raw) <= 1024:
                self._by_bytes[raw] = known
        return known

    def _of(self, tag: str) -> Measure | None:
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

    def notes(self) -> Iterator[Note | Unknown]:
        yield from self._mapped.notes()
        if self.left:
            yield Note("values of tags that are no measure of a step: left out (--map names one)")
        for tag, count in self.left.items():
            yield Unknown(tag, count)
        if not self.found:
            yield Note("no loss or other measure of a step in this event file")


def _scalars(
    source: Source, measures: _Measures, *, first: bool
) -> Iterator[_Scalar | Reject | Note]:
    from google.protobuf.message import DecodeError

    parse = event_class().FromString
    index = 0
    try:
        with source.open() as stream:
            for item in records(stream):
                if not isinstance(item, Record):
                    yield item
                    continue
                try:
                    event = parse(item.data)
                except DecodeError as error:
                    yield Reject(f"byte {item.offset}", f"not an event: {error}")
                    continue
                if not event.HasField("summary"):
                    continue
                step = event.step
                for value in event.summary.value:
                    tag, measure = measures.of(value.tag)
                    if measure is None and (tag in measures.left or len(measures.left) < _TAGS):
                        measures.left[tag] += first
                    scalar = None if measure is None or step < 0 else _number(value)
                    if scalar is not None and measure is not None:
                        yield _Scalar(index, tag, measure, step, event.wall_time, scalar)
                        index += 1
    except READ_ERRORS as error:
        yield Reject("end of file", f"cannot be read further: {error}")


def _number(value: Any) -> float | None:
    """The one float of a summary's value; writers since TensorFlow 2 have it in a tensor."""
    which = value.WhichOneof("value")
    if which == "simple_value":
        return float(value.simple_value)
    if which != "tensor":
        return None
    tensor = value.tensor
    listed: Iterable[float] = ()
    if tensor.dtype == _DT_FLOAT:
        listed = tensor.float_val or _unpacked("<f", tensor.tensor_content)
    elif tensor.dtype == _DT_DOUBLE:
        listed = tensor.double_val or _unpacked("<d", tensor.tensor_content)
    numbers = list(listed)
    return numbers[0] if len(numbers) == 1 else None


def _unpacked(form: str, content: bytes) -> tuple[float, ...]:
    return struct.unpack(form, content) if len(content) == struct.calcsize(form) else ()


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
            places.append((scalar.place, scalar.step))
        self._last[scalar.tag] = scalar.step

    def superseded(self, scalar: _Scalar) -> bool:
        """Whether the same tag comes again later at this step or before it."""
        places = self.back.get(scalar.tag, [])
        # Places rise in step and in index: the last one at or before the step decides.
        at = bisect_right(places, scalar.step, key=lambda place: place[1])
        return at > 0 and places[at - 1][0] > scalar.place


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
