from __future__ import annotations

import json
import math
import random

import pytest

from xtune.policies.slowdown import Slowdown


def take(slowdown: Slowdown, comm_s: float, rung: int = 0, times: int = 1) -> float | None:
    """Iterations of one time, without a model."""
    for _ in range(times):
        slowdown.observe(rung, comm_s, None)
    return slowdown.value


def test_with_a_model_it_is_the_smoothed_ratio() -> None:
    made = Slowdown(0.5)
    made.observe(0, 2.0, 1.0)
    assert made.value == 2.0
    made.observe(0, 8.0, 2.0)
    assert made.value == 3.0  # halfway from 2 to 4


@pytest.mark.parametrize("comm_s", (math.nan, math.inf, 0.0, -1.0))
def test_what_is_no_time_is_left_out(comm_s: float) -> None:
    made = Slowdown(0.5)
    made.observe(0, comm_s, 1.0)
    assert made.value is None


@pytest.mark.parametrize("modelled_s", (math.nan, math.inf, 0.0, -1.0))
def test_what_is_no_model_is_none(modelled_s: float) -> None:
    made = Slowdown(1.0)
    made.observe(0, 3.0, modelled_s)
    assert made.value == 1.0


def test_without_a_model_the_fastest_stretch_is_the_measure() -> None:
    made = Slowdown(1.0)
    assert take(made, 3.0, times=20) == pytest.approx(1.0)
    assert take(made, 6.0) == pytest.approx(2.0)
    assert take(made, 1.0) == pytest.approx(1 / 3)  # one fast iteration is luck
    take(made, 2.0, times=40)
    assert take(made, 3.0) == pytest.approx(1.5)


def test_a_rung_that_saves_nothing_does_not_look_congested() -> None:
    made = Slowdown(1.0)
    take(made, 4.0, times=20)
    assert take(made, 5.0, rung=1, times=40) == pytest.approx(1.0)  # latency, not congestion
    assert take(made, 10.0, rung=1) == pytest.approx(2.0)
    take(made, 2.5, rung=1, times=40)  # it was congestion after all
    assert take(made, 5.0, rung=1) == pytest.approx(2.0)


def test_congestion_before_a_rung_is_congestion_after_it() -> None:
    made = Slowdown(1.0)
    take(made, 4.0, times=20)
    take(made, 12.0, times=20)
    assert take(made, 4.5, rung=1, times=20) == pytest.approx(3.0)  # clear: 1.5 s
    assert take(made, 1.5, rung=1) == pytest.approx(1.0)
    assert take(made, 1.0, rung=2) == pytest.approx(1.0)


def test_a_model_that_knows_no_latency_is_mended_for_the_rungs_after_the_first() -> None:
    made = Slowdown(1.0)
    for rung, comm_s, modelled_s, expected in (
        (0, 2.0, 1.0, 2.0),  # by the model itself
        (1, 1.5, 0.25, 2.0),  # six times the model: as slow as before, three times of it latency
        (1, 3.0, 0.25, 4.0),
        (2, 0.2, 0.2, 1.0),  # no faster than the model
    ):
        for _ in range(20):
            made.observe(rung, comm_s, modelled_s)
        assert made.value == pytest.approx(expected)


def test_noise_does_not_pass_for_congestion() -> None:
    rng = random.Random(2)
    made = Slowdown(0.3)
    values = []
    for _ in range(5000):
        value = take(made, math.exp(rng.gauss(0, 0.05)))
        assert value is not None
        values.append(value)
    # The least of 250 means of 20 lies 2.8 * 5 % / sqrt(20) = 3.1 % under the mean.
    assert sum(values[1000:]) / 4000 == pytest.approx(1.031, abs=0.01)


def test_resumes_exactly() -> None:
    rng = random.Random(3)
    whole, part = Slowdown(0.3), Slowdown(0.3)
    for i in range(200):
        if i % 37 == 5:
            state = json.loads(json.dumps(part.state_dict()))
            part = Slowdown(0.3)
            part.load_state_dict(state)
        comm_s, rung = rng.uniform(1, 2), rng.randrange(2)
        assert take(whole, comm_s, rung) == take(part, comm_s, rung)
