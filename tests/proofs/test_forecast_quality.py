"""The study of forecasts: its figures on traces made by hand, by brute force, and run small."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.errors import UsageError
from xtune.policies.spec import Routing
from xtune.proofs import forecast_quality, forecast_tc
from xtune.proofs.forecast_quality import (
    METHODS,
    Method,
    moves,
    routing_of,
    take_readings,
    warnings,
)
from xtune.proofs.forecast_scores import NEVER, find_events, score
from xtune.proofs.forecast_traces import REGIMES, Trace, simulate

US = 1_000
HORIZON = 200 * US


def trace_of(*links: np.ndarray, **more: object) -> Trace:
    """A trace of 1-us readings."""
    occupancy = np.stack(links, axis=1)
    at_ns = np.arange(len(occupancy), dtype=np.int64) * US
    return Trace(name="by hand", at_ns=at_ns, occupancy=occupancy, **more)  # type: ignore[arg-type]


def ramp(begin: int, length: int, top: float, readings: int = 1_000) -> np.ndarray:
    """0 until the begin, then a line to the top, then 0 again."""
    found = np.zeros(readings)
    found[begin : begin + length] = np.linspace(0.0, top, length, endpoint=False)
    return found


def test_an_event_is_a_crossing_with_hysteresis() -> None:
    #                0    1    2    3    4     5    6    7     8    9
    queue = np.array([0.8, 0.4, 0.6, 0.7, 0.65, 0.9, 0.5, 0.49, 0.7, 0.2])
    truth = find_events(np.arange(10) * 5, queue[:, None], 0.7, 0.5)
    assert truth.hot[:, 0].tolist() == [True] + [False] * 2 + [True] * 4 + [False, True, False]
    assert truth.events.tolist() == [[3, 0], [8, 0]]  # hot from the start on is no event
    assert truth.next_ns[:, 0].tolist() == [15, 15, 15] + [40] * 5 + [NEVER] * 2


def test_figures_of_warnings_written_by_hand() -> None:
    queue = np.zeros((1_000, 2))
    queue[500:510, 0] = 0.9  # one event, at 500 us
    truth = find_events(np.arange(1_000) * US, queue, 0.7, 0.5)
    index = np.arange(0, 1_000, 10)
    warned = np.zeros((100, 2), np.bool_)
    warned[[28, 29, 30, 44, 45, 50], 0] = True  # 280 .. 300: the event is within 200 us of 300
    warned[[10, 12, 13], 1] = True  # two runs that nothing follows
    found = score(truth, index, warned, HORIZON)
    # Asked: 100 and 99 readings, 500 itself is hot. Right: 300, 440, 450 of 8 that were warned.
    assert found.precision == 3 / 8
    assert found.base_rate == 20 / 199
    assert (found.events, found.recall) == (1, 1.0)
    assert found.lead_p50_ns == found.lead_p10_ns == 200 * US
    assert found.false_per_s == pytest.approx(2 / (2 * 990e-6))


def brute_force(
    queue: np.ndarray, index: np.ndarray, warned: np.ndarray, horizon: int
) -> tuple[float, float, list[int], int]:
    """Precision, recall, leads and false runs, reading by reading."""
    said = right = false_runs = events = 0
    leads = []
    for link in range(queue.shape[1]):
        hot, begun, hots = False, [], []
        for at, value in enumerate(queue[:, link]):
            if value >= 0.7 and not hot:
                hot = True
                if at > 0:
                    begun.append(at)
            elif value < 0.5:
                hot = False
            hots.append(hot)
        events += len(begun)
        for event in begun:
            early = [
                event - at
                for at, warns in zip(index, warned[:, link], strict=True)
                if warns and not hots[at] and event - horizon <= at < event
            ]
            leads += [max(early)] if early else []
        run: list[bool] = []
        for at, warns in [*zip(index, warned[:, link], strict=True), (None, False)]:
            if warns and not hots[at]:
                run.append(any(0 < event - at <= horizon for event in begun))
                continue
            said, right = said + len(run), right + sum(run)
            false_runs += bool(run) and not any(run)
            run = []
    return (
        right / said if said else math.nan,
        len(leads) / events if events else math.nan,
        leads,
        false_runs,
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), every=st.sampled_from([1, 3, 10]), horizon=st.sampled_from([5, 40])
)
def test_figures_by_brute_force(seed: int, every: int, horizon: int) -> None:
    rng = np.random.default_rng(seed)
    queue = np.clip(np.cumsum(rng.normal(0, 0.2, (120, 3)), axis=0) % 2.0 - 0.5, 0, 1)
    index = np.arange(int(rng.integers(0, every)), 120, every)
    warned = rng.random((len(index), 3)) < 0.3
    found = score(find_events(np.arange(120), queue, 0.7, 0.5), index, warned, horizon)
    precision, recall, leads, false_runs = brute_force(queue, index, warned, horizon)
    np.testing.assert_equal((found.precision, found.recall), (precision, recall))
    if leads:
        assert found.lead_p50_ns == np.quantile(leads, 0.5)
    seconds = 3 * float(index[-1] - index[0]) / 1e9
    assert found.false_per_s * seconds == pytest.approx(false_runs)


@given(st.integers(0, 2**32))
def test_who_always_warns_is_right_at_the_base_rate(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queue = np.repeat(rng.random((40, 2)), 5, axis=0)
    index = np.arange(200)
    truth = find_events(index, queue, 0.7, 0.5)
    found = score(truth, index, np.ones((200, 2), np.bool_), 20)
    np.testing.assert_equal(found.precision, found.base_rate)


def test_a_line_is_warned_of_a_horizon_ahead_and_by_the_level_at_its_height() -> None:
    # To 80 % in 800 us: 70 % at 700 us after the begin, 40 % at 400 us.
    trace = trace_of(ramp(50, 800, 0.8), ramp(150, 800, 0.8))
    base = routing_of(trace, 10 * US)
    readings = take_readings(trace, 10 * US, 0.0, base, np.random.default_rng(0))
    truth = find_events(trace.at_ns, trace.occupancy, 0.7, 0.5)
    for method, lead in ((METHODS["holt fitted"], 200), (METHODS["level 40 %"], 300)):
        routing = Routing(forecast=method.forecast, level_gain=1.0, slope_gain=1.0)
        warned = warnings(trace, readings, method, routing)
        found = score(truth, readings.index, warned, 400 * US)
        assert found.recall == 1.0
        assert abs(found.lead_p50_ns - lead * US) <= 10 * US


def test_readings_have_the_noise_and_the_marks_that_were_asked_for() -> None:
    low, full = np.full(20_000, 0.2), np.full(20_000, 0.625)
    trace = trace_of(low, full, np.zeros(20_000))
    rng = np.random.default_rng(1)
    found = take_readings(trace, 10 * US, 0.02, Routing(), rng)
    assert len(found.index) == 2_000
    np.testing.assert_allclose(found.occupancy[:, :2].std(axis=0), 0.02, rtol=0.1)
    # 0.625 is half way from 0.25 to 1: half of 5 %, of 121 packets a reading; 5 deviations.
    bound = 5 * math.sqrt(0.025 * 0.975 / (121 * 2_000))
    assert abs(found.marks[:, 1].mean() - 0.025) < bound
    assert not found.marks[:, [0, 2]].any()


def test_the_router_moves_once_for_each_time_its_path_is_hot() -> None:
    hot = np.tile(np.repeat([0.0, 0.9], 100), 5)
    flows = (((0,), (1,)),)
    trace = trace_of(hot, np.zeros(1_000), flows=flows)
    routing = routing_of(trace, 10 * US)
    readings = take_readings(trace, 10 * US, 0.0, routing, np.random.default_rng(0))
    truth = find_events(trace.at_ns, trace.occupancy, 0.7, 0.5)
    method = Method(forecast="reading")
    found, met = moves(trace, readings, method, Routing(pairs=1, forecast="reading"), truth)
    # There and back: 5 times there, 4 times back, in the 990 us between first and last reading.
    assert found == pytest.approx(9 / 0.99) and met == 0.0
    calm = trace_of(np.zeros(1_000), hot, flows=flows)
    readings = take_readings(calm, 10 * US, 0.0, routing, np.random.default_rng(0))
    assert moves(calm, readings, method, routing, truth)[0] == 0.0


def test_a_simulated_trace_is_what_it_says() -> None:
    for regime in REGIMES:
        trace = simulate(regime, "1 MB", seed=3, length_ns=3_000_000)
        assert trace.occupancy.shape == (3_000, 32) and 0.7 < trace.occupancy.max() <= 1.0
        assert trace.at_ns[0] == 1_000 and (np.diff(trace.at_ns) == 1_000).all()
        # No queue drains faster than its link at 400 Gb/s: 50 KB in a step.
        assert np.diff(trace.occupancy, axis=0).min() >= -0.05 - 1e-12
    again = simulate(regime, "1 MB", seed=3, length_ns=3_000_000)
    np.testing.assert_array_equal(trace.occupancy, again.occupancy)
    gaps = np.diff(trace.bursts[:, 0])
    assert abs(gaps / 1e6 - 1.0).max() < 0.05


def test_the_study_runs_and_says_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_quality, "BUFFERS", {"1 MB": 1_000_000})
    monkeypatch.setattr(forecast_quality, "CASES", ((10_000, 0.0), (50_000, 0.05)))
    out = tmp_path / "f.json"
    assert forecast_quality.main(["--seed", "5", "--scale", "0.05", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    cases = {(row["trace"], row["every_us"], row["noise"]) for row in rows}
    assert len(cases) == 3 * 2 and len(rows) == len(cases) * len(METHODS)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 + len(rows)
    one = [row for row in rows if row["every_us"] == 10 and row["trace"] == "1 MB, collisions"]
    by_method = {row["method"]: row for row in one}
    assert by_method["reading"]["recall"] == 0.0  # it warns when the event is there
    assert by_method["level 40 %"]["recall"] > 0.0
    assert all(row["base_rate"] == by_method["holt"]["base_rate"] for row in by_method.values())


def test_the_kernels_queues_keep_the_law_of_the_token_bucket() -> None:
    try:
        traces = forecast_tc.measure(2.0, 1)
    except UsageError as error:
        pytest.skip(str(error))
    assert [trace.name for trace in traces] == ["tc, collisions", "tc, mild", "tc, periodic"]
    for trace in traces:
        assert trace.occupancy.min() >= 0.0 and 0.3 < trace.occupancy.max() <= 1.0
        # A reading is later than its time, and earlier than the next one's, however late we are.
        drained = -np.diff(trace.occupancy, axis=0)[:-1] * forecast_tc.LIMIT_BYTES
        within_s = (trace.at_ns[2:] - trace.at_ns[:-2])[:, None] / 1e9
        assert (drained <= forecast_tc.LINK_BYTES_S * within_s + 5_000 + 1_500).all()
    assert len(traces[2].bursts) > 10
    assert len(set(np.diff(traces[2].bursts[:, 0]))) <= 3  # 100 ms, to the nanosecond


def test_without_the_right_the_kernels_queues_are_refused_aloud(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no iproute2
    assert forecast_quality.main(["--tc", "--seconds", "1"]) == 1
    error = capsys.readouterr().err
    assert "iproute2" in error and len(error.splitlines()) == 1
