"""What all actuators have in common, shown by the simulated one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies.actuators.base import Unavailable, apportion, checked
from xtune.policies.actuators.simulated import Simulated


class Broken(Simulated):
    """One that lacks something."""

    def check(self) -> str | None:
        return "no such fabric"


def test_shares_hold_until_the_block_ends() -> None:
    simulated = Simulated([1, 1])
    with simulated as actuator:
        actuator.apply([1, 3])
        assert simulated.shares == [0.25, 0.75]
        with pytest.raises(ValueError, match="3 shares for 2 paths"):
            actuator.apply([1, 1, 1])
        assert simulated.shares == [0.25, 0.75]
    assert simulated.shares == [0.5, 0.5]


def test_what_is_missing_is_said_before_anything_is_done() -> None:
    with pytest.raises(Unavailable, match="simulated: no such fabric"), Broken([1.0]):
        pytest.fail("must not begin")


@pytest.mark.parametrize("shares", [[], [0, 0], [1, -1], [1, math.nan], [1, math.inf],
                                    ["a", 1], [None, 1], [10**400, 1]])  # fmt: skip
def test_shares_that_cannot_be(shares: list[Any]) -> None:
    with pytest.raises(ValueError, match="share"):
        checked(shares, len(shares))


def test_large_shares_are_shares() -> None:
    assert checked([1e308, 1e308], 2) == [0.5, 0.5]
    assert checked([1, 3], 2) == [0.25, 0.75]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any), st.integers(0, 300))
def test_dealing_out_keeps_the_sum_and_the_shares(parts: list[int], count: int) -> None:
    shares = checked(parts, len(parts))
    dealt = apportion(shares, count)
    assert sum(dealt) == count
    assert all(abs(n - share * count) < 1 for n, share in zip(dealt, shares, strict=True))
