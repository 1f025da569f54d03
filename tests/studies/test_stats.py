"""The statistics of a study, against textbooks' ways to the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from xtune.studies import Objective
from xtune.studies._screen import clearly_worse, front, pruned_by, ranked
from xtune.studies._stats import (
    RESOLUTION,
    against,
    figures,
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


@pytest.mark.parametrize(
    ("center", "error"), [(0.004, None), (0.0, None), (-0.004, (0.001, 0.0005))]
)
def test_that_many_seeds_settle_it_four_times_in_five(
    center: float, error: tuple[float, float] | None
) -> None:
    """Drawn anew, with the interval of :func:`recommendation`, within 6 % of it; less do less."""
    random = np.random.default_rng(3)
    pilot = np.array([-1.0, 1.0, 0.5, -0.5, 0.0, 0.0])
    pilot = center + pilot * 0.003 / pilot.std(ddof=1)
    needed = seeds_needed(pilot.tolist(), error)
    assert needed is not None
    assert needed > 6

    def settled(n: int) -> float:
        draws = random.normal(center, 0.003, (4000, n))
        half = stats.t.ppf(0.975, n - 1) * draws.std(axis=1, ddof=1) / math.sqrt(n)
        bias, sd = error or (0.0, 0.0)
        half = np.sqrt(half**2 + bias**2 + (1.96 * sd) ** 2)
        mean = draws.mean(axis=1)
        beyond = np.abs(mean) - half > RESOLUTION
        return float(np.mean(beyond | (np.abs(mean) + half < RESOLUTION)))

    assert settled(needed) == pytest.approx(0.8, abs=0.06)
    assert settled(max(2, needed // 2)) < 0.7


@given(SHARES)
def test_more_seeds_are_asked_for_than_there_are(shares: list[float]) -> None:
    needed = seeds_needed(shares)
    assert needed is None or needed > len(shares)


@pytest.mark.parametrize(
    ("best", "default", "verdict", "says"),
    [
        ([90, 91, 89, 90, 90], [100, 101, 99, 100, 100], "better", "Use the tuned"),
        ([100, 101, 99, 100, 100], [90, 91, 89, 90, 90], "worse", "Keep the default"),
        ([100, 104, 96, 103, 97], [101, 99, 100, 100, 102], "no_difference", "80 % chance"),
        ([90, 91], [100, 101], "no_difference", "80 % chance"),
        ([100, 100, 100, 100, 100], [100, 100, 100, 100, 100], "no_difference", "Equal within"),
        ([100.02, 99.98, 100, 100, 100], [100, 100, 100, 100, 100], "no_difference", "Equal with"),
        ([100], [100], "no_difference", "Not said: there are not enough seeds"),
        ([1, 1], [0, 1], "no_difference", "Not said: the default's figure is 0"),
    ],
)
def test_the_recommendation_says_no_more_than_the_seeds_do(
    best: list[float], default: list[float], verdict: str, says: str
) -> None:
    said = recommendation(best, default, "minimize", "fresh seeds")
    assert said["verdict"] == verdict
    assert says in said["text"]
    assert (said["seeds_needed"] is not None) == ("80 %" in says)
    turned = recommendation(best, default, "maximize", "fresh seeds")
    opposite = {"better": "worse", "worse": "better"}
    assert turned["verdict"] == opposite.get(verdict, verdict)


def test_the_simulator_s_own_error_decides_too() -> None:
    """10 % on every seed, against a bias of 8 % and a deviation of 5 %, of the 90 % left."""
    best, default = [90.0, 90.9, 89.1, 90.0, 90.0], [100.0, 101.0, 99.0, 100.0, 100.0]
    said = recommendation(best, default, "minimize", "fresh seeds", (0.08, 0.05))
    assert said["verdict"] == "no_difference"
    assert "the simulator's own error stays" in said["text"]
    difference = said["difference"]
    half = 0.9 * math.sqrt(0.08**2 + (1.96 * 0.05) ** 2)
    assert difference["low"] == pytest.approx(0.1 - half, abs=1e-6)
    assert difference["high"] == pytest.approx(0.1 + half, abs=1e-6)
    assert difference["over_seeds"]["low"] == pytest.approx(0.1, abs=1e-6)
    assert recommendation(best, default, "minimize", "", (0.01, 0.01))["verdict"] == "better"


def test_a_figure_holds_bias_and_deviation_in_quadrature() -> None:
    """By hand, with an interval over seeds of 100 [97, 104]: halves 3 and 4, and the error's 4."""
    found = figures([1.0], (-2.4, 3.2 / 1.96), lambda _: (100.0, 97.0, 104.0))
    assert (found["low"], found["high"]) == pytest.approx((95.0, 100 + 4 * 2**0.5))
    assert found["over_seeds"] == {"low": 97.0, "high": 104.0}
    assert found["own_error"] == {"bias": -2.4, "sd": 3.2 / 1.96}
    plain = figures([1.0, 3.0])
    assert plain["own_error"] is None
    assert plain["over_seeds"] == {"low": plain["low"], "high": plain["high"]}
    one = figures([1.0], (0.1, 0.1))  # of one seed nothing is known, whatever the simulator's
    assert (one["mean"], one["low"], one["high"]) == (1.0, None, None)


@pytest.mark.parametrize(("direction", "size"), [("minimize", 0.8), ("maximize", 1.25)])
def test_a_gain_holds_the_error_of_the_part_that_is_left(direction: str, size: float) -> None:
    """A best of 0.8 or 1.25 times the other, each off by a thousandth, moves it by so much."""
    gain = against([size] * 5, [1.0] * 5, direction, (1e-3, 0.0))
    moved = against([size * 1.001] * 5, [1.0] * 5, direction)
    assert gain["mean"] == pytest.approx(abs(1 - size))
    assert gain["high"] - gain["mean"] == pytest.approx(abs(moved["mean"] - gain["mean"]))
    assert gain["over_seeds"]["high"] == pytest.approx(gain["mean"])


@given(SHARES, st.floats(1e-4, 0.2), st.floats(0.0, 0.2))
def test_told_apart_is_an_interval_with_the_error_beyond_the_resolution(
    shares: list[float], sd: float, bias: float
) -> None:
    half = math.hypot(t_interval(shares)[2] - np.mean(shares), math.hypot(bias, 1.96 * sd))
    gap = abs(np.mean(shares)) - RESOLUTION - half
    if abs(gap) > 1e-4 * half:  # 1.96 is rounded
        assert (p_value(shares, (bias, sd)) < 0.05) == (gap > 0)


@given(SHARES, st.floats(1e-5, 0.2), st.floats(1.0, 3.0))
def test_an_error_only_ever_adds_to_p(shares: list[float], sd: float, more: float) -> None:
    plain, small, large = (p_value(shares, (0.0, x)) for x in (0.0, sd, sd * more))
    assert plain <= small * (1 + 1e-6) <= large * (1 + 1e-5)
    if np.std(shares) > 1e-3 and plain > 1e-9:
        assert p_value(shares, (0.0, 1e-9)) == pytest.approx(plain, rel=1e-4)


def test_seeds_that_agree_do_not_hide_the_simulator_s_error() -> None:
    """Each seed says 10 %: beside as much, or a bias of 12 %, nothing; beside 1 % it stands."""
    best, other = [0.9] * 6, [1.0] * 6
    assert against(best, other, "minimize", (0.0, 0.1))["told_apart"] is False
    assert against(best, other, "minimize", (0.12, 0.0))["told_apart"] is False
    assert against(best, other, "minimize", (0.0, 0.01))["told_apart"] is True


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
