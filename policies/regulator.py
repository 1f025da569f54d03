"""The regulation law: from agreed figures to the next rung of the compression ladder.

Inputs (founding document C1, L1): congestion level, available bandwidth as a cap, iteration, and
curvature as the relative change of the gradient. A pure function of the figures that all ranks
agree on and of the state it keeps, so that every rank takes the same step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._core import NAN, ewma_update, level_update
from .learned_ratio import learned_rung
from .plan import RungPlan
from .spec import Policy

# Whether compression pays is judged by iterations and not by regulations, so that the evidence
# is the same whatever the period is.
JUDGE_ITERATIONS = 100  # compressed ones at one congestion level before a judgement
FIRST_OFF_ITERATIONS = 400  # off for so many, twice as many each time it proves useless again
MOST_OFF_ITERATIONS = 51_200
LEAST_GROWTH = 1.15  # of the slowdown; less is noise, which would excuse a useless compression
DENSE_GAIN = 0.01  # weight of the newest iteration in what an uncompressed one costs


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What the ranks agreed on for one period; None is unknown on every rank."""

    slowdown: float | None = None  # slowest rank: measured / modelled communication time
    routing_level: int | None = None  # highest level any router reports
    available_share: float | None = None  # least free share of the link rate
    gradient_change: float | None = None  # mean relative change of the gradient, largest rank
    cost_s: float | None = None  # slowest rank: mean time of an iteration, or of its communication


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The regulator's answer."""

    rung: int
    level: int
    ratio_cap: float
    reason: str
    useless: bool = False  # compression was measured to save no time, and is off for a while


