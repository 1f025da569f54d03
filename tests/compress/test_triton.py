"""The Triton kernels in Triton's interpreter, on CPU tensors: the bits of the reference.

The checks run in processes of their own; see :mod:`.interpreter`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from xtune.policies.compress.bucket import Bucket
from xtune.policies.compress.channel import Channel
from xtune.policies.compress.codec import Codec, NumbaCodec, TorchCodec
from xtune.policies.compress.header import Header
from xtune.policies.compress.layout import LayerTable, Layout
from xtune.policies.compress.quantise import OVERFLOW_BITS, TINY
from xtune.policies.compress.residual import ResidualStore
from xtune.policies.compress.two_phase import TwoPhase
from xtune.policies.compress.workspace import Workspace

from .interpreter import Interpreters
from .ranks import run

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton has no build for this system"
    ),
    pytest.mark.xdist_group("triton"),  # one pair of processes
]

BLOCK = 64
LEAD = 32  # bytes before a share, as in front of a header
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EVERY_BITS = ((2, 3, 4, 5), (6, 7, 8, 4))


def _triton(*, world: int, rank: int, block: int) -> Any:
    from xtune.policies.compress.triton_codec import TritonCodec

    return TritonCodec(world=world, rank=rank, block=block)


def _layout(world: int, bits: tuple[int, ...], block: int = BLOCK) -> Layout:
    """Four layers: a tail, several programs, less than a block, whole blocks."""
    table = LayerTable(
        names=("a", "b", "c", "d"),
        elements=(11 * block - 5, 35 * block + 1, block - 1, 16 * block),
        world=world,
        block=block,
        dense_below=1,
    )
    return table.layout((3, 1, 0, 2), bits)


def _gradient(random: np.random.Generator, elements: int, block: int, spread: float) -> Tensor:
    """Normal values of a random magnitude, with blocks of zeros, of tiny values and of ties."""
    values = random.standard_normal(elements, dtype=np.float32)
    values *= np.float32(10.0 ** random.uniform(-spread, spread))
    values[block : 2 * block] = -0.0
    tiny = values[2 * block : 3 * block]
    tiny[:] = random.uniform(-1, 1, len(tiny)) * TINY / 2
    ties = values[3 * block : 4 * block]
    ties[:] = random.integers(-14, 15, len(ties)) / np.float32(2.0)
    return torch.from_numpy(values)


class Rank:
    """What one rank's codec made of the same inputs."""

    def __init__(self, codec: Codec, layout: Layout) -> None:
        self.codec, self.layout = codec, layout
        self.message = torch.zeros(layout.world * layout.payload, dtype=torch.uint8)
        self.share = torch.zeros(LEAD + layout.payload, dtype=torch.uint8)
        self.worsts: list[int | None] = []
        self.tensors: dict[str, Tensor] = {}

    def encode(
        self,
        gradients: dict[str, Tensor],
        residuals: dict[str, Tensor],
        gain: float,
        *,
        keep: bool,
    ) -> None:
        for place in self.layout.places:
            fresh = torch.zeros(place.blocks * self.layout.block) if keep else None
            worst = self.codec.encode(
                place, gradients[place.name], residuals.get(place.name), gain, fresh,
                self.message, self.layout.payload,
            )  # fmt: skip
            self.worsts.append(worst)
            if fresh is not None and worst is not None:  # else it is recycled unread
                self.tensors[f"fresh {place.name}"] = fresh

    def reduce(
        self, received: Tensor, residuals: dict[str, Tensor], gain: float, *, keep: bool
    ) -> None:
        for place in self.layout.places:
            size = int(place.owned[self.codec.rank]) * self.layout.block
            fresh = torch.zeros(size) if keep else None
            residual = residuals[place.name][:size] if residuals else None
            self.worsts.append(
                self.codec.reduce(
                    place, received, self.layout.payload, residual, gain, fresh, self.share, LEAD
                )
            )
            if fresh is not None:
                self.tensors[f"owner {place.name}"] = fresh

    def decode(self, gathered: Tensor, dtype: torch.dtype) -> None:
        for place in self.layout.places:
            out = torch.empty(place.elements, dtype=dtype)
            self.codec.decode(place, gathered, LEAD + self.layout.payload, LEAD, out)
            self.tensors[f"out {place.name}"] = out


def _same(ours: Rank, reference: Rank) -> None:
    assert ours.worsts == reference.worsts
    assert torch.equal(ours.message, reference.message)
    assert torch.equal(ours.share, reference.share)
    assert ours.tensors.keys() == reference.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert torch.equal(tensor.view(torch.uint8), reference.tensors[name].view(torch.uint8)), (
            name
        )


