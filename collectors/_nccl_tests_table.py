"""Tables made of nccl-tests output: rccl-tests' own CSV (``-Z csv``) and those of other tools.

Column names are told by their letters (``size_bytes``, ``time(us)``, ``algbw_GBs``, ``busBw``);
``out-of-place`` and ``in-place`` halves may be columns or rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xtune.collectors._base import Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._nccl_tests_row import (
    Measurement,
    Test,
    contradiction,
    figure,
    op_name,
    program_op,
    row,
)
from xtune.collectors._textlines import Lines
from xtune.collectors._values import real, small

_HALVES = ((True, ("inplace", "ip")), (False, ("outofplace", "oop", "op")))
_NAMES = {
    "size": ("size", "sizebytes", "sizeb", "bytes", "messagesize", "messagebytes", "msgsize"),
    "count": ("count", "elements", "countelements", "numelements"),
    "dtype": ("type", "dtype", "datatype"),
    "redop": ("redop",),
    "root": ("root",),
    "time": ("time", "timeus", "timeusec", "latencyus", "usec"),
    "algbw": ("algbw", "algbwgbs", "algbwgbps", "algorithmbandwidth", "algbandwidth"),
    "busbw": ("busbw", "busbwgbs", "busbwgbps", "busbandwidth", "busbandwidthgbs"),
    "wrong": ("wrong", "nwrong", "errors"),
    "op": ("op", "name", "collective", "coll", "test", "operation"),
    "ranks": ("ranks", "nranks", "worldsize", "numranks", "gpus", "ngpus"),
    "in_place": ("inplace",),
}
_MEANING = {alias: name for name, aliases in _NAMES.items() for alias in aliases}
_BUS = re.compile(r"bus_?(?:bw|bandwidth)", re.I)
#: Gb/s is 1e9 bits, GB/s bytes; who writes gbps may mean either.
_BITS = re.compile(r"[Gg]b(?:ps|/s|its?)")
BEFORE = 20  # lines of others that may stand before the header
_TRUE = frozenset({"1", "true", "yes"})
_HELD = 4096  # rows looked at before the operation is told from the bandwidths
_FIGURES_TOLD = 10.0  # GB/s: three digits or more, so that the factor is known to a percent


@dataclass(slots=True)
class Columns:
    """Where a table has what: place of each value shared by both halves, and by each half.

    ``unsure``: bandwidths that may be in bits or bytes, with no time beside them to tell.
    """

    shared: dict[str, int] = field(default_factory=dict)
    halves: dict[bool | None, dict[str, int]] = field(default_factory=dict)
    unsure: list[str] = field(default_factory=list)

    def measured(self, line: str) -> bool:
        """Whether a line has a number for time or bandwidth: a plan of operations has none."""
        cells = line.split(",")
        places = [
            half[name]
            for half in self.halves.values()
            for name in ("time", "algbw", "busbw")
            if name in half
        ]
        return any(real(cells[at].strip()) is not None for at in places if at < len(cells))

    @property
    def useful(self) -> bool:
        """Whether rows can be made: a size, and a time or bandwidth beside it."""
        return "size" in self.shared and any(
            {"time", "algbw", "busbw"} & half.keys() for half in self.halves.values()
        )


def is_header(line: str) -> bool:
    """Whether a line names the columns of a CSV with a bus bandwidth."""
    return "," in line[:4096] and _BUS.search(line[:4096]) is not None


def columns(names: Sequence[str]) -> Columns:
    """The columns of a table by its header."""
    found = Columns()
    unsure: dict[bool | None, list[str]] = {}
    for place, name in enumerate(names):
        flat = re.sub(r"[^a-z0-9]", "", name.lower())
        half: bool | None = None
        meaning = _MEANING.get(flat)
        for in_place, prefixes in _HALVES:
            for prefix in prefixes:
                inner = _MEANING.get(flat.removeprefix(prefix))
                if meaning is None and flat.startswith(prefix) and inner is not None:
                    meaning, half = inner, in_place
        if meaning in {"time", "algbw", "busbw", "wrong"}:
            taken = found.halves.setdefault(half, {}).setdefault(meaning, place)
            if taken == place and _BITS.search(name):
                unsure.setdefault(half, []).append(meaning)
        elif meaning is not None:
            found.shared.setdefault(meaning, place)
    for half, meanings in unsure.items():
        places = found.halves[half]
        # Size over time tells which: figures that contradict it are rejected.
        if not {"time", "algbw"} <= places.keys():
            found.unsure += [names[places.pop(meaning)].strip() for meaning in meanings]
    return found


def table_items(source: Source, context: Context) -> Iterator[Item]:
    """Rows, rejects and notes of a CSV."""
    lines = Lines(source)
    layout: Columns | None = None
    rows = RowBuffer("collectives", context)
    held: list[tuple[str, Test, Measurement]] = []
    told = Test()
    decided = False
    for line in lines:
        if not line.data.strip():
            continue
        try:
            values = next(csv.reader([line.text], skipinitialspace=True))
        except (csv.Error, StopIteration) as error:
            yield Reject(line.place, f"not a line of a CSV: {error}")
            continue
        if layout is None:
            if not is_header(line.text):
                if line.number > BEFORE:
                    break
                continue
            layout = columns(values)
            if layout.unsure:
                yield Note(
                    f"{', '.join(layout.unsure)[:80]}: bits or bytes? left out, as no time tells"
                )
            if not layout.useful:
                yield Reject(
                    line.place,
                    "a summary of whole tests: it has no size and time of an operation",
                    "collect the logs that it was made from",
                )
                return
            continue
        if len(values) < 1 + max(layout.shared.values(), default=0):
            yield Reject(line.place, "the line is cut: it has fewer columns than the header")
            continue
        for test, measured in _measured(values, layout, told):
            held.append((line.place, test, measured))
        if not decided and len(held) >= _HELD:
            decided = True
            _tell(held, told)
        if decided:
            yield from _rows(held, rows, context)
            held = []
    if not decided:
        _tell(held, told)
    yield from _rows(held, rows, context)
    yield from rows.flush()
    yield from lines.rejects
    if layout is None:
        yield Reject("line 1", "no line names the columns of a table with a bus bandwidth")
    elif told.op is None and "op" not in layout.shared:
        yield Note("the table does not name the operation: op is null")
    elif told.told:
        yield Note("operation and ranks taken from bus over algorithm bandwidth")


def _measured(
    values: list[str], layout: Columns, told: Test
) -> Iterator[tuple[Test, Measurement]]:
    def shared(name: str) -> str | None:
        place = layout.shared.get(name)
        return values[place].strip() or None if place is not None else None

    named = shared("op")
    test = told
    if named is not None or "ranks" in layout.shared:
        known = program_op(named) if named else None
        test = Test(
            program=known[0] if known else None,
            op=known[1] if known else op_name(named) if named else None,
            ranks=small(shared("ranks")),
        )
    flag = shared("in_place")
    for half, places in layout.halves.items():
        own = {n: values[p].strip() for n, p in places.items() if p < len(values)}
        if any(own.values()):
            yield (
                test,
                Measurement(
                    size=shared("size"),
                    count=shared("count"),
                    dtype=shared("dtype"),
                    redop=shared("redop"),
                    root=shared("root"),
                    in_place=flag.lower() in _TRUE if half is None and flag else half,
                    time=own.get("time"),
                    algbw=own.get("algbw"),
                    busbw=own.get("busbw"),
                    wrong=own.get("wrong"),
                ),
            )


def _tell(held: list[tuple[str, Test, Measurement]], told: Test) -> None:
    """Tell operation and ranks from the bandwidths, where only one answer fits all lines.

    busbw / algbw above 1 is 2(n-1)/n of an all-reduce and of nothing else.
    """
    pairs = [
        (algbw, busbw)
        for _, test, half in held
        if test is told
        and (algbw := figure(half.algbw)) is not None
        and (busbw := figure(half.busbw)) is not None
    ]
    largest = max(pairs, key=lambda pair: pair[1].value, default=None)
    if largest is None or largest[0].value < _FIGURES_TOLD:
        return
    algbw, busbw = largest
    ratio = busbw.value / algbw.value
    if not 1.01 < ratio < 1.99:
        return
    ranks = round(2 / (2 - ratio))
    doubt = (busbw.half + ratio * algbw.half) / algbw.value
    neighbours = [abs(ratio - 2 * (n - 1) / n) for n in (ranks - 1, ranks + 1) if n > 0]
    fitting = all(
        abs(b.value - a.value * 2 * (ranks - 1) / ranks) <= b.half + 2 * a.half + 1e-9 * b.value
        for a, b in pairs
    )
    if fitting and all(distance > doubt for distance in neighbours):
        told.op, told.ranks = "all_reduce", ranks
        told.told["op_from"] = "busbw/algbw"


def _rows(
    held: list[tuple[str, Test, Measurement]], rows: RowBuffer, context: Context
) -> Iterator[Item]:
    for place, test, measured in held:
        wrong = contradiction(test, measured)
        if wrong is not None:
            yield Reject(place, wrong, "is the table edited, or in other units?")
            continue
        rows.add(row(test, measured, context))
        if rows.full:
            yield from rows.flush()
