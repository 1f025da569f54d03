"""Properties of the block quantiser, and the fused kernels against the reference, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from xtune.policies.compress.codec import Codec, NumbaCodec, TorchCodec
from xtune.policies.compress.layout import LayerTable, Layout
from xtune.policies.compress.quantise import (
    OVERFLOW_BITS,
    TINY,
    dequantise,
    pack,
    planes,
    qmax,
    quantise,
    scales_of,
    unpack,
)

BLOCK = 32
BITS = st.integers(2, 8)
VALUES = arrays(np.float32, (3, BLOCK), elements=st.floats(-(2.0**100), 2.0**100, width=32))
HEADER = 32


@settings(deadline=None)
@given(VALUES, BITS)
def test_error_is_at_most_half_a_scale_and_codes_stay_in_range(
    values: np.ndarray, bits: int
) -> None:
    rows = torch.from_numpy(values)
    codes, scales, _ = quantise(rows, bits)
    back = dequantise(codes, scales, bits)
    levels = codes.to(torch.int64) - (1 << (bits - 1))
    assert int(levels.abs().max()) <= qmax(bits)
    error = (back.double() - rows.double()).abs().amax(dim=1)
    # 1 ulp of fp32 in 1 / scale and in the product; blocks under TINY send nothing at all.
    assert bool((error <= scales.double() * (0.5 + 1e-5) + TINY).all())


@settings(deadline=None)
@given(VALUES, BITS)
def test_value_is_exactly_what_is_sent_plus_what_is_kept(values: np.ndarray, bits: int) -> None:
    rows = torch.from_numpy(values)
    codes, scales, residual = quantise(rows, bits)
    sent = dequantise(codes, scales, bits).double()
    assert torch.equal(sent + residual.double(), rows.double())


@settings(deadline=None)
@given(VALUES, BITS)
def test_sign_is_symmetric(values: np.ndarray, bits: int) -> None:
    rows = torch.from_numpy(values)
    plus, minus = quantise(rows, bits), quantise(-rows, bits)
    assert torch.equal(plus[1], minus[1])
    assert torch.equal(dequantise(*plus[:2], bits), -dequantise(*minus[:2], bits))


@settings(deadline=None)
@given(VALUES, st.integers(2, 6))
def test_quantising_twice_changes_nothing(values: np.ndarray, bits: int) -> None:
    """Up to 6 bits: with more the rounded-up scale may leave the top code unused."""
    once = dequantise(*quantise(torch.from_numpy(values), bits)[:2], bits)
    twice = dequantise(*quantise(once, bits)[:2], bits)
    assert torch.equal(once, twice)


@settings(deadline=None)
@given(arrays(np.float32, (20,), elements=st.floats(0, float(2**127), width=32)), BITS)
def test_scale_is_bf16_rounded_up(absmax: np.ndarray, bits: int) -> None:
    scales = scales_of(torch.from_numpy(absmax), bits).numpy()
    assert np.array_equal(
        scales, torch.from_numpy(scales).to(torch.bfloat16).to(torch.float32).numpy()
    )
    for magnitude, scale in zip(absmax.astype(np.float64), scales.astype(np.float64), strict=True):
        if magnitude < TINY:
            assert scale == 0
        else:
            exact = magnitude / qmax(bits)
            assert exact * (1 - 1e-7) <= scale <= exact * (1 + 2.0**-7)


@given(arrays(np.uint8, (2, 64)), BITS)
def test_packing_is_planar_and_lossless(codes: np.ndarray, bits: int) -> None:
    narrow = torch.from_numpy(codes & ((1 << bits) - 1))
    packed = pack(narrow, bits)
    assert packed.shape == (2, 64 * bits // 8)
    assert torch.equal(unpack(packed, bits, 64), narrow)


def test_nibbles_lie_half_a_block_apart() -> None:
    codes = torch.zeros((1, 256), dtype=torch.uint8)
    codes[0, 3], codes[0, 3 + 128] = 5, 9
    packed = pack(codes, 4)
    assert packed[0, 3] == 5 | 9 << 4
    assert int(packed.sum()) == 5 + (9 << 4)


def test_planes_add_up() -> None:
    assert [planes(bits) for bits in (2, 3, 5, 7, 8)] == [(2,), (2, 1), (4, 1), (4, 2, 1), (8,)]


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-38, 2.0**-101])
def test_block_too_small_to_scale_is_kept_whole(tiny: float) -> None:
    rows = torch.full((1, BLOCK), tiny)
    codes, scales, residual = quantise(rows, 4)
    assert float(scales[0]) == 0
    assert bool((codes == 8).all())
    assert torch.equal(residual, rows)


def test_largest_values_do_not_overflow_the_scale() -> None:
    rows = torch.full((1, BLOCK), float(np.nextafter(np.float32(2.0**127), np.float32(0))))
    for bits in range(2, 9):
        codes, scales, _ = quantise(rows, bits)
        assert bool(torch.isfinite(dequantise(codes, scales, bits)).all())


Made = Callable[..., Codec]


def _table(world: int, block: int = 64) -> LayerTable:
    return LayerTable(
        names=("a", "b", "c", "d"),
        elements=(700, 64, 4097, 1024),
        world=world,
        block=block,
        dense_below=100,
    )


def _round(
    made: Made,
    layout: Layout,
    seed: int,
    spread: float,
    gain: float,
    poison: float,
    carry: bool = True,
    keep: bool = True,
) -> tuple[list[Tensor], list[int | None]]:
    """All ranks' messages, residuals, shares and results of one exchange, without a network."""
    random = np.random.default_rng(seed)
    world, block = layout.world, layout.block
    tensors: list[Tensor] = []
    worsts: list[int | None] = []
    messages = []
    for rank in range(world):
        codec = made(world=world, rank=rank, block=block)
        message = torch.zeros(world * layout.payload, dtype=torch.uint8)
        for place in layout.places:
            values = random.standard_normal(place.elements, dtype=np.float32)
            values *= np.float32(10.0 ** random.uniform(-spread, spread))
            values[: block + 3] = -0.0
            if rank == 0 and place.name == "a":
                values[:] = 0
            if rank == 1 and place.name == "d":
                values[5] = poison
            residual = torch.from_numpy(random.standard_normal(place.blocks * block)).float()
            fresh = torch.zeros(place.blocks * block)
            worsts.append(
                codec.encode(
                    place,
                    torch.from_numpy(values),
                    residual if carry else None,
                    gain,
                    fresh if keep else None,
                    message,
                    layout.payload,
                )
            )
            if np.isfinite(values).all():
                tensors.append(fresh)
        messages.append(message)
    if not np.isfinite(poison):
        return tensors, worsts
    shares = []
    for rank in range(world):
        codec = made(world=world, rank=rank, block=block)
        received = torch.cat([m.view(world, -1)[rank] for m in messages])
        share = torch.zeros(HEADER + layout.payload, dtype=torch.uint8)
        for place in layout.places:
            size = int(place.owned[rank]) * block
            residual = torch.from_numpy(random.standard_normal(size)).float()
            fresh = torch.zeros(size)
            worsts.append(
                codec.reduce(
                    place,
                    received,
                    layout.payload,
                    residual if carry else None,
                    gain,
                    fresh if keep else None,
                    share,
                    HEADER,
                )
            )
            tensors.append(fresh)
        shares.append(share)
    gathered = torch.cat(shares)
    for place in layout.places:
        out = torch.empty(place.elements)
        made(world=world, rank=0, block=block).decode(
            place, gathered, HEADER + layout.payload, HEADER, out
        )
        tensors.append(out)
    return [*tensors, *messages, *shares], worsts


