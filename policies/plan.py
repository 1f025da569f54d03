"""What all ranks do alike until the next regulation: rung, bits per layer, ratio, reserve."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from .compress import wire
from .spec import Compression, Policy

OFF_BITS = 16
FEWEST_RANKS = 2  # a single rank sends nothing; its ratio is reckoned as if there were two


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One parameter tensor of the model."""

    name: str
    elements: int
    depth: float  # 0 input .. 1 head


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The plan in force; the same on every rank."""

    rung: int  # index into the ladder, 0: off
    mode: str  # dense | bf16 | quantise | drop
    bits: tuple[int, ...]  # per layer, 16: bf16
    level: int  # congestion level 0..3 it was made for
    ratio: float  # planned share of gradient bytes not sent, against bf16, side traffic included
    ratio_cap: float  # what the available bandwidth allowed
    reserve: float  # share of bandwidth that routing is asked to keep free

    def digest(self) -> int:
        """32 bits over all that ranks must agree on, for the header of each bucket."""
        agreed = (self.rung, self.mode, self.bits, self.level, round(self.reserve * 1_000_000))
        return zlib.crc32(repr(agreed).encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class RungPlan:
    """What one rung of the ladder means for a given model and number of ranks."""

    mode: str
    bits: tuple[int, ...]
    ratio: float


def layer_bits(
    layers: Sequence[Layer], bits_input: int, bits_head: int, compression: Compression
) -> tuple[int, ...]:
    """Bits of each layer by its depth: the founding document's rule, as a prior.

    Counted from the head down, layers get ``bits_head`` as long as their middle lies within
    ``head_share`` of all elements; the deepest layer gets them in any case, unless the share is
    0. Small tensors stay at 16.

    Args:
        layers: The model's layers, in any order.
        bits_input: Bits near the input.
        bits_head: Bits at the head.
        compression: Where the share and the size limit come from.

    Returns:
        Bits per layer, in the order given.
    """
    total = sum(layer.elements for layer in layers)
    order = sorted(range(len(layers)), key=lambda i: (-layers[i].depth, -i))
    bits = [bits_input] * len(layers)
    passed = 0
    for place, i in enumerate(order):
        elements = layers[i].elements
        middle = passed + elements / 2
        passed += elements
        within = middle <= compression.head_share * total
        if within or (place == 0 and compression.head_share > 0):
            bits[i] = bits_head
        if elements < compression.dense_below_elements:
            bits[i] = OFF_BITS
    return tuple(bits)


def ladder_plans(policy: Policy, layers: Sequence[Layer], world: int) -> tuple[RungPlan, ...]:
    """Each rung of the policy's ladder for one model.

    Args:
        policy: The policy.
        layers: The model's layers.
        world: Ranks.

    Returns:
        One record a rung; rung 0 is uncompressed.
    """
    compression = policy.compression
    if compression.mode == "off":
        return (RungPlan(mode="dense", bits=(OFF_BITS,) * len(layers), ratio=0.0),)
    ranks = max(world, FEWEST_RANKS)
    elements = [layer.elements for layer in layers]
    dense = wire.dense_bytes(sum(elements), ranks, wire.BF16_BYTES)
    plans = []
    for rung, step in enumerate(compression.ladder):
        if compression.mode == "drop":
            bits = (OFF_BITS,) * len(layers)
            mode = "drop" if rung else "bf16"
        else:
            bits = layer_bits(layers, step.bits_input, step.bits_head, compression)
            mode = "quantise" if min(bits, default=OFF_BITS) < OFF_BITS else "bf16"
        if mode == "drop":
            sent = sum(
                wire.drop_wire_bytes(
                    sum(elements[i] for i in bucket), compression.drop_keep_share, ranks
                )
                for bucket in wire.ddp_buckets(elements)
            )
        else:
            sent = wire.plan_wire_bytes(
                elements,
                bits,
                ranks,
                compression.block,
                dense_below=compression.dense_below_elements,
            )
        plans.append(RungPlan(mode=mode, bits=bits, ratio=wire.saved_share(sent, dense) or 0.0))
    return tuple(plans)
