"""What a training job holds: one call an iteration, metrics, a congestion signal, its state."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .bus import Bus
from .compress.exchange import DENSE, Exchange
from .compress.header import REGULATION, RESUME
from .compress.lanes import Lanes
from .compress.layout import LayerTable
from .compress.wire import saved_share
from .controller import Controller
from .decisions import DecisionLog
from .hook import GradientHook, Iteration
from .striping import Striping

_LOG = logging.getLogger("xtune")
STATE_SCHEMA = 1


@dataclass(kw_only=True, slots=True)
class Engine:
    """The parts that run on one rank."""

    hook: GradientHook
    exchange: Exchange | Lanes
    table: LayerTable
    controller: Controller
    fresh_controller: Callable[[], Controller]
    log: DecisionLog
    mode: str  # on | shadow
    link_gbps: float | None
    striping: Striping | None = None
    release: Callable[[], None] = lambda: None  # ends groups of its own, after the hook's threads


@dataclass(kw_only=True, slots=True)
class Totals:
    """Sums over iterations."""

    wire_bytes: int = 0
    dense_bytes_bf16: int = 0
    dense_bytes_fp32: int = 0
    transfer_s: float = 0.0
    wait_s: float = 0.0


class Handle:
    """The running policy on one rank; inert where it is off.

    Args:
        bus: shared with a router.
        engine: None where the policy is off.
        reason: why it is off.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        bus: Bus,
        engine: Engine | None,
        *,
        reason: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.bus = bus
        self._engine = engine
        self._off_reason = reason
        self._clock = clock
        self._step = 0
        self._totals = Totals()
        self._side_bytes = 0
        self._nonfinite_steps = self._failed_steps = 0
        self._norm: float | None = None  # of the last finite iteration in a row
        self._finite = True  # the last iteration's gradients
        self._step_ended: float | None = None
        self._comm_share: float | None = None
        self._useless_said = False

    @property
    def active(self) -> bool:
        """Whether the engine reduces this model's gradients."""
        return self._engine is not None

    def step(self, loss: Tensor | float | None = None) -> None:
        """Call once an iteration on every rank, after the backward pass.

        Never waits for the device: a loss on an accelerator is copied in the background and
        travels in the next iteration's headers. Every T iterations the ranks regulate.

        Args:
            loss: of this iteration on this rank, None if unknown.
        """
        engine = self._engine
        if engine is None:
            return
        done = engine.hook.take()
        step, self._step = self._step, self._step + 1
        now = self._clock()
        step_s = None if self._step_ended is None else now - self._step_ended
        if engine.striping is not None:
            engine.striping.settle()
        if engine.exchange.disabled is None:
            self._guard(lambda: self._observe(engine, step, done, step_s))
            if engine.controller.due(step):
                self._regulate(engine, step)
        if engine.exchange.disabled is None:
            self._guard(lambda: self._begin(engine, step + 1))
        else:
            self._stand_by(engine, step + 1)
        engine.hook.step = step + 1
        engine.hook.loss.put(loss)
        self._book(done, step_s)
        self._step_ended = self._clock()

    def metrics(self) -> dict[str, Any]:
        """Totals since attach (or the resumed state) and the plan in force; null is unknown.

        Over rails, what `Striping.metrics` tells is there too.
        """
        total = self._totals
        wire = total.wire_bytes + self._side_bytes
        engine = self._engine
        plan = engine.controller.plan if engine is not None else None
        striping = engine.striping if engine is not None else None
        return {
            "mode": engine.mode if engine is not None else "off",
            "off_reason": self._off_reason if engine is None else engine.exchange.disabled,
            "steps": self._step,
            "wire_bytes": wire,
            "dense_bytes_bf16": total.dense_bytes_bf16,
            "dense_bytes_fp32": total.dense_bytes_fp32,
            "ratio_vs_bf16": saved_share(wire, total.dense_bytes_bf16),
            "ratio_vs_fp32": saved_share(wire, total.dense_bytes_fp32),
            "transfer_s": total.transfer_s,
            "wait_s": total.wait_s,
            "failed_steps": self._failed_steps,
            "nonfinite_steps": self._nonfinite_steps,
            "rung": plan.rung if plan is not None else None,
            "saves_no_time": engine.controller.useless if engine is not None else False,
            "plan_mode": self._in_force()[0],
            "planned_ratio": self._in_force()[1],
            "retreats": engine.controller.retreats if engine is not None else 0,
            "changes": engine.controller.changes if engine is not None else 0,
            "decisions_dropped": engine.log.dropped if engine is not None else 0,
            **(striping.metrics() if striping is not None else {}),
        }

    def signal(self) -> dict[str, Any]:
        """Congestion state for a scheduler: what the compute side should know.

        ``level`` 0 clear .. 3 severe; ``comm_share`` is the share of the last iteration's time
        that this rank's transfers took, hidden or not; null is unknown, and so is what routing
        said more than `HEARD_S` ago.
        """
        engine, routing = self._engine, self.bus.routing_now
        return {
            "level": engine.controller.plan.level if engine is not None else routing.level,
            "available_share": routing.available_share,
            "available_gbps": routing.available_gbps,
            "reserve": self.bus.reserve,
            "ratio": self._in_force()[1] or 0.0,
            "comm_share": self._comm_share,
        }

    def _in_force(self) -> tuple[str | None, float | None]:
        """Mode and planned ratio, of what is really done."""
        engine = self._engine
        if engine is None:
            return None, None
        if engine.exchange.disabled is not None:
            return DENSE, 0.0
        return engine.controller.plan.mode, engine.controller.plan.ratio

    def state_dict(self) -> dict[str, Any]:
        """Residuals, controller and counts of this rank; every rank saves its own.

        To be called between iterations. Plain numbers, lists and tensors. Resuming continues bit
        for bit; mode ``drop`` alone does not, since what it keeps is chosen by bucket, and DDP's
        first buckets are others.
        """
        engine = self._engine
        if engine is None:
            return {"schema": STATE_SCHEMA, "step": self._step, "engine": None}
        return {
            "schema": STATE_SCHEMA,
            "step": self._step,
            "engine": {
                "world": engine.table.world,
                "rank": engine.exchange.channel.rank,
                "model": engine.table.model_digest(),
                "table": engine.exchange.quantised.table.digest(),
                "controller": engine.controller.state_dict(),
                "residual": engine.exchange.store.state_dict(),
                "loss": engine.hook.loss.read(),
                "norm": self._norm,
                "finite": self._finite,
                "disabled": engine.exchange.disabled,
            },
            "totals": {
                "wire_bytes": self._totals.wire_bytes,
                "dense_bytes_bf16": self._totals.dense_bytes_bf16,
                "dense_bytes_fp32": self._totals.dense_bytes_fp32,
                "side_bytes": self._side_bytes,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume; call it on every rank, after `attach` and before the first iteration.

        With another number of ranks (give rank ``r`` the state of rank ``r`` modulo the old
        number) regulation goes on and measures times anew; residuals belong to ranks that are no
        more and are dropped, with one line. Where the state of some rank does not fit (another
        policy or model), all ranks keep the step and start regulation and residuals anew, with
        one line.

        Args:
            state: what `state_dict` returned on this rank.
        """
        engine = self._engine
        if engine is None:
            with contextlib.suppress(AttributeError, TypeError, ValueError):  # it matters to none
                self._step = int(state.get("step", 0))
            return
        step, problem, moved = 0, "", False
        try:
            step = int(state["step"])
            moved = state["engine"] is not None and state["engine"]["world"] != engine.table.world
            self._restore(engine, state, moved=moved)
        except Exception as error:  # a state from elsewhere may hold anything
            problem = f"{type(error).__name__}: {error}"
        plan = engine.controller.plan.digest() if not problem else 0
        mine = [float(bool(problem)), float(step), float(plan)]
        off = engine.exchange.disabled or (not problem and state["engine"]["disabled"])
        mine += [float(bool(off)), float(moved)]
        # Largest and smallest in one go: equal where all ranks hold the same.
        both = engine.exchange.combine([*mine, *(-x for x in mine)], step=0, what=RESUME)
        largest = mine if both is None else both[: len(mine)]
        if both is None or largest[0] or largest != [-x for x in both[len(mine) :]]:
            engine.exchange.store.clear()
            engine.controller = engine.fresh_controller()
            step = int(largest[1])
            rank = engine.exchange.channel.rank
            if problem or rank == 0:
                _LOG.warning(
                    "xtune: rank %d: saved state is not used, regulation starts anew: %s",
                    rank,
                    problem or "the ranks' states do not belong together",
                )
        else:
            self._take_over(engine, state)
            if moved and engine.exchange.channel.rank == 0:
                _LOG.warning(
                    "xtune: saved with %d ranks, resumed with %d: regulation goes on, residuals "
                    "are dropped",
                    state["engine"]["world"],
                    engine.table.world,
                )
        self._step = engine.hook.step = step
        engine.hook.plan = engine.controller.plan
        engine.hook.measure = engine.controller.measures(step)

    def detach(self) -> None:
        """Reduce uncompressed from here on; call it on every rank, between two iterations.

        DDP cannot forget a hook, so a plain all-reduce stays in its place, over the model's own
        process group. The engine's threads and process groups end.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.hook.close()
            engine.hook.detached = True
            engine.exchange.forget()  # the hook stays, and would keep them
            engine.log.close()
            engine.release()
            self._off_reason = "detached"

    def _guard(self, work: Callable[[], None]) -> None:
        """Run a part of the engine; if it fails, compression ends on every rank, training goes on.

        The other ranks hear of it in the next header.
        """
        engine = self._engine
        if engine is None or engine.exchange.broken is not None:
            return
        try:
            work()
        except Exception as error:  # an engine must not stop a training job
            engine.exchange.broken = f"regulation failed: {type(error).__name__}: {error}"

    def _observe(self, engine: Engine, step: int, done: Iteration, step_s: float | None) -> None:
        if done.buckets == 0:
            return
        loss = done.mean_loss
        sound = self._finite and (loss is None or math.isfinite(loss))
        engine.controller.losses(step - 1, loss, sound)
        change = None
        if self._norm and done.norm is not None:
            change = abs(done.norm - self._norm) / self._norm
        modelled_s = None
        if engine.link_gbps is not None:
            modelled_s = done.wire_bytes * 8e-9 / engine.link_gbps
        engine.controller.observe(
            step,
            comm_s=done.transfer_s,
            modelled_s=modelled_s,
            wire_bytes=done.wire_bytes,
            gradient_change=change,
            step_s=step_s,
            sound=done.finite and not done.failed,
        )
        engine.controller.observe_layers(done.powers)

    def _regulate(self, engine: Engine, step: int) -> None:
        """The period's side all-reduce: also a rank that cannot report takes part."""
        report: list[float] = []
        if engine.exchange.broken is None:
            try:
                report = engine.controller.report()
            except Exception as error:  # told to all ranks by the header
                engine.exchange.broken = f"report failed: {type(error).__name__}: {error}"
        try:
            combined = engine.exchange.combine(report, step=step, what=REGULATION)
        except RuntimeError as error:  # training may be over on the others; else it fails next
            combined = None
            engine.exchange.broken = f"the network failed: {str(error).splitlines()[0]}"
        self._side_bytes += engine.exchange.channel.sent_bytes
        if combined is None:
            if engine.exchange.broken is not None:
                rank = engine.exchange.channel.rank
                _LOG.warning("xtune: rank %d: %s", rank, engine.exchange.broken)
            engine.exchange.disable("regulation failed on a rank")
            return
        self._guard(lambda: engine.controller.agree(step, combined))
        self._plan_rails(engine, step)
        if engine.controller.useless and not self._useless_said:
            self._useless_said = True
            if engine.exchange.channel.rank == 0:
                _LOG.warning(
                    "xtune: compression saves no time here: off from iteration %d, tried again "
                    "later",
                    step + 1,
                )

    def _plan_rails(self, engine: Engine, step: int) -> None:
        """Agree on the rails' shares; all ranks are here, and none is held up by its router."""
        if engine.striping is not None:
            try:
                engine.striping.plan(step + 1, engine.log)
            except RuntimeError as error:  # as in the regulation before it
                engine.exchange.broken = f"the network failed: {str(error).splitlines()[0]}"

    def _begin(self, engine: Engine, step: int) -> None:
        before = engine.hook.plan
        engine.hook.plan = engine.controller.begin(step)
        if before.mode != DENSE and engine.hook.plan.mode == DENSE:
            engine.exchange.forget()  # what layers without a gradient still have
        engine.hook.measure = engine.controller.measures(step)
        every = engine.controller.policy.compression.residual_reset_iterations
        if every and step % every == 0:
            engine.exchange.forget()

    def _stand_by(self, engine: Engine, step: int) -> None:
        """Compression is off for good: nothing is kept for it, and it promises nothing."""
        engine.exchange.forget()
        said = self.bus.compression
        if said.ratio:
            self.bus.push_compression(
                step=step,
                ratio=0.0,
                ratio_cap=said.ratio_cap,
                wire_bytes=said.wire_bytes,
                transfer_s=said.transfer_s,
                reserve=said.reserve,
            )

    def _book(self, done: Iteration, step_s: float | None) -> None:
        total = self._totals
        total.wire_bytes += done.wire_bytes
        total.dense_bytes_bf16 += done.dense_bytes_bf16
        total.dense_bytes_fp32 += done.dense_bytes_fp32
        total.transfer_s += done.transfer_s
        total.wait_s += done.wait_s
        self._failed_steps += done.failed
        self._nonfinite_steps += not done.finite
        self._comm_share = min(1.0, done.transfer_s / step_s) if step_s else None
        if done.buckets:
            self._finite = done.finite
            self._norm = done.norm

    def _restore(self, engine: Engine, state: Mapping[str, Any], *, moved: bool) -> None:
        if state["schema"] != STATE_SCHEMA:
            raise ValueError(f"schema {state['schema']} is not {STATE_SCHEMA}")
        saved, table = state["engine"], engine.exchange.quantised.table
        if saved is None:
            raise ValueError("it was saved while the policy was off")
        expected = {"model": engine.table.model_digest()}
        if not moved:
            expected |= {"rank": engine.exchange.channel.rank, "table": table.digest()}
        for name, mine in expected.items():
            if saved[name] != mine:
                raise ValueError(f"{name} was {saved[name]} and is {mine}")
        if moved:
            engine.exchange.store.clear()
            engine.controller.load_state_dict(saved["controller"], same_ranks=False)
        else:
            sizes = engine.exchange.residual_sizes()
            engine.exchange.store.load_state_dict(saved["residual"], sizes)
            engine.controller.load_state_dict(saved["controller"])
        engine.hook.loss.put(saved["loss"])
        self._norm, self._finite = saved["norm"], saved["finite"]
        for name in ("wire_bytes", "dense_bytes_bf16", "dense_bytes_fp32", "side_bytes"):
            int(state["totals"][name])

    def _take_over(self, engine: Engine, state: Mapping[str, Any]) -> None:
        """What only holds once all ranks agree that their states belong together."""
        if state["engine"]["disabled"] is not None:
            engine.exchange.disable(state["engine"]["disabled"])
        totals = state["totals"]
        self._totals.wire_bytes = totals["wire_bytes"]
        self._totals.dense_bytes_bf16 = totals["dense_bytes_bf16"]
        self._totals.dense_bytes_fp32 = totals["dense_bytes_fp32"]
        self._side_bytes = totals["side_bytes"]
