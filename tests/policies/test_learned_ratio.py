from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.policies import Policy, PolicyError, dumps, loads, replace_fields
from xtune.policies.learned_ratio import HIDDEN, INPUTS, WEIGHTS, learned_rung
from xtune.policies.plan import RungPlan
from xtune.policies.regulator import Figures, Regulator

RUNGS = tuple(RungPlan(mode="quantise", bits=(), ratio=r) for r in (0.0, 0.5, 0.6, 0.75))
TOP = len(RUNGS) - 1
ZERO = (0.0,) * WEIGHTS
UNKNOWN: tuple[tuple[str, float | None], ...] = (
    ("slowdown", None),
    ("slowdown", math.nan),
    ("slowdown", math.inf),
    ("slowdown", 0.0),
    ("slowdown", -1.0),
    ("gradient_change", None),
    ("gradient_change", math.nan),
    ("gradient_change", math.inf),
    ("gradient_change", -1.0),
    ("available_share", math.nan),
)
GIVEN: dict[str, Any] = {
    "level": 2,
    "slowdown": 2.0,
    "available_share": 0.25,
    "gradient_change": 3.0,
    "rung": 1,
    "step": 3000,
}
weights_ = st.lists(st.floats(-100, 100), min_size=WEIGHTS, max_size=WEIGHTS).map(tuple)
figures_ = st.builds(
    Figures,
    slowdown=st.none() | st.floats(0.5, 50),
    routing_level=st.none() | st.integers(0, 3),
    available_share=st.none() | st.floats(0, 1),
    gradient_change=st.none() | st.floats(0, 10),
)


def only(name: str, weight: float, out: float = 100.0) -> tuple[float, ...]:
    """A network that sees one input, through its first unit."""
    weights = list(ZERO)
    weights[INPUTS.index(name)] = weight
    weights[HIDDEN * len(INPUTS)] = out
    return tuple(weights)


def exact(weights: tuple[float, ...], by_level: int, top: int, inputs: list[Fraction]) -> Fraction:
    """The position between the rungs, in rational numbers."""

    def squash(x: Fraction) -> Fraction:
        return x / (1 + abs(x))

    n = len(inputs)
    units = [
        squash(sum((Fraction(weights[u * n + i]) * inputs[i] for i in range(n)), Fraction(0)))
        for u in range(HIDDEN)
    ]
    moved = sum((Fraction(weights[HIDDEN * n + u]) * units[u] for u in range(HIDDEN)), Fraction(0))
    return by_level + top * squash(moved)


@given(
    weights=weights_,
    by_level=st.integers(0, 5),
    level=st.integers(0, 3),
    slowdown=st.floats(0.25, 100),
    share=st.none() | st.floats(-0.5, 1.5),
    change=st.floats(0, 1000),
    rung=st.integers(0, 5),
    step=st.integers(0, 10**7),
)
def test_as_in_rational_numbers(
    weights: tuple[float, ...],
    by_level: int,
    level: int,
    slowdown: float,
    share: float | None,
    change: float,
    rung: int,
    step: int,
) -> None:
    slow = max(Fraction(1), Fraction(slowdown))
    free = 1 / slow if share is None else min(Fraction(1), max(Fraction(0), Fraction(share)))
    inputs = [
        Fraction(1),
        Fraction(level, 3),
        1 - free,
        1 - 1 / slow,
        Fraction(change) / (1 + Fraction(change)),
        Fraction(rung, 5),
        Fraction(step, step + 1000),
    ]
    position = exact(weights, by_level, 5, inputs)
    found = learned_rung(
        weights,
        by_level,
        5,
        level=level,
        slowdown=slowdown,
        available_share=share,
        gradient_change=change,
        rung=rung,
        step=step,
    )
    near = {
        math.floor(position + Fraction(1, 2) + e)
        for e in (-Fraction(1, 10**9), 0, Fraction(1, 10**9))
    }
    assert found in {max(0, min(5, n)) for n in near}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("one", 1.0),
        ("level", 2 / 3),
        ("shortage", 0.75),
        ("slowdown", 0.5),
        ("gradient change", 0.75),
        ("rung", 1 / 3),
        ("age", 0.75),
    ],
)
def test_each_input_reaches_the_output(name: str, value: float) -> None:
    # Through weights of 1 an input v becomes s = v / (1 + v), then s / (1 + s) = v / (1 + 2 v):
    # a share of a ladder of 1001 rungs.
    moved = value / (1 + 2 * value)
    weights = only(name, 1.0, out=1.0)
    assert learned_rung(weights, 0, 1000, **{**GIVEN, "rung": 0}) == (
        0 if name == "rung" else round(1000 * moved)
    )
    if name == "rung":
        third = learned_rung(weights, 0, 999, **{**GIVEN, "rung": 333})
        assert third == round(999 * moved)


@given(figures=st.lists(figures_, max_size=20))
def test_without_weights_it_is_the_rule_by_level(figures: list[Figures]) -> None:
    learned = Regulator(replace_fields(Policy(), {"compression.ratio_rule": "learned"}), RUNGS)
    plain = Regulator(Policy(), RUNGS)
    mine = theirs = 0
    for number, given_ in enumerate(figures):
        step = 100 + 50 * number
        mine = learned.decide(step, mine, mine, 50, False, given_).rung
        theirs = plain.decide(step, theirs, theirs, 50, False, given_).rung
        assert mine == theirs


