from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import BurstSchedule, ForecastTable, Router, make_forecaster
from xtune.policies.spec import Policy, Routing

PERIOD, LENGTH, HORIZON = 1_000_000, 100_000, 200_000
ROUTING = Routing(forecast="reading", stale_ns=10_000_000)


def periodic(count: int, start: int = 0) -> BurstSchedule:
    schedule = BurstSchedule()
    for i in range(count):
        schedule.begin(start + i * PERIOD)
        schedule.end(start + i * PERIOD + LENGTH)
    return schedule


@given(
    start=st.integers(0, 10**18),
    period=st.integers(1_000, 10**10),
    count=st.integers(6, 30),
    after=st.floats(0, 2.9),
)
def test_the_next_begin_of_an_exact_period_is_found(
    start: int, period: int, count: int, after: float
) -> None:
    schedule = BurstSchedule()
    for i in range(count):
        schedule.begin(start + i * period)
    asked = start + (count - 1) * period + int(after * period)
    every = [start + i * period for i in range(count, count + 3)]
    assert schedule.period_ns == period
    assert schedule.next_begin(asked) == min(at for at in every if at >= asked)


def test_nothing_is_predicted_too_early_when_irregular_or_when_bursts_stay_out() -> None:
    schedule = BurstSchedule()
    assert schedule.next_begin(0) is None
    for i in range(5):
        schedule.begin(i * PERIOD)
        assert schedule.period_ns is None
    schedule.begin(5 * PERIOD)
    assert schedule.next_begin(7 * PERIOD + 1) == 8 * PERIOD
    assert schedule.next_begin(8 * PERIOD + 1) is None  # three stayed out
    at = 5 * PERIOD
    for gap in (0.4, 1.9, 0.7, 1.6, 0.2, 2.5, 0.9):
        at += int(gap * PERIOD)
        schedule.begin(at)
    assert schedule.period_ns is None


def test_a_pause_and_a_burst_that_was_not_told_leave_the_period() -> None:
    schedule = periodic(6)
    schedule.begin(7 * PERIOD)  # the burst at 6 was not told
    assert schedule.next_begin(7 * PERIOD + 1) == 8 * PERIOD
    schedule.begin(100 * PERIOD + 333)  # a checkpoint
    assert schedule.period_ns == PERIOD
    assert schedule.next_begin(100 * PERIOD + 400) == 101 * PERIOD + 333


def test_a_clock_set_back_starts_anew_and_the_same_begin_twice_is_one() -> None:
    schedule = periodic(6)
    schedule.begin(5 * PERIOD)
    assert schedule.period_ns == PERIOD
    schedule.begin(PERIOD)
    assert schedule.period_ns is None
    assert schedule.known.until_ns == PERIOD  # lengths are forgotten as well
    for i in range(2, 7):
        schedule.begin(i * PERIOD)
    assert schedule.next_begin(6 * PERIOD + 1) == 7 * PERIOD


def test_a_new_period_is_learned_once_most_gaps_have_it() -> None:
    schedule = BurstSchedule(gaps=5)
    at = 0
    for period in (PERIOD,) * 6 + (3 * PERIOD,) * 3:
        at += period
        schedule.begin(at)
    assert schedule.period_ns == 3 * PERIOD


@given(st.lists(st.integers(-40_000, 40_000), min_size=30, max_size=30))
def test_jitter_up_to_a_tenth_is_met_within_its_own_width(jitter: list[int]) -> None:
    schedule = BurstSchedule()
    for i, late in enumerate(jitter):
        at = i * PERIOD + late
        predicted = schedule.next_begin(schedule.known.begin_ns + 1) if i > 5 else None
        if predicted is not None:  # a gap is off by both ends' lateness, the begin by one more
            assert abs(predicted - at) <= 4 * 40_000
        schedule.begin(at)
    assert schedule.period_ns is not None  # deviations are at most 80 of 1000


