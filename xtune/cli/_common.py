"""Options and small helpers that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xtune.config import Config
from xtune.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from xtune.lake import Lake

LakeOption = Annotated[
    str | None, typer.Option("--lake", help="Folder of the lake.", show_default="./lake")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit status 3 where input was rejected.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of every random draw.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes.")]
SinceOption = Annotated[str | None, typer.Option("--since", help="From this time (RFC 3339).")]
UntilOption = Annotated[str | None, typer.Option("--until", help="Until this time (RFC 3339).")]


_LONGEST_S = 100 * 365.25 * 86400.0  # longer than any telemetry; times are 64-bit nanoseconds


def config() -> Config:
    """Settings of this directory and environment."""
    return Config(Path.cwd(), os.environ)


def open_lake(flag: str | None, *, create: bool = False) -> Lake:
    """The lake that flag, environment, file or default name."""
    from xtune.lake import Lake

    return Lake.open(Path(config().get("lake", flag).value), create=create)


def parse_time(text: str | None, option: str) -> datetime | None:
    """An RFC 3339 time or a date; without a zone it is UTC.

    Raises:
        UsageError: Not a time.
    """
    from datetime import UTC, datetime

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{option}: {text!r} is not a time", "2026-01-31T12:00:00Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_span(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """``--since`` and ``--until``.

    Raises:
        UsageError: One is not a time, or nothing lies between them.
    """
    first, last = parse_time(since, "--since"), parse_time(until, "--until")
    if first is not None and last is not None and first >= last:
        raise UsageError(f"--since {since} is not before --until {until}")
    return first, last


def epoch_ns(moment: datetime) -> int:
    """Nanoseconds since the epoch, exactly."""
    from datetime import UTC, datetime, timedelta

    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def parse_pairs(items: list[str] | None, option: str) -> dict[str, str]:
    """``["a=b"]`` as a dict.

    Raises:
        UsageError: An item without ``=``.
    """
    pairs: dict[str, str] = {}
    for item in items or []:
        key, found, value = item.partition("=")
        if not found or not key:
            raise UsageError(f"{option}: {item!r} is not of the form name=value")
        pairs[key] = value
    return pairs


def parse_duration_s(text: str, option: str) -> float:
    """``500ms``, ``1s``, ``5m``, ``2h``, ``30d`` or plain seconds, in seconds.

    Raises:
        UsageError: Not a positive duration.
    """
    import re

    units = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", text.strip())
    seconds = float(match[1]) * units[match[2]] if match else 0.0
    if not 0.0 < seconds <= _LONGEST_S:
        raise UsageError(f"{option}: {text!r} is not a duration", "500ms, 1s, 5m, 2h or 30d")
    return seconds


def share(value: float | None) -> str | None:
    """A ratio in per cent; the bytes of the side collectives alone round to zero."""
    return None if value is None else f"{value:z.1%}"
