from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.policies import Policy, preset, replace_fields
from xtune.policies.plan import RungPlan
from xtune.policies.regulator import Figures, Regulator

RATIOS = (0.0, 0.5, 0.6, 0.75)
RUNGS = tuple(RungPlan(mode="quantise", bits=(), ratio=ratio) for ratio in RATIOS)
WARM = 200


def regulator(**changes: object) -> Regulator:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return Regulator(replace_fields(Policy(), named), RUNGS)


def rungs(
    made: Regulator, figures: list[Figures], rung: int = 0, period: int = 50, start: int = WARM
) -> list[int]:
    """The rung after each regulation, ``period`` iterations apart."""
    out = []
    for number, given_ in enumerate(figures):
        step = start + number * period
        rung = made.decide(step, rung, rung, period, False, given_).rung
        out.append(rung)
    return out


def test_one_rung_a_period_up_and_at_once_down() -> None:
    severe, clear = Figures(slowdown=3.0), Figures(slowdown=1.0)
    assert rungs(regulator(), [severe] * 4 + [clear] * 2) == [1, 2, 3, 3, 1, 1]


def test_hysteresis_keeps_the_level_between_the_thresholds() -> None:
    figures = [Figures(slowdown=x) for x in (1.2, 1.2, 1.1, 1.06, 1.04, 1.1)]
    assert rungs(regulator(), figures) == [1, 2, 2, 2, 1, 1]


def test_routing_can_only_raise_the_level() -> None:
    made = regulator()
    assert made.decide(WARM, 2, 2, 50, False, Figures(slowdown=1.0, routing_level=3)).level == 3
    assert made.decide(WARM, 2, 2, 50, False, Figures(slowdown=9.0, routing_level=0)).level == 3
    assert (
        made.decide(WARM, 2, 2, 50, False, Figures(routing_level=1)).level == 3
    )  # slowdown unknown


def test_nothing_known_means_clear() -> None:
    assert rungs(regulator(), [Figures()] * 3) == [1, 1, 1]


def test_the_bandwidth_bounds_the_ratio() -> None:
    # Lowest rung 0.5, margin 0.9: the cap is 1 - 0.9 * share / 2, so rung 2 (0.6) needs a share
    # of at most 0.888..., rung 3 (0.75) one of at most 0.555...
    for share, expected in ((1.0, 1), (0.89, 1), (0.88, 2), (0.56, 2), (0.55, 3), (0.0, 3)):
        figures = [Figures(slowdown=3.0, available_share=share)] * 4
        assert rungs(regulator(), figures)[-1] == expected, share
    verdict = regulator().decide(WARM, 1, 1, 50, False, Figures(slowdown=3.0, available_share=0.8))
    assert verdict.ratio_cap == pytest.approx(1 - 0.9 * 0.8 / 2)


def test_a_changing_gradient_holds_one_rung_back() -> None:
    jump = Figures(slowdown=3.0, gradient_change=1.1)
    assert rungs(regulator(), [jump] * 4) == [1, 2, 2, 2]
    assert rungs(regulator(compression__curvature_gain=0.0), [jump] * 3) == [1, 2, 3]
    assert rungs(regulator(), [Figures(slowdown=1.0, gradient_change=1.1)] * 2, 1) == [0, 0]


def test_warm_up_and_hold() -> None:
    severe = Figures(slowdown=3.0)
    made = regulator()
    assert made.decide(WARM - 1, 0, 0, 50, False, severe).rung == 0
    assert made.decide(WARM, 0, 0, 50, False, severe).rung == 1
    assert made.decide(WARM, 1, 1, 50, True, severe).rung == 1
    assert made.decide(WARM, 1, 1, 50, True, Figures(slowdown=1.0)).rung == 1
    assert made.decide(WARM - 1, 1, 1, 50, True, severe).rung == 0


@pytest.mark.parametrize("period", (1, 10, 50, 100))
def test_compression_that_saves_no_time_is_off_for_a_while_whatever_the_period(
    period: int,
) -> None:
    made = regulator()
    cost = {0: 1.0, 1: 0.99}
    rung, by_iteration = 0, []
    for step in range(WARM, WARM + 2000, period):
        figures = Figures(slowdown=1.0, cost_s=cost[rung])
        rung = made.decide(step, rung, rung, period, False, figures).rung
        by_iteration += [rung] * period
    # 100 compressed iterations to see it, off for 400; another 100, off for 800.
    assert by_iteration[:1400] == [1] * 100 + [0] * 400 + [1] * 100 + [0] * 800
    assert by_iteration[1400:1500] == [1] * 100


