"""Rails under the training hook: payload goes striped over several networks, by one plan.

Each lane has groups of its own over all rails, since lanes run side by side. Within an iteration a
lane's ranks agree on which rails live; between iterations, where all of them have seen the same,
what one lane found dead is dead for the others. Once a period all ranks agree on a plan. Headers
and agreements stay on the lane's own group, which also carries payload where no rail is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from .actuators.base import Refused
from .actuators.process_groups import StripedGroups
from .actuators.rails import LEAST_TIMEOUT_S, MOST_TIMEOUT_S, Meter, Rail, unusable
from .bus import Bus
from .decisions import DecisionLog
from .steering import Steering

_LOG = logging.getLogger("xtune")

OFF = -1  # in place of a number of rails: this rank cannot have a policy
# Why a rank uses no rails, as numbers that ranks compare: the largest holds.
FIT, ON_DEVICE, SHARDED, MESH, UNFIT = range(5)
REASONS = {
    ON_DEVICE: "gradients are reduced on accelerators",
    SHARDED: "the model is sharded",
    MESH: "gradients are summed inside a node first",
}


def listed(rails: Iterable[Rail]) -> tuple[Rail, ...]:
    """The rails, read once; what is no collection stands alone, for `misfit` to name it."""
    return tuple(rails) if isinstance(rails, Iterable) else (rails,)


def misfit(
    rails: Sequence[Rail], timeout_s: float, steering: Steering | None, bus: Bus | None
) -> str | None:
    """What is wrong with these arguments of `attach`, in one line."""
    strange = [rail for rail in rails if not isinstance(rail, Rail)]
    if strange:
        return f"rails: {type(strange[0]).__name__} is no Rail"
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not (number and LEAST_TIMEOUT_S <= timeout_s <= MOST_TIMEOUT_S):
        return f"rail_timeout_s: {timeout_s!r} is not {LEAST_TIMEOUT_S:g} to {MOST_TIMEOUT_S:g} s"
    if steering is not None and not isinstance(steering, Steering):
        return f"steering: {type(steering).__name__} is no Steering"
    if steering is not None and bus is not None and bus is not steering.router.bus:
        return "bus: another one than the router's"
    return None


def shared_bus(bus: Bus | None, steering: Steering | None) -> Bus:
    """The bus of a job: the one that is given, the router's, or a new one."""
    if bus is None:
        return steering.router.bus if isinstance(steering, Steering) else Bus()
    return bus


def word(rails: Sequence[Rail], timeout_s: float, obstacle: int) -> list[int]:
    """What ranks compare of their rails: how many, the timeout in ms, what stands against them."""
    return [len(rails), round(timeout_s * 1000), obstacle]


def obstacle(rails: Sequence[Rail], steering: Steering | None) -> str | None:
    """What this rank lacks for its rails, in one line; None if nothing."""
    if not rails:
        return None
    return unusable(rails) or (None if steering is None else steering.misfit(len(rails)))


def refusal(words: Sequence[Sequence[int]]) -> str | None:
    """Why no rank uses rails, None if all do or nobody wants to.

    Args:
        words: Of each rank; see `word`.
    """
    counts, timeouts_ms, obstacles = (set(column) for column in zip(*words, strict=True))
    if counts == {0} or OFF in counts:
        return None
    worst = max(obstacles)
    if worst in REASONS:
        return REASONS[worst]
    if worst == UNFIT:
        unfit = [str(rank) for rank, word in enumerate(words) if word[2] == UNFIT]
        return f"rank{'s' if len(unfit) > 1 else ''} {', '.join(unfit)} cannot"
    if len(counts) > 1:
        return "the ranks differ in how many they have"
    return None if len(timeouts_ms) == 1 else "the ranks differ in rail_timeout_s"


class Striping:
    """One rank's rails. All ranks call `settle` and `plan` alike, between iterations.

    Args:
        lanes: The groups of each lane, opened.
        meter: That they share.
        first: Whether this rank says what concerns all.
        steering: This rank's router, None if there is none.
    """

    def __init__(
        self,
        lanes: Sequence[StripedGroups],
        meter: Meter,
        *,
        first: bool,
        steering: Steering | None,
    ) -> None:
        self._lanes = tuple(lanes)
        self._meter = meter
        self._first = first
        self._steering = steering
        self._alive = [True] * len(meter.sent_bytes)
        self._refused = 0  # periods in which the ranks' proposals had no rail in common
        self.settle()

    def settle(self) -> None:
        """What died on one lane is dead on all of them; said once for each rail."""
        alive = [all(rail) for rail in zip(*(lane.alive for lane in self._lanes), strict=True)]
        lost = [rail for rail, up in enumerate(alive) if self._alive[rail] and not up]
        self._alive = alive
        for lane in self._lanes:
            lane.alive = list(alive)
        if lost and self._first:
            rails = ", ".join(str(rail) for rail in lost)
            left = f"{sum(alive)} left" if any(alive) else "the control network carries all"
            _LOG.warning("xtune: rails given up: %s; %s", rails, left)

    def plan(self, step: int, log: DecisionLog) -> None:
        """Agree on the shares of the next period, by what rails carried and the router wants.

        Args:
            step: The iteration from which they hold.
            log: Where a change is noted.

        Raises:
            RuntimeError: The network failed.
        """
        before = self._lanes[0].in_force()
        wanted = None if self._steering is None else self._steering.wanted(len(self._alive))
        proposal = self._lanes[0].proposal(wanted)
        try:
            for lane in self._lanes:
                lane.apply(proposal)
        except Refused:  # on all lanes of all ranks alike: what was in force still is
            self._refused += 1
            if self._refused == 1 and self._first:
                _LOG.warning("xtune: the ranks' routers leave no rail in common; shares stay")
            return
        reason = "as measured"
        if wanted is not None:
            reason += f", and the router wants {_text(wanted)}"
        log.change(step, "rails", _text(before), _text(self._lanes[0].in_force()), reason)

    def metrics(self) -> dict[str, Any]:
        """Which rails live, what this rank sent over each, the shares in force."""
        return {
            "rails_alive": list(self._alive),
            "rail_bytes": list(self._meter.sent_bytes),
            "rail_shares": self._lanes[0].in_force(),
            "rail_plans_refused": self._refused,
        }


def _text(shares: Sequence[float]) -> str:
    """``0.25/0.75``, as the decision log shows shares."""
    return "/".join(f"{share:.3g}" for share in shares)
