"""The statistics of a study, against textbooks' ways to the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from xtune.studies import Objective
from xtune.studies._screen import clearly_worse, front, pruned_by, ranked
from xtune.studies._stats import (
    RESOLUTION,
    hold_together,
    p_value,
    recommendation,
    seeds_needed,
    t_interval,
)

TIME = Objective(metric="t")
SHARES = st.lists(st.floats(-0.5, 0.5), min_size=5, max_size=12)


@given(SHARES)
def test_p_is_a_t_test_of_the_shares_moved_by_the_resolution(shares: list[float]) -> None:
    center, spread = np.mean(shares), np.std(shares)
    if spread < 1e-6 or abs(abs(center) - RESOLUTION) < 1e-9:
        return
    moved = [s - math.copysign(RESOLUTION, center) for s in shares]
    want = stats.ttest_1samp(moved, 0.0).pvalue if abs(center) > RESOLUTION else 1.0
    assert p_value(shares) == pytest.approx(want, rel=1e-6)


@given(SHARES)
def test_the_interval_is_student_s(shares: list[float]) -> None:
    if np.std(shares) < 1e-6:
        return
    want = stats.ttest_1samp(shares, 0.0).confidence_interval(0.95)
    assert t_interval(shares)[1:] == pytest.approx((want.low, want.high))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_is_the_textbook_s(chances: list[float]) -> None:
    """Step down: reject the smallest while p (m - rank) is below 5 %, then stop."""
    rows: list[dict[str, Any]] = [
        {"gain_of_best": {"p": p, "told_apart": p < 0.05}} for p in chances
    ]
    hold_together(rows)
    rejected: set[int] = set()
    for rank, i in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        if chances[i] * (len(chances) - rank) >= 0.05:
            break
        rejected.add(i)
    got = {i for i, row in enumerate(rows) if row["gain_of_best"]["told_apart"]}
    assert got == rejected


def test_of_a_family_without_effects_few_say_one() -> None:
    """20 comparisons of noise: the uncorrected test says one in most families, this in few."""
    random = np.random.default_rng(7)
    wrong = plain = 0
    for _ in range(200):
        best = random.normal(100, 1, 6)
        chances = [p_value((random.normal(100, 1, 6) / best - 1).tolist()) for _ in range(20)]
        rows = [{"gain_of_best": {"p": p, "told_apart": p < 0.05}} for p in chances]
        plain += any(row["gain_of_best"]["told_apart"] for row in rows)
        hold_together(rows)
        wrong += any(row["gain_of_best"]["told_apart"] for row in rows)
    assert plain > 60
    assert wrong <= 20


@settings(max_examples=30)
@given(st.floats(0.0005, 0.05), st.floats(-0.05, 0.05))
def test_that_many_seeds_would_settle_it_and_one_fewer_not(sigma: float, center: float) -> None:
    shares = [center - sigma, center + sigma, center, center - sigma, center + sigma]
    needed = seeds_needed(shares)
    gap = abs(abs(float(np.mean(shares))) - RESOLUTION)

    def half(n: int) -> float:
        return float(stats.t.ppf(0.975, n - 1)) * float(np.std(shares, ddof=1)) / math.sqrt(n)

    if needed is None:
        assert half(100_000) >= gap
    else:
        assert half(needed) < gap
        assert needed == 5 or half(needed - 1) >= gap


@pytest.mark.parametrize(
    ("best", "default", "verdict"),
    [
        ([90, 91, 89, 90, 90], [100, 101, 99, 100, 100], "better"),
        ([100, 101, 99, 100, 100], [90, 91, 89, 90, 90], "worse"),
        ([100, 104, 96, 103, 97], [101, 99, 100, 100, 102], "no_difference"),
        ([90, 91], [100, 101], "no_difference"),
        ([100, 100, 100, 100, 100], [100, 100, 100, 100, 100], "no_difference"),
        ([], [100, 100], "no_difference"),
    ],
)
def test_the_recommendation_says_no_more_than_the_seeds_do(
    best: list[float], default: list[float], verdict: str
) -> None:
    said = recommendation(best or None, default, "minimize", "fresh seeds")
    assert said["verdict"] == verdict
    assert (said["seeds_needed"] is None) == (
        verdict != "no_difference" or len(best) < 2
    )  # fmt: skip
    turned = recommendation(best or None, default, "maximize", "fresh seeds")
    opposite = {"better": "worse", "worse": "better"}
    assert turned["verdict"] == opposite.get(verdict, verdict)


def runs(*values: float) -> list[dict[str, float]]:
    return [{"t": v, "u": -v} for v in values]


def test_clearly_worse_by_hand() -> None:
    """t for two degrees of freedom, one-sided 95 %: 2.92."""
    other = runs(100, 102, 98)
    assert clearly_worse(runs(105, 107, 103), other, TIME)  # 5 % on every seed
    assert not clearly_worse(runs(101.9, 103.9, 99.9), other, TIME)  # beyond chance, but 1.9 %
    # 5 on the mean and 2 of deviation: 5 - 2.92 * 2 / 3**0.5 = 1.63 %, under 2 %.
    assert not clearly_worse(runs(103, 107, 105), other, TIME)
    assert not clearly_worse(runs(95, 97, 93), other, TIME)
    assert not clearly_worse(runs(200), runs(100), TIME)  # one seed says nothing
    assert clearly_worse(runs(95, 97, 93), other, Objective(metric="t", direction="maximize"))
    both = (TIME, Objective(metric="u"))
    assert pruned_by(runs(105, 107, 103), {4: other}, (TIME,)) == 4
    assert pruned_by(runs(105, 107, 103), {4: other}, both) is None  # better in the other


POINTS = st.dictionaries(
    st.integers(0, 30), st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12
)


@given(POINTS, st.sampled_from(["minimize", "maximize"]))
def test_front_is_what_nothing_dominates(points: dict[int, tuple[int, int]], second: Any) -> None:
    objectives = (TIME, Objective(metric="u", direction=second))
    sign = 1 if second == "minimize" else -1
    want = {
        n
        for n, (a, b) in points.items()
        if not any(
            c <= a and sign * d <= sign * b and (c, d) != (a, b) for c, d in points.values()
        )
    }
    assert set(front(points, objectives)) == want
    order = ranked(points, objectives)
    assert sorted(order) == sorted(points)
    assert points[order[0]][0] == min(a for a, _ in points.values())
    ends = {min(a for a, _ in points.values()), min(sign * b for _, b in points.values())}
    assert {points[order[0]][0], *(sign * points[n][1] for n in order[:2])} >= ends
