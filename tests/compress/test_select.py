"""Selections: against sorting, and there and back through the message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies.compress import select
from xtune.policies.compress.wire import shared_index_bytes


@settings(deadline=None, max_examples=200)
@given(data=st.data(), elements=st.integers(1, 600))
def test_the_largest_are_those_that_sorting_gives(data: st.DataObject, elements: int) -> None:
    kind = data.draw(st.sampled_from(["normal", "few values", "zeros", "wide"]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = generator.standard_normal(elements).astype(np.float32)
    if kind == "few values":
        values = generator.integers(-2, 3, elements).astype(np.float32)
    elif kind == "zeros":
        values[:] = 0
    elif kind == "wide":
        values *= np.exp2(generator.integers(-120, 120, elements)).astype(np.float32)
    count = data.draw(st.integers(1, elements))
    order = np.argsort(-np.abs(values), kind="stable")[:count]  # of equal ones the first
    assert select.largest(values, count).tolist() == sorted(order.tolist())


def test_infinity_and_nan_count_as_large() -> None:
    values = np.array([1, np.nan, -np.inf, 3, 2], dtype=np.float32)
    assert select.largest(values, 2).tolist() == [1, 2]
    assert select.largest(values, 3).tolist() == [1, 2, 3]


@given(elements=st.integers(1, 3000), share=st.floats(0.001, 1), step=st.integers(0, 2**40))
def test_a_draw_is_the_same_everywhere_and_goes_through_the_message(
    elements: int, share: float, step: int
) -> None:
    count = max(1, int(share * elements))
    places = select.drawn(elements, count, step=step, layer=3)
    assert places.tolist() == select.drawn(elements, count, step=step, layer=3).tolist()
    assert len(set(places.tolist())) == count
    assert places.min() >= 0
    assert places.max() < elements
    message = select.pack(places, elements)
    assert message.nbytes == shared_index_bytes(elements, count)
    assert select.unpack(message, elements, count).tolist() == places.tolist()


def test_draws_differ_by_step_and_layer_and_reach_every_place() -> None:
    first = select.drawn(1000, 100, step=1, layer=0)
    assert first.tolist() != select.drawn(1000, 100, step=2, layer=0).tolist()
    assert first.tolist() != select.drawn(1000, 100, step=1, layer=1).tolist()
    counts = np.zeros(100)
    for step in range(2000):
        counts[select.drawn(100, 10, step=step, layer=0)] += 1
    # 200 expected, standard deviation sqrt(2000 * 0.1 * 0.9) = 13.4.
    assert abs(counts - 200).max() < 5 * 13.4


@pytest.mark.parametrize("change", ["more", "outside"])
def test_a_damaged_selection_is_refused(change: str) -> None:
    places = np.array([1, 5], dtype=np.int64)
    if change == "more":
        message = select.pack(np.array([1, 5, 6]), 40)
        with pytest.raises(ValueError, match="3 places where there should be 2"):
            select.unpack(message, 40, 2)
    else:
        message = select.pack(places, 1000)
        message.view("<u4")[1] = 1000
        with pytest.raises(ValueError, match="outside"):
            select.unpack(message, 1000, 2)
