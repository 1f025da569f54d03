"""Lines that hold a time and nothing else, as a shell loop writes them between outputs of a tool.

``while sleep 1; do date +%s.%N; ethtool -S eth0; done`` gives such files.
"""

from __future__ import annotations

import re

from xtune.collectors._base import Context
from xtune.collectors._ib_time import MAX_NS, parse_local_stamp, scale_epoch
from xtune.collectors._stamps import STAMP, StampReader

_EPOCH = re.compile(r"(\d{10})\.(\d{1,9})|(\d{10}|\d{13}|\d{16}|\d{19})", re.ASCII)
_CTIME = re.compile(
    r"([A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d) (?:([A-Z]{2,5}|[+-]\d{2,4}) )?(\d{4})",
    re.ASCII,
)
_FRAME = " \t#=*-"


class TimeLines:
    """Reads such lines of one file.

    Args:
        context: ``context.tz`` names the zone of local times; without it they are null and
            counted (see :meth:`StampReader.notes` of ``stamps``).
    """

    def __init__(self, context: Context) -> None:
        self.stamps = StampReader(context)
        self._context = context

    def take(self, line: str) -> tuple[bool, int | None]:
        """Whether ``line`` is a time, and nanoseconds since the epoch where that is known."""
        text = line.strip(_FRAME)
        if not text or len(text) > 48:
            return False, None
        epoch = _EPOCH.fullmatch(text)
        if epoch and epoch[1]:
            ns = int(epoch[1]) * 10**9 + int(epoch[2].ljust(9, "0"))
            return True, ns if ns <= MAX_NS else None
        if epoch:
            return True, scale_epoch(int(epoch[3]))[0]
        if STAMP.fullmatch(text):
            return True, self.stamps.last(text)
        ctime = _CTIME.fullmatch(text)
        if ctime is None:
            return False, None
        local = f"{ctime[1]} {ctime[3]}"
        if ctime[2] in ("UTC", "GMT"):
            return True, parse_local_stamp(local, Context(tz="UTC", now_ns=self._context.now_ns))
        ns_or_none = parse_local_stamp(local, self._context)
        return True, ns_or_none
