"""What a person sees: tables on stdout, notes and progress on stderr, JSON where asked."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from rich.console import Console

# Narrower than this a folded column is a heap of letters, and each row becomes a block of lines.
_NARROWEST = 10
# Rows from which a table's widths are told.
_HELD = 1000
# C0 and C1 controls: names and values come from files, and a terminal obeys these.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DATE = re.compile(r"\d{4}-\d\d-\d\d\b", re.ASCII)

_NS_OF_A_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def _plain() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _console(stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, no_color=_plain(), highlight=False)


def visible(text: str) -> str:
    """``text`` with control characters, such as a newline in a file's name, as escapes.

    Bytes of a file's name that are no UTF-8 become escapes too: no stream can take them.
    """
    escaped = _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def say(text: str) -> None:
    """One line for a person, on stdout."""
    print(visible(text))


def note(text: str) -> None:
    """One line on stderr: a warning or a remark that is not a result."""
    print(visible(text), file=sys.stderr)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, text: bool = False
) -> None:
    """A table on stdout; numbers are aligned right, ``None`` shows as ``-``.

    Where no terminal sets a width a row is a line, for grep. With more columns than a terminal
    has room for, each row is a block of name and value; so it is for ``text``, cells of many
    words and commands, which one wants to copy whole. Rows beyond the first thousand are lines
    that are written as they come, as wide as those were.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    coming = iter(rows)
    cells = [list(row) for row in islice(coming, _HELD)]
    more = [list(row) for row in islice(coming, 1)]
    if more or not sys.stdout.isatty():
        _lines(title, columns, cells, chain(more, coming))
        return
    console = _console(stderr=False)
    if text or len(columns) * _NARROWEST > console.width:
        _blocks(title, columns, cells)
        return
    out = Table(
        title=Text(visible(title)) if title else None, box=box.SIMPLE_HEAD, title_justify="left"
    )
    for index, name in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in cells)
        heading = Text(visible(name))
        dated = any(_DATE.match(show(row[index])) for row in cells)
        out.add_column(
            heading,
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=_NARROWEST if dated else None,  # a date is not broken
        )
    for row in cells:
        out.add_row(*(Text(visible(show(value))) for value in row))
    console.print(out)


def _lines(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    more: Iterable[Sequence[object]] = (),
) -> None:
    from rich.cells import cell_len

    numeric = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    texts = [[visible(show(value)) for value in row] for row in [columns, *rows]]
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    if title:
        say(title)
    later = ([visible(show(value)) for value in row] for row in more)
    for number, row in enumerate(chain(texts, later)):
        padded = (
            " " * (width - cell_len(text)) + text
            if right
            else text + " " * (width - cell_len(text))
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  " + "   ".join(padded).rstrip())
        if number == 0:
            print(" " + "─" * (sum(widths) + 3 * len(widths) - 1))


def _blocks(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if title:
        say(title)
    widest = max(map(len, columns))
    for row in rows:
        for name, value in zip(columns, row, strict=True):
            say(f"  {name:<{widest}}   {show(value)}")
        print()


def show(value: object) -> str:
    """A value as a table cell: four significant digits, ``-`` for unknown."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        if value == int(value) and abs(value) < 1e15:
            return f"{int(value)}"
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list | tuple):
        return ", ".join(show(v) for v in value)
    return str(value)


def rfc3339(ns: int) -> str:
    """Nanoseconds since the epoch as RFC 3339 with nine digits and Z."""
    seconds, rest = divmod(ns, 1_000_000_000)
    moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    return f"{moment.isoformat()}.{rest:09d}Z"


def emit_json(document: dict[str, Any]) -> None:
    """One JSON document on stdout; NaN and infinities become null (strict JSON has none)."""
    print(_json(document))


def emit_json_rows(head: dict[str, Any], name: str, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON document on stdout: ``head`` and, under ``name``, rows, written as they come.

    The first row is there before anything is written: what fails at once leaves stdout empty.
    """
    numbered = enumerate(rows)
    first = next(numbered, None)
    print(f"{_json(head)[:-1]},{json.dumps(name)}:[", end="")
    for number, row in chain([first] if first else [], numbered):
        print(f"{',' if number else ''}{_json(row)}", end="")
    print("]}")


def _json(document: dict[str, Any]) -> str:
    text = json.dumps(_strict(document), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return value


def json_rows(data: pa.Table) -> list[dict[str, Any]]:
    """Rows of an Arrow table for JSON, column names of which are distinct.

    Times are RFC 3339 with nine digits (null where they have no year of four digits: infinity),
    maps objects, decimals numbers, binaries hexadecimal, other kinds of time text.
    """
    columns = [_json_values(column) for column in data.columns]
    return [dict(zip(data.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _json_values(column: pa.ChunkedArray) -> list[Any]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        plain: list[Any] = column.to_pylist()
        return plain
    return [_json_value(value) for value in column]


def _json_value(scalar: pa.Scalar) -> Any:
    import pyarrow as pa

    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_timestamp(kind):
        try:
            return rfc3339(scalar.value * _NS_OF_A_UNIT[kind.unit])
        except OverflowError:
            return None
    if pa.types.is_map(kind):
        pairs = (map(_json_value, pair.values()) for pair in scalar.values)
        return {str(key): value for key, value in pairs}
    if pa.types.is_struct(kind):
        return {name: _json_value(value) for name, value in scalar.items()}
    if pa.types.is_nested(kind) and hasattr(scalar, "values"):
        return [_json_value(value) for value in scalar.values]
    value = scalar.as_py()
    if pa.types.is_decimal(kind):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, bool | int | float | str | None) else str(value)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """A bar on stderr where that is a terminal, else silence; yields ``update(done, text)``."""
    if _plain() or not sys.stderr.isatty():
        yield lambda done, text: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False),  # names may hold [brackets]
        console=_console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=total, text="")
        yield lambda done, text: bar.update(task, completed=done, text=visible(text))
