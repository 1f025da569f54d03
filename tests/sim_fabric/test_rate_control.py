from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.errors import UsageError
from xtune.policies import _core
from xtune.policies.spec import Routing
from xtune.sim import _extras as x
from xtune.sim import _layout as k
from xtune.sim import _rate
from xtune.sim._state import State
from xtune.sim.congestion import Dcqcn
from xtune.sim.fabric import PACKET_BYTES, Backpressure, LeafSpine
from xtune.sim.flows import build_flows, join_flows
from xtune.sim.phase import run_phase

GBPS = 40.0  # the paper's
ENDLESS = 1 << 40
STATIC = Routing(mode="static")


def bottleneck(flows: int, rates: Dcqcn, *, dt_ns: int = 1000, apart_ns: int = 0) -> State:
    """Some hosts, begun one after another, that send to one for ever, below one leaf."""
    fabric = LeafSpine(flows + 1, 1, 1, GBPS)
    sending = build_flows(
        list(range(1, flows + 1)), [0] * flows, ENDLESS, start_ns=np.arange(flows) * apart_ns
    )
    return State(
        fabric, sending, routing=STATIC, dt_ns=dt_ns, seed=0, pfc=Backpressure(kind="none"),
        limit_ns=10**10, rate_control=rates,
    )  # fmt: skip


