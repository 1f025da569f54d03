"""What all ranks do alike until the next regulation: rung, bits per layer, ratio, reserve."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from .allocate import allocate_bits
from .compress import wire
from .compress.bucket import LayerPower
from .spec import Compression, Policy

OFF_BITS = 16
DENSE, BF16 = "dense", "bf16"
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
    scatters: bool = False,
) -> tuple[RungPlan, ...]:
    """Each rung of the policy's ladder for one model.

    Args:
        policy: The policy.
        layers: The model's layers.
        world: Ranks.
        powers: What was measured of each layer, for allocation by norms.
        current: The ladder in force, whose tables of bits stay where they are nearly as good.
        scatters: What is summed stays with its owner, as in a sharded model.

    Returns:
        One record a rung. Rung 0 leaves gradients as they are; another one of 16 bits sends bf16,
        and so does one that would send more than that.
    """
    compression = policy.compression
    plain = RungPlan(mode=DENSE, bits=(OFF_BITS,) * len(layers), ratio=0.0)
    if compression.mode == "off":
        return (plain,)
    elements = [layer.elements for layer in layers]
    narrow = replace(plain, mode=BF16)
    ratio = partial(
        _scatter_ratio if scatters else planned_ratio,
        elements=elements,
        world=world,
        compression=compression,
    )
    narrow = replace(narrow, ratio=ratio(narrow))
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
        made = replace(made, ratio=ratio(made))
        if made.ratio <= narrow.ratio and mode in ("quantise", "shared"):
            made = narrow  # small layers, wide blocks: it would send more than it saves
        plans.append(made)
    return tuple(plans)


def planned_ratio(
    plan: RungPlan, elements: Sequence[int], world: int, compression: Compression
) -> float:
    """Share of gradient bytes that a plan does not send, against bf16, with DDP's buckets.

    Args:
        plan: Mode, bits and share of elements.
        elements: Of each layer.
        world: Ranks.
        compression: Block size and size limits.
    """
    ranks = max(world, FEWEST_RANKS)
    small = compression.dense_below_elements
    if plan.mode == "drop":
        keep = compression.drop_keep_share
        buckets = [sum(elements[i] for i in bucket) for bucket in wire.ddp_buckets(elements)]
        sent = sum(wire.drop_wire_bytes(size, keep, ranks) for size in buckets)
    elif plan.mode == "shared":
        sent = wire.shared_plan_bytes(
            elements,
            plan.keep_share,
            ranks,
            dense_below=small,
            seeded=compression.selection == "seeded",
        )
    else:
        sent = wire.plan_wire_bytes(
            elements, plan.bits, ranks, compression.block, dense_below=small
        )
    dense = wire.dense_bytes(sum(elements), ranks, wire.BF16_BYTES)
    return wire.saved_share(sent, dense) or 0.0


def _scatter_ratio(
    plan: RungPlan, elements: Sequence[int], world: int, compression: Compression
) -> float:
    """As `planned_ratio`, of a reduce-scatter of layers that every rank has a shard of."""
    ranks = max(world, FEWEST_RANKS)
    shards = [-(-count // ranks) for count in elements]
    sent = wire.scatter_plan_bytes(
        shards, plan.bits, ranks, compression.block, dense_below=compression.dense_below_elements
    )
    dense = wire.ring_scatter_bytes(ranks * sum(shards) * wire.BF16_BYTES, ranks)
    return wire.saved_share(sent, dense) or 0.0