@pytest.mark.parametrize("poison", [1.0, np.nan, -np.inf])
@pytest.mark.parametrize(
    ("world", "bits"),
    [(1, (4, 4, 8, 8)), (2, (8, 4, 4, 16)), (3, (2, 3, 5, 6)), (4, (4, 16, 7, 4))],
)
def test_kernels_and_reference_give_the_same_bits(
    world: int, bits: tuple[int, ...], poison: float
) -> None:
    layout = _table(world).layout((3, 2, 1, 0), bits)
    for seed, (spread, gain) in enumerate([(0.0, 0.5), (20.0, 0.3), (36.0, 1.0)]):
        ours = _round(NumbaCodec, layout, seed, spread, gain, poison)
        reference = _round(TorchCodec, layout, seed, spread, gain, poison)
        assert ours[1] == reference[1]
        for mine, theirs in zip(ours[0], reference[0], strict=True):
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("block", [16, 48, 256])
@pytest.mark.parametrize("bits", range(2, 9))
def test_any_bits_and_block_with_and_without_residuals_give_the_same_bits(
    bits: int, block: int
) -> None:
    """Odd halves of a block, tails, odd counts of blocks; layer a is 0 on rank 0 of 1 or 3."""
    for world in (1, 3):
        layout = _table(world, block).layout((0, 1, 2, 3), (bits,) * 4)
        for seed, (carry, keep) in enumerate(itertools.product((False, True), repeat=2)):
            ours = _round(NumbaCodec, layout, seed, 8.0, 0.3, 1.0, carry, keep)
            reference = _round(TorchCodec, layout, seed, 8.0, 0.3, 1.0, carry, keep)
            assert ours[1] == reference[1]
            for mine, theirs in zip(ours[0], reference[0], strict=True):
                assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("made", [NumbaCodec, TorchCodec])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -(2.0**127)])
def test_a_value_that_is_not_finite_is_noticed_wherever_it_is(made: Made, bad: float) -> None:
    layout = _table(2).layout((0,), (4,))
    place = layout.places[0]
    for position in (0, 63, 64, 699):
        values = torch.ones(place.elements)
        values[position] = bad
        message = torch.zeros(2 * layout.payload, dtype=torch.uint8)
        worst = made(world=2, rank=0, block=64).encode(
            place, values, None, 1.0, None, message, layout.payload
        )
        assert worst is not None
        assert worst >= OVERFLOW_BITS
