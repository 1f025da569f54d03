"""All destinations at once, against one chunk at a time, bit for bit, in both back-ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from xtune.policies.compress.chunk_codec import HELD, ChunkCodec, NumbaChunks, TorchChunks
from xtune.policies.compress.codec import TorchCodec
from xtune.policies.compress.layout import LayerTable, Layout
from xtune.policies.compress.quantise import OVERFLOW_BITS
from xtune.policies.compress.residual import Feedback

BACKENDS = (NumbaChunks, TorchChunks)


@dataclass(frozen=True)
class Case:
    """Chunks of some layers for some ranks, and what was rounded away before."""

    world: int
    layout: Layout
    chunks: Tensor  # (world, width)
    residuals: tuple[Tensor | None, ...]
    keep: bool

    def padded(self, place: int) -> int:
        """Elements of a chunk in whole blocks."""
        return self.layout.places[place].blocks * self.layout.block


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Sizes around those of a block; some chunks all 0, some layers without a residual."""
    block = draw(st.sampled_from((16, 32, 256)))
    world = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 3 * block + 1), min_size=1, max_size=5))
    bits = [draw(st.integers(2, 8)) for _ in sizes]
    table = LayerTable(
        names=tuple(map(str, range(len(sizes)))), elements=tuple(sizes), world=1, block=block,
        dense_below=1,
    )  # fmt: skip
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    chunks = random.standard_normal((world, sum(sizes))).astype(np.float32)
    chunks *= np.float32(10.0) ** random.integers(-40, 30, (world, 1)).astype(np.float32)
    layout = table.layout(tuple(range(len(sizes))), bits)
    residuals: list[Tensor | None] = []
    for place in layout.places:
        columns = chunks[:, place.offset : place.offset + place.elements]
        columns[random.random(world) < 0.3] = 0
        rest = random.standard_normal(world * place.blocks * block).astype(np.float32)
        residuals.append(torch.from_numpy(rest) if random.random() < 0.7 else None)
    keep = draw(st.booleans())
    return Case(world, layout, torch.from_numpy(chunks), tuple(residuals), keep)


def gain(place: int) -> float:
    """Another one for each layer."""
    return 0.3 + 0.1 * place


def one_by_one(case: Case) -> tuple[Tensor, list[Tensor], list[int]]:
    """Messages, new residuals and worst magnitudes, of a codec that knows single chunks."""
    layout = case.layout
    codec = TorchCodec(world=1, rank=0, block=layout.block)
    messages = torch.zeros(case.world, layout.payload, dtype=torch.uint8)
    fresh, worst = [], []
    for i, place in enumerate(layout.places):
        rows, found = [], []
        for rank, message in enumerate(messages):
            old = case.residuals[i]
            waits = None if old is None else old.view(case.world, -1)[rank]
            new = torch.zeros(case.padded(i))
            got = codec.encode(
                place, case.chunks[rank, place.offset : place.offset + place.elements], waits,
                gain(i), new, message, layout.payload,
            )  # fmt: skip
            if got is None and waits is not None:
                new = waits
            rows.append(new)
            found.append(HELD if got is None else got)
        fresh.append(torch.cat(rows))
        worst.append(max(found))
    return messages, fresh, worst


def at_once(codec: ChunkCodec, case: Case, step: int) -> tuple[Tensor, list[Tensor], list[int]]:
    """The same of the codec under test, ``step`` destinations a call."""
    layout = case.layout
    messages = torch.full((case.world, layout.payload), 255, dtype=torch.uint8)
    fresh = [torch.full((case.world * case.padded(i),), 7.0) for i in range(len(layout.places))]
    feedback = [
        Feedback(residual=old, gain=gain(i), fresh=new if case.keep else None)
        for i, (old, new) in enumerate(zip(case.residuals, fresh, strict=True))
    ]
    worst = [HELD] * len(fresh)
    for first in range(0, case.world, step):
        rows = slice(first, first + step)
        found = codec.encode(layout.places, case.chunks[rows], 0, feedback, messages[rows], first)
        worst = [max(pair) for pair in zip(worst, found, strict=True)]
    return messages, fresh, worst


@settings(deadline=None, max_examples=60)
@given(cases(), st.integers(1, 5))
def test_chunks_are_encoded_as_one_by_one(case: Case, step: int) -> None:
    messages, fresh, worst = one_by_one(case)
    for backend in BACKENDS:
        got = at_once(backend(block=case.layout.block), case, step)
        assert torch.equal(got[0], messages)
        assert got[2] == worst
        for new, expected in zip(got[1], fresh, strict=True):
            assert torch.equal(new, expected if case.keep else torch.full_like(new, 7.0))


def sums_agree(layout: Layout, messages: Tensor, factor: float) -> bool:
    """With single chunks, decoded and added in rank order."""
    codec = TorchCodec(world=1, rank=0, block=layout.block)
    width = sum(place.elements for place in layout.places)
    expected = torch.zeros(width)
    for place in layout.places:
        total, values = torch.zeros(place.elements), torch.zeros(place.elements)
        for message in messages:
            codec.decode(place, message, layout.payload, 0, values)
            total += values
        expected[place.offset : place.offset + place.elements] = total * factor
    same = True
    for backend in BACKENDS:
        out = torch.full((width,), 7.0)
        backend(block=layout.block).sum(layout.places, messages, factor, out)
        same = same and torch.equal(out, expected)
    return same


