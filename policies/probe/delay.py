"""Occupancy by delay: how full a path's queues are, told by how long its probes wait in them.

A host cannot see the queues of switches, and a probe that crosses them can: what a round trip
takes beyond the least that is known of the path was spent waiting (Swift and TIMELY steer by the
same). It is the sum over all queues on the way there and back, so a path that is worth its worst
link is never underrated by it.
"""

from __future__ import annotations

WINDOW_NS = 300_000_000_000  # the least round trip is that of the last one to two windows


class Delay:
    """The waiting time of one path's probes, as a share.

    The least round trip is forgotten after five to ten minutes, so that a path whose routes have
    changed gets a new one; a queue that stands for longer than that looks empty.

    Args:
        full_ns: Waiting time that counts as full: the size of the narrowest link's queue over
            its rate.
    """

    def __init__(self, full_ns: float) -> None:
        self._full_ns = full_ns
        self._least_ns: int | None = None  # in this window
        self._before_ns: int | None = None  # in the one before
        self._begun_ns = 0

    def occupancy(self, rtt_ns: int, now_ns: int) -> float:
        """Take a round trip.

        Args:
            rtt_ns: Its time.
            now_ns: When it ended, CLOCK_MONOTONIC.

        Returns:
            Occupancy 0..1; 0 for the first one.
        """
        if self._least_ns is None or now_ns - self._begun_ns >= WINDOW_NS:
            self._before_ns, self._least_ns, self._begun_ns = self._least_ns, rtt_ns, now_ns
        self._least_ns = min(self._least_ns, rtt_ns)
        least_ns = self._least_ns
        if self._before_ns is not None:
            least_ns = min(least_ns, self._before_ns)
        return min(1.0, (rtt_ns - least_ns) / self._full_ns)
