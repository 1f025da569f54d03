"""Shares of rails by what they carried, and what a host lacks for them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.policies.actuators.rails import LEAST_SHARE, Meter, Rail, shares_by_speed, unusable

SPEED = st.none() | st.floats(1e3, 1e11)
RAIL = st.tuples(SPEED, st.booleans(), st.sampled_from([0.0, 0.25, 0.5, 1.0]))


def test_in_proportion_to_speed_and_wish() -> None:
    assert shares_by_speed([3e9, 1e9], [True, True], [1, 1]) == [0.75, 0.25]
    assert shares_by_speed([3e9, 1e9], [True, True], [0.25, 0.75]) == [0.5, 0.5]
    assert shares_by_speed([3e9, 1e9], [False, True], [1, 1]) == [0.0, 1.0]
    assert shares_by_speed([3e9, 1e9], [True, True], [0, 1]) == [0.0, 1.0]
    assert shares_by_speed([None, None], [True, True], [1, 1]) == [0.5, 0.5]
    # What is unknown counts as the mean of the others: 2, 1 and 3 of 6.
    shares = shares_by_speed([None, 1e9, 3e9], [True] * 3, [1] * 3)
    assert shares == pytest.approx([2 / 6, 1 / 6, 3 / 6])
    slow = shares_by_speed([1.0, 1e9], [True, True], [1, 1])
    assert slow[0] == pytest.approx(LEAST_SHARE / (1 + LEAST_SHARE))
    assert shares_by_speed([1e9, 1e9], [False, False], [1, 1]) == [0.0, 0.0]


@given(st.lists(RAIL, min_size=1, max_size=8))
def test_all_is_shared_among_those_that_live_and_are_wanted(
    rails: list[tuple[float | None, bool, float]],
) -> None:
    speeds, alive, wanted = zip(*rails, strict=True)
    shares = shares_by_speed(speeds, alive, wanted)
    used = [up and want > 0 for up, want in zip(alive, wanted, strict=True)]
    assert [share > 0 for share in shares] == used
    assert math.fsum(shares) == pytest.approx(1.0 if any(used) else 0.0)
    least = LEAST_SHARE / (1 + LEAST_SHARE * len(rails))
    assert all(share >= least for share, use in zip(shares, used, strict=True) if use)


def test_a_meter_knows_the_last_speed_of_each_rail() -> None:
    meter = Meter(3)
    assert meter.speeds() == [None, None, None]
    meter.add(0, 600, 2.0)
    meter.add(0, 300, 1.0)
    meter.add(1, 100, 0.0)  # no time was measured
    assert meter.speeds() == [300.0, None, None]
    meter.renew()
    meter.add(2, 50, 0.5)
    assert meter.speeds() == [300.0, None, 100.0]
    meter.add(0, 10, 1.0)
    assert meter.speeds() == [10.0, None, 100.0]
    assert meter.sent_bytes == [910, 100, 50]


@pytest.mark.parametrize(
    ("rail", "missing"),
    [
        (Rail(interface="lo"), None),
        (Rail(address="127.0.0.9"), None),
        (Rail(interface="xtune-none"), "no interface xtune-none"),
        (Rail(interface="xtune-none", address="127.0.0.1"), "no interface xtune-none"),
        (Rail(address="198.51.100.7"), "no address 198.51.100.7"),
        (Rail(address="no address at all"), "no address no address at all"),
        (Rail(), "a rail names neither an interface nor an address"),
    ],
)
def test_what_a_host_lacks_is_named(rail: Rail, missing: str | None) -> None:
    assert unusable([Rail(interface="lo"), rail]) == missing