class Regulator:
    """Keeps level and hysteresis, and decides the rung once a period.

    Args:
        policy: The policy.
        plans: What each rung means for this model.
    """

    def __init__(self, policy: Policy, plans: Sequence[RungPlan]) -> None:
        self._policy = policy
        self.plans = tuple(plans)  # replaced where bits are allocated anew
        self._level = 0  # from slowdown alone; routing's own level has its own hysteresis
        self._dense_cost_s = [NAN] * 4  # cost of an uncompressed period, by congestion level
        self._dense_slowdown = [NAN] * 4  # and the slowdown it was measured at
        self._judged_level = 0
        self._judged = 0  # iterations in the two sums below
        self._cost_sum = 0.0
        self._slowdown_sum = 0.0
        self._off_until = 0  # first iteration that may be compressed again
        self._off_level = 0  # it was useless at this level; at a higher one it is tried again
        self._off_next = FIRST_OFF_ITERATIONS

    def decide(
        self,
        next_step: int,
        rung: int,
        measured_rung: int,
        iterations: int,
        held: bool,
        figures: Figures,
    ) -> Verdict:
        """One regulation.

        Args:
            next_step: First iteration the verdict can be in force.
            rung: Rung that is or will be in force without this regulation.
            measured_rung: Rung under which the cost was measured.
            iterations: Iterations it was measured over.
            held: The ratio must not rise (hold after a retreat).
            figures: Agreed figures of the period.

        Returns:
            The next rung, and why.
        """
        bus, compression = self._policy.bus, self._policy.compression
        slowdown = NAN if figures.slowdown is None else figures.slowdown
        self._level = level_update(self._level, slowdown, bus.enter_slowdown, bus.exit_slowdown)
        level = max(self._level, figures.routing_level or 0)
        if figures.cost_s is not None and iterations > 0:
            if measured_rung == 0:
                self._learn_dense(level, slowdown, figures.cost_s, iterations)
            else:
                self._judge(next_step, level, slowdown, figures.cost_s, iterations)
        useless = next_step < self._off_until and level <= self._off_level
        wanted = compression.rung_by_level[level]
        if len(self.plans) == 1:
            return Verdict(rung=0, level=level, ratio_cap=1.0, reason="compression is off")
        reasons = [f"level {level}"]
        if compression.ratio_rule == "learned":
            wanted, how = self._learned(next_step, level, rung, wanted, figures)
            reasons.append(how)
        cap = self._ratio_cap(figures.available_share)
        while wanted > compression.rung_by_level[0] and self.plans[wanted].ratio > cap:
            wanted -= 1
            reasons = [f"level {level}", f"bandwidth caps the ratio at {cap:.3f}"]
        change = (figures.gradient_change or 0.0) * compression.curvature_gain
        if change > compression.curvature_limit and wanted > 0:
            wanted -= 1
            reasons.append(f"gradient changes by {change:.3g}")
        if useless:
            wanted = 0
            reasons.append("compression saves no time")
        if next_step < compression.warmup_iterations:
            wanted = 0
            reasons.append("warm-up")
        if held and wanted > rung:
            wanted = rung
            reasons.append("hold after a retreat")
        if wanted > rung + 1:
            wanted = rung + 1
            reasons.append("one rung a period")
        return Verdict(
            rung=wanted, level=level, ratio_cap=cap, reason=", ".join(reasons), useless=useless
        )

    def _learned(
        self, next_step: int, level: int, rung: int, by_level: int, figures: Figures
    ) -> tuple[int, str]:
        """What the learned rule wants, or the rule by level where a figure is unknown; and why."""
        found = learned_rung(
            self._policy.compression.learned_weights,
            by_level,
            len(self.plans) - 1,
            level=level,
            slowdown=figures.slowdown,
            available_share=figures.available_share,
            gradient_change=figures.gradient_change,
            rung=rung,
            step=next_step,
        )
        if found is None:
            return by_level, "a figure of the learned rule is unknown"
        return found, f"learned rule wants {found}"

    def _ratio_cap(self, available_share: float | None) -> float:
        """Upper bound of the ratio (founding document L1): no more than the bandwidth asks for.

        The lowest rung's bytes at the full link rate set the time that is aimed at. With a share
        ``a`` of the rate free, ``a`` times those bytes fit into that time, so a ratio above
        ``1 - a (1 - ratio of the lowest rung)`` would give up accuracy for nothing.
        """
        if available_share is None:
            return 1.0
        lowest = self.plans[self._policy.compression.rung_by_level[0]].ratio
        share = min(1.0, max(0.0, available_share)) * self._policy.bus.bandwidth_margin
        return 1.0 - share * (1.0 - lowest)

    def _learn_dense(self, level: int, slowdown: float, cost_s: float, iterations: int) -> None:
        gain = 1.0 - (1.0 - DENSE_GAIN) ** iterations
        self._dense_cost_s[level] = ewma_update(self._dense_cost_s[level], cost_s, gain)
        self._dense_slowdown[level] = ewma_update(self._dense_slowdown[level], slowdown, gain)

    def _judge(
        self, next_step: int, level: int, slowdown: float, cost_s: float, iterations: int
    ) -> None:
        """Turn compression off for a while if it saves no time.

        The time of an iteration is compared with what an uncompressed one took at the nearest
        congestion level; where the slowdown has grown since, the uncompressed one is given as
        much longer, so that congestion is not taken for a failure of compression. In over 200
        measured set-ups gradient compression helped in 6 (Agarwal et al., MLSys 2022), so off
        must be a possible answer.
        """
        if level != self._judged_level:
            self._judged_level, self._judged = level, 0
            self._cost_sum = self._slowdown_sum = 0.0
        self._judged += iterations
        self._cost_sum += cost_s * iterations
        self._slowdown_sum += slowdown * iterations
        measured = [i for i, dense in enumerate(self._dense_cost_s) if not math.isnan(dense)]
        if self._judged < JUDGE_ITERATIONS or not measured:
            return
        near = min(measured, key=lambda i: abs(i - level))
        dense = self._dense_cost_s[near]
        cost = self._cost_sum / self._judged
        grown = self._slowdown_sum / self._judged / self._dense_slowdown[near]  # NaN: unknown
        self._judged = 0
        self._cost_sum = self._slowdown_sum = 0.0
        limit = dense * (grown if grown > LEAST_GROWTH else 1.0)
        if cost < limit * (1.0 - self._policy.compression.least_gain):
            self._off_next = FIRST_OFF_ITERATIONS
            return
        self._off_until = next_step + self._off_next
        self._off_level = level
        self._off_next = min(2 * self._off_next, MOST_OFF_ITERATIONS)

    def state_dict(self) -> dict[str, Any]:
        """All state, as plain numbers."""
        return {
            "level": self._level,
            "dense_cost_s": list(self._dense_cost_s),
            "dense_slowdown": list(self._dense_slowdown),
            "judged_level": self._judged_level,
            "judged": self._judged,
            "cost_sum": self._cost_sum,
            "slowdown_sum": self._slowdown_sum,
            "off_until": self._off_until,
            "off_level": self._off_level,
            "off_next": self._off_next,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly where `state_dict` was taken."""
        self._level = int(state["level"])
        self._dense_cost_s = [float(cost) for cost in state["dense_cost_s"]]
        self._dense_slowdown = [float(value) for value in state["dense_slowdown"]]
        self._judged_level = int(state["judged_level"])
        self._judged = int(state["judged"])
        self._cost_sum = float(state["cost_sum"])
        self._slowdown_sum = float(state["slowdown_sum"])
        self._off_until = int(state["off_until"])
        self._off_level = int(state["off_level"])
        self._off_next = int(state["off_next"])
