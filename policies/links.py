"""What is known of each link right now: forecast, blacklist, errors.

Filled by whoever has readings, in any thread; read by the router without a lock: each entry is
replaced as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

from ._core import NAN, strike_update
from .decisions import DecisionLog
from .forecast import make_forecaster
from .schedule import BurstSchedule
from .spec import Routing

DEAD = math.inf  # worth of a blacklisted link
_SOUND = (0, 0, False)  # no probe was lost since one was answered
_NO_VERDICT = (NAN, 0)
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
        self._strikes = [_SOUND] * count
        self._own = [(NAN, 0)] * count  # worth by this host's readings, and when
        self._verdicts = [_NO_VERDICT] * count  # worth by the central view, and when
        self._heard_ns = [0] * count  # of the last probe outcome, or of the verdict in force

    def observe(
        self,
        name: str,
        at_ns: int,
        occupancy: float | None,
        error_rate: float | None,
        lost: bool,
        marks: float | None = None,
    ) -> None:
        """Take one reading or one lost probe of a link.

        Args:
            name: The link; a name of no path set is counted and otherwise ignored.
            at_ns: When, on the router's clock.
            occupancy: Buffer occupancy 0..1, None if unknown.
            error_rate: Packet error rate 0..1, None if unknown: the last one stays.
            lost: The probe timed out; its other values are not looked at.
            marks: Share of packets with a congestion mark 0..1, None if unknown.
        """
        i = self.index.get(name)
        if i is None:
            self.unknown_links += 1
            return
        if lost or self._strikes[i] is not _SOUND:
            self._strike(i, at_ns, lost)
        self._heard_ns[i] = at_ns
        forecaster, routing = self._forecasters[i], self._routing
        if not lost:
            forecaster.update(self._share(occupancy), at_ns, self._share(marks))
            errors = self._share(error_rate)
            if errors == errors:
                self._sick[i] = errors >= routing.sick_error_rate
        worth, seen_ns = forecaster.peak(routing.horizon_ns), forecaster.heard_ns
        if self._sick[i]:  # errors are news of the link as well
            worth = worth if worth >= FULL else FULL
            own_ns = self._own[i][1]
            late = own_ns - routing.stale_ns <= at_ns < own_ns
            seen_ns = own_ns if late else at_ns
        self._own[i] = (worth, seen_ns)
        if self._strikes[i] is _SOUND and self._verdicts[i] is _NO_VERDICT:
            self.seen_ns[i], self.worth[i] = seen_ns, worth
        else:
            self._settle(i)

    def _strike(self, i: int, at_ns: int, lost: bool) -> None:
        """Count a probe that was lost, or that was answered after one was."""
        routing = self._routing
        if self._strikes[i][2]:
            self.forgotten(i, at_ns)
        before = self._strikes[i]
        after = strike_update(*before, lost, routing.strikes, routing.readmit_answers)
        self._strikes[i] = _SOUND if after == _SOUND else after
        if after[2] != before[2]:
            why = f"{routing.strikes} probes lost in a row"
            if before[2]:
                why = f"{routing.readmit_answers} probes answered in a row"
            self._log.change(None, "blacklist", before[2], after[2], f"{self.names[i]}: {why}")

    def expect(self, schedule: BurstSchedule | None) -> None:
        """Warn of each link ahead of a job's bursts, as far as the last ones filled it.

        Args:
            schedule: Told of the bursts by the job; None: expect none any more.
        """
        for forecaster in self._forecasters:
            forecaster.expect(schedule)

    def weigh(self, name: str, weight: float, at_ns: int) -> None:
        """Take the central verdict on a link; it counts where this host knows less.

        Args:
            name: The link; a name of no path set is counted and otherwise ignored.
            weight: Forecast occupancy, 0 or more; inf: blacklisted; NaN: no verdict any more.
            at_ns: When the readings behind it were taken, on the router's clock.
        """
        i = self.index.get(name)
        if i is None:
            self.unknown_links += 1
        elif weight < 0.0:
            self.bad_readings += 1
        else:
            self._verdicts[i] = (weight, at_ns)
            self._settle(i)

    def view(self, now_ns: int) -> list[float]:
        """What each link is worth to who places flows: the same on all hosts where it can be.

        Args:
            now_ns: The time of the placement.

        Returns:
            The central verdicts as far as they are fresh, and nothing else; where none is, what
            this host itself knows. NaN unknown, inf blacklisted.
        """
        oldest = now_ns - self._routing.stale_ns
        central = [worth if at_ns >= oldest else NAN for worth, at_ns in self._verdicts]
        if any(worth == worth for worth in central):
            return central
        known = zip(self.worth, self.seen_ns, strict=True)
        return [worth if worth == DEAD or at_ns >= oldest else NAN for worth, at_ns in known]

    def forgotten(self, i: int, now_ns: int) -> bool:
        """Whether a blacklisted link counts as unknown, since nobody tells of it any more.

        A probe agent or a decider that died cannot re-admit what it blacklisted.

        Args:
            i: Index of a link that is worth `DEAD`.
            now_ns: The time of the choice.
        """
        forget_ns = self._routing.blacklist_forget_ns
        if abs(now_ns - self._heard_ns[i]) <= forget_ns:
            return False
        if self._strikes[i][2]:
            why = f"{self.names[i]}: no probe outcome for {forget_ns / 1e9:g} s"
            self._log.change(None, "blacklist", True, False, why)
            self._strikes[i] = _SOUND
            self._own[i] = (NAN, 0)
            self._forecasters[i].forget()
        else:
            self._verdicts[i] = _NO_VERDICT
        self._settle(i)
        return True

    def _settle(self, i: int) -> None:
        """What a link is worth: by this host's readings, or by a later central verdict.

        A path that answers this host now is not given up because others lose their probes, and
        one that does not is not taken because others reach it.
        """
        if self._strikes[i][2]:
            self.worth[i] = DEAD
            return
        worth, seen_ns = self._own[i]
        weight, weight_ns = self._verdicts[i]
        if weight == weight:
            since_ns = weight_ns - seen_ns
            if worth != worth or since_ns > (self._routing.stale_ns if weight == DEAD else 0):
                worth, seen_ns = weight, weight_ns
                self._heard_ns[i] = weight_ns
        self.seen_ns[i] = seen_ns
        self.worth[i] = worth

    def _share(self, value: float | None) -> float:
        """A share 0..1, or NaN where it is missing or cannot be one."""
        if value is None or value != value:
            return NAN
        try:  # a feed may send anything; not contextlib.suppress, which costs half a microsecond
            if 0.0 <= value <= 1.0:
                return value
        except (TypeError, ValueError):
            pass
        self.bad_readings += 1
        return NAN


def link_rates(names: Sequence[str], told: Mapping[str, float] | float | None) -> list[float]:
    """Rate of each link, NaN where unknown.

    Args:
        names: The links.
        told: Rate of each link, or of all, in any one unit; None: unknown.

    Raises:
        ValueError: A rate is no positive number.
    """
    rates = told if isinstance(told, Mapping) else dict.fromkeys(names, told)
    for name, rate in rates.items():
        if rate is not None and not (isinstance(rate, Real) and 0.0 < float(rate) < math.inf):
            raise ValueError(f"link_gbps: {rate!r} of link {name} is not a positive number")
    return [NAN if (rate := rates.get(name)) is None else float(rate) for name in names]
