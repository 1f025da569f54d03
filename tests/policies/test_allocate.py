from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies.allocate import WIDTHS, allocate_bits, relative_error, total_error
from xtune.policies.compress.bucket import Bucket, LayerPower
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.quantise import quantise
from xtune.policies.compress.statistics import layer_powers

BLOCK = 256


def power(peak: float) -> LayerPower:
    """A layer whose error at full width is ``peak`` times that of one with peak 1."""
    return LayerPower(squares=1.0, peaks=peak)


def measured(values: torch.Tensor) -> LayerPower:
    table = LayerTable(
        names=("w",), elements=(values.numel(),), world=2, block=BLOCK, dense_below=1
    )
    return layer_powers(Bucket(index=0, layers=(0,), buffer=values), table)[0]


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("shape", ["normal", "laplace", "uniform"])
def test_the_expected_error_is_that_of_the_quantiser(bits: int, shape: str) -> None:
    draw = getattr(np.random.default_rng(1), shape)
    values = torch.from_numpy(draw(size=BLOCK * 200).astype(np.float32))
    _, _, rest = quantise(values.view(-1, BLOCK), bits)
    real = float(rest.double().square().sum() / values.double().square().sum())
    # Scales are rounded up by up to 2^-7, and at few bits steps are not small.
    near = 0.2 if bits == 3 else 0.1
    assert relative_error(measured(values), bits) == pytest.approx(real, rel=near)


def test_powers_of_a_layer_with_a_tail_by_hand() -> None:
    values = torch.zeros(BLOCK + 2)
    values[3], values[BLOCK], values[BLOCK + 1] = -2.0, 3.0, -1.0
    assert measured(values) == LayerPower(squares=14.0, peaks=BLOCK * (4.0 + 9.0))
    assert measured(torch.zeros(5)) == LayerPower(squares=0.0, peaks=0.0)


def test_layers_alike_get_bits_alike_and_spiky_ones_get_more() -> None:
    elements = (1000, 1000, 1000, 1000)
    powers = [power(8.0), power(8.0), power(8.0 * 16), power(8.0 * 16)]
    bits = allocate_bits(elements, powers, (6, 6, 6, 6), budget=1.0)
    assert max(bits[:2]) < min(bits[2:])
    assert abs(bits[0] - bits[1]) <= 1 >= abs(bits[2] - bits[3])


def best_by_trial(
    elements: list[int], powers: list[LayerPower], prior: list[int], budget: float
) -> int:
    """Fewest bits of all tables within the budget."""
    allowed = budget * total_error(elements, powers, prior)
    return min(
        sum(n * b for n, b in zip(elements, bits, strict=True))
        for bits in itertools.product(WIDTHS, repeat=len(elements))
        if total_error(elements, powers, bits) <= allowed * (1 + 1e-12)
    )


@settings(deadline=None, max_examples=60)
@given(
    layers=st.lists(
        st.tuples(st.integers(4096, 100_000), st.floats(1, 256), st.sampled_from(WIDTHS)),
        min_size=1,
        max_size=4,
    ),
    budget=st.floats(0.5, 4),
)
def test_within_the_budget_and_near_the_best(
    layers: list[tuple[int, float, int]], budget: float
) -> None:
    elements, peaks, prior = (list(column) for column in zip(*layers, strict=True))
    powers = [power(peak) for peak in peaks]
    bits = allocate_bits(elements, powers, prior, budget=budget)
    allowed = budget * total_error(elements, powers, prior)
    sent = sum(n * b for n, b in zip(elements, bits, strict=True))
    if set(bits) == {8} or bits == tuple(prior):  # no table errs less, or the prior is as good
        assert budget >= 1 or set(bits) == {8}
        return
    assert total_error(elements, powers, bits) <= allowed * (1 + 1e-9)
    if budget >= 1:
        assert sent < sum(n * b for n, b in zip(elements, prior, strict=True))
    # The last step that does not fit costs at most one bit of the largest layer.
    assert sent <= best_by_trial(elements, powers, prior, budget) + max(elements)


def test_a_budget_below_the_priors_own_error_takes_more_bits() -> None:
    elements, powers = (1000, 1000), [power(8.0), power(8.0)]
    bits = allocate_bits(elements, powers, (4, 4), budget=0.1)
    assert total_error(elements, powers, bits) <= 0.1 * total_error(elements, powers, (4, 4))
    assert min(bits) > 4
    assert allocate_bits(elements, powers, (8, 8), budget=0.1) == (8, 8)


def test_what_is_not_known_or_not_quantised_keeps_its_prior() -> None:
    elements = (5000, 5000, 100, 5000)
    powers = [power(8.0), None, power(8.0), LayerPower(squares=0.0, peaks=0.0)]
    bits = allocate_bits(elements, powers, (4, 8, 16, 4), budget=6.0)
    assert bits[1:] == (8, 16, 4)
    assert bits[0] < 4


def test_a_table_that_is_nearly_as_good_stays() -> None:
    elements = (1000, 1000)
    powers = [power(8.0), power(8.0 * 16)]
    first = allocate_bits(elements, powers, (6, 6), budget=1.0)
    near = [power(8.0 * 1.03), power(8.0 * 16 * 0.99)]
    assert allocate_bits(elements, near, (6, 6), budget=1.0, current=first) == first
    turned = [power(8.0 * 16), power(8.0)]
    assert allocate_bits(elements, turned, (6, 6), budget=1.0, current=first) == first[::-1]
    assert allocate_bits(elements, powers, (6, 16), budget=1.0, current=first)[1] == 16
