"""Times of files that say none in their rows, and of the stamps that such files carry."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from xtune.collectors._base import Context, Source
from xtune.collectors._textlines import READ_ERRORS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = re.compile(
    r"(?<!\d)(\d{4})-?(\d{2})-?(\d{2})[T_ .-]?(\d{2})[-:_.]?(\d{2})[-:_.]?(\d{2})"
    r"(Z|[+-]\d{2}:?\d{2})?(?!\d)"
)
_EPOCH_DIGITS = re.compile(r"(?<!\d)(\d{19}|\d{16}|\d{13}|\d{10})(?!\d)")
#: The end of 2262, beyond which nanoseconds do not fit into 64 bits.
MAX_NS = 2**63 - 1


def held(ns: int) -> int | None:
    """``ns`` where a time column holds it: from 1970 to 2262."""
    return ns if 0 <= ns <= MAX_NS else None


def to_ns(moment: datetime) -> int | None:
    """Nanoseconds since the epoch of an aware time; ``None`` outside the years 1970 to 2262."""
    delta = moment - _EPOCH
    return held((delta.days * 86400 + delta.seconds) * 10**9 + delta.microseconds * 1000)


def zone(context: Context) -> tzinfo | None:
    """The zone the user gave for local times; ``None`` where there is none of that name."""
    if not context.tz:
        return None
    try:
        return ZoneInfo(context.tz)
    except (OSError, ValueError, KeyError):
        return None


def scale_epoch(value: int) -> tuple[int | None, str]:
    """Nanoseconds and the unit guessed of an epoch time, by magnitude.

    Seconds stay below 1e11 (the year 5138), milliseconds below 1e14, microseconds below 1e17.
    Times before March 1973 in a finer unit would be taken for a coarser one.
    """
    if value < 10**11:
        factor, unit = 10**9, "s"
    elif value < 10**14:
        factor, unit = 10**6, "ms"
    elif value < 10**17:
        factor, unit = 1000, "us"
    else:
        factor, unit = 1, "ns"
    return held(value * factor), unit


def parse_utc_stamp(text: str) -> int | None:
    """Nanoseconds of ``2025-03-31 23:43:18 UTC +0000`` or ISO 8601 with an offset or Z."""
    match = re.search(
        r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d{1,9})?\s*(?:UTC\s*)?(Z|[+-]\d\d:?\d\d)", text
    )
    if not match:
        return None
    offset = "+0000" if match[4] == "Z" else match[4].replace(":", "")
    try:
        moment = datetime.strptime(f"{match[1]} {match[2]} {offset}", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return None
    whole = to_ns(moment)
    fraction = int((match[3] or ".0")[1:].ljust(9, "0"))
    return None if whole is None else held(whole + fraction)


def parse_ctime(text: str, local: tzinfo | None) -> int | None:
    """Nanoseconds of a C ``ctime`` such as ``Wed Aug  6 16:11:23 2025``, or one with AM or PM.

    The text has no zone: without one the answer is ``None``.
    """
    match = re.search(
        r"[A-Z][a-z]{2} ([A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?: ([AP]M))? \d{4})", text
    )
    if not match or local is None:
        return None
    form = "%b %d %I:%M:%S %p %Y" if match[2] else "%b %d %H:%M:%S %Y"
    try:
        moment = datetime.strptime(" ".join(match[1].split()), form)
    except ValueError:
        return None
    return to_ns(moment.replace(tzinfo=local))


def name_time(name: str, context: Context) -> int | None:
    """Time in a file or folder name: a date and time of day, or epoch digits.

    The innermost part of the path that has one counts. Without ``Z`` or an offset the time is
    local, so it needs ``--tz``.
    """
    for part in reversed(Path(name).parts):
        match = _STAMP.search(part)
        if match:
            offset = match[7]
            local = UTC if offset == "Z" else zone(context)
            try:
                if offset and offset != "Z":
                    local = datetime.strptime(offset.replace(":", ""), "%z").tzinfo
                year, month, day, hour, minute, second = map(int, match.groups()[:6])
                moment = datetime(year, month, day, hour, minute, second, tzinfo=local)
            except ValueError:
                continue
            return None if local is None else to_ns(moment)
        digits = _EPOCH_DIGITS.search(part)
        if digits:
            return scale_epoch(int(digits[1]))[0]
    return None


def fallback_time(source: Source, context: Context, mtime_ns: int | None = None) -> int | None:
    """Time of a whole input as ``--time-from`` says, ``None`` without that flag.

    Args:
        source: The input.
        context: Holds the flag and the clock.
        mtime_ns: Modification time to use, by default that of ``source.path``.
    """
    if context.time_from == "now":
        return context.now_ns()
    if context.time_from == "name":
        return name_time(source.name, context) or name_time(str(source.path), context)
    if context.time_from == "mtime":
        if mtime_ns is not None:
            return mtime_ns
        try:
            return source.path.stat().st_mtime_ns
        except OSError:
            return None
    return None


def content_id(source: Source) -> str:
    """``unknown-<12 hex digits>`` from the (decompressed) content, for ports without a host."""
    digest = hashlib.sha256()
    try:
        with source.open() as stream:
            while block := stream.read1(1 << 20):
                digest.update(block)
    except READ_ERRORS:
        pass  # a cut gzip stream still has the content that could be read
    return f"unknown-{digest.hexdigest()[:12]}"
