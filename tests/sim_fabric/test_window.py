"""Windows of NSCC, entropy values, pauses that take time, receivers that keep to the order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xtune.errors import UsageError
from xtune.policies.spec import Routing
from xtune.sim import _choices, _window
from xtune.sim import _extras as x
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.bounds import flow_ns
from xtune.sim.congestion import Nscc, SharedBuffer
from xtune.sim.fabric import PACKET_BYTES, Backpressure, LeafSpine
from xtune.sim.flows import build_flows, permutation
from xtune.sim.phase import run_phase

RTT_NS = 4_338.0
NSCC = Nscc.for_path(RTT_NS, 400.0)
TRIM = SharedBuffer(bytes_per_switch=10**12, queue_bytes=217_000, recovery="selective")
SPRAY = Routing(mode="spray")
NONE = Backpressure(kind="none")


def windowed(flows: int, *, buffer: SharedBuffer | None = None) -> State:
    """Some hosts that send to one, below one leaf."""
    fabric = LeafSpine(flows + 1, 1, 1)
    sending = build_flows(list(range(1, flows + 1)), [0] * flows, 4_000_000)
    return State(
        fabric, sending, routing=Routing(mode="static"), dt_ns=250, seed=0, pfc=NONE,
        limit_ns=10**8, rate_control=NSCC, shared_buffer=buffer,
    )  # fmt: skip


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
    # The receiver waits for four packets, but tells of this one, and of what came before it.
    slot = int(window[x.ACK_STEPS])
    _window.take_ack.py_func(ex, 0, 0, 1_000, False, False, 0.0)
    assert ex.acks[0, slot, x.PLAIN, x.ACKS] == 0.0
    _window.take_ack.py_func(ex, 0, 0, 500, False, True, 0.0)
    np.testing.assert_array_equal(ex.acks[0, slot, x.PLAIN, : x.DELAYS], [1.0, 1_500.0])


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


def test_acknowledgements_move_a_window_as_the_specification_says() -> None:
    state = windowed(1)
    ex, window = state.extras, state.extras.window[0]
    scale, target = RTT_NS * 50 / 150_000, 0.75 * RTT_NS
    window[x.FLIGHT], window[x.CWND], window[x.ADJUSTED_AT] = 150_000.0, 100_000.0, 0.0
    window[x.ADAPT_AT] = 1e12
    # 9 packets at half the target: 4 packets times scale, times its distance over 12 us.
    ack = np.array([1.0, 9.0 * PACKET_BYTES, 0.5 * target])
    _window.hear.py_func(ex, 0, 1_000, ack, False)
    share = 9 * PACKET_BYTES / 100_000
    grown = 100_000 + 4 * PACKET_BYTES * scale * (0.5 * target / 12_000) * share
    assert window[x.CWND] == pytest.approx(grown)
    assert window[x.FLIGHT] == 150_000 - 9 * PACKET_BYTES
    # A marked one beyond the target cuts by how far the average is beyond, once a round trip.
    window[x.MEAN_DELAY] = 2 * target
    ack = np.array([1.0, 4_096.0, 2 * target])
    for now, cuts in ((20_000, 1), (20_100, 1), (30_000, 2)):
        window[x.ADJUSTED_AT] = now
        _window.hear.py_func(ex, 0, now, ack, True)
        assert window[x.CWND] == pytest.approx(grown * (1 - 0.8 / 2) ** cuts)


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


@pytest.mark.parametrize("dt_ns", [100, 500, 1000, 3000])
def test_a_fabric_with_slow_pauses_neither_loses_bytes_nor_stands_still(dt_ns: int) -> None:
    fabric = LeafSpine.square(16)
    flows = permutation(fabric, 2_000_000, seed=2)
    tight = Backpressure(xoff_bytes=3 * PACKET_BYTES, xon_bytes=PACKET_BYTES, signal_ns=500)
    result = run_phase(fabric, flows, dt_ns=dt_ns, pfc=tight)
    assert result.finished
    np.testing.assert_array_equal(result.delivered_bytes, flows.size)


def test_who_takes_bytes_in_order_alone_has_a_moved_flow_sent_again() -> None:
    fabric = LeafSpine(8, 2, 2)
    flows = build_flows([0, 1, 2], [4, 5, 6], 20_000_000)
    routing = Routing(mode="switch_adaptive", flowlet_gap_ns=2_000)
    again = 0
    for seed in range(10):
        result = run_phase(fabric, flows, routing=routing, seed=seed, in_order=True)
        assert result.finished
        sent = result.sent_bytes.sum()
        whole = result.delivered_bytes.sum() + result.discarded_bytes + result.in_fabric_bytes
        assert sent == whole
        assert (result.discarded_bytes > 0) <= bool(result.moves.sum())
        again += result.discarded_bytes > 0
    assert again > 0


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
    fabric = LeafSpine(4, 2, 2)
    flows = build_flows([0], [2], 1)
    with pytest.raises(UsageError):
        run_phase(fabric, flows, routing=Routing(mode="binary"), in_order=True)
    with pytest.raises(UsageError):
        run_phase(fabric, flows, queue_bands=(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"shared_buffer": SharedBuffer(bytes_per_switch=400_000)}, "no more"),
        ({"pfc": Backpressure(), "in_order": True}, "no more"),
        ({"shared_buffer": TRIM, "pfc": Backpressure()}, "queue_bytes is for switches that drop"),
        ({"shared_buffer": TRIM, "dt_ns": 2000}, "1000 ns or less"),
    ],
)
def test_what_windows_cannot_do_is_refused(how: dict[str, Any], why: str) -> None:
    given = {"pfc": Backpressure(kind="none"), "dt_ns": 250, **how}
    flows = build_flows([0, 1], [8, 8], 100_000)
    with pytest.raises(UsageError, match=why):
        run_phase(LeafSpine.square(16), flows, rate_control=NSCC, **given)


def test_values_that_cannot_be_are_refused() -> None:
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
