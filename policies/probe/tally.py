"""What became of the probes of one path: answered, lost or late; round trip, jitter, history."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .delay import Delay
from .packet import CONGESTED, NOT_ECN, UNKNOWN, Drop, Packet, Signal
from .readings import HISTORY, Reading

_HISTORY_MASK = (1 << HISTORY) - 1
_JITTER_SHARE = 16  # RFC 3550, 6.4.1
MARKS_KEPT = 16  # answers of which the marks count; DCTCP's estimate has that weight (RFC 8257)
MOST_LOST = 1024  # of which a late answer is still told from a replayed one


class Outcome(NamedTuple):
    """The end of one probe.

    Attributes:
        stamp_ns: When it was sent, wall clock.
        rtt_ns: Round trip, None where it is lost.
        signal: The worse of both ends, all unknown where it is lost.
    """

    stamp_ns: int
    rtt_ns: int | None
    signal: Signal


class Tally:
    """The probes of one path.

    Args:
        timeout_ns: A probe without an answer for so long is lost.
        delay: Tells occupancy by round trips as well; of it and the sources the worse counts.
    """

    def __init__(self, timeout_ns: int, delay: Delay | None = None) -> None:
        self._timeout_ns = timeout_ns
        self._delay = delay
        self._waiting: dict[int, tuple[int, int]] = {}  # sequence: sent, stamp; oldest first
        self._lost: dict[int, int] = {}  # sequence: stamp
        self._sent = self._lost_count = self._late = 0
        self._finished = self._history = self._finished_ns = 0
        self._answered_ns: int | None = None
        self._rtt_ns: int | None = None
        self._jitter_ns: float | None = None
        self._signal = UNKNOWN
        self._marked: deque[bool] = deque(maxlen=MARKS_KEPT)

    def sent(self, sequence: int, stamp_ns: int, now_ns: int) -> None:
        """A probe leaves.

        Args:
            sequence: Its sequence number.
            stamp_ns: Its time on the wall clock.
            now_ns: The same on CLOCK_MONOTONIC.
        """
        self._waiting[sequence] = (now_ns, stamp_ns)
        self._sent += 1

    def answered(self, answer: Packet, own: Signal, now_ns: int) -> Outcome | Drop | None:
        """An answer has arrived.

        Args:
            answer: The answer.
            own: What the sources at this end know.
            now_ns: When it arrived.

        Returns:
            The probe's outcome; None for a late answer, which is counted and changes nothing
            else; a drop where no probe of ours waits for it.
        """
        sequence = answer.sequence
        waiting = self._waiting.get(sequence)
        if waiting is None or waiting[1] != answer.stamp_ns:
            if self._lost.get(sequence) != answer.stamp_ns:
                return Drop.REPLAYED
            del self._lost[sequence]
            self._late += 1
            return None
        rtt_ns = max(0, now_ns - waiting[0])
        if rtt_ns > self._timeout_ns:
            self._late += 1
            del self._waiting[sequence]
            return self._lose(answer.stamp_ns, now_ns)
        del self._waiting[sequence]
        if self._rtt_ns is not None:
            jitter = 0.0 if self._jitter_ns is None else self._jitter_ns
            self._jitter_ns = jitter + (abs(rtt_ns - self._rtt_ns) - jitter) / _JITTER_SHARE
        self._rtt_ns, self._answered_ns = rtt_ns, now_ns
        self._signal = worse(answer.signal, own)
        if self._delay is not None:
            waited = UNKNOWN._replace(occupancy=self._delay.occupancy(rtt_ns, now_ns))
            self._signal = worse(self._signal, waited)
        if answer.ecn != NOT_ECN:
            self._marked.append(answer.ecn == CONGESTED)
            share = sum(self._marked) / len(self._marked)
            self._signal = worse(self._signal, UNKNOWN._replace(marks=share))
        self._finish(0, now_ns)
        return Outcome(answer.stamp_ns, rtt_ns, self._signal)

    def expire(self, now_ns: int) -> list[Outcome]:
        """Give up the probes that have waited too long.

        Args:
            now_ns: A time before which all that had arrived was taken.
        """
        given_up: list[Outcome] = []
        while self._waiting:
            sequence, (sent_ns, stamp_ns) = next(iter(self._waiting.items()))
            if now_ns - sent_ns <= self._timeout_ns:
                break
            del self._waiting[sequence]
            if len(self._lost) >= MOST_LOST:
                del self._lost[next(iter(self._lost))]
            self._lost[sequence] = stamp_ns
            given_up.append(self._lose(stamp_ns, now_ns))
        return given_up

    def reading(self) -> Reading:
        """What is known of the path."""
        return Reading(
            self._finished,
            self._history,
            self._finished_ns,
            self._answered_ns,
            self._rtt_ns,
            self._jitter_ns,
            self._signal.occupancy,
            self._signal.error_rate,
            self._signal.margin,
            self._sent,
            self._lost_count,
            self._late,
            self._signal.marks,
        )

    def _lose(self, stamp_ns: int, now_ns: int) -> Outcome:
        self._lost_count += 1
        self._finish(1, now_ns)
        return Outcome(stamp_ns, None, UNKNOWN)

    def _finish(self, lost: int, now_ns: int) -> None:
        self._finished += 1
        self._history = (self._history << 1 | lost) & _HISTORY_MASK
        self._finished_ns = now_ns


def worse(one: Signal, other: Signal) -> Signal:
    """The worse of two ends, field by field; unknown only where both are."""
    return Signal(
        _known(max, one.occupancy, other.occupancy),
        _known(max, one.error_rate, other.error_rate),
        _known(min, one.margin, other.margin),
        _known(max, one.marks, other.marks),
    )


def _known(
    pick: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return pick(one, other)
