"""What ties a rank's router to its training hook: readings in, units asked, bursts told.

All of it happens inline where DDP hands over a bucket, in the thread of the backward pass: a timer
thread beside a busy Python thread would wake milliseconds late. Nothing here ever fails a bucket:
what does not work is said once, and from then on the router is left alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .executor import Source, unit_shares
from .router import Flow, Router

if TYPE_CHECKING:
    from .schedule import BurstSchedule

_LOG = logging.getLogger("xtune")
MOST_UNITS = 64  # asked of the router for one bucket
PLAN_UNITS = 16  # asked for a period's shares, at least


class Steering:
    """One rank's router as its training hook sees it.

    Args:
        router: Of this rank's host. The job's compression uses its bus.
        flows: As the router knows them: (src, dst, id), one for each host that this rank sends to.
        feeds: The router's readings, polled at each bucket. Without any, whoever made the router
            sees to it that it knows what is going on.
        schedule: Told when each iteration's bursts begin and end; the router expects it.
        clock: The router's.

    Raises:
        ValueError: No flow, or one between ends that the router does not know.
    """

    def __init__(
        self,
        router: Router,
        flows: Sequence[Flow],
        *,
        feeds: Sequence[Source] = (),
        schedule: BurstSchedule | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if not flows:
            raise ValueError("no flow to steer")
        for src, dst, _ in flows:
            if not router.path_count(src, dst):
                raise ValueError(f"the router knows no path from {src} to {dst}")
        self.router = router
        self.failed: str | None = None  # why the router is left alone
        self._flows = tuple(flows)
        self._feeds = tuple(feeds)
        self._schedule = schedule
        self._clock = clock
        self._in_burst = False
        self._carried_ns = 0
        if schedule is not None:
            router.expect(schedule)

    @property
    def fresh(self) -> bool:
        """Whether the router's choices rest on readings."""
        return not self._feeds or any(feed.alive for feed in self._feeds)

    def misfit(self, rails: int) -> str | None:
        """Why the flows cannot choose between so many rails; None if they can."""
        for src, dst, _ in self._flows:
            paths = self.router.path_count(src, dst)
            if paths != rails:
                return f"the router has {paths} paths from {src} to {dst} for {rails} rails"
        return None

    def send(self, size: int) -> None:
        """Before a message leaves: take what is new, and choose for its units.

        Args:
            size: In bytes, as the training loop has it.
        """
        self._guard(lambda: self._send(size))

    def carried(self) -> None:
        """After a message, from any thread."""
        self._carried_ns = self._clock()

    def end(self) -> None:
        """After an iteration's last message."""
        in_burst, self._in_burst = self._in_burst, False
        schedule = self._schedule
        if in_burst and schedule is not None:
            self._guard(lambda: schedule.end(self._carried_ns))

    def wanted(self, rails: int) -> list[float] | None:
        """The router's shares of the rails, now; None where they would rest on nothing.

        Args:
            rails: How many.

        Returns:
            Of sum 1: the mean over the flows.
        """
        found: list[list[float]] = []
        self._guard(lambda: found.extend(self._shares(rails)))
        if not found or self.failed is not None:
            return None
        return [sum(column) / len(found) for column in zip(*found, strict=True)]

    def _send(self, size: int) -> None:
        for feed in self._feeds:
            feed.poll()
        now_ns = self._clock()
        if self._schedule is not None and not self._in_burst:
            self._schedule.begin(now_ns)
        self._in_burst = True
        units = min(MOST_UNITS, -(-size // self.router.policy.routing.unit_bytes))
        for _ in range(-(-units // len(self._flows))):
            for flow in self._flows:
                self.router.choose(flow, at_ns=now_ns)

    def _shares(self, rails: int) -> list[list[float]]:
        for feed in self._feeds:
            feed.poll()
        if not self.fresh:
            return []
        pairs = self.router.policy.routing.pairs
        units = pairs * -(-PLAN_UNITS // pairs)  # in turns, so all pairs are asked alike
        now_ns = self._clock()
        return [unit_shares(self.router, f, units, rails, at_ns=now_ns) for f in self._flows]

    def _guard(self, work: Callable[[], None]) -> None:
        if self.failed is not None:
            return
        try:
            work()
        except Exception as error:  # a router must not stop a training job
            self.failed = f"{type(error).__name__}: {error}"
            _LOG.warning("xtune: the router is not asked any more: %s", self.failed)
