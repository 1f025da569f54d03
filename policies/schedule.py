"""When the next burst of a training job begins: a job knows its own collectives.

At 2:1 overload a queue fills faster than any forecast of it warns. The bursts of one job are
periodic, though, and the job sees them begin. A router that is told (`Router.expect`) warns of a
link before a burst, where the last bursts filled that link.

Times are integer nanoseconds of the readings' clock. Whoever sends calls `BurstSchedule.begin`
and `end`; routers read, without a lock, a record that is replaced as a whole.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ._core import NAN

LEAST_GAPS = 5  # from begin to begin, before a period is believed
PEAKS_KEPT = 4  # pairs of bursts in a row of which a link remembers the peak
FOREVER_NS = 2**62
_SLACK = 3.0  # median absolute deviations: about two standard deviations of a normal variable


class Burst(NamedTuple):
    """What is known of the newest burst and of those to come.

    Attributes:
        number: Of the newest burst, 0 before the first.
        begin_ns: When it began.
        end_ns: When it ended, `FOREVER_NS` if not yet.
        until_ns: When it has ended at the latest, by the longest of those before.
        period_ns: From begin to begin, 0 where unknown or irregular.
        slack_ns: By how much a burst may be late.
        last_ns: Begins are predicted up to this time, while bursts stay out.
    """

    number: int = 0
    begin_ns: int = FOREVER_NS
    end_ns: int = FOREVER_NS
    until_ns: int = 0
    period_ns: int = 0
    slack_ns: int = 0
    last_ns: int = 0

    def next_begin(self, after_ns: int) -> int | None:
        """The first predicted begin at or after a time, None if none is."""
        if not self.period_ns:
            return None
        ahead = max(1, -((self.begin_ns - after_ns) // self.period_ns))
        at_ns = self.begin_ns + ahead * self.period_ns
        return at_ns if at_ns <= self.last_ns else None

    def coming(self, at_ns: int, horizon_ns: int) -> bool:
        """Whether a burst begins within the horizon."""
        begin_ns = self.next_begin(at_ns - self.slack_ns)
        return begin_ns is not None and begin_ns <= at_ns + horizon_ns

    def under_way(self, at_ns: int, horizon_ns: int) -> bool:
        """Whether the newest of a regular row of bursts is not over yet."""
        return self.period_ns > 0 and self.begin_ns - horizon_ns <= at_ns < self.until_ns


class BurstSchedule:
    """The period of a job's bursts, from their begins and ends.

    The period is the median of the last gaps, so that a pause for a checkpoint, or a burst that
    was not told, does not disturb it; after a pause the next begin counts anew. It is unknown
    before `LEAST_GAPS` gaps, and while they differ by more than ``most_jitter``. A time before
    the last begin means another clock or a restarted job: everything is forgotten.

    Args:
        gaps: How many of the last gaps count.
        most_jitter: Median absolute deviation of the gaps, as a share of the period, above which
            bursts count as irregular.
        missed: Bursts in a row that may stay out before no further one is predicted.

    Attributes:
        known: What is known now.
    """

    def __init__(self, *, gaps: int = 9, most_jitter: float = 0.1, missed: int = 3) -> None:
        self.known = Burst()
        self._gaps: deque[int] = deque(maxlen=gaps)
        self._lengths: deque[int] = deque(maxlen=gaps)
        self._most_jitter = most_jitter
        self._missed = missed

    def begin(self, at_ns: int) -> None:
        """A burst begins: the job hands its first bucket to the network.

        Args:
            at_ns: When; the same time again changes nothing.
        """
        last = self.known
        if last.number and at_ns == last.begin_ns:
            return
        if last.number and at_ns > last.begin_ns:
            self._gaps.append(at_ns - last.begin_ns)
        else:
            self._gaps.clear()
            self._lengths.clear()
        period_ns, slack_ns = self._period()
        self.known = Burst(
            last.number + 1,
            at_ns,
            FOREVER_NS,
            at_ns + max(self._lengths, default=0),
            period_ns,
            slack_ns,
            at_ns + self._missed * period_ns,
        )

    def end(self, at_ns: int) -> None:
        """The burst has ended: the last bucket is through. Optional, and told once a burst.

        Args:
            at_ns: When.
        """
        now = self.known
        if now.number and now.end_ns == FOREVER_NS and at_ns >= now.begin_ns:
            self._lengths.append(at_ns - now.begin_ns)
            self.known = now._replace(end_ns=at_ns, until_ns=at_ns)

    def next_begin(self, after_ns: int) -> int | None:
        """The first predicted begin at or after a time.

        Args:
            after_ns: The time, not before the newest begin.

        Returns:
            When; None where the period is unknown, or bursts have stayed out for too long.
        """
        return self.known.next_begin(after_ns)

    @property
    def period_ns(self) -> int | None:
        """From begin to begin, None where unknown or irregular."""
        return self.known.period_ns or None

    def _period(self) -> tuple[int, int]:
        """Period and slack, 0 where unknown or irregular."""
        if len(self._gaps) < LEAST_GAPS:
            return 0, 0
        period_ns = _median(self._gaps)
        deviation_ns = _median([abs(gap - period_ns) for gap in self._gaps])
        if deviation_ns > self._most_jitter * period_ns:
            return 0, 0
        return period_ns, int(_SLACK * deviation_ns)


class BurstPeaks:
    """How full one link was in the last bursts.

    What counts is the peak that two bursts in a row reached: what another job did to one of them
    by chance says nothing of the next.

    Args:
        schedule: Tells when they are.
    """

    __slots__ = ("_last", "_number", "_peak", "_peaks", "_schedule")

    def __init__(self, schedule: BurstSchedule) -> None:
        self._schedule = schedule
        self._number = 0
        self._peak = NAN  # so far, of the burst under way
        self._last = NAN  # of the burst before
        self._peaks = (NAN,) * PEAKS_KEPT  # the lower of each burst's and the one's before

    def take(self, reading: float, at_ns: int) -> None:
        """Take one reading.

        Args:
            reading: Occupancy 0..1, not NaN.
            at_ns: When it was taken.
        """
        burst = self._schedule.known
        inside = burst.begin_ns <= at_ns < burst.end_ns
        if self._peak == self._peak and not (inside and burst.number == self._number):
            lower = self._last if self._last < self._peak else self._peak
            if self._last == self._last:
                self._peaks = (lower, *self._peaks[:-1])
            self._last = self._peak
            self._peak = NAN
        if inside:
            self._number = burst.number
            if not reading <= self._peak:
                self._peak = reading

    def floor(self, at_ns: int, horizon_ns: int) -> float:
        """The highest peak that two of the last bursts in a row reached, while it is to come.

        It is from a horizon before a burst to its end, or until it has come.

        Once the link was calm for long enough, since flows avoided it or since what they
        collided with has gone, it is taken for calm.

        Args:
            at_ns: Time of the last reading.
            horizon_ns: How far ahead.

        Returns:
            Occupancy; NaN where none is to come, or too few bursts were seen on this link.
        """
        burst = self._schedule.known
        coming = burst.coming(at_ns, horizon_ns)
        if not coming and not burst.under_way(at_ns, horizon_ns):
            return NAN
        highest = NAN
        for peak in self._peaks:
            if not peak <= highest and peak == peak:
                highest = peak
        came = self._number == burst.number and self._peak >= highest
        return NAN if came and not coming else highest


def _median(values: deque[int] | list[int]) -> int:
    """The upper median, so that it is one of the values."""
    return sorted(values)[len(values) // 2]
