"""The methods under comparison, and one rank's side of each of the engine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from xtune.policies.compress import wire
from xtune.policies.compress.bucket import Bucket, LayerPower
from xtune.policies.compress.exchange import Exchange
from xtune.policies.ladder import Rung
from xtune.policies.plan import Layer, RungPlan, ladder_plans
from xtune.policies.spec import Compression, Period, Policy
from xtune.proofs.ranks import LocalChannel, build_exchange

Buckets = Sequence[tuple[int, ...]]  # layer indices of each bucket


class Side(Protocol):
    """One rank's side of a method."""

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """Replace this rank's gradients by what the method makes of the mean.

        Args:
            step: of the branch, from 0.
            buffers: fp32, one flat tensor a bucket, changed in place.
            loss: of this rank in this iteration, None if unknown.

        Returns:
            Bytes this rank sent.
        """

    def state_dict(self) -> dict[str, Any]:
        """What it needs to go on from here."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""

    def about(self) -> dict[str, Any]:
        """What is worth keeping of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One row of the table."""

    name: str
    label: str
    # dense | bf16 | quantise | norms | two_widths | shared | drop | drop_residual | powersgd |
    # regulated
    kind: str
    bits_input: int = 16
    bits_head: int = 16
    gain: float | None = None  # of the residual; None: no error feedback
    block: int = 256
    keep_share: float | None = None  # where few elements are sent; None: the bytes of q4_8
    rank: int = 0  # of PowerSGD
    second_bits: int | None = None  # of the second phase; None: those of the first

    def compression(self, keep_share: float | None = None) -> Compression:
        """The policy's section of it, in force from the first iteration."""
        keep = self.keep_share if keep_share is None else keep_share
        rung = Rung(
            name="only",
            bits_input=self.bits_input,
            bits_head=self.bits_head,
            keep_share=keep if self.kind == "shared" and keep else 1.0,
        )
        gain = 0.0 if self.gain is None else self.gain
        return Compression(
            mode="drop" if self.kind == "drop" else "quantise",
            ladder=(Rung(name="off", bits_input=16, bits_head=16), rung),
            rung_by_level=(1, 1, 1, 1),
            warmup_iterations=0,
            block=self.block,
            allocation="norms" if self.kind == "norms" else "depth",
            error_feedback=self.gain is not None,
            residual_decay=gain,
            residual_decay_head=gain,
            residual_decay_shared=gain,
            drop_keep_share=keep or 1.0,
        )


def _quantised(head: int, gain: float | None, block: int = 256) -> Method:
    bits = "q4_8" if head == 8 else "q4"
    layered = "4/8 bits by layer" if head == 8 else "4 bits"
    feedback = "no error feedback" if gain is None else f"error feedback {gain:g}"
    small = "" if block == 256 else f"_b{block}"
    return Method(
        name=f"{bits}{small}_{'off' if gain is None else f'g{gain:g}'}",
        label=f"{layered}, {feedback}" + (f", block {block}" if small else ""),
        kind="quantise",
        bits_input=4,
        bits_head=head,
        gain=gain,
        block=block,
    )


def methods() -> dict[str, Method]:
    """All methods by name, in the order in which they are run: what decides most comes first."""
    rows = [
        Method(name="fp32", label="full precision", kind="dense"),
        *(_quantised(8, gain) for gain in (0.5, 1.0, None)),
        *(_quantised(4, gain) for gain in (0.5, 1.0, None)),
        Method(
            name="norms_g0.5",
            label="bits by norms, error of 4/8, error feedback 0.5",
            kind="norms",
            bits_input=4,
            bits_head=8,
            gain=0.5,
        ),
        Method(name="drop_equal", label="dropping, bytes of 4/8", kind="drop"),
        Method(name="bf16", label="bf16 all-reduce", kind="bf16"),
        Method(name="drop_35", label="dropping, 35 % kept", kind="drop", keep_share=0.35),
        Method(
            name="drop_equal_residual",
            label="dropping with residual, bytes of 4/8",
            kind="drop_residual",
            gain=1.0,
        ),
        Method(name="powersgd_4", label="PowerSGD rank 4", kind="powersgd", gain=1.0, rank=4),
        Method(
            name="shared_10",
            label="shared index, 10 % kept",
            kind="shared",
            gain=1.0,
            keep_share=0.1,
        ),
        Method(name="shared_equal", label="shared index, bytes of 4/8", kind="shared", gain=1.0),
        _quantised(8, 0.5, 64),
        *(_quantised(4, gain, 64) for gain in (0.5, 1.0, None)),
        Method(
            name="q4_second8_g0.5",
            label="4 bits, then 8 in the second phase, error feedback 0.5",
            kind="two_widths",
            bits_input=4,
            bits_head=4,
            gain=0.5,
            second_bits=8,
        ),
        Method(name="regulated", label="regulated, scripted congestion", kind="regulated"),
        *(
            Method(
                name=f"q{bits}_g0.5",
                label=f"{bits} bits, error feedback 0.5",
                kind="quantise",
                bits_input=bits,
                bits_head=bits,
                gain=0.5,
            )
            for bits in (8, 3, 2)
        ),
    ]
    return {row.name: row for row in rows}