def test_compression_that_saves_time_stays() -> None:
    made = regulator()
    assert rungs(made, [Figures(slowdown=1.0, cost_s=1.0)]) == [1]
    assert rungs(made, [Figures(slowdown=1.0, cost_s=0.97)] * 9, 1) == [1] * 9


def test_growing_congestion_is_not_taken_for_a_failure_of_compression() -> None:
    made = regulator()
    rungs(made, [Figures(slowdown=2.6, cost_s=2.6)])
    assert rungs(made, [Figures(slowdown=6.0, cost_s=5.0)] * 9, 1)[-1] == 3


def test_useless_on_a_clear_fabric_is_tried_again_on_a_congested_one() -> None:
    made = regulator()
    clear = Figures(slowdown=1.0, cost_s=1.0)
    assert rungs(made, [clear]) == [1]
    assert rungs(made, [clear] * 3, 1, start=WARM + 50) == [1, 0, 0]
    assert rungs(made, [Figures(slowdown=3.0, cost_s=3.0)] * 2, 0, start=WARM + 200) == [1, 2]


def test_off_is_off() -> None:
    made = Regulator(preset("static_dense"), RUNGS[:1])
    verdict = made.decide(WARM, 0, 0, 50, False, Figures(slowdown=3.0))
    assert (verdict.rung, verdict.level) == (0, 3)


FIGURES = st.builds(
    Figures,
    slowdown=st.one_of(st.none(), st.floats(0.5, 5)),
    routing_level=st.one_of(st.none(), st.integers(0, 3)),
    available_share=st.one_of(st.none(), st.floats(0, 1)),
    gradient_change=st.one_of(st.none(), st.floats(0, 3)),
    cost_s=st.one_of(st.none(), st.floats(0.1, 5)),
)


@given(
    figures=st.lists(FIGURES, min_size=1, max_size=30), held=st.lists(st.booleans(), max_size=30)
)
def test_whatever_it_is_told(figures: list[Figures], held: list[bool]) -> None:
    made = regulator()
    path = [0]
    for i, given_ in enumerate(figures):
        hold = i < len(held) and held[i]
        verdict = made.decide(WARM, path[-1], path[-1], 50, hold, given_)
        assert 0 <= verdict.rung < len(RUNGS)
        assert not (hold and verdict.rung > path[-1])
        assert RATIOS[verdict.rung] <= max(verdict.ratio_cap, RATIOS[1]) + 1e-12
        path.append(verdict.rung)
    assert all(b <= a + 1 for a, b in pairwise(path))


@given(slow=st.floats(1, 5), slower=st.floats(1, 5), free=st.floats(0, 1), freer=st.floats(0, 1))
def test_more_congestion_or_less_bandwidth_never_means_less_compression(
    slow: float, slower: float, free: float, freer: float
) -> None:
    slow, slower = sorted((slow, slower))
    free, freer = sorted((free, freer))
    less = rungs(regulator(), [Figures(slowdown=slow, available_share=freer)] * 4)
    more = rungs(regulator(), [Figures(slowdown=slower, available_share=free)] * 4)
    assert less[-1] <= more[-1]


@given(figures=st.lists(FIGURES, max_size=20), cut=st.integers(0, 20))
def test_resumes_exactly(figures: list[Figures], cut: int) -> None:
    whole, made = regulator(), regulator()
    rung = 0
    for i, given_ in enumerate(figures):
        if i == cut:
            state = json.loads(json.dumps(made.state_dict()))
            made = regulator()
            made.load_state_dict(state)
        verdict = whole.decide(WARM, rung, rung, 50, False, given_)
        assert verdict == made.decide(WARM, rung, rung, 50, False, given_)
        # NaN is not itself; and some of it decides only many regulations later.
        assert repr(vars(made)) == repr(vars(whole))
        rung = verdict.rung


@pytest.mark.parametrize(("slowdown", "rung"), [(1.1, 0), (1.4, 1)])
def test_a_little_noise_does_not_excuse_a_useless_compression(slowdown: float, rung: int) -> None:
    made = regulator(bus__enter_slowdown=(2.0, 3.0, 4.0))
    assert rungs(made, [Figures(slowdown=1.0, cost_s=1.0)]) == [1]
    noisy = [Figures(slowdown=slowdown, cost_s=1.05)] * 2
    assert rungs(made, noisy, 1, start=WARM + 50)[-1] == rung
