"""What is known of each link right now: forecast, blacklist, errors.

Filled by whoever has readings, in any thread; read by the router without a lock: each entry is
replaced as a whole.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable

from ._core import NAN, strike_update
from .decisions import DecisionLog
from .forecast import make_forecaster
from .spec import Routing

DEAD = math.inf  # worth of a blacklisted link
FULL = 1.0  # worth of a link that loses packets: usable, never cold


class LinkTable:
    """The links of all path sets, by index.

    Args:
        names: Link names; repeated ones count once.
        routing: The policy's routing parameters.
        log: Where blacklisting is noted.
    """

    def __init__(self, names: Iterable[str], routing: Routing, log: DecisionLog) -> None:
        self.names = list(dict.fromkeys(names))
        self.index = {name: i for i, name in enumerate(self.names)}
        count = len(self.names)
        self.worth = [NAN] * count  # forecast occupancy; NaN unknown, inf blacklisted
        self.seen_ns = [0] * count  # time of the reading that gave it
        self.unknown_links = 0  # observations that name no link of ours
        self.bad_readings = 0  # values out of range, taken as missing
        self._routing = routing
        self._log = log
        self._forecasters = [make_forecaster(routing) for _ in range(count)]
        self._sick = [False] * count
        self._strikes = [(0, 0, False)] * count

    def observe(
        self,
        name: str,
        at_ns: int,
        occupancy: float | None,
        error_rate: float | None,
        lost: bool,
    ) -> None:
        """Take one reading or one lost probe of a link.

        Args:
            name: The link; a name of no path set is counted and otherwise ignored.
            at_ns: When, on the router's clock.
            occupancy: Buffer occupancy 0..1, None if unknown.
            error_rate: Packet error rate 0..1, None if unknown: the last one stays.
            lost: The probe timed out; its other values are not looked at.
        """
        i = self.index.get(name)
        if i is None:
            self.unknown_links += 1
            return
        routing = self._routing
        before = self._strikes[i]
        after = strike_update(*before, lost, routing.strikes, routing.readmit_answers)
        self._strikes[i] = after
        if after[2] != before[2]:
            why = f"{routing.strikes} probes lost in a row"
            if before[2]:
                why = f"{routing.readmit_answers} probes answered in a row"
            self._log.change(None, "blacklist", before[2], after[2], f"{name}: {why}")
        forecaster = self._forecasters[i]
        if not lost:
            forecaster.update(self._share(occupancy), at_ns)
            errors = self._share(error_rate)
            if errors == errors:
                self._sick[i] = errors >= routing.sick_error_rate
        worth = forecaster.peak(routing.horizon_ns)
        if after[2]:
            worth = DEAD
        elif self._sick[i] and not worth >= FULL:
            worth = FULL
        seen_ns = forecaster.at_ns
        if self._sick[i]:  # errors are news of the link as well
            late = self.seen_ns[i] - routing.stale_ns <= at_ns < self.seen_ns[i]
            seen_ns = self.seen_ns[i] if late else at_ns
        self.seen_ns[i] = seen_ns
        self.worth[i] = worth

    def _share(self, value: float | None) -> float:
        """A share 0..1, or NaN where it is missing or cannot be one."""
        if value is None or value != value:
            return NAN
        with contextlib.suppress(TypeError, ValueError):  # a feed may send anything
            if 0.0 <= value <= 1.0:
                return value
        self.bad_readings += 1
        return NAN