def plan_of(
    method: Method, layers: Sequence[Layer], world: int, keep_share: float | None = None
) -> RungPlan:
    """How its buckets are reduced, from the policy's own ladder."""
    if method.kind == "dense":
        return RungPlan(mode="dense", bits=(16,) * len(layers), ratio=0.0)
    policy = Policy(name="proof", compression=method.compression(keep_share))
    return ladder_plans(policy, layers, world)[1]


def planned_bytes(method: Method, layers: Sequence[Layer], buckets: Buckets, world: int) -> int:
    """Bytes one rank sends in an iteration of a quantised method, by the wire formula."""
    compression = method.compression()
    return wire.plan_wire_bytes(
        [layer.elements for layer in layers],
        plan_of(method, layers, world).bits,
        world,
        compression.block,
        dense_below=compression.dense_below_elements,
        buckets=buckets,
    )


def keep_share_of(
    method: Method, layers: Sequence[Layer], buckets: Buckets, world: int
) -> float | None:
    """Share of elements that a method keeps; None where it sends all of them."""
    if method.kind not in ("drop", "drop_residual", "shared") or method.keep_share is not None:
        return method.keep_share
    budget = planned_bytes(methods()["q4_8_g0.5"], layers, buckets, world)
    elements = [layer.elements for layer in layers]

    def sent(keep: float) -> int:
        if method.kind == "shared":
            small = method.compression().dense_below_elements
            return wire.shared_plan_bytes(
                elements, keep, world, dense_below=small, seeded=False, buckets=buckets
            )
        sizes = [sum(elements[i] for i in bucket) for bucket in buckets]
        return sum(wire.drop_wire_bytes(size, keep, world) for size in sizes)

    return largest_share(sent, budget)


def largest_share(sent: Callable[[float], int], budget: int) -> float:
    """The largest share of which no more than ``budget`` bytes are sent."""
    low, high = 1e-6, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sent(middle) <= budget else (low, middle)
    return low


class EngineSide:
    """A fixed plan through the shipped exchange."""

    def __init__(
        self,
        method: Method,
        channel: LocalChannel,
        layers: Sequence[Layer],
        buckets: Buckets,
        keep_share: float | None = None,
    ) -> None:
        compression = method.compression(keep_share)
        self.exchange: Exchange = build_exchange(channel, layers, compression)
        self._plan = plan_of(method, layers, channel.world, keep_share)
        self._buckets = buckets
        self._powers: dict[int, LayerPower] = {}  # of the last iteration that was measured

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """See `Side.reduce`."""
        sent = 0
        self._powers = {}
        for index, (layers, buffer) in enumerate(zip(self._buckets, buffers, strict=True)):
            reduced = self.exchange.reduce(
                Bucket(index=index, layers=layers, buffer=buffer),
                step=step,
                mode=self._plan.mode,
                bits=self._plan.bits,
                loss=loss,
                keep_share=self._plan.keep_share,
                measure=self._measures(step),
            )
            self._powers.update(reduced.powers)
            if reduced.failed or not reduced.finite:
                raise RuntimeError(f"step {step}, bucket {index} was not reduced as planned")
            sent += reduced.wire_bytes
        return sent

    def _measures(self, step: int) -> bool:
        """Whether layers are measured, as when a job regulates."""
        return (step + 1) % Period().iterations == 0

    def state_dict(self) -> dict[str, Any]:
        """See `Side.state_dict`."""
        return {"residual": self.exchange.store.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Side.load_state_dict`."""
        self.exchange.store.load_state_dict(state["residual"], self.exchange.residual_sizes())

    def about(self) -> dict[str, Any]:
        """See `Side.about`."""
        return {}


class NormsSide(EngineSide):
    """Bits allocated anew every `EVERY` iterations, by what the reduced gradients were like."""

    EVERY = 50

    def __init__(
        self,
        method: Method,
        channel: LocalChannel,
        layers: Sequence[Layer],
        buckets: Buckets,
        keep_share: float | None = None,
    ) -> None:
        super().__init__(method, channel, layers, buckets, keep_share)
        self._policy = Policy(name="proof", compression=method.compression())
        self._layers, self._world = tuple(layers), channel.world
        self._current = ladder_plans(self._policy, layers, channel.world)
        self._tables: list[tuple[int, ...]] = []

    def _measures(self, step: int) -> bool:
        return step % self.EVERY == 0

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """See `Side.reduce`."""
        sent = super().reduce(step, buffers, loss)
        if self._measures(step):  # reduced gradients are alike on all ranks, so this is as well
            powers = [self._powers.get(place) for place in range(len(self._layers))]
            self._take(
                ladder_plans(self._policy, self._layers, self._world, powers, self._current)
            )
        return sent

    def _take(self, plans: tuple[RungPlan, ...]) -> None:
        self._current, self._plan = plans, plans[1]
        if not self._tables or self._tables[-1] != self._plan.bits:
            self._tables.append(self._plan.bits)

    def state_dict(self) -> dict[str, Any]:
        """See `Side.state_dict`."""
        return super().state_dict() | {"tables": self._tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Side.load_state_dict`."""
        super().load_state_dict(state)
        self._tables = [tuple(bits) for bits in state["tables"]]
        if self._tables:
            bits = self._tables[-1]
            self._current = (self._current[0], replace(self._current[1], bits=bits))
            self._plan = self._current[1]

    def about(self) -> dict[str, Any]:
        """See `Side.about`."""
        return {"bits_tables": [list(bits) for bits in self._tables]}
