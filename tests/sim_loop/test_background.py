"""The episode process, by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.sim_loop.made import made
from xtune.sim.background import Background, Stretch
from xtune.sim.network import CLEAR, State, state_of


def stretches(background: Background, until_s: float) -> list[Stretch]:
    found, now = [], 0.0
    while now < until_s:
        found.append(background.at(now))
        now = found[-1].end_s
    return found


def test_rate_length_and_depth_are_those_asked_for() -> None:
    c = made(
        episode_rate_per_h=30.0, episode_length_s=40.0, episode_length_shape=2.0,
        episode_hit_share=0.6, episode_slowdown=2.0, episode_slowdown_sigma=0.3,
        episode_edge_share=0.25,
    )  # fmt: skip
    hours = 400.0
    all_ = stretches(Background(c, seed=1), hours * 3600)
    episodes = all_[1::2]  # gaps and episodes take turns
    ends = np.array([s.end_s for s in all_])
    lengths = np.diff(ends)[0::2]
    assert len(episodes) / hours == pytest.approx(30.0, rel=0.03)
    assert lengths.mean() == pytest.approx(40.0, rel=0.03)
    assert (lengths.mean() / lengths.std()) ** 2 == pytest.approx(2.0, rel=0.1)
    hits = [s for s in episodes if s.state.depth_bin > 0]
    assert len(hits) / len(episodes) == pytest.approx(0.6, abs=0.02)
    assert np.median([s.state.depth for s in hits]) == pytest.approx(2.0, rel=0.1)
    assert np.mean([s.state.edge for s in hits]) == pytest.approx(0.25, abs=0.02)
    assert all(s.state == CLEAR for s in all_[0::2])


def test_it_depends_on_the_seed_and_not_on_who_asks_when() -> None:
    c = made(episode_rate_per_h=30.0)
    one, two = Background(c, seed=1), Background(c, seed=1)
    fine = [one.at(t) for t in np.arange(0.0, 7200.0, 0.7)]
    coarse = [two.at(t) for t in np.arange(0.0, 7200.0, 70.0)]
    assert fine[::100] == coarse[: len(fine[::100])]
    assert [Background(c, seed=2).at(t) for t in (0.0, 500.0)] != [fine[0], fine[714]]


def test_a_parameter_does_not_shift_the_draws_of_another() -> None:
    shallow = Background(made(episode_rate_per_h=30.0, episode_slowdown=2.0), seed=1)
    deep = Background(made(episode_rate_per_h=30.0, episode_slowdown=4.0), seed=1)
    for a, b in zip(stretches(shallow, 7200.0), stretches(deep, 7200.0), strict=True):
        assert (a.end_s, a.place) == (b.end_s, b.place)


def test_without_episodes_it_is_clear_for_ever() -> None:
    assert Background(made(episode_rate_per_h=0.0), seed=0).at(1e9) == Stretch(
        end_s=math.inf, state=CLEAR, place=Background(made(), seed=0).at(0.0).place
    )


def test_a_state_has_the_depth_and_the_sampled_ones_around_it() -> None:
    assert state_of(1.0, edge=True) == CLEAR
    assert state_of(2.0, edge=False) == State(depth_bin=4)
    assert state_of(50.0, edge=False).depth == 8.0
    for depth in np.linspace(1.0, 8.0, 50):
        state = state_of(float(depth), edge=True)
        low, high = state.around
        assert state.depth == pytest.approx(depth, rel=1e-6)
        assert low.depth - 1e-6 <= depth <= high.depth + 1e-6
        assert math.log2(high.depth / low.depth) in (0.0, pytest.approx(1 / 4))
        assert low.edge is (low.depth_bin > 0)  # a clear fabric has no place
    assert State(depth_bin=5).around == (State(depth_bin=5), State(depth_bin=5))
