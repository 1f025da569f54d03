"""Other widths than the engine ships: equal to it where the widths are equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from xtune.proofs.methods import EngineSide, NormsSide, methods
from xtune.proofs.ranks import Ranks, layers_of
from xtune.proofs.two_widths import TwoWidthsSide

ELEMENTS = [5000, 300, 9000, 4096]
LAYERS = layers_of(["a", "b", "c", "d"], ELEMENTS)
BUCKETS = [(3, 2), (1, 0)]
SIZES = [13_096, 5300]


def gradients(world: int, step: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(step)
    return [[torch.randn(n, generator=generator) for n in SIZES] for _ in range(world)]


@pytest.mark.parametrize("name", ["q4_g0.5", "q4_8_g1"])
def test_with_equal_widths_it_is_the_engine(name: str) -> None:
    method, ranks = methods()[name], Ranks(3)
    ours = [TwoWidthsSide(method, c, LAYERS, BUCKETS) for c in ranks.channels()]
    engine = [EngineSide(method, c, LAYERS, BUCKETS) for c in ranks.channels()]
    for step in range(4):
        mine, theirs = gradients(3, step), gradients(3, step)
        sent = ranks.run(lambda r, s=step, b=mine: ours[r].reduce(s, b[r], None))  # type: ignore[misc]
        expected = ranks.run(lambda r, s=step, b=theirs: engine[r].reduce(s, b[r], None))  # type: ignore[misc]
        assert sent == expected
        for a, b in zip(mine, theirs, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    ranks.close()


def test_a_wider_second_phase_sends_more_and_errs_less() -> None:
    errors, bytes_ = [], []
    for name in ("q4_g0.5", "q4_second8_g0.5"):
        method, ranks = replace(methods()[name], gain=None), Ranks(2)
        sides = [TwoWidthsSide(method, c, LAYERS, BUCKETS) for c in ranks.channels()]
        buffers = gradients(2, 0)
        exact = [(a.double() + b.double()) / 2 for a, b in zip(*buffers, strict=True)]
        bytes_.append(ranks.run(lambda r, s=sides, b=buffers: s[r].reduce(0, b[r], None))[0])  # type: ignore[misc]
        ranks.close()
        pairs = zip(buffers[0], exact, strict=True)
        errors.append(float(sum((x.double() - y).square().sum() for x, y in pairs)))
    # Two roundings: the first averaged over two ranks, the second of a mean of half the power.
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.1)
    assert bytes_[0] < bytes_[1] < 2 * bytes_[0]


def test_bits_by_norms_change_with_what_was_measured() -> None:
    method, ranks = methods()["norms_g0.5"], Ranks(2)
    sides = [NormsSide(method, c, LAYERS, BUCKETS) for c in ranks.channels()]
    before = sides[0]._plan.bits
    buffers = gradients(2, 0)
    for rank in range(2):
        buffers[rank][0][4096:] *= torch.linspace(0, 1, 9000) ** 20  # few large values in a block
    sent = ranks.run(lambda r: sides[r].reduce(0, buffers[r], None))
    assert sides[0]._plan.bits != before
    assert sides[0]._plan.bits == sides[1]._plan.bits
    again = NormsSide(method, ranks.channels()[0], LAYERS, BUCKETS)
    again.load_state_dict(sides[0].state_dict())
    assert again._plan.bits == sides[0]._plan.bits
    assert sent[0] == sent[1]
    ranks.close()