class Steady:
    """Figures of the second half of a run."""

    def __init__(self, state: State, ms: int) -> None:
        port, steps = state.fabric.delivery(0), ms * 1_000_000 // state.dt_ns
        queues = []
        for step in range(0, steps, 20):
            if step == steps // 2:
                delivered = state.flow_i[:, k.DELIVERED].copy()
                marks = state.extras.queue[port].copy()
            state.cfg[k.LIMIT_STEP] = step + 20
            state.run()
            queues.append(state.queued[port])
        got = state.flow_i[:, k.DELIVERED] - delivered
        packets = state.extras.queue[port] - marks
        self.queue = np.array(queues[len(queues) // 2 :])
        self.fairness = float(got.sum() ** 2 / (len(got) * (got.astype(float) ** 2).sum()))
        self.utilisation = float(got.sum() / (ms * 1e6 / 2 * GBPS / 8))
        self.marked = float(packets[x.MARKED] / packets[x.PACKETS])


@pytest.mark.parametrize("flows", [2, 4])
def test_flows_share_a_bottleneck_with_its_queue_about_the_thresholds(flows: int) -> None:
    rates = Dcqcn()
    steady = Steady(bottleneck(flows, rates, apart_ns=5_000_000), ms=80)
    assert steady.fairness > 0.95
    assert steady.utilisation > 0.95
    assert rates.kmin_bytes < np.median(steady.queue) < rates.kmax_bytes
    assert np.quantile(steady.queue, 0.99) < 1.5 * rates.kmax_bytes


def fixed_point(flows: int, rates: Dcqcn) -> float:
    """Marked share at which the fluid model of DCQCN stands still (Zhu et al., CoNEXT 2016).

    Its equations (5) to (7) with all derivatives 0 and the rate at a fair share; by bisection.
    """
    packet_s = GBPS * 1e9 / 8 / PACKET_BYTES / flows
    tau, tau_alpha = rates.cnp_interval_ns * 1e-9, rates.alpha_timer_ns * 1e-9
    timer, counter = rates.increase_timer_ns * 1e-9, rates.byte_counter / PACKET_BYTES
    rise = rates.additive_gbps * 1e9 / 8 / PACKET_BYTES

    def drift(p: float) -> float:
        cuts = -math.expm1(tau * packet_s * math.log1p(-p)) / tau
        alpha = -math.expm1(tau_alpha * packet_s * math.log1p(-p))
        by_bytes = packet_s * p / math.expm1(-counter * math.log1p(-p))
        by_time = packet_s * p / math.expm1(-timer * packet_s * math.log1p(-p))
        gap = packet_s * alpha * cuts / (by_bytes + by_time)  # target less rate
        late = math.log1p(-p) * rates.fast_recovery
        grown = math.exp(late * counter) * by_bytes + math.exp(late * timer * packet_s) * by_time
        return rise * grown - gap * cuts

    low, high = 1e-7, 0.5
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if drift(middle) > 0 else (low, middle)
    return low


@pytest.mark.parametrize(("flows", "dt_ns"), [(2, 1000), (4, 1000), (4, 500)])
def test_the_marked_share_is_near_the_fixed_point_of_the_fluid_model(
    flows: int, dt_ns: int
) -> None:
    # A curve wide enough for the fixed point to lie on it. The queue swings about it, and the
    # rise of the rates, convex in the marks, asks for more of them than at rest.
    rates = Dcqcn(kmax_bytes=2_000_000, pmax=0.1)
    steady = Steady(bottleneck(flows, rates, dt_ns=dt_ns), ms=dt_ns // 5)
    assert 1.0 < steady.marked / fixed_point(flows, rates) < 1.5
    assert steady.fairness > 0.99
    assert steady.utilisation > 0.99


def test_a_standing_sender_follows_the_steps_of_the_paper() -> None:
    # One notice at line rate halves the rate (alpha is 1 then); five timers halve the distance to
    # the target; after them the target itself rises. By hand, in Gb/s.
    rates = Dcqcn(byte_counter=1 << 40)
    state = bottleneck(1, rates)
    ex = state.extras
    ex.flow[0, x.CNP_DUE] = 0
    seen = []
    for now in range(0, 8 * 55_000, 55_000):
        _rate.allowance.py_func(ex, 0, now, 1000, PACKET_BYTES)
        seen.append(ex.pace[0, x.RATE] * 8)
    recovered = [40 - 20 / 2**i for i in range(6)]  # 20, 30, 35, ...
    np.testing.assert_allclose(seen[:6], recovered)
    # Target 40.04 is above the line, so it stays at 40.
    np.testing.assert_allclose(seen[6], (40 + recovered[5]) / 2)
    alpha = 1.0
    np.testing.assert_allclose(ex.pace[0, x.ALPHA], alpha * (255 / 256) ** 7)
    # A second notice: down by half of alpha, and from there to the rate before.
    before = ex.pace[0, x.RATE]
    ex.flow[0, x.CNP_DUE] = 8 * 55_000 - 1
    _rate.allowance.py_func(ex, 0, 8 * 55_000 - 1, 1000, PACKET_BYTES)
    alpha = (255 / 256) ** 7
    assert ex.pace[0, x.RATE] == pytest.approx(before * (1 - alpha / 2))
    assert ex.pace[0, x.TARGET] == pytest.approx(before)


def test_the_target_rises_slowly_and_then_faster() -> None:
    rates = Dcqcn(additive_gbps=0.5, hyper_gbps=2.0, fast_recovery=1)
    state = bottleneck(1, rates)
    pace, flow = state.extras.pace, state.extras.flow
    pace[0, x.RATE] = pace[0, x.TARGET] = 1.0
    targets = []
    for by_time, by_bytes in ((0, 0), (1, 0), (1, 1), (2, 2), (4, 3)):
        flow[0, x.TIME_STAGE], flow[0, x.BYTE_STAGE] = by_time, by_bytes
        _rate._rise.py_func(state.extras, 0)
        targets.append(pace[0, x.TARGET] * 8)
    np.testing.assert_allclose(targets, [8.0, 8.5, 9.0, 9.0 + 2.0, 11.0 + 2 * 2.0])


def test_a_receiver_tells_of_marks_once_in_the_interval() -> None:
    state = bottleneck(1, Dcqcn())
    told = []
    for now in range(0, 200_000, 1000):
        _rate.take_mark.py_func(state.extras, 0, now, 2000)
        if state.extras.flow[0, x.CNP_DUE] != x.NONE:
            told.append(int(state.extras.flow[0, x.CNP_DUE]))
            state.extras.flow[0, x.CNP_DUE] = x.NONE
    assert told == [2_000, 52_000, 102_000, 152_000]


def test_a_growing_queue_is_marked_along_the_curve() -> None:
    # Two senders that no notice slows: the queue grows by a step's bytes a step, past both ends
    # of the curve.
    rates = Dcqcn(kmin_bytes=500_000, kmax_bytes=2_000_000, pmax=0.2, least_gbps=GBPS)
    state = bottleneck(2, rates)
    state.cfg[k.LIMIT_STEP] = 500
    state.run()
    queue = np.arange(500) * 5000.0  # left by the service of each step
    share = np.clip((queue - 500_000) / 1_500_000, 0, 1) * 0.2
    share[queue >= 2_000_000] = 1.0
    packets = 10_000 / PACKET_BYTES
    expected, spread = (share * packets).sum(), math.sqrt((share * (1 - share) * packets).sum())
    got = state.extras.queue[state.fabric.delivery(0), x.MARKED]
    assert abs(got - expected) < 4 * spread
    assert state.extras.queue[state.fabric.delivery(0), x.PACKETS] == 499 * 10_000 // PACKET_BYTES


def test_a_lone_flow_at_line_rate_is_never_marked() -> None:
    fabric = LeafSpine.square(16)
    flows = build_flows([0], [15], 8_000_000)
    result = run_phase(fabric, flows, rate_control=Dcqcn(kmin_bytes=0))
    assert result.marked_bytes.sum() == 0


def test_two_flows_that_fill_a_line_without_a_queue_are_never_marked() -> None:
    # What comes in the same step is no queue: it leaves in the next one.
    fabric = LeafSpine(3, 1, 1, slow_ports=((0, 0.5), (1, 0.5)))
    flows = build_flows([0, 1], [2, 2], 2_000_000)
    result = run_phase(fabric, flows, rate_control=Dcqcn(kmin_bytes=0, kmax_bytes=1, pmax=1.0))
    assert result.marked_bytes.sum() == 0


def test_only_the_lane_that_waits_is_marked() -> None:
    fabric = LeafSpine(3, 1, 1)
    flows = join_flows(
        build_flows([0], [2], 2_000_000, lane=0), build_flows([1], [2], 2_000_000, lane=1)
    )
    state = State(
        fabric, flows, routing=Routing(mode="static", lanes=2), dt_ns=1000, seed=0,
        pfc=Backpressure(kind="none"), limit_ns=10**9, rate_control=Dcqcn(),
    )  # fmt: skip
    state.run()
    upper, lower = state.extras.queue[[fabric.delivery(2), fabric.ports + fabric.delivery(2)]]
    assert upper[x.MARKED] == 0
    assert lower[x.MARKED] > 0


def test_marks_move_a_flow_that_readings_of_the_queue_would_leave() -> None:
    # The engine's forecast takes marks as occupancy: here they alone reach the warning.
    fabric = LeafSpine(16, 4, 4, buffer_bytes=10_000_000)
    job = build_flows([0], [4], 4_000_000).with_paths([1], [2])
    noise = build_flows([1, 2], [5, 6], ENDLESS).with_paths([1, 1]).in_background()
    routing = Routing(
        mode="binary", forecast="reading", unit_bytes=100_000, enter_occupancy=0.99,
        exit_occupancy=0.5, cold_occupancy=0.4, mark_top_share=1e-3, probe_interval_ns=2_000,
        decision_delay_ns=0, hold_ns=0,
    )  # fmt: skip
    marks = Dcqcn(kmin_bytes=10_000, kmax_bytes=10_000_000, pmax=0.5, least_gbps=400.0)
    deaf, hears = (
        run_phase(fabric, job, background=noise, routing=routing, rate_control=rates)
        for rates in (None, marks)
    )
    assert deaf.moves[0] == 0
    assert hears.moves[0] > 0


@given(
    queue=st.floats(0, 1), low=st.floats(0, 0.5), width=st.floats(0.01, 0.5),
    top=st.floats(1e-3, 1),
)  # fmt: skip
def test_marks_tell_the_queue_that_made_them(
    queue: float, low: float, width: float, top: float
) -> None:
    share = _core.marked_share(queue, low, low + width, top)
    told = _core.with_marks(math.nan, share, low, low + width, top)
    assert told == pytest.approx(min(max(queue, low), low + width), abs=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kmin_bytes": 200_000},
        {"pmax": 0.0},
        {"cnp_interval_ns": 0},
        {"byte_counter": 0},
        {"gain": 2.0},
        {"additive_gbps": -1.0},
        {"least_gbps": 0.0},
    ],
)
def test_rates_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Dcqcn(**wrong)  # type: ignore[arg-type]


def test_a_faster_link_scales_queues_and_rates() -> None:
    fast = Dcqcn.for_link(400.0)
    assert (fast.kmin_bytes, fast.kmax_bytes, fast.pmax) == (50_000, 2_000_000, 0.01)
    assert fast.additive_gbps == pytest.approx(0.4)
    assert fast.cnp_interval_ns == Dcqcn().cnp_interval_ns
