"""The byte formulas, against figures worked out by hand and against real buffers."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies.compress import wire
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.quantise import pack


def test_ring_all_reduce() -> None:
    assert wire.dense_bytes(1000, 4, 4) == 6000  # 2 * 3/4 * 4000
    assert wire.dense_bytes(1000, 2, 2) == 2000
    assert wire.dense_bytes(10, 1, 4) == 0
    assert wire.dense_bytes(1, 3, 4) == 6  # 5.33, rounded up
    assert wire.side_bytes(7, 2) == 32 + 56


def test_savings_of_whole_blocks_by_hand() -> None:
    """4 bits and a bf16 scale per 256 are 4.0625 bits: 74.6 % off bf16, 87.3 % off fp32."""
    elements, world = 1 << 24, 8
    sent = wire.plan_wire_bytes([elements], [4], world)
    assert sent == 2 * 7 * (32 + elements * 65 // 128 // world)
    assert round(1 - sent / wire.dense_bytes(elements, world, 2), 3) == 0.746
    assert round(1 - sent / wire.dense_bytes(elements, world, 4), 3) == 0.873


def test_small_layers_travel_as_bf16_in_the_same_message() -> None:
    sent = wire.plan_wire_bytes([512, 100], [8, 8], 2, 256, dense_below=256, buckets=[[1, 0]])
    # Each rank owns one of two blocks: 256 codes + 2 scale bytes; and 50 of 100 bf16 values.
    assert sent == 2 * (32 + 258 + 100)


def test_uneven_blocks_are_padded_to_the_largest_share() -> None:
    sent = wire.plan_wire_bytes([256 * 5], [4], 4, 256, dense_below=1)
    assert sent == 2 * 3 * (32 + 2 * 130)  # 5 blocks on 4 ranks: one rank owns 2


def test_consecutive_layers_are_dealt_out_without_starting_over() -> None:
    """4 layers of one block on 4 ranks: each rank owns one, none is padded."""
    sizes = [256] * 4
    assert wire.block_bases(sizes, world=4, block=256, dense_below=1) == (0, 1, 2, 3)
    sent = wire.plan_wire_bytes(sizes, [4] * 4, 4, dense_below=1, buckets=[[3, 2, 1, 0]])
    assert sent == 2 * 3 * (32 + 130)


def test_dropping_takes_the_shorter_of_bitmap_and_indices() -> None:
    assert wire.drop_payload_bytes(8000, 0.35) == 2800 * 2 + 1000
    assert wire.drop_payload_bytes(8000, 0.01) == 80 * 2 + 80 * 4
    assert wire.drop_wire_bytes(8000, 0.35, 3) == 2 * (32 + 6600)
    # (N-1) (0.35 * 2 + 1/8) against 2 (N-1)/N * 2 bytes an element: dearer where N > 4.85.
    assert wire.drop_wire_bytes(10**6, 0.35, 5) > wire.dense_bytes(10**6, 5, 2)
    assert wire.drop_wire_bytes(10**6, 0.35, 4) < wire.dense_bytes(10**6, 4, 2)


def test_buckets_are_filled_from_the_last_layer() -> None:
    sizes = [100, 200, 300, 400]
    buckets = wire.ddp_buckets(sizes, element_bytes=4, cap_bytes=2000, first_cap_bytes=1)
    assert buckets == [[3], [2, 1], [0]]


def test_a_sharded_models_bytes_by_hand() -> None:
    """Each rank sends every other one a header a call, and what that one's shards take."""
    shards, bits, world = (600, 100, 200, 40), (4, 8, 6, 4), 3
    # 3 blocks of 130 bytes; 100 bf16; 1 block of 194 bytes; 40 bf16, for 120 is under 128.
    expected = 2 * (32 + 390 + 200) + 2 * (32 + 194 + 80)
    calls = [(0, 1), (2, 3)]
    sent = wire.scatter_plan_bytes(shards, bits, world, 256, dense_below=128, calls=calls)
    assert sent == expected
    assert wire.scatter_plan_bytes(shards, bits, world, 256, dense_below=128) == expected - 64
    # 200 * 3 elements are few now, and 100 * 3 were as bf16 anyway.
    few = wire.scatter_plan_bytes(shards, bits, world, 256, dense_below=601)
    assert few == expected - 64 + 2 * (400 - 194)
    assert wire.scatter_plan_bytes(shards, bits, 1, 256) == 0
    # Of whole blocks 4.0625 bits of 16 travel, as in two phases.
    sent = wire.scatter_plan_bytes([1 << 20], [4], 8)
    dense = wire.ring_scatter_bytes(2 * 8 << 20, 8)
    assert round(wire.saved_share(sent, dense) or 0.0, 3) == 0.746


def test_no_ranks_to_send_to() -> None:
    assert wire.plan_wire_bytes([10_000], [4], 1) == 0
    assert wire.saved_share(0, 0) is None


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    st.data(),
    st.sampled_from([1, 2, 3, 5, 8, 64]),
)
def test_layout_is_as_long_as_the_formula_and_nothing_overlaps(
    sizes: list[int], data: st.DataObject, world: int
) -> None:
    block, dense_below = 64, 100
    bits = data.draw(st.lists(st.sampled_from([2, 3, 4, 8, 16]), min_size=len(sizes),
                              max_size=len(sizes)))  # fmt: skip
    table = LayerTable(
        names=tuple(f"layer{i}" for i in range(len(sizes))),
        elements=tuple(sizes),
        world=world,
        block=block,
        dense_below=dense_below,
    )
    order = tuple(reversed(range(len(sizes))))
    layout = table.layout(order, [bits[i] for i in order])
    if world > 1:
        formula = wire.plan_wire_bytes(
            sizes, bits, world, block, dense_below=dense_below, buckets=[order]
        )
        assert formula == 2 * (world - 1) * (wire.HEADER_BYTES + layout.payload)
    written = torch.zeros((world, layout.payload), dtype=torch.int32)
    for place in layout.places:
        one = torch.zeros((1, block), dtype=torch.uint8)
        length = pack(one, place.bits).numel()
        for j in range(place.blocks):
            owner = (place.base + j) % world
            slot = int(place.starts[owner]) + j // world
            assert slot < place.slots
            code = place.code_offset + slot * length
            scale = place.scale_offset + slot * 2
            written[owner, code : code + length] += 1
            written[owner, scale : scale + 2] += 1
        assert int(place.owned.sum()) == place.blocks
    assert not layout.payload or int(written.max()) <= 1
    assert sum(part.elements for part in layout.dense) <= layout.dense_share * world
    covered = [(place.offset, place.elements) for place in layout.places]
    covered += [(part.offset, part.elements) for part in layout.dense]
    ends = [0]
    for offset, elements in sorted(covered):
        assert offset == ends[-1]
        ends.append(offset + elements)
    assert ends[-1] == sum(sizes)