@given(weights=weights_, by_level=st.integers(0, TOP))
@pytest.mark.parametrize(("name", "value"), UNKNOWN)
def test_an_unknown_figure_leaves_the_rule_by_level(
    name: str, value: float | None, weights: tuple[float, ...], by_level: int
) -> None:
    assert learned_rung(weights, by_level, TOP, **{**GIVEN, name: value}) is None
    assert learned_rung(weights, by_level, TOP, **GIVEN) is not None


@given(
    weights=st.lists(st.floats(), min_size=WEIGHTS, max_size=WEIGHTS).map(tuple),
    by_level=st.integers(0, TOP), top=st.integers(0, TOP), rung=st.integers(0, TOP),
    step=st.integers(-2000, 10**9), slowdown=st.none() | st.floats(),
    available_share=st.none() | st.floats(), gradient_change=st.none() | st.floats(),
)  # fmt: skip
def test_whatever_it_is_given_it_tells_a_rung_or_none(
    weights: tuple[float, ...], by_level: int, top: int, **figures: Any
) -> None:
    found = learned_rung(weights, by_level, top, level=2, **figures)
    assert found is None or 0 <= found <= top
    if top == 0 or figures["step"] < 0:
        assert found is None


@pytest.mark.parametrize("weight", [math.nan, math.inf, 1e308, -1e308])
def test_weights_beyond_numbers_leave_the_rule_by_level(weight: float) -> None:
    assert learned_rung((weight,) * WEIGHTS, 2, TOP, **GIVEN) is None


@pytest.mark.parametrize("step", [-1, -1000])
def test_an_age_before_the_first_iteration_leaves_the_rule_by_level(step: int) -> None:
    assert learned_rung(ZERO, 2, TOP, **{**GIVEN, "step": step}) is None


def test_the_regulator_says_who_wanted_the_rung() -> None:
    changes = {
        "compression.ratio_rule": "learned",
        "compression.learned_weights": only("one", 100.0),
    }
    made = Regulator(replace_fields(Policy(), changes), RUNGS)
    blind = made.decide(200, 2, 2, 0, False, Figures(slowdown=1.0))
    assert (blind.rung, blind.reason) == (1, "level 0, a figure of the learned rule is unknown")
    seeing = made.decide(400, 2, 2, 0, False, Figures(slowdown=1.0, gradient_change=0.1))
    assert (seeing.rung, seeing.reason) == (3, "level 0, learned rule wants 3")


def test_it_takes_the_nearest_rung() -> None:
    # An input of 1 through a weight of 1 is 1/2, a quarter of it 1/8, and that squashed 1/9.
    up, down = only("one", 1.0, out=0.25), only("one", -1.0, out=0.25)
    for top, moved in ((4, 0), (5, 1), (13, 1), (14, 2)):
        assert learned_rung(up, 1, top, **GIVEN) == 1 + moved
        assert learned_rung(down, 3, top, **GIVEN) == 3 - moved


@pytest.mark.parametrize(
    ("name", "out", "low", "high"),
    [("rung", 3.0, (1000, 0, 1), (1000, 3, 3)), ("age", 1.0, (201, 2, 1), (10**6, 2, 2))],
)
def test_the_regulator_tells_it_the_rung_and_the_iteration(
    name: str, out: float, low: tuple[int, int, int], high: tuple[int, int, int]
) -> None:
    changes = {
        "compression.ratio_rule": "learned",
        "compression.learned_weights": only(name, 1.0, out=out),
    }
    made = Regulator(replace_fields(Policy(), changes), RUNGS)
    for step, rung, wanted in (low, high):
        figures = Figures(slowdown=1.0, gradient_change=0.1)
        assert made.decide(step, rung, rung, 0, False, figures).rung == wanted


@given(figures=figures_, held=st.booleans(), step=st.integers(0, 400), rung=st.integers(0, TOP))
def test_every_cap_of_the_rule_holds(figures: Figures, held: bool, step: int, rung: int) -> None:
    # However much it wants: warm-up, the hold after a retreat, one rung a period, bandwidth.
    changes = {
        "compression.ratio_rule": "learned",
        "compression.learned_weights": only("one", 100.0),
    }
    verdict = Regulator(replace_fields(Policy(), changes), RUNGS).decide(
        step, rung, rung, 0, held, figures
    )
    assert verdict.rung <= rung + 1
    if step < 200:
        assert verdict.rung == 0
    if held:
        assert verdict.rung <= rung
    assert verdict.rung <= 1 or RUNGS[verdict.rung].ratio <= verdict.ratio_cap


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.0], f"is not a list of {WEIGHTS} numbers"),
        ([math.nan, *ZERO[1:]], r"learned_weights\[0\]: nan is not a finite number"),
        ([*ZERO[1:], 101.0], rf"learned_weights\[{WEIGHTS - 1}\]: 101.0 is not in -100..100"),
        (["1", *ZERO[1:]], r"learned_weights\[0\]: '1' is not a number"),
    ],
)
def test_weights_that_are_none_are_refused(value: list[Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        replace_fields(Policy(), {"compression.learned_weights": value})


@given(weights=weights_)
def test_weights_survive_the_file_to_the_last_bit(weights: tuple[float, ...]) -> None:
    policy = replace_fields(Policy(), {"compression.learned_weights": weights})
    assert loads(dumps(policy)).compression.learned_weights == weights
