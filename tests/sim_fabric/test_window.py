"""Windows of NSCC, entropy values, pauses that take time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xtune.errors import UsageError
from xtune.policies.spec import Routing
from xtune.sim import _choices
from xtune.sim import _extras as x
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.bounds import flow_ns
from xtune.sim.congestion import Dcqcn, Nscc, SharedBuffer
from xtune.sim.fabric import PACKET_BYTES, Backpressure, LeafSpine
from xtune.sim.flows import Flows, build_flows, permutation
from xtune.sim.phase import run_phase

RTT_NS = 4_338.0
NSCC = Nscc.for_path(RTT_NS, 400.0)
TRIM = SharedBuffer(bytes_per_switch=10**12, queue_bytes=217_000, recovery="selective")
SPRAY = Routing(mode="spray")
NONE = Backpressure(kind="none")


def windowed(flows: int, *, buffer: SharedBuffer | None = None) -> State:
    """Some hosts that send to one, below one leaf."""
    sending = build_flows(list(range(1, flows + 1)), [0] * flows, 4_000_000)
    return under(NSCC, LeafSpine(flows + 1, 1, 1), sending, buffer=buffer)


def under(
    nscc: Nscc, fabric: LeafSpine, flows: Flows, *, dt_ns: int = 250,
    buffer: SharedBuffer | None = None,
) -> State:  # fmt: skip
    """A phase under NSCC that has not begun."""
    return State(
        fabric, flows, routing=Routing(mode="static"), dt_ns=dt_ns, seed=0, pfc=NONE,
        limit_ns=10**8, rate_control=nscc, shared_buffer=buffer,
    )  # fmt: skip


def steps(state: State) -> Iterator[int]:
    """Run a phase step by step until it ends."""
    while state.cfg[k.LEFT] > 0:
        state.cfg[k.LIMIT_STEP] = state.cfg[k.STEP] + 1
        state.run()
        yield int(state.cfg[k.STEP])


def test_a_window_of_more_than_a_round_trip_holds_no_lone_flow_back() -> None:
    fabric = LeafSpine.square(16)
    flows = build_flows([0], [15], 8_000_000)
    result = run_phase(
        fabric, flows, routing=SPRAY, pfc=NONE, dt_ns=250, rate_control=NSCC, entropies=64
    )
    assert result.completion_ns[0] == pytest.approx(flow_ns(fabric, 8_000_000), rel=5e-3)


def test_one_of_half_a_round_trip_halves_its_rate() -> None:
    # Fixed: nothing makes it grow. Each packet is acknowledged.
    state = windowed(1)
    ex = state.extras
    ex.cfg[x.ACK_BYTES] = 1
    ex.real[[x.FAIR, x.PROPORTION, x.STEADY, x.FAST_SHARE]] = 0.0
    window = ex.window[0]
    window[x.CWND] = window[x.MOST] = window[x.RTT] * 50 / 2
    state.run()
    line = 4_000_000 / 50
    assert state.flow_f[0, k.DONE_AT] == pytest.approx(2 * line, rel=0.15)


def test_the_packet_that_fills_a_window_asks_for_its_acknowledgement() -> None:
    # Three steps of 12,500 B and a bit fill it; nothing has come by then.
    state = windowed(1)
    ex, window = state.extras, state.extras.window[0]
    window[x.CWND] = window[x.MOST] = 37_500 + 1.5 * PACKET_BYTES
    state.cfg[k.LIMIT_STEP] = 6
    state.run()
    assert window[x.FLIGHT] == window[x.CWND]
    np.testing.assert_array_equal(ex.notes[ex.notes[:, x.ASKS] == 1, x.OFFSET], [37_500])


@pytest.mark.parametrize(("size", "asks"), [(12_000, 1), (13_000, 0)])
def test_so_does_the_last_of_a_flow(size: int, asks: int) -> None:
    # A step of 12,500 B.
    state = under(NSCC, LeafSpine(2, 1, 1), build_flows([0], [1], size))
    next(steps(state))
    assert state.extras.notes[0, x.ASKS] == asks


@pytest.mark.parametrize("buffer", [None, TRIM])
def test_what_is_not_acknowledged_stays_within_the_largest_window(
    buffer: SharedBuffer | None,
) -> None:
    state = windowed(8, buffer=buffer)
    ex, longest = state.extras, 0
    for step in range(20, 2_000, 20):
        state.cfg[k.LIMIT_STEP] = step
        state.run()
        window = ex.window
        assert (window[:, x.FLIGHT] <= window[:, x.MOST] + PACKET_BYTES).all()
        assert (window[:, x.FLIGHT] > -1.0).all()
        gone = state.flow_i[:, k.DELIVERED].sum() + ex.flow[:, x.DROPPED].sum()
        assert ex.flow[:, x.SENT].sum() == gone + state.queued.sum()
        longest = max(longest, int(state.queued[state.fabric.delivery(0)]))
    if buffer is not None:
        assert longest <= (TRIM.queue_bytes or 0)
        assert ex.flow[:, x.DROPPED].sum() > 0
    state.cfg[k.LIMIT_STEP] = 10**6
    state.run()
    assert state.cfg[k.LEFT] == 0
    np.testing.assert_array_equal(state.flow_i[:, k.DELIVERED], 4_000_000)


def test_no_sender_of_many_knows_of_what_cannot_have_come_back() -> None:
    """What is in flight by its count is at least what was sent and not delivered a way ago."""
    src, dst = np.nonzero(~np.eye(16, dtype=bool))
    flows = build_flows(src.tolist(), dst.tolist(), 200_000)
    state = under(NSCC, LeafSpine(16, 1, 1), flows)
    ex, way = state.extras, int(state.extras.window[0, x.ACK_STEPS])
    delivered, without_turn = [], 0
    for _ in steps(state):
        delivered.append(state.flow_i[:, k.DELIVERED].copy())
        known = delivered[-1 - way] if len(delivered) > way else 0
        assert (ex.window[:, x.FLIGHT] >= ex.flow[:, x.SENT] - known).all()
        without_turn = max(without_turn, state.cfg[k.STEP] - 1 - ex.window[:, x.SEEN_STEP].min())
    assert without_turn > 5  # of fifteen flows three have one in a step


def test_a_packet_is_marked_by_the_queue_that_it_leaves_behind() -> None:
    """Two hosts send S each at once: the queue rises at a line's rate, and falls as fast.

    It is K at K / rate and at (2 S - K) / rate, and of the bytes that leave between the two, of
    which no other rule marks the first and the last, all are marked.
    """
    threshold, size = 200_000, 1_000_000
    nscc = Nscc(
        rtt_ns=RTT_NS, gbps=400.0, target_ns=RTT_NS, kmin_bytes=threshold - 1,
        kmax_bytes=threshold, window_rtts=100.0,
    )  # fmt: skip
    state = under(nscc, LeafSpine(3, 1, 1), build_flows([1, 2], [0, 0], size), dt_ns=50)
    port = state.fabric.delivery(0)
    error = 2 * PACKET_BYTES + 2_500  # a packet of each, and a step
    for _ in steps(state):
        gone = int(state.flow_i[:, k.DELIVERED].sum())
        by_hand = min(max(gone - threshold, 0), 2 * (size - threshold))
        assert state.extras.queue[port, x.MARKED_BYTES] == pytest.approx(by_hand, abs=error)
    assert gone == 2 * size


def test_entropy_values_are_taken_in_turn() -> None:
    # A whole number of rounds: each path carries as many packets as values are hashed to it.
    fabric, values, rounds = LeafSpine(8, 2, 4), 16, 10
    flows = build_flows([0], [4], values * rounds * PACKET_BYTES)
    state = State(
        fabric, flows, routing=SPRAY, dt_ns=250, seed=3, pfc=NONE, limit_ns=10**8,
        rate_control=NSCC, entropies=values,
    )  # fmt: skip
    state.run()
    hashed = np.bincount(state.paths[0], minlength=4)
    up = [fabric.uplink(0, spine) for spine in range(4)]
    np.testing.assert_array_equal(state.extras.queue[up, x.PACKETS], rounds * hashed)
    assert len(set(hashed)) > 1


def test_a_pause_that_takes_time_lasts_longer_by_hand() -> None:
    # Two hosts share an uplink; in two ways of the signal and the data each brings half a line's
    # bytes beyond Xoff, and no byte comes before the way back has passed once more.
    fabric = LeafSpine(4, 2, 1)
    rate, way = 50.0, 1_000.0
    flows = build_flows([0, 1], [2, 3], 8_000_000)
    for signal_ns, by_hand in (
        (None, 20 * PACKET_BYTES / (rate / 2)),
        (500, (20 * PACKET_BYTES + way * rate / 2) / (rate / 2) + way),
    ):
        result = run_phase(fabric, flows, dt_ns=50, pfc=Backpressure(signal_ns=signal_ns))
        lasted = result.paused_ns[:2].sum() / result.pauses[:2].sum()
        assert lasted == pytest.approx(by_hand, rel=0.06)


@pytest.mark.parametrize(("signal_ns", "both_ways"), [(None, 0), (0, 1_000), (500, 2_000)])
def test_a_pause_and_its_end_take_their_ways_to_the_step(
    signal_ns: int | None, both_ways: int
) -> None:
    """What a switch asks for and what its port does differ for so long, in all of a pause."""
    state = State(
        LeafSpine(4, 2, 1), build_flows([0, 1], [2, 3], 4_000_000),
        routing=Routing(mode="static"), dt_ns=50, seed=0,
        pfc=Backpressure(signal_ns=signal_ns), limit_ns=10**8,
    )  # fmt: skip
    differ = 0
    for _ in steps(state):
        differ += state.asked[0] != state.paused[0]
        if state.pauses[0] == 1 and not (state.asked[0] or state.paused[0]):
            break
    assert state.pauses[0] == 1
    assert differ * 50 == both_ways


@pytest.mark.parametrize("dt_ns", [100, 500, 1000, 1999])
def test_a_fabric_with_slow_pauses_neither_loses_bytes_nor_stands_still(dt_ns: int) -> None:
    fabric = LeafSpine.square(16)
    flows = permutation(fabric, 2_000_000, seed=2)
    tight = Backpressure(xoff_bytes=3 * PACKET_BYTES, xon_bytes=PACKET_BYTES, signal_ns=500)
    result = run_phase(fabric, flows, dt_ns=dt_ns, pfc=tight)
    assert result.finished
    np.testing.assert_array_equal(result.delivered_bytes, flows.size)


def test_a_switch_sees_a_queue_by_its_band() -> None:
    real = np.full(k.REAL_SIZE, np.inf)
    real[k.BAND : k.BAND + 2] = 10.0, 20.0
    seen = [_choices._band_of.py_func(real, queue) for queue in (0.0, 9.0, 10.0, 19.0, 20.0, 1e9)]
    assert seen == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"rtt_ns": 0.0}, {"kmin_bytes": 10**9}, {"cut": 0.0}, {"average": 2.0}):
        given = {"rtt_ns": 1.0, "gbps": 1.0, "target_ns": 1.0, "kmin_bytes": 0, "kmax_bytes": 1}
        with pytest.raises(UsageError):
            Nscc(**{**given, **wrong})  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Backpressure(kind="none", signal_ns=5)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"shared_buffer": SharedBuffer(bytes_per_switch=400_000)}, "no more"),
        ({"pfc": Backpressure(), "in_order": True}, "no more"),
        ({"shared_buffer": TRIM, "pfc": Backpressure()}, "queue_bytes is for switches that drop"),
        ({"shared_buffer": TRIM, "dt_ns": 2000}, "1000 ns or less"),
        ({"rate_control": replace(NSCC, window_rtts=0.01)}, "holds no packet"),
    ],
)
def test_what_windows_cannot_do_is_refused(how: dict[str, Any], why: str) -> None:
    given = {"pfc": NONE, "dt_ns": 250, "rate_control": NSCC, **how}
    flows = build_flows([0, 1], [8, 8], 100_000)
    with pytest.raises(UsageError, match=why):
        run_phase(LeafSpine.square(16), flows, **given)


def test_a_window_of_one_packet_sends_one_a_round_trip() -> None:
    state = windowed(1)
    window = state.extras.window[0]
    window[x.CWND] = window[x.MOST] = PACKET_BYTES
    state.run()
    rounds = state.flow_f[0, k.DONE_AT] / (4_000_000 / PACKET_BYTES)
    assert rounds == pytest.approx(window[x.RTT], rel=0.15)


BY_QUEUE = Routing(mode="switch_adaptive", switch_load="queue")
BY_FLOWS = Routing(mode="switch_adaptive", switch_load="flows")
LATE = Backpressure(signal_ns=100)
ROOM = SharedBuffer(bytes_per_switch=10**9, headroom_bytes=0, recovery="selective")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"routing": Routing(mode="static"), "entropies": 64}, "not for mode 'static'"),
        ({"routing": BY_FLOWS, "entropies": 1}, "not for mode 'switch_adaptive'"),
        ({"routing": SPRAY, "entropies": -1}, "at most 65536"),
        ({"routing": SPRAY, "entropies": 65_537}, "at most 65536"),
        ({"queue_bands": (1, 2)}, "not for mode 'static'"),
        ({"routing": SPRAY, "queue_bands": (1, 2)}, "not for mode 'spray'"),
        ({"routing": BY_FLOWS, "queue_bands": (1, 2)}, "by flows"),
        ({"routing": BY_QUEUE, "queue_bands": (1, 2, 3, 4)}, "at most 3"),
        ({"routing": BY_QUEUE, "queue_bands": (1, math.nan)}, "divide no queue"),
        ({"routing": BY_QUEUE, "queue_bands": (1, math.inf)}, "divide no queue"),
        ({"routing": BY_QUEUE, "queue_bands": (0, 1)}, "divide no queue"),
        ({"routing": Routing(mode="binary"), "in_order": True}, "not 'binary'"),
        ({"pfc": NONE, "in_order": True}, "with 'none'"),
        ({"pfc": LATE, "dt_ns": 1_200}, "600 ns late .steps below 1200 ns"),
        ({"pfc": NONE, "shared_buffer": ROOM}, "headroom_bytes is for pauses"),
    ],
)
def test_options_that_would_change_nothing_are_refused(how: dict[str, Any], why: str) -> None:
    given = {"dt_ns": 1_000, **how}
    with pytest.raises(UsageError, match=why):
        run_phase(LeafSpine(4, 2, 2), build_flows([0], [2], 1), **given)


@pytest.mark.parametrize(
    "how",
    [
        {"routing": SPRAY, "entropies": 65_536},
        {"routing": BY_QUEUE, "queue_bands": np.array([3, 1, 2])},
        {"routing": BY_QUEUE, "in_order": True},
        {"in_order": True},
        {"pfc": LATE, "dt_ns": 1_199},
        {"shared_buffer": ROOM},
    ],
)
def test_and_those_that_may_are_taken(how: dict[str, Any]) -> None:
    flows = build_flows([0], [2], 100_000)
    assert run_phase(LeafSpine(4, 2, 2), flows, **how).finished


def test_bytes_of_one_path_are_in_order_whatever_a_receiver_takes() -> None:
    fabric = LeafSpine.square(16)
    flows = permutation(fabric, 1_000_000, seed=3)
    any_order, in_order = (run_phase(fabric, flows, in_order=order) for order in (False, True))
    np.testing.assert_array_equal(any_order.completion_ns, in_order.completion_ns)
    assert in_order.discarded_bytes == 0


def test_values_that_cannot_be_are_refused() -> None:
    for name in ("additive_gbps", "hyper_gbps", "least_gbps"):
        for value in (math.nan, math.inf, -1.0):
            with pytest.raises(UsageError, match="DCQCN"):
                Dcqcn(**{name: value})  # type: ignore[arg-type]
    for wrong in (0, -5, 1):
        with pytest.raises(UsageError, match="holds no packet"):
            SharedBuffer(bytes_per_switch=10**6, queue_bytes=wrong)
    for name in ("rtt_ns", "target_ns", "clear_ns"):
        with pytest.raises(UsageError, match="not positive"):
            replace(NSCC, **{name: float("nan")})  # type: ignore[arg-type]


def test_headroom_holds_what_is_under_way_while_a_pause_is_told() -> None:
    """Of each of eight inputs, 50 bytes a ns longer than the way that a pause takes otherwise."""
    needed = []
    for signal_ns in (None, 500, 5000):
        with pytest.raises(UsageError, match="of headroom") as told:
            run_phase(
                LeafSpine.square(16), build_flows([4], [0], 1_000_000),
                pfc=Backpressure(signal_ns=signal_ns),
                shared_buffer=SharedBuffer(bytes_per_switch=1),
            )  # fmt: skip
        needed.append(int(str(told.value).split("hold ")[1].split()[0]))
    assert needed[0] == needed[1]
    assert needed[2] - needed[1] == pytest.approx(8 * 50 * 4500, rel=0.02)