def test_a_burst_is_expected_a_horizon_ahead_and_over_at_its_end() -> None:
    known = periodic(6).known
    begin = 6 * PERIOD
    assert not known.coming(begin - HORIZON - 1, HORIZON)
    assert known.coming(begin - HORIZON, HORIZON)
    assert known.coming(begin, HORIZON)
    assert not known.coming(begin + 1, HORIZON)  # it is late, and none ever was
    schedule = periodic(6)
    schedule.begin(begin)
    assert schedule.known.under_way(begin + LENGTH - 1, HORIZON)  # as long as those before
    assert not schedule.known.under_way(begin + LENGTH, HORIZON)
    schedule.end(begin + LENGTH // 2)
    assert not schedule.known.under_way(begin + LENGTH // 2, HORIZON)
    schedule.end(begin + LENGTH)  # told twice
    assert schedule.known.until_ns == begin + LENGTH // 2


def test_a_late_burst_is_waited_for_as_long_as_others_were_late() -> None:
    schedule = BurstSchedule()
    at = 0
    for late in (0, 20_000, 0, 20_000, 0, 20_000, 0):
        schedule.begin(at + late)
        at += PERIOD
    assert schedule.period_ns in (PERIOD - 20_000, PERIOD + 20_000)
    due = 6 * PERIOD + schedule.period_ns
    slack = schedule.known.slack_ns
    assert 0 < slack <= 3 * 40_000
    assert schedule.known.coming(due + slack, 0) and not schedule.known.coming(due + slack + 1, 0)


def trace(at: int, peak: float) -> float:
    """A queue that a burst of each period fills to its peak at once."""
    return peak if at % PERIOD < LENGTH else 0.05


def floors(peaks: list[float], step: int = 50_000) -> list[float]:
    """Forecasts just before each burst's end of period, for a link with these peaks."""
    schedule, forecaster = BurstSchedule(), make_forecaster(ROUTING)
    forecaster.expect(schedule)
    found = []
    for burst, peak in enumerate(peaks):
        for at in range(burst * PERIOD, (burst + 1) * PERIOD, step):
            if at % PERIOD == 0:
                schedule.begin(at)
            if at % PERIOD == LENGTH:
                schedule.end(at)
            forecaster.update(trace(at, peak), at)
        found.append(forecaster.peak(HORIZON))
    return found


def test_a_link_that_bursts_fill_is_warned_of_before_the_next() -> None:
    schedule, forecaster = BurstSchedule(), make_forecaster(ROUTING)
    forecaster.expect(schedule)
    raised = []
    for at in range(0, 10 * PERIOD, 10_000):
        if at % PERIOD == 0:
            schedule.begin(at)
        if at % PERIOD == LENGTH:
            schedule.end(at)
        forecaster.update(trace(at, 0.9), at)
        if forecaster.peak(HORIZON) > forecaster.level:
            raised.append(at)
            assert forecaster.peak(HORIZON) == 0.9
    # Predicted from the sixth begin on, from one horizon before each; once it came, no more.
    first = [i * PERIOD - HORIZON for i in range(6, 11)]
    assert raised == [at for begin in first for at in range(begin, begin + HORIZON, 10_000)]


def test_what_has_not_come_yet_in_a_burst_is_still_expected() -> None:
    forecaster, schedule = make_forecaster(ROUTING), BurstSchedule()
    forecaster.expect(schedule)
    for burst in range(7):
        schedule.begin(burst * PERIOD)
        forecaster.update(0.9, burst * PERIOD + 1)
        schedule.end(burst * PERIOD + LENGTH)
        forecaster.update(0.1, burst * PERIOD + LENGTH)
    schedule.begin(7 * PERIOD)
    forecaster.update(0.1, 7 * PERIOD + 10_000)  # avoided, or not yet filled
    assert forecaster.peak(HORIZON) == 0.9
    forecaster.update(0.1, 7 * PERIOD + LENGTH)  # it never took longer
    assert forecaster.peak(HORIZON) == 0.1


def test_what_happened_to_one_burst_alone_is_not_expected_of_the_next() -> None:
    assert floors([0.2] * 6 + [0.9] + [0.2] * 3) == [0.05] * 5 + [0.2] * 5


def test_a_link_that_was_calm_for_long_is_calm() -> None:
    calm = [0.2] * 6
    # Two bursts in a row are believed; five calm ones later nothing is left of them.
    expected = [0.05] * 5 + [0.2, 0.2] + [0.9] * 4 + [0.2] * 2
    assert floors([*calm, 0.9, 0.9, *[0.2] * 5]) == expected


def test_where_marks_alone_are_known_bursts_are_learned_from_them() -> None:
    forecaster, schedule = make_forecaster(ROUTING), BurstSchedule()
    forecaster.expect(schedule)
    for burst in range(7):
        schedule.begin(burst * PERIOD)
        forecaster.update(math.nan, burst * PERIOD, 0.04)  # 0.25 .. 1 by 0 .. 5 %: 0.85
        schedule.end(burst * PERIOD + LENGTH)
        forecaster.update(math.nan, burst * PERIOD + LENGTH, 0.0)
    assert forecaster.peak(HORIZON) == 0.25
    forecaster.update(math.nan, 7 * PERIOD - HORIZON, 0.0)
    assert math.isclose(forecaster.peak(HORIZON), 0.85)


def test_a_router_moves_ahead_of_a_burst_and_not_without_a_schedule() -> None:
    moved = {}
    for told in (True, False):
        routing = Routing(forecast="holt", stale_ns=10_000_000, hold_ns=0, pairs=1)
        router = Router({("a", "b"): [["up1"], ["up2"]]}, Policy(routing=routing), clock=int)
        schedule = BurstSchedule()
        if told:
            router.expect(schedule)
        for at in range(0, 9 * PERIOD, 10_000):
            if at % PERIOD == 0:
                schedule.begin(at)
            if at % PERIOD == LENGTH:
                schedule.end(at)
            router.observe("up1", occupancy=trace(at, 0.9), at_ns=at)
            router.observe("up2", occupancy=0.0, at_ns=at)
            if at == 8 * PERIOD - 10_000:
                moved[told] = router.choose(("a", "b", 0), at_ns=at)
    assert moved == {True: 1, False: 0}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), ends=st.booleans(), steady=st.booleans(), marked=st.booleans())
