"""The regulation half of the engine: the same object in a training job and in a simulator.

One iteration: ``begin(step)`` gives the plan; the collectives run by it; ``losses(step - 1, ...)``
takes the loss that travelled in this iteration's headers; ``observe(step, ...)`` takes local
figures. Every T iterations (`due`) the ranks combine their ``report()`` by elementwise maximum
in one small all-reduce, and ``agree`` makes the same next plan on each of them.

Ranks differ in what they observe, never in what they decide: decisions depend on combined numbers
and agreed losses alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ._fields import PolicyError
from .bus import Bus
from .compress.bucket import LayerPower
from .decisions import DecisionLog
from .plan import BF16, DENSE, OFF_BITS, Layer, Plan, RungPlan, ladder_plans
from .regulator import Figures, Regulator
from .safety import MOST_RESERVE, SafetyWatch
from .slowdown import Slowdown
from .spec import Policy
from .traffic import Traffic

__all__ = ["Controller", "Layer", "Plan"]

STATE_VERSION = 2
UNKNOWN = -2.0  # in a report; every known entry is at least -1, so that the maximum drops it
REPORT_LENGTH = 6
MEANS = ("routing_level", "available_share", "gradient_change")  # over a period
COSTS = ("step_s", "comm_s")  # over the iterations of a period under one rung
KEEP_RESIDUALS = ("quantise", "shared")  # modes


class Controller:
    """Regulates ratio, bits and reserve every T iterations, and retreats when the loss stalls.

    Args:
        policy: The policy.
        layers: The model's layers, in the order of `Plan.bits`.
        world: Ranks.
        log: Where changes are noted; nowhere by default.
        bus: Shared with a router; a private one by default.
        traffic: What ranks exchange; by default whole layers in DDP's buckets.
    """

    def __init__(
        self,
        policy: Policy,
        layers: Sequence[Layer],
        world: int,
        log: DecisionLog | None = None,
        *,
        bus: Bus | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.policy = policy
        self.layers = tuple(layers)
        self.world = world
        self.bus = Bus() if bus is None else bus
        self.retreats = 0
        self.changes = 0  # of the plan's rung, for reports: control has a price
        self.useless = False  # compression was measured to save no time, and is off for a while
        self._log = DecisionLog() if log is None else log
        self._powers: list[LayerPower | None] = [None] * len(self.layers)  # agreed
        self._measured: dict[int, LayerPower] = {}  # on this rank, since the last regulation
        self._by_norms = policy.compression.allocation == "norms"
        self._traffic = traffic
        self._rungs = ladder_plans(policy, layers, world, traffic=traffic)
        self._regulator = Regulator(policy, self._rungs)
        self._safety = SafetyWatch(policy.safety)
        self._slowdown = Slowdown(policy.bus.smoothing)
        self._wire_bytes: int | None = None
        self._transfer_s: float | None = None
        self._routing_version = 0
        self._hold = 0  # regulations left without a rise
        self._level = 0
        self._cap = 1.0
        self._reserve = 0.0
        self._reason = "start"
        started = policy.compression.warmup_iterations == 0 and len(self._rungs) > 1
        self._wanted = policy.compression.rung_by_level[0] if started else 0
        self._residuals = False  # whether some may be left
        self.plan = self._make_plan()
        self._residuals = self.plan.mode in KEEP_RESIDUALS
        self._clear_period(0)

    def begin(self, step: int) -> Plan:
        """Put in force what was decided; call it before iteration ``step``.

        Args:
            step: The iteration about to start.

        Returns:
            The plan for it.
        """
        before = self.plan
        after = self._make_plan()
        if after == before:
            return before
        if after.rung > before.rung:
            self._safety.raised(step)
        elif after.rung < before.rung:
            self._safety.lowered()
        if after.rung != before.rung:
            self.changes += 1
            self._clear_costs(step)
        self.plan = after
        self._residuals = self._residuals or after.mode in KEEP_RESIDUALS
        self._note(step, before, after)
        self._publish(step)
        return after

    def observe(
        self,
        step: int,
        *,
        comm_s: float,
        modelled_s: float | None,
        wire_bytes: int,
        gradient_change: float | None,
        step_s: float | None = None,
        sound: bool = True,
    ) -> None:
        """Take this rank's own figures of one iteration; what is not a number is left out.

        Args:
            step: The iteration.
            comm_s: Measured communication time, codec included.
            modelled_s: What the same bytes would take on a clear fabric, None if unknown.
            wire_bytes: Bytes this rank sent.
            gradient_change: Relative change of the reduced gradient since the last iteration.
            step_s: Time of the whole iteration; better than ``comm_s`` to see whether
                compression pays, since part of the communication may be hidden.
            sound: Whether all ranks reduced it as planned and found it finite; alike on all.
        """
        self._wire_bytes, self._transfer_s = wire_bytes, comm_s
        self._hear_routing()
        measured = {"gradient_change": gradient_change}
        if not self._draining:  # which is done once, and takes as long as nothing else
            self._slowdown.observe(self.plan.rung, comm_s, modelled_s)
            measured |= {"step_s": step_s, "comm_s": comm_s}
        elif sound:
            self._residuals = False
        for name, value in measured.items():
            if value is not None and math.isfinite(value) and value >= 0:
                self._sums[name] += value
                self._counts[name] += 1

    def observe_layers(self, powers: Mapping[int, LayerPower]) -> None:
        """Take what was measured of the reduced gradients, by place in the layers.

        Args:
            powers: Of one iteration, which replace earlier ones of the same layers.
        """
        for place, power in powers.items():
            if math.isfinite(power.squares) and math.isfinite(power.peaks):
                self._measured[place] = power

    def due(self, step: int) -> bool:
        """Whether the ranks regulate after iteration ``step``.

        Every T iterations, and once at the end of the warm-up, which a long T must not prolong.
        """
        warm = step + 1 == self.policy.compression.warmup_iterations
        return warm or (step + 1) % self.policy.period.iterations == 0

    def useless_rungs(self) -> list[str]:
        """Names of rungs that would send no less than bf16, which is sent instead."""
        ladder = self.policy.compression.ladder
        pairs = zip(ladder[1:], self._rungs[1:], strict=False)
        return [
            step.name
            for step, made in pairs
            if made.mode == BF16 and (step.bits_input < OFF_BITS or step.keep_share < 1)
        ]

    def measures(self, step: int) -> bool:
        """Whether iteration ``step`` measures each layer, for what is decided after it.

        Bits by norms need it, and a residual that may outgrow its gradient.
        """
        return self.due(step) and (self._by_norms or self.plan.mode == "shared")

    def report(self) -> list[float]:
        """What this rank contributes; combine over ranks by elementwise maximum."""
        self._hear_routing()
        share = self._mean("available_share")
        values = [
            self._slowdown.value,
            self._mean("routing_level"),
            None if share is None else -share,
            self._mean("gradient_change"),
            *(self._mean(name) for name in COSTS),
        ]
        if self._by_norms:
            powers = [self._measured.get(place) for place in range(len(self.layers))]
            values += [None if power is None else power.squares for power in powers]
            values += [None if power is None else power.peaks for power in powers]
        return [UNKNOWN if value is None else float(value) for value in values]

    def agree(self, step: int, combined: Sequence[float]) -> None:
        """Regulate after iteration ``step``; in force from the next `begin`.

        Args:
            step: The iteration that just ended.
            combined: Elementwise maximum of every rank's `report`.

        Raises:
            ValueError: ``combined`` has another length than a report.
        """
        length = REPORT_LENGTH + (2 * len(self.layers) if self._by_norms else 0)
        if len(combined) != length:
            raise ValueError(f"a report has {length} entries")
        known = [
            float(value) if math.isfinite(value) and value >= -1.0 else None for value in combined
        ]
        self._allocate(known[REPORT_LENGTH:])
        slowdown, level, share, change, step_s, comm_s = known[:REPORT_LENGTH]
        figures = Figures(
            slowdown=slowdown,
            routing_level=None if level is None else max(0, min(3, int(level + 0.5))),
            available_share=None if share is None else -share,
            gradient_change=change,
            cost_s=comm_s if step_s is None else step_s,
        )
        held = self._hold > 0
        verdict = self._regulator.decide(
            step + 1, self._wanted, self.plan.rung, step + 1 - self._cost_from, held, figures
        )
        if held:
            self._hold -= 1
        elif self._reserve > 0:
            self._reserve = max(0.0, self._reserve - self.policy.safety.reserve_step)
        self._wanted = verdict.rung
        self._level = verdict.level
        self._cap = verdict.ratio_cap
        self._reason = verdict.reason
        self.useless = verdict.useless
        self._clear_period(step + 1)
        self._publish(step + 1)

    def losses(self, step: int, mean_loss: float | None, finite: bool) -> None:
        """Take the agreed loss of iteration ``step``, known during the next one.

        A retreat is in force from the next `begin`, that of iteration ``step + 2``.

        Args:
            step: The iteration the loss belongs to.
            mean_loss: Mean over the ranks, None if unknown.
            finite: Whether all ranks' gradients were finite.
        """
        if not self._safety.observe(step, mean_loss, finite):
            return
        safety = self.policy.safety
        self._safety.lowered()
        self._wanted = max(0, min(self._wanted, self.plan.rung) - 1)
        self._hold = safety.hold_periods
        self._reserve = min(MOST_RESERVE, self._reserve + safety.reserve_step)
        self._reason = f"loss did not fall for {safety.iterations} iterations after a rise"
        self.retreats += 1
        self._log.change(step + 1, "retreat", self.plan.rung, self._wanted, self._reason)

    def state_dict(self) -> dict[str, Any]:
        """All state of this rank, as plain numbers and lists; resuming from it is exact."""
        return {
            "version": STATE_VERSION,
            "policy": self.policy.digest(),
            "layers": len(self.layers),
            "rung": self.plan.rung,
            "plan": [self.plan.level, self.plan.ratio_cap, self.plan.reserve],
            "draining": self._draining,
            "residuals": self._residuals,
            "wanted": self._wanted,
            "level": self._level,
            "cap": self._cap,
            "reserve": self._reserve,
            "reason": self._reason,
            "hold": self._hold,
            "retreats": self.retreats,
            "changes": self.changes,
            "wire_bytes": self._wire_bytes,
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "cost_from": self._cost_from,
            "powers": [power and [power.squares, power.peaks] for power in self._powers],
            "measured": [[i, p.squares, p.peaks] for i, p in sorted(self._measured.items())],
            "bits": [list(rung.bits) for rung in self._rungs],
            "slowdown": self._slowdown.state_dict(),
            "regulator": self._regulator.state_dict(),
            "safety": self._safety.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], *, same_ranks: bool = True) -> None:
        """Resume where `state_dict` was taken, on as many ranks as there are now.

        Args:
            state: What `state_dict` returned.
            same_ranks: Whether times measured there are comparable with those to come.

        Raises:
            PolicyError: It belongs to another policy, model or engine version.
        """
        for name, mine in (
            ("version", STATE_VERSION),
            ("policy", self.policy.digest()),
            ("layers", len(self.layers)),
        ):
            if state.get(name) != mine:
                raise PolicyError(f"state.{name}: {state.get(name)!r} is not {mine!r}")
        self._powers = [
            None if power is None else LayerPower(squares=power[0], peaks=power[1])
            for power in state["powers"]
        ]
        self._measured = {
            i: LayerPower(squares=squares, peaks=peaks) for i, squares, peaks in state["measured"]
        }
        self._replan(
            [
                replace(rung, bits=tuple(bits))
                for rung, bits in zip(self._rungs, state["bits"], strict=True)
            ]
        )
        self._level, self._cap, self._reserve = state["plan"]
        self._wanted = state["rung"]
        self._residuals = state["draining"]
        self.plan = self._make_plan()
        self._residuals = state["residuals"]
        self._wanted = state["wanted"]
        self._level = state["level"]
        self._cap = state["cap"]
        self._reserve = state["reserve"]
        self._reason = state["reason"]
        self._hold = state["hold"]
        self.retreats = state["retreats"]
        self.changes = state["changes"]
        self._wire_bytes = state["wire_bytes"]
        self._sums = dict(state["sums"])
        self._counts = dict(state["counts"])
        self._cost_from = state["cost_from"]
        if same_ranks:
            self._slowdown.load_state_dict(state["slowdown"])
            self._regulator.load_state_dict(state["regulator"])
        self._safety.load_state_dict(state["safety"])

    def _allocate(self, agreed: Sequence[float | None]) -> None:
        """Give each layer its bits by what all ranks agree that its gradient is like."""
        count = len(self.layers)
        for place, (squares, peaks) in enumerate(zip(agreed[:count], agreed[count:], strict=True)):
            if squares is not None and peaks is not None:
                self._powers[place] = LayerPower(squares=squares, peaks=peaks)
        self._measured.clear()
        self._replan(self._rungs)

    def _replan(self, current: Sequence[RungPlan]) -> None:
        if self._by_norms and any(power is not None for power in self._powers):
            self._rungs = ladder_plans(
                self.policy,
                self.layers,
                self.world,
                self._powers,
                current,
                traffic=self._traffic,
            )
            self._regulator.plans = self._rungs

    @property
    def _draining(self) -> bool:
        """Whether this iteration sends what compression left as residual, before it stops."""
        return self.plan.mode == BF16 and self._rungs[self.plan.rung].mode == DENSE

    def _make_plan(self) -> Plan:
        """The plan for what is wanted.

        Where residuals may be left, an uncompressed rung starts in bf16, until they are sent.
        """
        rung = self._rungs[self._wanted]
        drain = rung.mode == DENSE and self._residuals and self.policy.compression.error_feedback
        return Plan(
            rung=self._wanted,
            mode=BF16 if drain else rung.mode,
            bits=rung.bits,
            level=self._level,
            ratio=rung.ratio,
            ratio_cap=self._cap,
            reserve=self._reserve,
            keep_share=rung.keep_share,
        )

    def _note(self, step: int, before: Plan, after: Plan) -> None:
        change = self._log.change
        change(step, "level", before.level, after.level, self._reason)
        change(step, "ratio", before.ratio, after.ratio, self._reason)
        change(step, "bits", _bits_text(before), _bits_text(after), self._reason)
        change(step, "reserve", before.reserve, after.reserve, self._reason)

    def _publish(self, step: int) -> None:
        self.bus.push_compression(
            step=step,
            ratio=self.plan.ratio,
            ratio_cap=self._cap,
            wire_bytes=self._wire_bytes,
            transfer_s=self._transfer_s,
            reserve=self._reserve,
        )

    def _mean(self, name: str) -> float | None:
        count = self._counts[name]
        return self._sums[name] / count if count else None

    def _hear_routing(self) -> None:
        """Take what routing has said since the last iteration; what it has not is unknown."""
        routing = self.bus.routing
        if routing.version == self._routing_version:
            return
        self._routing_version = routing.version
        for name, value in (
            ("routing_level", routing.level),
            ("available_share", routing.available_share),
        ):
            if value is not None:
                self._sums[name] += value
                self._counts[name] += 1

    def _clear_period(self, step: int) -> None:
        self._sums = dict.fromkeys(MEANS, 0.0)
        self._counts = dict.fromkeys(MEANS, 0)
        self._clear_costs(step)

    def _clear_costs(self, step: int) -> None:
        """Times under one rung say nothing of another."""
        self._cost_from = step
        for name in COSTS:
            self._sums[name] = 0.0
            self._counts[name] = 0


def _bits_text(plan: Plan) -> str:
    """Elements aside: how many layers have how many bits, such as ``4x120 8x30 16x61``."""
    return " ".join(f"{bits}x{plan.bits.count(bits)}" for bits in sorted(set(plan.bits)))
