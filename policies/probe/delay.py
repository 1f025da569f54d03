"""Occupancy by delay: how full a path's queues are, told by how long its probes wait in them.

A host cannot see the queues of switches, and a probe that crosses them can: what a round trip
takes beyond the least that is known was spent waiting (Swift and TIMELY steer by the same). It is
the sum over all queues on the way there and back, so a path that is worth its worst link is never
underrated by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .config import Path

WINDOW_NS = 300_000_000_000  # the least round trip is that of the last one to two windows


class Least:
    """The least round trip of five to ten minutes.

    Forgotten after that, so that paths whose routes have changed get a new one; where queues stand
    for longer than that, they look empty.
    """

    def __init__(self) -> None:
        self._now_ns: int | None = None  # in this window
        self._before_ns: int | None = None  # in the one before
        self._begun_ns = 0

    def take(self, rtt_ns: int, now_ns: int) -> int:
        """Take a round trip; the least one, itself included.

        Args:
            rtt_ns: Its time.
            now_ns: When it ended, CLOCK_MONOTONIC.
        """
        if self._now_ns is None or now_ns - self._begun_ns >= WINDOW_NS:
            self._before_ns, self._now_ns, self._begun_ns = self._now_ns, rtt_ns, now_ns
        self._now_ns = min(self._now_ns, rtt_ns)
        return self._now_ns if self._before_ns is None else min(self._now_ns, self._before_ns)


class Delay:
    """The waiting time of one path's probes, as a share.

    Args:
        full_ns: Waiting time that counts as full: the size of the narrowest link's queue over
            its rate.
        least: Shared with the other paths to the same host, so that one of them that is empty
            tells of the others, though their queues have stood since before the agent began.
    """

    def __init__(self, full_ns: float, least: Least) -> None:
        self._full_ns = full_ns
        self._least = least

    def occupancy(self, rtt_ns: int, now_ns: int) -> float:
        """Take a round trip.

        Args:
            rtt_ns: Its time.
            now_ns: When it ended, CLOCK_MONOTONIC.

        Returns:
            Occupancy 0..1; 0 for the very first.
        """
        return min(1.0, (rtt_ns - self._least.take(rtt_ns, now_ns)) / self._full_ns)


def delays(paths: Sequence[Path]) -> list[Delay | None]:
    """One for each path; None where its full delay is not told."""
    leasts = {path.dst: Least() for path in paths}
    return [
        None if path.full_delay_s is None else Delay(path.full_delay_s * 1e9, leasts[path.dst])
        for path in paths
    ]