def test_batch_and_single_expect_the_same(
    seed: int, ends: bool, steady: bool, marked: bool
) -> None:
    """Bursts of two steps in four or at random, some untold, at last none; late readings."""
    rng = np.random.default_rng(seed)
    routing = Routing(forecast="reading", stale_ns=2_000_000)
    schedule = BurstSchedule()
    table = ForecastTable(3, routing)
    singles = [make_forecaster(routing) for _ in range(3)]
    table.expect(schedule)
    for single in singles:
        single.expect(schedule)
    at, raised = 1_700_000_000_000_000_000, 0
    for turn in range(60):
        at += 250_000 if steady else int(rng.integers(-10_000, 500_000))
        if turn % 4 == 0 and turn < 45 and rng.random() < 0.95:
            schedule.begin(at)
        if turn % 4 == 2 and ends:
            schedule.end(at)
        readings = rng.choice([math.nan, 0.1, 0.1, 0.7, 0.8], 3)
        when = at + rng.choice([0, 0, 300, -300_000], 3)
        marks = rng.choice([math.nan, 0.0, 0.04], 3) if marked else np.full(3, math.nan)
        table.update(readings, when, marks if marked else None)
        for single, *values in zip(singles, readings, when, marks, strict=True):
            single.update(float(values[0]), int(values[1]), float(values[2]))
        peaks = table.peak(300_000)
        np.testing.assert_array_equal(peaks, [one.peak(300_000) for one in singles])
        raised += int((peaks > table.level).sum())
    assert raised > 0 or not steady


def test_without_a_schedule_again_nothing_is_expected() -> None:
    forecaster, table = make_forecaster(ROUTING), ForecastTable(1, ROUTING)
    schedule = BurstSchedule()
    for expected, peak in ((schedule, 0.9), (None, 0.1)):
        forecaster.expect(expected)
        table.expect(expected)
        for burst in range(6):
            schedule.begin(burst * PERIOD)
            for reading, at in ((0.9, burst * PERIOD), (0.1, (burst + 1) * PERIOD - HORIZON)):
                forecaster.update(reading, at)
                table.update(np.array([reading]), at)
        assert forecaster.peak(HORIZON) == table.peak(HORIZON)[0] == peak
