"""What a person sees: tables on stdout, notes and progress on stderr, JSON where asked."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console


def _console(stderr: bool) -> Console:
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return Console(
        stderr=stderr, no_color=plain, highlight=False, width=width, soft_wrap=not stream.isatty()
    )


def say(text: str) -> None:
    """One line for a person, on stdout."""
    print(text)


def note(text: str) -> None:
    """One line on stderr: a warning or a remark that is not a result."""
    print(text, file=sys.stderr)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; numbers are aligned right, ``None`` shows as ``-``."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    out = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left")
    for index, name in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in cells)
        out.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        out.add_row(*(Text(show(value)) for value in row))
    _console(stderr=False).print(out)


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
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:09d}Z"


def emit_json(document: dict[str, Any]) -> None:
    """One JSON document on stdout; NaN and infinities become null (strict JSON has none)."""
    json.dump(_strict(document), sys.stdout, ensure_ascii=False, separators=(",", ":"))
    sys.stdout.write("\n")


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return value


def json_rows(data: Any) -> list[dict[str, Any]]:
    """Rows of an Arrow table for JSON: times RFC 3339 with nine digits, maps as objects."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    for name, column in zip(data.column_names, data.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            stamps = column.cast(pa.timestamp("ns", tz=column.type.tz)).cast(pa.int64())
            columns[name] = [None if v is None else rfc3339(v) for v in stamps.to_pylist()]
        elif pa.types.is_map(column.type):
            columns[name] = [None if v is None else dict(v) for v in column.to_pylist()]
        elif pa.types.is_temporal(column.type):
            columns[name] = [None if v is None else str(v) for v in column.to_pylist()]
        else:
            columns[name] = column.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """A bar on stderr where that is a terminal, else silence; yields ``update(done, text)``."""
    if not sys.stderr.isatty():
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
        TextColumn("{task.fields[text]}"),
        console=_console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=total, text="")
        yield lambda done, text: bar.update(task, completed=done, text=text)
