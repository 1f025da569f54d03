from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from xtune.studies._around import beside


@pytest.mark.parametrize(
    ("value", "allowed", "found"),
    [
        (50, IntDistribution(0, 100), [35, 65]),
        (95, IntDistribution(0, 100), [80, 100]),
        (2, IntDistribution(0, 3), [1, 3]),  # 0.45 to either side is no whole number
        (0, IntDistribution(0, 3), [1]),
        (3, IntDistribution(0, 3), [2]),
        (64, IntDistribution(0, 256, step=64), [0, 128]),
        (10, IntDistribution(1, 1000, log=True), [4, 28]),  # 10 ** (1 -+ 0.45)
        (0.5, FloatDistribution(0.0, 1.0), [0.35, 0.65]),
        (1.0, FloatDistribution(0.0, 1.0), [0.85]),
        ("b", CategoricalDistribution(["a", "b", "c"]), ["a", "c"]),
    ],
)
def test_values_beside_one(value: object, allowed: BaseDistribution, found: list[object]) -> None:
    assert beside(value, allowed) == found


@given(low=st.integers(-5, 5), width=st.integers(1, 40), step=st.integers(1, 5), data=st.data())
def test_neighbours_are_legal_and_others(
    low: int, width: int, step: int, data: st.DataObject
) -> None:
    allowed = IntDistribution(low, low + width * step, step=step)
    value = low + step * data.draw(st.integers(0, width))
    found = beside(value, allowed)
    assert 1 <= len(found) == len(set(found)) <= 2
    assert value not in found
    assert all(allowed._contains(other) for other in found)
