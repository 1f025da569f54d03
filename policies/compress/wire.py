"""Bytes on the wire, sent per rank: the one place where they are computed.

Codec, simulator and studies share these formulas; the codec's tests hold the real buffers against
them to the byte. Counted: codes, scales, bitmaps, indices, headers, padding, side collectives.
Not counted: framing of the link layer and of the transport.

A bucket is reduced in two phases. Blocks of ``block`` elements, which never straddle two layers,
are dealt out to the ranks in turn over the whole model, so that the rank that sums a block depends
neither on the bucket a layer happens to be in nor on its bits. Each rank sends one message to
every other rank in both phases, all of one size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

HEADER_BYTES = 32
SCALE_BYTES = 2  # bf16
DENSE_BITS = 16  # "bits" of a layer that travels as bf16
BF16_BYTES = 2
FP32_BYTES = 4
INDEX_BYTES = 4
SIDE_BYTES = 8  # one float64 of the side all-reduce
MIB = 1 << 20


def ring_bytes(payload_bytes: int, world: int) -> int:
    """Bytes one rank sends in a ring all-reduce: 2 (N-1)/N of the payload, rounded up."""
    return -(-2 * (world - 1) * payload_bytes // world)


def ring_scatter_bytes(payload_bytes: int, world: int) -> int:
    """Bytes one rank sends in a ring reduce-scatter: (N-1)/N of the payload, rounded up."""
    return -(-(world - 1) * payload_bytes // world)


def dense_bytes(elements: int, world: int, element_bytes: int) -> int:
    """Bytes one rank sends to all-reduce ``elements`` values without compression."""
    return ring_bytes(elements * element_bytes, world)


def control_bytes(world: int) -> int:
    """Bytes of the header round that opens every exchange."""
    return (world - 1) * HEADER_BYTES


def side_bytes(values: int, world: int) -> int:
    """Bytes one rank sends when ranks combine some numbers, once a period: headers, all-reduce."""
    return control_bytes(world) + ring_bytes(values * SIDE_BYTES, world)


def effective_bits(elements: int, bits: int, dense_below: int) -> int:
    """The bits a layer really gets: small tensors travel in bf16 whatever the plan says."""
    return DENSE_BITS if elements < dense_below else bits


def blocks(elements: int, block: int) -> int:
    """Blocks of one layer; its last one is padded with zeros."""
    return -(-elements // block)


def code_bytes(bits: int, block: int) -> int:
    """Bytes of one block's codes."""
    return block * bits // 8


def block_bases(
    layer_elements: Sequence[int], *, world: int, block: int, dense_below: int
) -> tuple[int, ...]:
    """The rank that owns each layer's first block; block ``j`` belongs to ``(base + j) % world``.

    The count runs over the layers in model order; layers that are always dense take no blocks.
    """
    bases = []
    total = 0
    for elements in layer_elements:
        bases.append(total % world)
        if elements >= dense_below:
            total += blocks(elements, block)
    return tuple(bases)


