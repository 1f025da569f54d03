"""Lines that hold a time and nothing else, as a shell loop writes them between outputs of a tool.

``while sleep 1; do date +%s.%N; ethtool -S eth0; done`` gives such files.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from xtune.collectors._base import Context
from xtune.collectors._ib_time import held, parse_ctime, scale_epoch, zone
from xtune.collectors._stamps import STAMP, StampReader

_EPOCH = re.compile(r"(\d{10})[.,](\d{1,9})|(\d{10}|\d{13}|\d{16}|\d{19})", re.ASCII)
#: C's ctime, and what ``date`` prints in the C locale and in English ones.
_CTIME = re.compile(
    r"([A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?: [AP]M)?)"
    r" (?:([A-Z]{1,5}|[+-]\d{2}(?:\d{2})?) )?(\d{4})",
    re.ASCII,
)
_UTC = ("UTC", "GMT", "Z")
_FRAME = " \t#=*-[]"
_LONGEST = 48


class TimeLines:
    """Reads such lines of one file.

    Args:
        context: ``context.tz`` names the zone of local times; without it they are null and
            counted (see :meth:`StampReader.notes` of ``stamps``).
    """

    def __init__(self, context: Context) -> None:
        self.stamps = StampReader(context)
        self._local = zone(context)

    def take(self, line: str) -> tuple[bool, int | None]:
        """Whether ``line`` is a time, and nanoseconds since the epoch where that is known."""
        text = line.strip()
        if not text or len(text) > _LONGEST:
            return False, None
        text = text.strip(_FRAME)
        epoch = _EPOCH.fullmatch(text)
        if epoch and epoch[1]:
            return True, held(int(epoch[1]) * 10**9 + int(epoch[2].ljust(9, "0")))
        if epoch:
            return True, scale_epoch(int(epoch[3]))[0]
        if STAMP.fullmatch(text):
            return True, self.stamps.last(text)
        ctime = _CTIME.fullmatch(text)
        if ctime is None:
            return False, None
        local = self._zone(ctime[2])
        time = parse_ctime(f"{ctime[1]} {ctime[3]}", local)
        if local is None or not self._agrees(ctime[2], time):
            self.stamps.unplaced(1)
            return True, None
        return True, time

    def _agrees(self, printed: str | None, time_ns: int | None) -> bool:
        """Whether the user's zone is called, at that time, as ``date`` printed it."""
        if printed is None or printed[0] in "+-" or printed in _UTC or time_ns is None:
            return True
        return datetime.fromtimestamp(time_ns // 10**9, self._local).tzname() == printed

    def _zone(self, printed: str | None) -> tzinfo | None:
        """The zone that ``date`` printed; a name such as CST, which many have, is the user's."""
        if printed in _UTC:
            return UTC
        if printed is None or printed[0] not in "+-":
            return self._local
        try:
            return datetime.strptime(printed.ljust(5, "0"), "%z").tzinfo
        except ValueError:
            return None
