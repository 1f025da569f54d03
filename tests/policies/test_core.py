from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from xtune.policies import _core


def _number(rng: random.Random, low: float, high: float) -> float:
    return math.nan if rng.random() < 0.15 else rng.uniform(low, high)


CASES: dict[str, Callable[[random.Random], tuple[Any, ...]]] = {
    "holt_update": lambda r: (
        _number(r, 0, 1),
        _number(r, -1e-5, 1e-5),
        r.choice([math.nan, 10_000.0, 25_000.0]),
        _number(r, 0, 1),
        r.choice([-1, 0, 1000, 4000, 10_000, 12_345, 25_000, 70_000]),
        r.random(),
        r.random(),
    ),
    "ewma_update": lambda r: (_number(r, 0, 1), _number(r, 0, 1), r.random()),
    "forecast_peak": lambda r: (_number(r, -1, 1), _number(r, -1e-5, 1e-5), r.randrange(10**6)),
    "crosses": lambda r: (
        _number(r, 0, 1),
        _number(r, -1e-5, 1e-5),
        r.randrange(10**6),
        r.random(),
    ),
    "choose_binary": lambda r: (
        r.choice([math.inf, _number(r, 0, 1)]),
        r.choice([math.inf, _number(r, 0, 1)]),
        r.random() < 0.5,
        0.7,
        0.5,
        0.4,
        r.randrange(40_000),
        20_000,
        r.uniform(0, 2),
    ),
    "budget_refill": lambda r: (r.uniform(0, 2), r.randrange(10**6), r.uniform(0, 20), 2.0),
    "strike_update": lambda r: (
        r.randrange(4),
        r.randrange(6),
        r.random() < 0.5,
        r.random() < 0.5,
        3,
        5,
    ),
    "level_update": lambda r: (
        r.randrange(4),
        _number(r, 0.9, 3),
        (1.15, 1.5, 2.5),
        (1.05, 1.3, 2.0),
    ),
    "hash31": lambda r: (r.randrange(2**31), r.randrange(2**31)),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_compiled_function_gives_the_same_bits(name: str) -> None:
    plain = getattr(_core, name)
    compiled = numba.njit(plain)
    rng = random.Random(7)
    for _ in range(400):
        args = CASES[name](rng)
        np.testing.assert_equal(compiled(*args), plain(*args))


def test_compiled_window_slope_gives_the_same_bits() -> None:
    compiled: Any = numba.njit(_core.window_slope)
    rng = random.Random(3)
    for _ in range(200):
        values = [rng.random() for _ in range(6)]
        start = 1_700_000_000_000_000_000
        times = [start + rng.randrange(5) * 10_000 for _ in values]
        count = rng.randrange(7)
        plain = _core.window_slope(values, times, count)
        fast = compiled(np.array(values), np.array(times, np.int64), count)
        np.testing.assert_equal(fast, plain)


def test_holt_series_by_hand() -> None:
    # Readings 0.10, 0.20, 0.40 every 10 us, gains 0.5 and 0.3, worked out on paper:
    # start: level .20, slope .01/us; then predicted .30, level .35, slope .01 + .3 (.015 - .01)
    level, slope, usual = _core.holt_update(math.nan, math.nan, math.nan, 0.10, 0, 0.5, 0.3)
    assert level == 0.10
    assert math.isnan(slope)
    assert math.isnan(usual)
    level, slope, usual = _core.holt_update(level, slope, usual, 0.20, 10_000, 0.5, 0.3)
    assert (level, slope * 1000, usual) == pytest.approx((0.20, 0.010, 10_000))
    level, slope, usual = _core.holt_update(level, slope, usual, 0.40, 10_000, 0.5, 0.3)
    assert (level, slope * 1000, usual) == pytest.approx((0.35, 0.0115, 10_000))
    # A missing reading, then one 20 us after the last good one: predicted .35 + 20 * .0115 = .58,
    # level .58 + .5 (.50 - .58) = .54, slope .0115 + .3 (.19 / 20 - .0115) = .0109
    state = (level, slope, usual)
    assert _core.holt_update(*state, math.nan, 10_000, 0.5, 0.3) == state
    level, slope, usual = _core.holt_update(*state, 0.50, 20_000, 0.5, 0.3)
    assert (level, slope * 1000, usual) == pytest.approx((0.54, 0.0109, 20_000))
    # 2 us later, far sooner than usual: predicted .54 + 2 * .0109 = .5618, level half way to .60
    soon = _core.holt_update(level, slope, usual, 0.60, 2_000, 0.5, 0.3)
    assert soon == pytest.approx((0.5809, slope, 19_500))
    # 60 us later, after twice as many missing as are usual: the slope from .54 to .60 alone
    late = _core.holt_update(level, slope, usual, 0.60, 60_000, 0.5, 0.3)
    assert late == pytest.approx((0.60, 0.06 / 60_000, 60_000))


def test_holt_follows_a_straight_line_exactly_at_irregular_times() -> None:
    rng = random.Random(1)
    level = slope = usual = math.nan
    t = last = 0
    for _ in range(50):
        level, slope, usual = _core.holt_update(
            level, slope, usual, 0.1 + 2e-7 * t, t - last, 0.4, 0.2
        )
        last = t
        t += rng.randrange(1, 30_000)
    assert level == pytest.approx(0.1 + 2e-7 * last)
    assert slope == pytest.approx(2e-7)


def test_window_slope_is_that_of_the_least_squares_line() -> None:
    rng = np.random.default_rng(5)
    times = np.sort(rng.integers(0, 10**6, 8))
    values = rng.random(8)
    expected = np.polyfit(times.astype(float), values, 1)[0]
    shuffled = rng.permutation(8)
    got = _core.window_slope(values[shuffled].tolist(), times[shuffled].tolist(), 8)
    assert got == pytest.approx(expected)


def test_unknown_never_crosses_and_never_moves() -> None:
    assert not _core.crosses(math.nan, 1.0, 200_000, 0.0)
    assert _core.crosses(0.5, 1e-6, 200_000, 0.7)
    assert not _core.crosses(0.5, 1e-6, 199_999, 0.7)
    assert not _core.choose_binary(math.nan, 0.0, False, 0.7, 0.5, 0.4, 10**9, 0, 2.0)
    assert not _core.choose_binary(0.9, math.nan, False, 0.7, 0.5, 0.4, 10**9, 0, 2.0)


SINCE_NS, BUDGET = 10**9, 2.0  # long after the last move, with moves left


@pytest.mark.parametrize(
    ("primary", "alternative", "on_alternative", "expected"),
    [
        (0.70, 0.39, False, True),
        (0.70, 0.40, False, False),  # not cold
        (0.69, 0.00, False, False),  # not warned
        (0.49, 0.00, True, False),  # clear again
        (0.50, 0.00, True, True),  # in between
        (0.60, 0.70, True, False),  # the alternative is warned, and worse
        (0.70, 0.70, True, True),  # no better
        (math.nan, 0.70, True, True),  # of the primary nothing is known
        (0.69, math.nan, True, False),  # of the alternative nothing is known
        (0.70, math.nan, True, True),  # nor is the primary any good
        (math.inf, 0.39, False, True),
        (0.70, math.inf, True, False),
    ],
)
def test_binary_choice(
    primary: float, alternative: float, on_alternative: bool, expected: bool
) -> None:
    got = _core.choose_binary(
        primary, alternative, on_alternative, 0.7, 0.5, 0.4, SINCE_NS, 1000, BUDGET
    )
    assert got is expected
    for since, budget in ((999, 2.0), (1000, 0.99)):
        held = _core.choose_binary(
            primary, alternative, on_alternative, 0.7, 0.5, 0.4, since, 1000, budget
        )
        assert held is on_alternative


def test_level_has_hysteresis() -> None:
    enter, leave = (1.15, 1.5, 2.5), (1.05, 1.3, 2.0)
    level = 0
    seen = []
    for value in (1.1, 1.2, 1.1, 1.04, 2.6, 2.1, 1.9, 1.25, math.nan, 1.0):
        level = _core.level_update(level, value, enter, leave)
        seen.append(level)
    assert seen == [0, 1, 1, 0, 3, 3, 2, 1, 1, 0]


def test_three_strikes_out_and_five_answers_back() -> None:
    state = (0, 0, False)
    history = []
    for lost in (1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0):
        state = _core.strike_update(*state, bool(lost), 3, 5)
        history.append(state[2])
    assert history == [False] * 5 + [True] * 10 + [False]


def test_budget_is_a_bucket() -> None:
    assert _core.budget_refill(0.5, 100_000, 10.0, 2.0) == pytest.approx(1.5)
    assert _core.budget_refill(1.9, 10**9, 10.0, 2.0) == 2.0


def test_hash_spreads_evenly() -> None:
    counts = np.bincount([_core.hash31(i, 11) % 16 for i in range(16_000)], minlength=16)
    # chi-squared with 15 degrees of freedom: 37.7 is exceeded once in a thousand
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 37.7
