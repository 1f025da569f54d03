"""Lines of a table of nccl-tests: into cells by the table's header, also interrupted ones.

The tests print a line in three pieces without a line end between (``src/util.cu``: sizes and
type, then each half when it is measured), so that another writer's lines come between them. The
pieces are of fixed width, by which they are told from what follows them on the same line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from xtune.collectors._nccl_tests_row import figure
from xtune.collectors._textlines import Line

TYPES = (
    "int8|uint8|int32|uint32|int64|uint64|half|float|double|bfloat16|f8e4m3|f8e5m2|fp8_e4m3|"
    "fp8_e5m2|char|int"
)
#: A line of the table, wherever in the line it begins.
DATA = re.compile(rf"(?:^|[\s:>|])(\d+)\s+(\d+)\s+({TYPES})(?![^\s])")
REDOPS = frozenset({"sum", "prod", "max", "min", "avg", "mulsum", "none"})
FIGURES = ("time", "cputime", "algbw", "busbw")
#: Columns of each half in all versions since 2.0.
COLUMNS = ("time", "algbw", "busbw", "#wrong")

_GAP = re.compile(r"\s{25,}")  # blanks where a trace replay prints no out-of-place half
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
# "%12li  %12li  %8s  %6s  %6s" and "  %7s  %6s  %6s  %6g", or N/A in the last's place.
_SIZE_WIDTH, _ROOT_AT, _BODY_AT = 12, 46, 52
_BODY = re.compile(r"  ([ \d.e+]{7})  ([ \d.e+]{6})  ([ \d.e+]{6})(?:    (N/A)|  ([ \d.e+]{6}))")
_ROOT = re.compile(r" *(-?\d+)")


@dataclass(slots=True)
class Layout:
    """A table's columns.

    Attributes:
        columns: Names of one half's columns.
        halves: How many halves a line has.
        root: Whether there is a column for it.
        milliseconds: Unit of the time in the first version.
    """

    columns: tuple[str, ...]
    halves: int = 2
    root: bool = True
    milliseconds: bool = False

    @property
    def fixed(self) -> bool:
        """Whether the lines are of the pieces and widths known above."""
        return self.columns in {COLUMNS, ("cputime", *COLUMNS[1:])} and self.root


@dataclass(slots=True)
class Cells:
    """One line of a table; ``halves`` are null where they are missing or no figures."""

    size: str
    count: str
    dtype: str
    redop: str | None
    root: str | None
    halves: list[dict[str, str] | None] = field(default_factory=list)
    stamp: str | None = None
    whole: bool = False


def split(words: str, layout: Layout) -> Cells:
    """Cells of a line that begins with its size."""
    tokens = words.split()
    size, count, dtype = tokens[:3]
    rest = tokens[3:]
    # Old versions leave the operation blank where there is no reduction.
    redop = rest.pop(0) if rest and rest[0] in REDOPS else None
    root = rest.pop(0) if layout.root and rest else None
    cells = Cells(size, count, dtype, redop, root)
    width = len(layout.columns)
    halves = [rest[at : at + width] for at in range(0, width * layout.halves, width)]
    if len(halves) > 1 and not halves[1] and _GAP.search(words.rstrip()):
        halves = [[], halves[0]]
    cells.halves = [_named(half, layout) for half in halves]
    more = " ".join(rest[width * layout.halves :])
    cells.stamp = more if _STAMP.fullmatch(more) else None
    good = [half is not None for half in cells.halves]
    replay = len(halves) == 2 and not halves[0] and good[1]
    cells.whole = (all(good) or replay) and more in {"", cells.stamp}
    return cells


def _named(half: list[str], layout: Layout) -> dict[str, str] | None:
    if len(half) < len(layout.columns):
        return None
    named = dict(zip(layout.columns, half, strict=True))
    printed = [named[name] for name in FIGURES if name in named]
    good = all(figure(value) is not None or _is_none(value) for value in printed)
    return named if good else None


def _is_none(printed: str) -> bool:
    return printed.strip("-+").lower() in {"n/a", "nan", "inf"}


def by_number(words: str) -> Layout | None:
    """Layout of a table whose header is not in the file, by the number of a line's columns."""
    rest = words.split()[3:]
    if rest and rest[0] in REDOPS:
        rest = rest[1:]
    if len(rest) in {9, 11}:  # 11: with the two words of a time stamp
        return Layout(COLUMNS)
    return Layout(COLUMNS, root=False) if len(rest) == 8 else None


class Interrupted:
    """A line of which another writer's lines have cut off a half or two."""

    def __init__(self, line: Line, cells: Cells, at: int, layout: Layout) -> None:
        self.line = line
        self.cells = cells
        self.cells.halves = []
        self._at = at
        self._layout = layout
        self._take(line.text, at + _BODY_AT)

    @staticmethod
    def of(line: Line, layout: Layout) -> Interrupted | None:
        """The line as far as it goes; null where it does not begin as one."""
        found = DATA.search(line.text)
        if found is None or not layout.fixed:
            return None
        at = found.end(1) - _SIZE_WIDTH
        words = line.text[at : at + _BODY_AT]
        root = _ROOT.fullmatch(words[_ROOT_AT:])
        redop = words[38:44].strip()
        if at < 0 or root is None or (redop and redop not in REDOPS):
            return None
        cells = Cells(found[1], found[2], found[3], redop or None, root[1])
        return Interrupted(line, cells, at, layout)

    def more(self, line: Line) -> bool:
        """Take what of this line's beginning belongs to it; whether anything did."""
        before = len(self.cells.halves)
        self._take(line.text, self._at)
        return len(self.cells.halves) > before

    @property
    def complete(self) -> bool:
        """Whether no half is missing any more."""
        return len(self.cells.halves) >= self._layout.halves

    def _take(self, text: str, at: int) -> None:
        while not self.complete and (body := _BODY.match(text, at)):
            cells = [body[1], body[2], body[3], body[4] or body[5]]
            named = _named([cell.strip() for cell in cells], self._layout)
            if named is None:
                return
            self.cells.halves.append(named)
            at = body.end()
