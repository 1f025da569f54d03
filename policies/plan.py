"""What all ranks do alike until the next regulation: rung, bits per layer, ratio, reserve."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .allocate import allocate_bits
from .compress.bucket import LayerPower
from .spec import Compression, Policy
from .traffic import Traffic

OFF_BITS = 16
DENSE, BF16 = "dense", "bf16"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One parameter tensor of the model."""

    name: str
    elements: int
    depth: float  # 0 input .. 1 head


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The plan in force; the same on every rank."""

    rung: int  # index into the ladder, 0: off, as without an engine
    mode: str  # dense | bf16 | quantise | shared | drop
    bits: tuple[int, ...]  # per layer, 16: bf16
    level: int  # congestion level 0..3 it was made for
    ratio: float  # planned share of gradient bytes not sent, against bf16, side traffic included
    ratio_cap: float  # what the available bandwidth allowed
    reserve: float  # share of bandwidth that routing is asked to keep free
    keep_share: float = 1.0  # mode shared: of the elements of each large layer

    def digest(self) -> int:
        """32 bits over all that ranks must agree on, for the header of each bucket."""
        reserve = round(self.reserve * 1_000_000)
        agreed = (self.rung, self.mode, self.bits, self.level, reserve, self.keep_share)
        return zlib.crc32(repr(agreed).encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class RungPlan:
    """What one rung of the ladder means for a given model and number of ranks."""

    mode: str
    bits: tuple[int, ...]
    ratio: float
    keep_share: float = 1.0


def in_head(layers: Sequence[Layer], head_share: float) -> tuple[bool, ...]:
    """Which layers count as the head: founding document C3's deep layers.

    Counted from the head down, as long as a layer's middle lies within ``head_share`` of all
    elements; the deepest layer in any case, unless the share is 0.

    Args:
        layers: The model's layers, in any order.
        head_share: Share of all elements.

    Returns:
        One flag a layer, in the order given.
    """
    total = sum(layer.elements for layer in layers)
    order = sorted(range(len(layers)), key=lambda i: (-layers[i].depth, -i))
    flags = [False] * len(layers)
    passed = 0
    for place, i in enumerate(order):
        middle = passed + layers[i].elements / 2
        passed += layers[i].elements
        flags[i] = middle <= head_share * total or (place == 0 and head_share > 0)
    return tuple(flags)


def residual_decays(layers: Sequence[Layer], compression: Compression) -> dict[str, float]:
    """Share of its residual that each layer carries into the next round, by name."""
    heads = in_head(layers, compression.head_share)
    return {
        layer.name: compression.residual_decay_head if head else compression.residual_decay
        for layer, head in zip(layers, heads, strict=True)
    }


def layer_bits(
    layers: Sequence[Layer], bits_input: int, bits_head: int, compression: Compression
) -> tuple[int, ...]:
    """Bits of each layer by its depth: the founding document's rule, as a prior.

    The head (`in_head`) gets ``bits_head``. Small tensors stay at 16.

    Args:
        layers: The model's layers, in any order.
        bits_input: Bits near the input.
        bits_head: Bits at the head.
        compression: Where the share and the size limit come from.

    Returns:
        Bits per layer, in the order given.
    """
    heads = in_head(layers, compression.head_share)
    return tuple(
        OFF_BITS
        if layer.elements < compression.dense_below_elements
        else (bits_head if head else bits_input)
        for layer, head in zip(layers, heads, strict=True)
    )


def ladder_plans(
    policy: Policy,
    layers: Sequence[Layer],
    world: int,
    powers: Sequence[LayerPower | None] | None = None,
    current: Sequence[RungPlan] = (),
    *,
    traffic: Traffic | None = None,
) -> tuple[RungPlan, ...]:
    """Each rung of the policy's ladder for one model.

    Args:
        policy: The policy.
        layers: The model's layers.
        world: Ranks.
        powers: What was measured of each layer, for allocation by norms.
        current: The ladder in force, whose tables of bits stay where they are nearly as good.
        traffic: What ranks exchange; by default whole layers in DDP's buckets.

    Returns:
        One record a rung. Rung 0 leaves gradients as they are; another one of 16 bits sends bf16,
        and so does one that would send more than that.
    """
    compression = policy.compression
    plain = RungPlan(mode=DENSE, bits=(OFF_BITS,) * len(layers), ratio=0.0)
    if compression.mode == "off":
        return (plain,)
    elements = [layer.elements for layer in layers]
    if traffic is None:
        traffic = Traffic.of_buckets(elements, world, compression.dense_below_elements)
    narrow = replace(plain, mode=BF16)
    narrow = replace(narrow, ratio=_ratio(narrow, traffic, compression))
    plans = [plain]
    for rung, step in enumerate(compression.ladder[1:], 1):
        bits = layer_bits(layers, step.bits_input, step.bits_head, compression)
        mode = "quantise" if min(bits, default=OFF_BITS) < OFF_BITS else BF16
        if compression.mode == "drop":
            mode = "drop"
        elif step.keep_share < 1.0:
            mode = "shared"
        if mode != "quantise":
            bits = (OFF_BITS,) * len(layers)
        elif compression.allocation == "norms" and powers is not None:
            before = current[rung].bits if rung < len(current) else None
            bits = allocate_bits(
                elements, powers, bits, budget=compression.error_budget, current=before
            )
        made = RungPlan(mode=mode, bits=bits, ratio=0.0, keep_share=step.keep_share)
        made = replace(made, ratio=_ratio(made, traffic, compression))
        if made.ratio <= narrow.ratio and mode in ("quantise", "shared"):
            made = narrow  # small layers, wide blocks: it would send more than it saves
        plans.append(made)
    return tuple(plans)


def _ratio(plan: RungPlan, traffic: Traffic, compression: Compression) -> float:
    return traffic.saved_share(plan.mode, plan.bits, plan.keep_share, compression)
