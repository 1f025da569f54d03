"""Times in log lines: found anywhere in a prefix, made UTC where their zone is known.

A local time without zone becomes null unless the user names the zone; such times are counted. In
the hour that the end of daylight saving repeats, the order of lines tells the passes apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from xtune.collectors._base import Context, Note

STAMP = re.compile(
    r"(?<!\d)(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:?\d\d)?(?![\d:])"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
#: A line that seems older than one before it by this much, s, is no line that came late: where the
#: clock shows its time twice, it is the second pass. (Older by more than the hour and what lies
#: before it, it is neither.)
_LATE_S, _TWO_HOURS_S = 600, 7200


class StampReader:
    """Converts stamps of one file and counts those it could not place in time.

    Args:
        context: ``context.tz`` names the zone of local times.
        in_order: Whether stamps are read in the order of lines. Else a local time that the clock
            shows twice is its first pass.
    """

    def __init__(self, context: Context, *, in_order: bool = True) -> None:
        self._name = context.tz
        self._zone: ZoneInfo | None = None
        self._in_order = in_order
        self._latest = 0
        self._without_zone = 0
        self._twice = 0
        self._invalid = 0
        self._unread = 0
        self._bad_zone = False
        if context.tz is not None:
            try:
                self._zone = ZoneInfo(context.tz)
            except (ZoneInfoNotFoundError, ValueError, OSError):
                self._bad_zone = True

    def last(self, prefix: str) -> int | None:
        """Nanoseconds since the epoch of the stamp nearest the end of ``prefix``.

        Launchers and loggers both stamp a line; the last stamp is the process's own. Where it has
        no zone and none is named, an earlier stamp that has one is used.
        """
        stamps = list(STAMP.finditer(prefix))
        if not stamps:
            return None
        if self._zone is None:
            zoned = [stamp for stamp in stamps if stamp[8]]
            if not zoned:
                self._without_zone += 1
                return None
            return self._nanoseconds(zoned[-1])
        return self._nanoseconds(stamps[-1])

    @property
    def has_zone(self) -> bool:
        """Whether local times can be placed."""
        return self._zone is not None

    def local(self, seconds: int, times: int) -> int:
        """Seconds since the epoch of a local time; noted ``times`` times where it is ambiguous.

        Args:
            seconds: From 1970-01-01 00:00 to it, on the clock of the zone that the user named.
            times: How many stamps show it.
        """
        moment = _EPOCH.replace(tzinfo=self._zone) + timedelta(seconds=seconds)
        if moment.utcoffset() != moment.replace(fold=1).utcoffset():
            self._twice += times
        return (moment.astimezone(UTC) - _EPOCH) // _SECOND

    def unplaced(self, times: int) -> None:
        """Note local times whose zone nobody names."""
        self._without_zone += times

    def unread(self) -> None:
        """Note a time field that is no time."""
        self._unread += 1

    def _nanoseconds(self, stamp: re.Match[str]) -> int | None:
        year, month, day, hour, minute, second = (int(stamp[i]) for i in range(1, 7))
        nanos = int((stamp[7] or "").ljust(9, "0"))
        try:
            if second > 60:  # 60 is a leap second
                raise ValueError
            zone = self._zone if stamp[8] is None else _offset(stamp[8])
            moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=zone)
            whole = (moment.astimezone(UTC) - _EPOCH) // _SECOND
            again = moment.replace(fold=1)
            if stamp[8] is None and moment.utcoffset() != again.utcoffset():
                self._twice += 1
                if self._in_order and _LATE_S < self._latest - whole <= _TWO_HOURS_S:
                    whole = max(whole, (again.astimezone(UTC) - _EPOCH) // _SECOND)
            self._latest = max(self._latest, whole)
            whole += second - min(second, 59)
        except (ValueError, OverflowError):
            self._invalid += 1
            return None
        total = whole * 1_000_000_000 + nanos
        if not 0 < total < 2**63:
            self._invalid += 1
            return None
        return total

    def notes(self) -> Iterator[Note]:
        """What a user should know about the times of this file."""
        if self._bad_zone:
            yield Note(f"time zone {self._name!r} is not known: local times are null")
        if self._without_zone:
            yield Note("local times without a zone are null: give --tz", self._without_zone)
        if self._twice:
            yield Note(
                "times in an hour that the clock change repeats or skips: read as"
                + (" the lines' order says" if self._in_order else " its first pass"),
                self._twice,
            )
        if self._invalid:
            yield Note("times that no calendar has: null", self._invalid)
        if self._unread:
            yield Note("times that are no date and no seconds since 1970: null", self._unread)


def _offset(zone: str) -> timezone:
    """The offset that a stamp gives.

    Raises:
        ValueError: No clock has it.
    """
    if zone == "Z":
        return UTC
    sign = -1 if zone[0] == "-" else 1
    digits = zone[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if minutes > 59:
        raise ValueError
    return timezone(sign * timedelta(hours=hours, minutes=minutes))
