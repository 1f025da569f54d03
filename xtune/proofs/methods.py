"""The methods under comparison, and one rank's side of each of the engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from xtune.policies.compress import wire
from xtune.policies.compress.bucket import Bucket
from xtune.policies.compress.exchange import Exchange
from xtune.policies.compress.residual import OWNER, WORKER
from xtune.policies.ladder import Rung
from xtune.policies.plan import Layer, ladder_plans
from xtune.policies.spec import Compression, Policy
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
    kind: str  # dense | bf16 | quantise | drop | drop_residual | powersgd | regulated
    bits_input: int = 16
    bits_head: int = 16
    gain: float | None = None  # of the residual; None: no error feedback
    block: int = 256
    keep_share: float | None = None  # of mode drop; None: as many bytes as q4_8
    rank: int = 0  # of PowerSGD

    @property
    def compression(self) -> Compression:
        """The policy's section of it, in force from the first iteration."""
        rung = Rung(name="only", bits_input=self.bits_input, bits_head=self.bits_head)
        return Compression(
            mode="drop" if self.kind == "drop" else "quantise",
            ladder=(Rung(name="off", bits_input=16, bits_head=16), rung),
            rung_by_level=(1, 1, 1, 1),
            warmup_iterations=0,
            block=self.block,
            error_feedback=self.gain is not None,
            residual_decay=0.0 if self.gain is None else self.gain,
            drop_keep_share=self.keep_share or 0.35,
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
        _quantised(8, 0.5, 64),
        *(_quantised(4, gain, 64) for gain in (0.5, 1.0, None)),
        Method(name="regulated", label="regulated, scripted congestion", kind="regulated"),
    ]
    return {row.name: row for row in rows}


def bits_of(method: Method, layers: Sequence[Layer], world: int) -> tuple[str, tuple[int, ...]]:
    """Mode of the exchange and planned bits per layer, from the policy's own ladder."""
    if method.kind == "dense":
        return "dense", (16,) * len(layers)
    policy = Policy(name="proof", compression=method.compression)
    plan = ladder_plans(policy, layers, world)[1]
    return plan.mode, plan.bits


def planned_bytes(method: Method, layers: Sequence[Layer], buckets: Buckets, world: int) -> int:
    """Bytes one rank sends in an iteration of a quantised method, by the wire formula."""
    compression = method.compression
    return wire.plan_wire_bytes(
        [layer.elements for layer in layers],
        bits_of(method, layers, world)[1],
        world,
        compression.block,
        dense_below=compression.dense_below_elements,
        buckets=buckets,
    )


def equal_keep_share(elements: Sequence[int], world: int, budget: int) -> float:
    """The largest share that dropping may keep of each bucket within some bytes an iteration.

    Args:
        elements: of each bucket.
        world: ranks.
        budget: bytes one rank may send.
    """
    low, high = 1e-6, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        sent = sum(wire.drop_wire_bytes(count, middle, world) for count in elements)
        low, high = (middle, high) if sent <= budget else (low, middle)
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
        self.exchange: Exchange = build_exchange(
            channel, layers, method.compression, keep_share=keep_share
        )
        self._mode, self._bits = bits_of(method, layers, channel.world)
        self._buckets = buckets

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """See `Side.reduce`."""
        sent = 0
        for index, (layers, buffer) in enumerate(zip(self._buckets, buffers, strict=True)):
            reduced = self.exchange.reduce(
                Bucket(index=index, layers=layers, buffer=buffer),
                step=step,
                mode=self._mode,
                bits=self._bits,
                loss=loss,
            )
            if reduced.failed or not reduced.finite:
                raise RuntimeError(f"step {step}, bucket {index} was not reduced as planned")
            sent += reduced.wire_bytes
        return sent

    def state_dict(self) -> dict[str, Any]:
        """See `Side.state_dict`."""
        return {"residual": self.exchange.store.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Side.load_state_dict`."""
        residual = state["residual"]
        sizes = {
            (kind, name): kept.numel()
            for kind in (WORKER, OWNER)
            for name, kept in residual[kind].items()
        }
        self.exchange.store.load_state_dict(residual, sizes)

    def about(self) -> dict[str, Any]:
        """See `Side.about`."""
        return {}
