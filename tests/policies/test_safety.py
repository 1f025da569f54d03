from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.policies.safety import SafetyWatch
from xtune.policies.spec import Safety

SPEC = Safety(iterations=3, smoothing=1.0, watch_iterations=10)


def first_retreat(watch: SafetyWatch, losses: list[float | None], start: int) -> int | None:
    for step, loss in enumerate(losses, start=start):
        if watch.observe(step, loss, True):
            return step
    return None


def fallen(steps: int = 5) -> SafetyWatch:
    """A watch that saw the loss fall by 1 % an iteration, steps 0..steps-1."""
    watch = SafetyWatch(SPEC)
    for step in range(steps):
        watch.observe(step, 0.99**step, True)
    return watch


def test_three_in_a_row_after_a_rise() -> None:
    watch = fallen()
    watch.raised(5)
    # The loss of iteration 5 is computed before its own gradient was compressed: not counted.
    assert first_retreat(watch, [1.0, 1.1, 1.2, 1.3, 1.4], 5) == 8


def test_one_good_iteration_starts_the_count_anew() -> None:
    watch = fallen()
    watch.raised(4)
    assert first_retreat(watch, [1.0, 1.1, 1.0, 1.1, 1.2, 1.3], 5) == 10


def test_an_unknown_loss_counts_neither_way() -> None:
    watch = fallen()
    watch.raised(4)
    assert first_retreat(watch, [1.1, None, 1.2, None, 1.3], 5) == 9


def test_what_is_not_finite_counts_as_bad() -> None:
    watch = fallen()
    watch.raised(4)
    assert not watch.observe(5, math.nan, True)
    assert not watch.observe(6, None, False)
    assert watch.observe(7, 0.5, False)


def test_without_a_rise_or_after_the_watch_nothing_is_held_against_it() -> None:
    watch = fallen()
    assert first_retreat(watch, [1.0 + step for step in range(30)], 5) is None
    watch = fallen()
    watch.raised(5)
    assert first_retreat(watch, [0.5 * 0.9**step for step in range(11)], 5) is None
    assert first_retreat(watch, [10.0 + step for step in range(20)], 16) is None


def test_taken_back_is_no_longer_watched() -> None:
    watch = fallen()
    watch.raised(5)
    watch.lowered()
    assert first_retreat(watch, [1.0 + step for step in range(9)], 5) is None


def test_a_training_that_rose_before_is_not_held_against_compression() -> None:
    watch = SafetyWatch(SPEC)
    for step in range(50):
        watch.observe(step, 1.001**step, True)
    watch.raised(50)
    assert first_retreat(watch, [1.001**step for step in range(50, 60)], 50) is None
    watch.raised(60)
    assert first_retreat(watch, [1.001**60 * 1.002**step for step in range(10)], 60) == 63


def test_the_gate_asks_for_a_decrease() -> None:
    steep = Safety(iterations=3, smoothing=1.0, watch_iterations=10, gate=0.005)
    for factor, expected in ((0.99, None), (0.996, 13)):
        watch = SafetyWatch(steep)
        for step in range(10):
            watch.observe(step, 0.99**step, True)
        watch.raised(10)
        start = 0.99**9
        got = first_retreat(watch, [start * factor ** (i + 1) for i in range(9)], 10)
        assert got == expected


def test_smoothing_by_hand() -> None:
    # Weight .5: smoothed 4, then 4 + .5 (3 - 4) = 3.5, then 3.5 + .5 (4.5 - 3.5) = 4.0: a rise.
    watch = SafetyWatch(Safety(iterations=1, smoothing=0.5, watch_iterations=10))
    watch.raised(0)
    assert [watch.observe(step, loss, True) for step, loss in enumerate((4.0, 3.0, 4.5))] == [
        False,
        False,
        True,
    ]


def test_old_and_repeated_steps_are_ignored() -> None:
    watch = fallen()
    watch.raised(4)
    for step in (5, 5, 5, 4, 3):
        assert not watch.observe(step, 2.0, True)
    assert watch.bad_in_row == 1


@given(losses=st.lists(st.floats(0.1, 10), max_size=40), cut=st.integers(0, 40))
def test_resumes_exactly(losses: list[float], cut: int) -> None:
    whole, first, second = SafetyWatch(SPEC), SafetyWatch(SPEC), SafetyWatch(SPEC)
    results = []
    for watch in (whole, first):
        watch.raised(2)
    for step, loss in enumerate(losses):
        if step == cut:
            second.load_state_dict(first.state_dict())
        watch = second if step >= cut else first
        results.append((whole.observe(step, loss, True), watch.observe(step, loss, True)))
    assert all(a == b for a, b in results)


@pytest.mark.parametrize("scale", (1e-6, 1.0, 1e6))
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    watch = fallen()
    watch = SafetyWatch(SPEC)
    for step in range(5):
        watch.observe(step, scale * 0.99**step, True)
    watch.raised(5)
    assert first_retreat(watch, [scale * x for x in (1.0, 1.1, 1.2, 1.3)], 5) == 8