@settings(deadline=None, max_examples=60)
@given(cases(), st.sampled_from((1.0, 1 / 3, -0.125)))
def test_sums_are_of_decoded_chunks_in_rank_order(case: Case, factor: float) -> None:
    """In fp32: the order matters, ranks being orders of magnitude apart."""
    messages, _, _ = one_by_one(case)
    assert sums_agree(case.layout, messages, factor)


@pytest.mark.parametrize("block", [16, 48, 256, 5120])
def test_sums_of_more_than_stays_in_the_cache(block: int) -> None:
    """Tiles end within layers, between them, and are smaller than a block."""
    sizes = (5000, 40, 9001, 2 * 4096)
    table = LayerTable(
        names=("a", "b", "c", "d"), elements=sizes, world=1, block=block, dense_below=1
    )
    layout = table.layout((3, 1, 0, 2), (4, 5, 8, 4))
    chunks = torch.randn(3, sum(sizes), generator=torch.Generator().manual_seed(0))
    case = Case(3, layout, chunks * torch.tensor([[1.0], [300.0], [9e4]]), (None,) * 4, False)
    messages, _, _ = at_once(NumbaChunks(block=block), case, 3)
    assert torch.equal(messages, one_by_one(case)[0])
    assert sums_agree(layout, messages, 1 / 3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf, 2.0**127])
def test_one_bad_value_for_one_destination_is_found(
    backend: type[NumbaChunks | TorchChunks], bad: float
) -> None:
    table = LayerTable(names=("a", "b"), elements=(40, 20), world=1, block=16, dense_below=1)
    layout = table.layout((0, 1), (4, 8))
    chunks = torch.ones(3, 60)
    own = [Feedback(residual=None, gain=1.0, fresh=None)] * 2
    messages = torch.zeros(3, layout.payload, dtype=torch.uint8)
    one = int(torch.tensor(1.0).view(torch.int32))
    assert backend(block=16).encode(layout.places, chunks, 0, own, messages, 0) == [one, one]
    chunks[1, 39] = bad
    worst = backend(block=16).encode(layout.places, chunks, 0, own, messages, 0)
    assert worst[0] >= OVERFLOW_BITS
    assert worst[1] == one


@pytest.mark.parametrize("backend", BACKENDS)
def test_some_layers_at_an_origin_leave_the_others_alone(
    backend: type[NumbaChunks | TorchChunks],
) -> None:
    table = LayerTable(
        names=("a", "b", "c"), elements=(17, 33, 16), world=1, block=16, dense_below=1
    )
    layout = table.layout((0, 1, 2), (4, 4, 4))
    chunks = torch.randn(2, 66, generator=torch.Generator().manual_seed(0))
    own = Feedback(residual=None, gain=1.0, fresh=None)
    whole, pieces = torch.zeros(2, 2, layout.payload, dtype=torch.uint8)
    codec = backend(block=16)
    codec.encode(layout.places, chunks, 0, [own] * 3, whole, 0)
    for place in layout.places:
        columns = chunks[:, place.offset : place.offset + place.elements].contiguous()
        codec.encode([place], columns, place.offset, [own], pieces, 0)
    assert torch.equal(whole, pieces)
    out = torch.full((66,), 7.0)
    codec.sum(layout.places[1:2], whole, 1.0, out)
    assert bool((out[:17] == 7.0).all()) and bool((out[50:] == 7.0).all())
    assert bool((out[17:50] != 7.0).all())


def test_a_residual_of_another_size_is_refused() -> None:
    table = LayerTable(names=("a",), elements=(40,), world=1, block=16, dense_below=1)
    layout = table.layout((0,), (4,))
    messages = torch.zeros(3, layout.payload, dtype=torch.uint8)
    for residual in (torch.zeros(3 * 48 - 1), torch.zeros(3 * 48, dtype=torch.bfloat16)):
        own = Feedback(residual=residual, gain=1.0, fresh=None)
        with pytest.raises(ValueError, match="residual"):
            NumbaChunks(block=16).encode(layout.places, torch.ones(3, 40), 0, [own], messages, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bf16_is_summed_in_rank_order(backend: type[NumbaChunks | TorchChunks]) -> None:
    """Of 2^24, 1, 1 and -2^24 nothing is left, and of 1, 1, 2^24 and -2^24 two."""
    big, count = 2.0**24, 10_000  # more than stays in the cache
    values = torch.tensor([[big, 1.0], [1.0, 1.0], [1.0, big], [-big, -big]])
    values = torch.cat([values, torch.tensor([[-0.5], [0.25], [0.125], [2.0**-20]])], dim=1)
    messages = torch.full((4, 6 + 2 * 3 * count), 255, dtype=torch.uint8)
    section = values.repeat(1, count).to(torch.bfloat16)
    messages[:, 6:] = section.view(torch.uint8)
    out = torch.full((3 * count,), 7.0)
    backend(block=16).sum_bf16(messages, 6, -0.5, out)
    expected = torch.tensor([0.0, -1.0, -0.5 * (-0.125 + 2.0**-20)])
    assert torch.equal(out, expected.repeat(count))