def _compare(
    world: int, bits: tuple[int, ...], block: int, dtype: torch.dtype, carry: bool, keep: bool
) -> bool:
    """A whole exchange without a network, on all ranks, by both back-ends."""
    layout = _layout(world, bits, block)
    random = np.random.default_rng((world, *bits, block))
    pairs = [
        (
            _triton(world=world, rank=rank, block=block),
            TorchCodec(world=world, rank=rank, block=block),
        )
        for rank in range(world)
    ]
    ranks = [tuple(Rank(codec, layout) for codec in pair) for pair in pairs]
    spread = 3.0 if dtype == torch.float16 else 20.0
    for number, both in enumerate(ranks):
        gradients = {
            place.name: _gradient(random, place.elements, block, spread).to(dtype)
            for place in layout.places
        }
        if number == 0:
            gradients["a"].zero_()  # unused here
        gradients["c"].zero_()  # unused everywhere
        residuals = {
            place.name: torch.from_numpy(
                random.standard_normal(place.blocks * block, dtype=np.float32)
            )
            for place in layout.places
        }
        for one in both:
            one.encode(gradients, residuals if carry else {}, 0.3, keep=keep)
    messages = [ours.message.view(world, -1) for ours, _ in ranks]
    for number, both in enumerate(ranks):
        received = torch.cat([message[number] for message in messages])
        for one in both:
            one.reduce(received, residuals if carry else {}, 0.7, keep=keep)
    gathered = torch.cat([ours.share for ours, _ in ranks])
    for both in ranks:
        for one in both:
            one.decode(gathered, dtype)
        _same(*both)
    return True


@pytest.mark.parametrize(
    ("world", "bits", "dtype", "carry", "keep"),
    [
        (1, EVERY_BITS[0], torch.float32, True, True),
        (1, EVERY_BITS[1], torch.float32, True, True),
        (2, EVERY_BITS[0], torch.bfloat16, True, True),
        (3, EVERY_BITS[1], torch.float16, False, True),
        (4, (4, 4, 8, 3), torch.float32, False, False),
    ],
)
def test_same_bits_as_the_reference(
    interpreters: Interpreters,
    world: int,
    bits: tuple[int, ...],
    dtype: torch.dtype,
    carry: bool,
    keep: bool,
) -> None:
    assert interpreters.call(_compare, world, bits, BLOCK, dtype, carry, keep)


@pytest.mark.slow
@pytest.mark.parametrize("block", [16, 32, 128, 256, 512, 2048])
def test_same_bits_as_the_reference_for_other_blocks(
    interpreters: Interpreters, block: int
) -> None:
    for world, bits, dtype in zip((2, 3), EVERY_BITS, DTYPES[:2], strict=True):
        assert interpreters.call(_compare, world, bits, block, dtype, True, True)


def _ties(bits: int) -> list[list[float]]:
    """Values and what is decoded of them, where the scale is 1 or 2^-20 exactly."""
    largest = (1 << (bits - 1)) - 1
    values = torch.zeros(2 * BLOCK)
    halves = torch.arange(-largest, largest) + 0.5
    values[: min(BLOCK - 1, len(halves))] = halves[: BLOCK - 1]
    values[BLOCK - 1] = largest
    values[BLOCK:] = values[:BLOCK] * 2.0**-20
    table = LayerTable(names=("a",), elements=(2 * BLOCK,), world=1, block=BLOCK, dense_below=1)
    layout = table.layout((0,), (bits,))
    codec = _triton(world=1, rank=0, block=BLOCK)
    message = torch.zeros(layout.payload, dtype=torch.uint8)
    out = torch.empty(2 * BLOCK)
    codec.encode(layout.places[0], values, None, 1.0, None, message, layout.payload)
    codec.decode(layout.places[0], message, layout.payload, 0, out)
    return [values.tolist(), out.tolist()]


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_ties_go_to_the_even_code(interpreters: Interpreters, bits: int) -> None:
    values, decoded = interpreters.call(_ties, bits)
    for i, value in enumerate(values):
        unit = 1.0 if i < BLOCK else 2.0**-20
        assert decoded[i] == round(value / unit) * unit  # Python rounds half to even


def _conserved(bits: int) -> float:
    """Largest difference between a value and what is sent plus what is kept of it."""
    layout = _layout(2, (bits,) * 4)
    codec = _triton(world=2, rank=0, block=BLOCK)
    random = np.random.default_rng(bits)
    off = 0.0
    for place in layout.places:
        gradient = _gradient(random, place.elements, BLOCK, 6.0)
        message = torch.zeros(2 * layout.payload, dtype=torch.uint8)
        fresh = torch.empty(place.blocks * BLOCK)
        codec.encode(place, gradient, None, 1.0, fresh, message, layout.payload)
        sent = torch.empty(place.elements)
        codec.decode(place, message, layout.payload, 0, sent)
        both = sent.double() + fresh[: place.elements].double()
        off = max(off, float((both - gradient.double()).abs().max()))
        assert not bool(fresh[place.elements :].any())
    return off


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_value_is_exactly_what_is_sent_plus_what_is_kept(
    interpreters: Interpreters, bits: int
) -> None:
    assert interpreters.call(_conserved, bits) == 0.0