def owned_blocks(count: int, base: int, world: int) -> np.ndarray:
    """How many of a layer's ``count`` blocks each rank owns: int64 of shape (world,)."""
    owned = np.full(world, count // world, dtype=np.int64)
    owned[(base + np.arange(count % world)) % world] += 1
    return owned


def payload_bytes(
    elements: Sequence[int], bits: Sequence[int], bases: Sequence[int], *, world: int, block: int
) -> int:
    """Bytes of one rank's share of a bucket, without header: codes, scales, padding, bf16 part.

    Args:
        elements: of each layer of the bucket.
        bits: effective bits of each layer (16: bf16).
        bases: first owner of each layer, from :func:`block_bases`.
        world: ranks.
        block: elements that share a scale.
    """
    owned: dict[int, np.ndarray] = {}
    dense = 0
    for count, width, base in zip(elements, bits, bases, strict=True):
        if width == DENSE_BITS:
            dense += count
            continue
        share = owned_blocks(blocks(count, block), base, world)
        owned[width] = owned[width] + share if width in owned else share
    total = -(-dense // world) * BF16_BYTES
    for width, share in owned.items():
        total += int(share.max()) * (code_bytes(width, block) + SCALE_BYTES)
    return total


def two_phase_bytes(payload: int, world: int) -> int:
    """Bytes one rank sends for one bucket: a header and a share to each other rank, twice."""
    return 2 * (world - 1) * (HEADER_BYTES + payload)


def scatter_bytes(shards: Sequence[int], bits: Sequence[int], world: int, block: int) -> int:
    """Bytes one rank sends to reduce and scatter the gradients of one module.

    Args:
        shards: elements of each layer's shard, padding included.
        bits: effective bits of each layer (16: bf16).
        world: ranks that a layer is spread over.
        block: elements that share a scale.
    """
    payload = payload_bytes(shards, bits, [0] * len(shards), world=1, block=block)
    return (world - 1) * (HEADER_BYTES + payload)


def ddp_buckets(
    layer_elements: Sequence[int],
    *,
    element_bytes: int = FP32_BYTES,
    cap_bytes: int = 25 * MIB,
    first_cap_bytes: int = MIB,
) -> list[list[int]]:
    """Layer indices of each bucket, as torch DDP builds them: last layer first."""
    buckets: list[list[int]] = []
    current: list[int] = []
    size = 0
    for index in reversed(range(len(layer_elements))):
        current.append(index)
        size += layer_elements[index] * element_bytes
        if size >= (cap_bytes if buckets else first_cap_bytes):
            buckets.append(current)
            current, size = [], 0
    if current:
        buckets.append(current)
    return buckets


def plan_wire_bytes(
    layer_elements: Sequence[int],
    bits: Sequence[int],
    world: int,
    block: int = 256,
    *,
    dense_below: int = 4096,
    buckets: Sequence[Sequence[int]] | None = None,
) -> int:
    """Bytes one rank sends in one iteration under a plan of bits per layer (16: bf16).

    Args:
        layer_elements: elements of each layer, model order.
        bits: planned bits of each layer, same order.
        world: ranks; with one rank nothing is sent.
        block: elements that share a scale.
        dense_below: smaller layers travel in bf16.
        buckets: layer indices of each bucket; default: as DDP would build them.
    """
    if world == 1:
        return 0
    bases = block_bases(layer_elements, world=world, block=block, dense_below=dense_below)
    total = 0
    for bucket in ddp_buckets(layer_elements) if buckets is None else buckets:
        sizes = [layer_elements[i] for i in bucket]
        widths = [effective_bits(layer_elements[i], bits[i], dense_below) for i in bucket]
        payload = payload_bytes(
            sizes, widths, [bases[i] for i in bucket], world=world, block=block
        )
        total += two_phase_bytes(payload, world)
    return total


def kept_elements(elements: int, keep_share: float) -> int:
    """Elements that are kept of a bucket or a layer: at least one, if it has any."""
    return min(elements, max(1, round(elements * keep_share)))


def drop_payload_bytes(elements: int, keep_share: float) -> int:
    """Bytes of one rank's kept values: bf16, with a bitmap or 32-bit indices, the shorter."""
    kept = kept_elements(elements, keep_share)
    return kept * BF16_BYTES + min(-(-elements // 8), kept * INDEX_BYTES)


def drop_wire_bytes(elements: int, keep_share: float, world: int) -> int:
    """Bytes one rank sends for one bucket in mode ``drop``: an all-gather, growing with the world.

    In a ring all-gather each rank passes on what N-1 ranks contributed.
    """
    return control_bytes(world) + (world - 1) * drop_payload_bytes(elements, keep_share)


def broadcast_bytes(size: int, world: int) -> int:
    """Bytes one rank sends, on average over the ranks, when one of them tells all others."""
    return -(-(world - 1) * size // world)


def shared_index_bytes(elements: int, kept: int) -> int:
    """Bytes that tell which of a bucket's elements are sent: a bitmap or 32-bit indices."""
    return min(-(-elements // 8), kept * INDEX_BYTES)


def shared_bucket_bytes(
    large: Sequence[int], small: Sequence[int], keep_share: float, world: int, *, seeded: bool
) -> int:
    """Bytes one rank sends for one bucket in mode ``shared``.

    Headers, the leader's selection unless it is ``seeded``, and the kept values and small layers
    as bf16 in two phases.

    Args:
        large: elements of each layer of which a share is sent.
        small: elements of each layer that is sent whole.
        keep_share: of the elements of each large layer.
        world: ranks.
        seeded: whether each rank draws the selection by itself.
    """
    kept = sum(kept_elements(count, keep_share) for count in large)
    payload = -(-(kept + sum(small)) // world) * BF16_BYTES
    total = two_phase_bytes(payload, world)
    if not seeded and large:
        total += broadcast_bytes(shared_index_bytes(sum(large), kept), world)
    return total


def shared_plan_bytes(
    layer_elements: Sequence[int],
    keep_share: float,
    world: int,
    *,
    dense_below: int,
    seeded: bool,
    buckets: Sequence[Sequence[int]] | None = None,
) -> int:
    """Bytes one rank sends in one iteration in mode ``shared``; see `shared_bucket_bytes`."""
    if world == 1:
        return 0
    total = 0
    for bucket in ddp_buckets(layer_elements) if buckets is None else buckets:
        sizes = [layer_elements[i] for i in bucket]
        large = [count for count in sizes if count and count >= dense_below]
        small = [count for count in sizes if count < dense_below]
        total += shared_bucket_bytes(large, small, keep_share, world, seeded=seeded)
    return total


def dense_bucket_bytes(elements: int, element_bytes: int, world: int) -> int:
    """Bytes one rank sends for one bucket in mode ``dense``: header round and ring all-reduce."""
    return control_bytes(world) + dense_bytes(elements, world, element_bytes)


def saved_share(wire_bytes: int, dense: int) -> float | None:
    """Compression ratio, 1 - wire / dense; None before anything would have been sent."""
    return 1.0 - wire_bytes / dense if dense else None


def scatter_dense_below(dense_below: int, spread: int, block: int) -> int:
    """Elements of a shard below which it travels as bf16.

    Those of a layer under ``dense_below``; and of half a block or less, which at 8 bits would be
    the longer for the padding.

    Args:
        dense_below: of whole layers.
        spread: ranks that a layer is spread over.
        block: elements that share a scale.
    """
    return max(block // 2 + 1, -(-dense_below // spread))


def scatter_plan_bytes(
    shards: Sequence[int],
    bits: Sequence[int],
    world: int,
    block: int = 256,
    *,
    dense_below: int = 4096,
    calls: Sequence[Sequence[int]] | None = None,
) -> int:
    """Bytes one rank sends in one iteration of a sharded model, under a plan of bits per layer.

    One phase, over all ranks that a layer is spread over; see `scatter_bytes`. What they are to
    be held against is ``ring_scatter_bytes(world * sum(shards) * element_bytes, world)``.

    Args:
        shards: elements of each layer's shard, padding included, model order.
        bits: planned bits of each layer, same order (16: bf16).
        world: ranks that a layer is spread over; with one rank nothing is sent.
        block: elements that share a scale.
        dense_below: smaller layers travel in bf16, by their elements over all ranks.
        calls: layer indices of each call, one a module that is sharded by itself; default: one.
    """
    small = scatter_dense_below(dense_below, world, block)
    widths = [
        effective_bits(count, width, small) for count, width in zip(shards, bits, strict=True)
    ]
    return sum(
        scatter_bytes([shards[i] for i in call], [widths[i] for i in call], world, block)
        for call in ([range(len(shards))] if calls is None else calls)
    )
