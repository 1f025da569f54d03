"""The text that nccl-tests and rccl-tests print: header lines, a table, a footer, many in a file.

Lines may have a launcher's prefix (``0: ``, ``[1,0]<stdout>:``) and others' lines between them
(``set -x``, srun, NCCL's log). What a column means comes from the table's own header; of a table
whose header is not in the file, from the number of its columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._collective import canonical_op
from xtune.collectors._nccl_tests_lines import (
    DATA,
    Cells,
    Interrupted,
    Layout,
    by_number,
    split,
)
from xtune.collectors._nccl_tests_row import (
    Measurement,
    Test,
    contradiction,
    figure,
    implied_op,
    op_name,
    program_op,
    row,
)
from xtune.collectors._textlines import Line, Lines

#: The header of the table: the first version wrote ``bytes N type op``, and milliseconds.
HEADER = re.compile(r"#\s+(size\s+count|bytes\s+N)\s+type\b")

_DEVICE = re.compile(
    r"#\s+Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+"
)
_START = re.compile(r"# Collective test starting: (\S+)")
_OPTIONS = re.compile(r"# nThread\s+(\d+)\s+nGpus\s+(\d+)\s+minBytes\s+\d+\s+maxBytes\s+\d+(.*)")
_OPTION = re.compile(r"(warmup iters|agg iters|iters|validation|graph): *(-?\d+)")
_VERSION = re.compile(r"# nccl-tests version (\S+)(?: nccl-headers=\d+)?(?: nccl-library=(\d+))?")
_LIBRARY = re.compile(r"(RCCL version) *: *(\S+)|NCCL version (\d\S*)")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: *(\S+)")
_WRONG = re.compile(r"# Out of bounds values\s*: *(\d+) +FAILED")
_FAILURE = re.compile(r"Test (?:NCCL|CUDA|MPI|failure)[^'\"]{0,80}")
_MORE = {"i_min": "iter_min", "i_max": "iter_max", "i_p99": "iter_p99", "i_cv%": "iter_cv_percent"}
_ERRORS = ("#wrong", "error", "res")
_TUNED = re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo ([A-Z_]\w*) proto ([A-Z]\w*)")
_MAX_TUNED = 4096
_MAX_HELD = 4096


@dataclass(slots=True)
class _Table:
    """A test's table as it is read; ``layout`` once its header was.

    ``held``: rows whose operation a later line may tell.
    """

    test: Test
    layout: Layout | None = None
    measured: int = 0
    total: float = 0.0
    ended: bool = False
    groups: dict[int, set[int]] = field(default_factory=dict)
    listed: bool = True
    held: list[dict[str, Any]] = field(default_factory=list)


class TextReader:
    """Reads a log; one row for each half of each line of each table."""

    def __init__(self, source: Source, context: Context) -> None:
        self._source = source
        self._context = context
        self._rows = RowBuffer("collectives", context)
        self._tests = 0
        self._table = self._new()
        self._opened = False
        self._named: tuple[str, str] | None = None
        self._pending: Interrupted | None = None
        self._tuned: dict[tuple[str | None, str], tuple[str, str]] = {}

    def _new(self) -> _Table:
        self._opened = False
        return _Table(Test(number=self._tests + 1))

    def items(self) -> Iterator[Item]:
        """Rows, rejects and notes of the whole log."""
        lines = Lines(self._source)
        for line in lines:
            yield from self._line(line)
            if self._rows.full:
                yield from self._rows.flush()
        yield from self._close()
        yield from self._rows.flush()
        yield from lines.rejects
        if not self._tests:
            yield Note("no table of nccl-tests in this file")

    def _line(self, line: Line) -> Iterator[Item]:
        words = line.text
        if self._pending is not None and self._pending.more(line):
            if self._pending.complete:
                yield from self._resume()
            return
        if "#" in words:
            yield from self._comment(words)
        elif tuned := _TUNED.search(words):
            if len(self._tuned) < _MAX_TUNED:
                self._tuned[canonical_op(tuned[1]), tuned[2]] = tuned[3], tuned[4]
        elif "_perf" in words:
            # ``+ srun ./all_reduce_perf -b 8``: names the next test of a version that does not.
            self._named = program_op(words) or self._named
        elif library := _LIBRARY.search(words):
            self._table.test.told["nccl_version"] = (library[2] or library[3])[:64]
        elif words.lstrip() == "..." and self._table.groups and self._table.layout is None:
            self._table.listed = False
        found = DATA.search(words) if self._has_table(words) else None
        if found:
            yield from self._data(line, words[found.start(1) :])
        elif failure := _FAILURE.search(words):
            yield Note(f"a test failed: {failure[0].strip()[:80]}")

    def _has_table(self, words: str) -> bool:
        """Whether a line of a table may be here: inside one, or one whose header is not there."""
        return self._table.layout is not None or len(words.split()) >= 12

    def _comment(self, words: str) -> Iterator[Item]:
        if _VERSION.search(words) or _START.search(words) or _OPTIONS.search(words):
            yield from self._header(words)
        elif device := _DEVICE.search(words):
            if self._table.layout is not None:
                yield from self._restart()
            self._opened = True
            self._table.groups.setdefault(int(device[2] or 0), set()).add(int(device[1]))
            if len(self._table.test.hosts) < 65536:
                self._table.test.hosts.append(device[3][:255])
        elif header := HEADER.search(words):
            if self._table.layout is not None and self._table.measured:
                yield from self._restart()
            self._columns(words[header.start() + 1 :])
        elif average := _AVERAGE.search(words):
            yield from self._resume()
            self._table.ended = True
            yield from self._check(average[1])
        elif _WRONG.search(words):
            yield Note("a test found wrong values: its data were corrupted")

    def _header(self, words: str) -> Iterator[Item]:
        """The three lines that open a test; each version writes some of them, in this order."""
        if version := _VERSION.search(words):
            yield from self._restart()
            told = self._table.test.told
            told["tests_version"] = version[1][:64]
            if version[2]:
                told["nccl_version_code"] = int(version[2][:9])
            self._opened = True
        elif start := _START.search(words):
            if self._table.test.program or self._table.layout or self._table.groups:
                yield from self._restart()
            self._opened = True
            self._named = None
            program = start[1].rpartition("/")[2][:128]
            known = program_op(program)
            self._table.test.program = program
            self._table.test.op = known[1] if known else op_name(program.partition("_perf")[0])
        elif options := _OPTIONS.search(words):
            if self._table.layout or self._table.groups:
                yield from self._restart()
            self._opened = True
            for name, value in _OPTION.findall(options[3]):
                self._table.test.told[name.replace(" ", "_")] = int(value[:9])

    def _restart(self) -> Iterator[Item]:
        yield from self._close()
        self._table = self._new()

    def _columns(self, words: str) -> None:
        names = words.split()
        times = [at for at, name in enumerate(names) if name in {"time", "cputime"}]
        if not times:
            return
        until = times[1] if len(times) > 1 else len(names)
        self._table.layout = Layout(
            tuple(name for name in names[times[0] : until] if name != "timestamp"),
            halves=min(len(times), 2),
            root="root" in names,
            milliseconds=names[0] == "bytes",
        )
        self._begin()

    def _begin(self) -> None:
        """The table begins: what was said of the test before it is all there is."""
        self._tests += 1
        test = self._table.test
        test.number = self._tests
        groups = self._table.groups
        sizes = {len(ranks) for ranks in groups.values()}
        if self._table.listed and len(sizes) == 1:
            (test.ranks,) = sizes
        if test.op is None and self._named is not None:
            test.program, test.op = self._named
        self._named = None

    def _data(self, line: Line, words: str) -> Iterator[Item]:
        yield from self._resume()
        table = self._table
        if table.layout is None:
            table.layout = by_number(words)
            if table.layout is None:
                return
            self._begin()
        cells = split(words, table.layout)
        self._pending = None if cells.whole else Interrupted.of(line, table.layout)
        if self._pending is None:
            yield from self._measured(line, cells)
        elif self._pending.complete or not line.whole:
            yield from self._resume()

    def _resume(self) -> Iterator[Item]:
        """Be done with a line that was interrupted, whether all of it came or not."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cells.whole = pending.complete
            yield from self._measured(pending.line, pending.cells)

    def _measured(self, line: Line, cells: Cells) -> Iterator[Item]:
        table = self._table
        layout = table.layout
        for place, named in enumerate(cells.halves):
            if named is None or layout is None:
                continue
            half = Measurement(
                size=cells.size,
                count=cells.count,
                dtype=cells.dtype,
                redop=cells.redop,
                root=cells.root,
                in_place=place == 1 if layout.halves == 2 else None,
                time=named.get("time", named.get("cputime")),
                time_ns=1_000_000 if layout.milliseconds else 1000,
                cpu_time="cputime" in named,
                algbw=named.get("algbw"),
                busbw=named.get("busbw"),
                wrong=named.get("#wrong") if line.whole else None,
                more={
                    **{_MORE[n]: v for n, v in named.items() if n in _MORE},
                    "bit_differences": named.get("#bitdiff"),
                    "max_error": next((named[n] for n in ("error", "res") if n in named), None),
                    "time_is": "cpu" if "cputime" in named else None,
                    "written_at": cells.stamp,
                },
            )
            wrong = contradiction(table.test, half)
            if wrong is not None:
                yield Reject(line.place, wrong, "is the line mixed with another's, or edited?")
                continue
            table.measured += 1
            if (busbw := figure(half.busbw)) is not None:
                table.total += busbw.value
            if table.test.op is None:
                table.test.op = implied_op(table.test, half)
            table.held.append(row(table.test, half, self._context))
            if table.test.op is not None or len(table.held) >= _MAX_HELD:
                self._release()
        if not cells.whole:
            yield Reject(line.place, "a line of the table that is cut or mixed with another line")

    def _release(self) -> None:
        """Give out the rows of the table that waited for its operation."""
        table = self._table
        held, table.held = table.held, []
        for made in held:
            made["op"] = table.test.op
            tuned = self._tuned.get((table.test.op, str(made["message_bytes"])))
            if tuned is not None:
                made["algorithm"], made["protocol"] = tuned
            self._rows.add(made)

    def _check(self, average: str) -> Iterator[Item]:
        """The test's own total against the mean of what was read."""
        said = figure(average)
        table = self._table
        if said is None or not table.measured:
            return
        if abs(table.total / table.measured - said.value) > 0.006 + 0.006 * abs(said.value):
            yield Note("the average bus bandwidth is of more lines than the file has")

    def _close(self) -> Iterator[Item]:
        yield from self._resume()
        self._release()
        self._tuned = {}
        table = self._table
        if table.layout is None and not self._opened:
            return
        if table.layout is None:
            yield Note("a test ended before its table began")
        elif not table.measured:
            yield Note("a test without a single measurement: it failed")
        elif not table.ended:
            yield Note("a test ended before its last line: its first measurements are kept")
        if table.measured and table.test.op is None:
            yield Note(
                "the log does not say which test a table is of: op is null; keep the line "
                "'# Collective test starting' or the command",
            )