def _added(dtype: torch.dtype) -> bool:
    codec, reference = (
        _triton(world=3, rank=0, block=BLOCK),
        TorchCodec(world=3, rank=0, block=BLOCK),
    )
    random = np.random.default_rng(1)
    layout = _layout(3, (4, 7, 4, 8))
    message = torch.zeros(3 * layout.payload, dtype=torch.uint8)
    for place in layout.places:
        gradient = _gradient(random, place.elements, BLOCK, 0.5)
        reference.encode(place, gradient, None, 1.0, None, message, layout.payload)
    for place in layout.places:
        total = torch.from_numpy(random.standard_normal(place.elements)).to(dtype)
        values = torch.empty(place.elements)
        reference.decode(place, message, layout.payload, 0, values)
        expected = (total.float() + values).to(dtype)
        codec.decode_add(place, message, layout.payload, 0, total)
        assert torch.equal(total, expected)
    return True


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_added_in_fp32(interpreters: Interpreters, dtype: torch.dtype) -> None:
    assert interpreters.call(_added, dtype)


def _poisoned(bad: float, in_residual: bool) -> list[int]:
    layout = _layout(2, (4,) * 4)
    place = next(place for place in layout.places if place.name == "b")
    codec = _triton(world=2, rank=0, block=BLOCK)
    worsts = []
    for position in (0, BLOCK, place.elements - 1):
        values, residual = torch.ones(place.elements), torch.zeros(place.blocks * BLOCK)
        (residual if in_residual else values)[position] = bad
        message = torch.zeros(2 * layout.payload, dtype=torch.uint8)
        fresh = torch.empty(place.blocks * BLOCK)
        worst = codec.encode(place, values, residual, 1.0, fresh, message, layout.payload)
        worsts.append(worst)
    return worsts


@pytest.mark.parametrize("in_residual", [False, True])
@pytest.mark.parametrize("bad", [np.nan, -np.inf, -(2.0**127)])
def test_a_value_that_is_not_finite_is_noticed_wherever_it_is(
    interpreters: Interpreters, bad: float, in_residual: bool
) -> None:
    assert min(interpreters.call(_poisoned, bad, in_residual)) >= OVERFLOW_BITS


def _refuses(block: int) -> str:
    try:
        _triton(world=1, rank=0, block=block)
    except ValueError as refused:
        return str(refused)
    return ""


def test_a_block_that_is_no_power_of_two_is_refused(interpreters: Interpreters) -> None:
    assert "power of two" in interpreters.call(_refuses, 48)
    assert interpreters.call(_refuses, 16) == ""


def _exchange(rank: int, world: int, made: str) -> list[list[float]]:
    """Three steps of the two-phase exchange over gloo; what each of them reduced."""
    table = LayerTable(
        names=("a", "b", "c"), elements=(700, 2000, 50), world=world, block=BLOCK, dense_below=100
    )
    make: Callable[..., Codec] = _triton if made == "triton" else NumbaCodec
    group = dist.group.WORLD
    assert group is not None
    store = ResidualStore(decay=0.5, enabled=True)
    two_phase = TwoPhase(
        Channel(group), table, make(world=world, rank=rank, block=BLOCK), store, Workspace()
    )
    two_phase.warm_up()
    random = np.random.default_rng(rank)
    reduced = []
    for step in range(3):
        values = torch.from_numpy(random.standard_normal(2750, dtype=np.float32))
        bucket = Bucket(index=0, layers=(0, 1, 2), buffer=values)
        digest = two_phase.digest(bucket, (4, 8, 4))
        assert two_phase.prepare(bucket)
        outcome = two_phase.transfer(bucket, Header(step=step, bucket=0, digest=digest))
        assert outcome.finite
        assert not outcome.failed
        assert outcome.error is None
        store.commit()
        reduced.append(values.tolist())  # a tensor would be shared with a process that has ended
    return reduced


def test_it_stands_in_for_the_cpu_kernels_in_the_exchange(interpreters: Interpreters) -> None:
    ours, cpu = interpreters.ranks(_exchange, "triton"), run(2, _exchange, "numba")
    assert ours[0] == cpu[0]
    assert ours[0] == ours[1]
