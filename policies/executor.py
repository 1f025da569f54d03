"""The executor: carries the router's choices out by actuators, in the thread that calls it.

An actuator shifts shares of a flow's traffic, the router chooses unit by unit. A turn asks the
router for a handful of units of each flow, and where the shares they come to are not those in
force, the actuator is told. Call `Executor.turn` from the loop that sends, at least once for each
reading: a timer thread beside a busy Python thread would wake milliseconds late.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from .actuators.base import Actuator, Refused
from .decisions import DecisionLog
from .router import Flow, Router

_LOG = logging.getLogger("xtune")
RETRY_NS = 1_000_000_000  # an actuator that refused is asked again at most so often


class Source(Protocol):
    """What brings the router its readings: `probe.feed.Feed`, `decider.weights.WeightsFeed`."""

    @property
    def alive(self) -> bool:
        """Whether somebody still writes them."""

    def poll(self) -> int:
        """Hand on what is new, as much as one call may take; returns how much."""


def unit_shares(
    router: Router, flow: Flow, units: int, paths: int, *, at_ns: int | None = None
) -> list[float]:
    """Shares of a flow's paths, by the router's choices for its next units.

    Args:
        router: Asked for each unit.
        flow: (src, dst, id).
        units: How many, at least 1.
        paths: How many the flow has, at least 1.
        at_ns: When; the router's now by default.

    Returns:
        One share for each path, of sum 1.
    """
    taken = Counter(router.choose(flow, at_ns=at_ns) for _ in range(units))
    return [taken[path] / units for path in range(paths)]


class _Lane:
    """One flow: its actuator, and what is in force."""

    __slots__ = ("actuator", "flow", "paths", "retry_ns", "shares")

    def __init__(self, flow: Flow, actuator: Actuator, paths: int) -> None:
        self.flow, self.actuator, self.paths = flow, actuator, paths
        self.shares: list[float] | None = None
        self.retry_ns: int | None = None


class Executor:
    """Asks the router turn by turn and moves traffic where it says so.

    In a ``with`` block, which undoes all at the end. An actuator or a feed that lacks something,
    refuses or fails in whatever way never stops the caller: it is said once, counted, and tried
    again; the flow stays meanwhile where it is.

    Args:
        router: Decides.
        feeds: What brings it readings, and a decider's weights.
        actuators: One for each flow that is moved; its paths are those of the router's path set,
            in the same order. None that is collective: ranks decide at different times, and would
            wait for each other.
        units: Asked of the router in each turn, for each flow; a share is met to one part in
            so many. Take a multiple of the policy's ``routing.pairs``.
        clock: The router's.
        log: Where changes of shares are noted.

    Attributes:
        applied: Changes that were carried out, the first shares of each flow included.
        refused: Attempts that an actuator refused, or failed at.
        failed: Polls of a feed, renewals and undoings that failed.

    Raises:
        ValueError: A flow without a path set, no units, or an actuator that is collective or has
            another number of paths than the flow.
    """

    def __init__(
        self,
        router: Router,
        feeds: Sequence[Source],
        actuators: Mapping[Flow, Actuator],
        *,
        units: int = 16,
        clock: Callable[[], int] = time.monotonic_ns,
        log: DecisionLog | None = None,
    ) -> None:
        if units < 1:
            raise ValueError(f"units: {units} are too few to share")
        self.applied = 0
        self.refused = 0
        self.failed = 0
        self._said: set[int] = set()  # feeds and actuators of which it was said that they fail
        self._router, self._feeds = router, tuple(feeds)
        self._units = units
        self._clock = clock
        self._log = DecisionLog() if log is None else log
        self._lanes = {flow: _lane(router, flow, own) for flow, own in actuators.items()}

    def turn(self, at_ns: int | None = None) -> int:
        """Take what the feeds have, and move what the router moves.

        Args:
            at_ns: When; now by default, looked at after the feeds, whose readings are older.

        Returns:
            For how many flows the shares changed.
        """
        for feed in self._feeds:
            try:
                feed.poll()
            except Exception as error:  # the router goes on with what it knows
                self.failed += 1
                self._say(feed, f"{type(feed).__name__} brings no readings", error)
        now_ns = self._clock() if at_ns is None else at_ns
        changed = 0
        for lane in self._lanes.values():
            if not self._renew(lane):
                lane.shares = None
            if lane.retry_ns is not None and 0 < lane.retry_ns - now_ns <= RETRY_NS:
                continue
            shares = unit_shares(self._router, lane.flow, self._units, lane.paths, at_ns=now_ns)
            if self._differ(lane.shares, shares):
                changed += self._apply(lane, shares, now_ns)
        return changed

    def shares(self, flow: Flow) -> list[float] | None:
        """The shares in force; None before the first, and where they were lost.

        Args:
            flow: One of those given.

        Raises:
            KeyError: Another one.
        """
        shares = self._lanes[flow].shares
        return None if shares is None else list(shares)

    def undo(self) -> None:
        """Put back what the actuators changed; one that cannot is said, the others go on."""
        for lane in self._lanes.values():
            lane.shares = None
            try:
                lane.actuator.undo()
            except Exception as error:  # the next one has changed something as well
                self.failed += 1
                _LOG.warning("xtune: %s: %s", lane.actuator.name, _text_of(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    def _differ(self, before: list[float] | None, after: list[float]) -> bool:
        """Whether by more than the remainder of dealing: one unit more or less on a path in use.

        Units are dealt in turns, so where they are no multiple of the pairs the remainder wanders.
        """
        if before is None:
            return True
        remainder = 1.5 / self._units
        return any(
            abs(a - b) > remainder or (a == 0.0) != (b == 0.0)
            for a, b in zip(before, after, strict=True)
        )

    def _renew(self, lane: _Lane) -> bool:
        try:
            return lane.actuator.renew()
        except Exception as error:  # it is asked again in the next turn
            self.failed += 1
            self._say(lane.actuator, f"{lane.actuator.name} is not renewed", error)
            return True

    def _apply(self, lane: _Lane, shares: list[float], now_ns: int) -> bool:
        actuator = lane.actuator
        try:
            missing = actuator.check() if lane.shares is None else None
            if missing is not None:
                raise Refused(missing)
            actuator.apply(shares)
        except Exception as error:  # an actuator must not stop who sends
            self.refused += 1
            if not isinstance(error, Refused):
                lane.shares = None  # half of it may be done
            lane.retry_ns = now_ns + RETRY_NS
            self._say(actuator, f"{actuator.name} does not move traffic", error)
            return False
        src, dst, ident = lane.flow
        self._log.change(None, "shares", _text(lane.shares), _text(shares),
                         f"{src} to {dst} flow {ident}: {actuator.name}")  # fmt: skip
        lane.shares, lane.retry_ns = shares, None
        self.applied += 1
        return True

    def _say(self, who: object, what: str, error: Exception) -> None:
        if id(who) not in self._said:
            self._said.add(id(who))
            _LOG.warning("xtune: %s: %s", what, _text_of(error))


def _lane(router: Router, flow: Flow, actuator: Actuator) -> _Lane:
    src, dst, ident = flow
    paths = router.path_count(src, dst)
    if not paths:
        raise ValueError(f"the router has no path from {src} to {dst}")
    if actuator.collective:
        raise ValueError(f"{actuator.name}: waits for all ranks, so no executor may call it")
    if actuator.path_count not in (None, paths):
        raise ValueError(
            f"{src} to {dst} flow {ident}: {paths} paths, of which {actuator.name} has "
            f"{actuator.path_count}"
        )
    return _Lane(flow, actuator, paths)


def _text_of(error: Exception) -> str:
    """An error in one line; what is no refusal with its kind, without which it may say nothing."""
    words = " ".join(str(error).split())
    return words if isinstance(error, Refused | OSError) else f"{type(error).__name__}: {words}"


def _text(shares: list[float] | None) -> str | None:
    """``0.25/0.75``, as the decision log shows shares."""
    if shares is None:
        return None
    return "/".join(f"{share:.3g}" for share in shares)
