"""The rules of NSCC one by one, in figures worked by hand.

They are those of the Ultra Ethernet specification 1.0, section 3.6.13, as ``uec.cpp`` of UEC
htsim has them. The sender here has round figures: a round trip of 4 us, a target of 3 us.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xtune.policies.spec import Routing
from xtune.sim import _buffers, _window
from xtune.sim import _extras as x
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.congestion import Nscc
from xtune.sim.fabric import PACKET_BYTES, Backpressure, LeafSpine
from xtune.sim.flows import build_flows

F64 = NDArray[np.float64]

RTT, TARGET, CLEAR, LEAST, MOST = 4_000.0, 3_000.0, 1_000.0, 4_096.0, 200_000.0
FAIR, PROPORTION, STEADY = 20_000.0, 2.0, 600.0
NEVER = 1e12
DT_NS, WAY_BACK = 250, 8  # steps; two less than the ring of acknowledgements has


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the rules as they are written: compiling takes longer than calling them once."""
    for name, function in list(vars(_window).items()):
        if hasattr(function, "py_func"):
            monkeypatch.setattr(_window, name, function.py_func)


def sending(nscc: Nscc) -> State:
    """A host that sends to another below its leaf."""
    return State(
        LeafSpine(2, 1, 1), build_flows([1], [0], 1_000_000), routing=Routing(mode="static"),
        dt_ns=DT_NS, seed=0, pfc=Backpressure(kind="none"), limit_ns=10**8, rate_control=nscc,
    )  # fmt: skip


def sender(**given: float) -> tuple[x.Extras, F64]:
    """A sender of round figures, whose quick adapt and adjustment are not due at time 10,000."""
    ex = sending(Nscc.for_path(RTT, 400.0)).extras
    ex.real[[x.TARGET_NS, x.CLEAR_NS, x.LEAST]] = TARGET, CLEAR, LEAST
    ex.real[[x.FAIR, x.PROPORTION, x.STEADY, x.FAST_SHARE]] = FAIR, PROPORTION, STEADY, 0.25
    ex.real[[x.CUT, x.LEAST_LEFT, x.AVERAGE]] = 0.8, 0.5, 0.125
    ex.cfg[x.ACK_BYTES], ex.cfg[x.QA_SHIFT] = 10_000, 3
    window = ex.window[0]
    window[[x.RTT, x.MOST, x.ACK_STEPS]] = RTT, MOST, WAY_BACK
    window[[x.CWND, x.FLIGHT, x.ADAPT_AT, x.ADJUSTED_AT]] = 100_000.0, 90_000.0, NEVER, 10_000.0
    for name, value in given.items():
        window[getattr(x, name)] = value
    return ex, window


def hear(ex: x.Extras, size: float, delay: float, *, marked: bool = False, **at: Any) -> None:
    """One acknowledgement, or ``acks`` of them, at time ``now``."""
    acks = at.get("acks", 1)
    ack = np.array([acks, size, acks * delay])
    _window.hear(ex, 0, at.get("now", 10_000), ack, marked)


def test_an_acknowledgement_is_counted_everywhere() -> None:
    ex, window = sender(ACHIEVED=1.0, COME=2.0, IGNORED=3.0)
    hear(ex, 5_000, 3_500.0, marked=True)
    counted = [x.FLIGHT, x.ACHIEVED, x.COME, x.IGNORED]
    assert list(window[counted]) == [85_000.0, 5_001.0, 5_002.0, 5_003.0]


@pytest.mark.parametrize(
    ("before", "delay", "marked", "acks", "after"),
    [
        (800.0, 1_600.0, False, 1, 900.0),  # an eighth of the way
        (800.0, 1_600.0, False, 2, 987.5),  # twice: 1 - (7/8)^2 of it
        (3_000.0, 3_200.0, False, 1, 2_750.0),  # the queue is about to go: as 1,000, RTT / 4
        (3_000.0, 3_200.0, True, 1, 3_025.0),
        (2_000.0, 3_000.0, False, 1, 2_125.0),  # not beyond the target
    ],
)
def test_the_average_delay(
    before: float, delay: float, marked: bool, acks: int, after: float
) -> None:
    ex, window = sender(MEAN_DELAY=before)
    hear(ex, 1_000, delay, marked=marked, acks=acks)
    assert window[x.MEAN_DELAY] == pytest.approx(after)


@pytest.mark.parametrize("delay", [3_000.0, 9_000.0])
def test_at_and_above_the_target_the_increase_is_fair(delay: float) -> None:
    ex, window = sender(CLEAR=7.0, FAST=1.0, INCREASE=5.0)
    hear(ex, 4_000, delay)
    assert window[x.INCREASE] == 5.0 + FAIR * 4_000
    assert (window[x.CWND], window[x.CLEAR], window[x.FAST]) == (100_000.0, 7.0, 1.0)


@pytest.mark.parametrize("delay", [1_000.0, 2_000.0, 2_999.0])
def test_below_the_target_the_increase_is_in_proportion(delay: float) -> None:
    ex, window = sender(CLEAR=7_000.0, FAST=1.0, INCREASE=5.0)
    hear(ex, 4_000, delay)
    assert window[x.INCREASE] == 5.0 + PROPORTION * 4_000 * (3_000 - delay)
    assert (window[x.CWND], window[x.CLEAR], window[x.FAST]) == (100_000.0, 0.0, 0.0)


def test_a_window_without_queues_grows_fast_until_one_is_met() -> None:
    ex, window = sender(CLEAR=96_000.0)
    hear(ex, 4_000, 500.0)  # 100,000 clear bytes: a window, no more
    assert (window[x.CWND], window[x.FAST]) == (100_000.0, 0.0)
    assert window[x.INCREASE] == PROPORTION * 4_000 * 2_500
    hear(ex, 4_000, 999.0)
    assert (window[x.CWND], window[x.FAST], window[x.CLEAR]) == (101_000.0, 1.0, 104_000.0)
    assert window[x.INCREASE] == PROPORTION * 4_000 * 2_500  # one or the other
    window[x.CLEAR] = 0.0  # once fast it stays so
    hear(ex, 4_000, 500.0)
    assert (window[x.CWND], window[x.FAST]) == (102_000.0, 1.0)
    hear(ex, 4_000, 1_000.0)
    assert (window[x.CWND], window[x.FAST], window[x.CLEAR]) == (102_000.0, 0.0, 0.0)


def test_no_window_grows_beyond_the_largest() -> None:
    ex, window = sender(CWND=MOST - 100.0, FAST=1.0)
    hear(ex, 4_000, 500.0)
    assert window[x.CWND] == MOST
    window[x.INCREASE], window[x.COME] = MOST * 1_000, 40_000.0
    hear(ex, 4_000, 3_000.0)
    assert window[x.CWND] == MOST


@pytest.mark.parametrize(
    ("mean", "left"),
    [
        (3_000.0, 1.0),  # not beyond the target
        (3_000.5, 1 - 0.4 / 3_000.5),
        (6_000.0, 0.6),  # half of it is beyond: 1 - 0.8 / 2
        (8_000.0, 0.5),  # 1 - 0.8 x 5 / 8
        (30_000.0, 0.5),  # 0.28, but no less than half is left
    ],
)
def test_a_marked_one_cuts_by_what_the_average_is_beyond(mean: float, left: float) -> None:
    ex, window = sender(MEAN_DELAY=mean, CLEAR=7.0, FAST=1.0, INCREASE=5.0)
    hear(ex, 1_000, mean, marked=True)
    assert window[x.CWND] == pytest.approx(100_000 * left)
    assert window[x.CUT_AT] == (10_000.0 if left < 1.0 else 0.0)
    assert (window[x.CLEAR], window[x.FAST], window[x.INCREASE]) == (0.0, 0.0, 5.0)


def test_a_marked_one_below_the_target_changes_nothing() -> None:
    ex, window = sender(MEAN_DELAY=9_000.0, CLEAR=7.0, FAST=1.0)
    hear(ex, 1_000, 2_999.0, marked=True)
    assert (window[x.CWND], window[x.CLEAR], window[x.FAST]) == (100_000.0, 7.0, 1.0)


@pytest.mark.parametrize(("now", "cut"), [(4_500, False), (5_000, False), (5_001, True)])
def test_it_cuts_once_a_round_trip(now: int, cut: bool) -> None:
    ex, window = sender(MEAN_DELAY=6_000.0, CUT_AT=1_000.0, ADJUSTED_AT=now)
    hear(ex, 1_000, 6_000.0, marked=True, now=now)
    assert window[x.CWND] == pytest.approx(60_000.0 if cut else 100_000.0)


def test_no_window_is_cut_below_a_packet() -> None:
    ex, window = sender(CWND=5_000.0, MEAN_DELAY=30_000.0, INCREASE=4_096e3, COME=40_000.0)
    hear(ex, 1_000, 30_000.0, marked=True)
    assert window[x.CWND] == LEAST + 1_000  # what it had gained is by the window that is left


@pytest.mark.parametrize(
    ("come", "waited", "gains", "steadily"),
    [
        (32_768, 3_000, False, False),  # eight packets, no more
        (32_769, 3_000, True, False),
        (1_000, 4_000, False, False),  # a round trip, no more
        (1_000, 4_001, True, True),
        (32_769, 4_000, True, True),
    ],
)
def test_what_is_gained_is_added_after_eight_packets_or_a_round_trip(
    come: int, waited: int, gains: bool, steadily: bool
) -> None:
    ex, window = sender(COME=come - 1_000, INCREASE=500.0 * 100_000)
    hear(ex, 1_000, 2_000.0, marked=True, now=10_000 + waited)
    assert window[x.CWND] == 100_000 + 500.0 * gains + STEADY * steadily
    assert window[x.INCREASE] == (0.0 if gains else 500.0 * 100_000)
    assert window[x.COME] == (0.0 if gains else come)
    assert window[x.ADJUSTED_AT] == 10_000 + waited * steadily


QUICK = {"ADAPT_AT": 9_000.0, "ACHIEVED": 19_000.0, "INCREASE": 1e6, "COME": 2_000.0}


@pytest.mark.parametrize(
    ("given", "delay", "adapts"),
    [
        ({}, 12_001.0, True),  # beyond four targets, 20,000 B came: less than 1/8 of the largest
        ({}, 12_000.0, False),
        ({"LOSS_SEEN": 1.0}, 2_000.0, True),
        ({"ACHIEVED": 23_999.0}, 12_001.0, True),
        ({"ACHIEVED": 24_000.0}, 12_001.0, False),  # 25,000: an eighth
        ({"ADAPT_AT": 9_999.0}, 12_001.0, True),
        ({"ADAPT_AT": 10_000.0}, 12_001.0, False),  # the round is not over
        ({"ADAPT_AT": 0.0}, 12_001.0, False),  # the first one begins
    ],
)
def test_quick_adapt_takes_what_came_in_a_round(
    given: dict[str, float], delay: float, adapts: bool
) -> None:
    ex, window = sender(**{**QUICK, **given})
    due = window[x.ADAPT_AT] < 10_000.0
    came = window[x.ACHIEVED] + 1_000
    hear(ex, 1_000, delay)
    assert window[x.CWND] == (came if adapts else 100_000.0)
    assert window[x.ACHIEVED] == (0.0 if due else came)
    assert window[x.ADAPT_AT] == (10_000 + RTT + TARGET if due else 10_000.0)
    assert window[x.TO_IGNORE] == (89_000.0 if adapts else 0.0)  # what was in flight
    assert window[x.IGNORED] == (0.0 if adapts else 1_000.0)
    assert (window[x.INCREASE] == 0.0) == (window[x.COME] == 0.0) == adapts
    assert window[x.LOSS_SEEN] == 0.0


def test_quick_adapt_leaves_a_packet() -> None:
    ex, window = sender(ADAPT_AT=9_000.0, LOSS_SEEN=1.0)
    hear(ex, 1_000, 0.0)
    assert window[x.CWND] == LEAST


def test_after_it_marks_are_ignored_until_what_was_in_flight_is_back() -> None:
    ex, window = sender(TO_IGNORE=3_000.0, MEAN_DELAY=6_000.0, INCREASE=1e6, COME=2_000.0)
    window[x.ADAPT_AT] = 9_000.0
    hear(ex, 2_999, 6_000.0, marked=True)
    assert (window[x.CWND], window[x.INCREASE], window[x.COME]) == (100_000.0, 0.0, 0.0)
    assert (window[x.ADAPT_AT], window[x.ACHIEVED]) == (9_000.0, 2_999.0)  # no round ends
    window[x.ADAPT_AT], window[x.MEAN_DELAY] = NEVER, 6_000.0
    hear(ex, 1, 6_000.0, marked=True)
    assert window[x.CWND] == pytest.approx(60_000.0)


def test_after_it_what_is_not_marked_counts() -> None:
    ex, window = sender(TO_IGNORE=3_000.0)
    hear(ex, 2_000, 2_000.0)
    assert window[x.INCREASE] == PROPORTION * 2_000 * 1_000


def trim(ex: x.Extras, size: float, step: int = 40) -> int:
    """The sender hears that a switch trimmed some bytes."""
    ex.acks[0, step % ex.acks.shape[1], x.TRIMMED, x.ACKED] = size
    return int(_window.take_loss(ex, 0, step, DT_NS))


def test_trimmed_bytes_leave_the_window() -> None:
    ex, window = sender(MEAN_DELAY=800.0)
    assert trim(ex, 8_192.0) == 8_192
    assert (window[x.CWND], window[x.FLIGHT], window[x.IGNORED]) == (91_808.0, 81_808.0, 8_192.0)
    assert window[x.MEAN_DELAY] == 800 + (RTT - 800) / 8  # as a delay of a round trip
    assert window[x.LOSS_SEEN] == 1.0
    assert not ex.acks.any()
    trim(ex, 90_000.0)
    assert window[x.CWND] == LEAST


def test_after_a_loss_the_next_round_adapts_once() -> None:
    ex, window = sender(**QUICK)
    trim(ex, 8_192.0)  # at 10,000 ns
    assert (window[x.CWND], window[x.TO_IGNORE], window[x.LOSS_SEEN]) == (19_000.0, 81_808.0, 0.0)
    ex, window = sender(**{**QUICK, "ADAPT_AT": 10_500.0})
    trim(ex, 8_192.0)
    assert (window[x.CWND], window[x.LOSS_SEEN]) == (91_808.0, 1.0)  # the round is not over
    hear(ex, 1_000, 0.0, now=10_501)
    assert (window[x.CWND], window[x.LOSS_SEEN]) == (20_000.0, 0.0)
    # Until what was in flight is back, a loss takes no more of the window.
    trim(ex, 8_192.0, step=60)
    assert window[x.CWND] == 20_000.0


@pytest.mark.parametrize("after", [1, 2, 3, 8])
def test_the_next_loss_is_found(after: int) -> None:
    ex, _ = sender()
    ex.acks[0, (40 + after) % ex.acks.shape[1], x.TRIMMED, x.ACKED] = 1.0
    assert _window.next_loss(ex, 0, 40) == 40 + after


def test_a_loss_comes_before_the_acknowledgements_of_its_step_and_after_those_before() -> None:
    for due, flight in ((39, 90_000.0 - 500 - 10_000), (40, 90_000.0 - 500)):
        ex, window = sender()
        come(ex, 10_000, due - WAY_BACK, delay=2_000.0)
        trim(ex, 500.0)
        assert window[x.FLIGHT] == flight
        # Nor does one that is told bring another forward.
        come(ex, 10_000, 40, delay=2_000.0)
        assert window[x.FLIGHT] == flight


def come(ex: x.Extras, size: int, step: int, *, delay: float = 0.0, **how: bool) -> None:
    """Bytes reach the receiver."""
    marked, asked = how.get("marked", False), how.get("asked", False)
    _window.take_ack(ex, 0, step, DT_NS, size, marked, asked, delay)


def test_which_packets_are_acknowledged() -> None:
    ex, window = sender()
    told = ex.acks[0]
    come(ex, 9_999, 3)
    assert window[x.UNTOLD] == 9_999.0
    assert not told.any()
    come(ex, 1, 3, delay=-50.0)  # 10,000; no delay is less than none
    come(ex, 500, 3, marked=True, delay=700.0)
    come(ex, 600, 3, asked=True, delay=300.0)
    slot = (3 + WAY_BACK) % len(told)
    np.testing.assert_array_equal(told[slot, x.PLAIN], [2.0, 10_600.0, 300.0])
    np.testing.assert_array_equal(told[slot, x.MARKED_ONES], [1.0, 500.0, 700.0])
    assert window[x.UNTOLD] == 0.0
    assert np.count_nonzero(told) == 6


def look(ex: x.Extras, step: int, least: int = PACKET_BYTES) -> int:
    """What the window lets go when the sender has its turn."""
    return int(_window.room(ex, 0, step, DT_NS, least))


def test_a_window_lets_whole_packets_go() -> None:
    ex, window = sender(FLIGHT=100_000.0 - PACKET_BYTES)
    assert look(ex, 1) == PACKET_BYTES
    window[x.FLIGHT] += 1
    assert look(ex, 2) == 0
    assert look(ex, 3, least=4_000) == PACKET_BYTES - 1


@pytest.mark.parametrize(
    ("flight", "untold", "asks"),
    [(99_000, 99_000, True), (99_000, 98_999, False), (95_904, 95_904, False), (0, 0, False)],
)
def test_who_waits_for_what_came_and_is_not_told_asks(
    flight: float, untold: float, asks: bool
) -> None:
    ex, window = sender(FLIGHT=flight, UNTOLD=untold)
    look(ex, 5)
    told = ex.acks[0, (5 + WAY_BACK) % ex.acks.shape[1], x.PLAIN]
    np.testing.assert_array_equal(told, [1.0, untold, 0.0] if asks else [0.0, 0.0, 0.0])
    assert window[x.UNTOLD] == (0.0 if asks else untold)


def test_a_sender_without_a_turn_hears_each_acknowledgement_in_its_time() -> None:
    ex, window = sender(FLIGHT=60_000.0, ADJUSTED_AT=0.0)
    assert ex.acks.shape[1] == WAY_BACK + 2
    late = 30
    look(ex, 0)
    come(ex, 10_000, 1, delay=2_000.0)
    come(ex, 20_000, late - 2, delay=2_000.0)
    look(ex, late)  # the second one is still under way, for WAY_BACK - 2 steps
    assert window[x.FLIGHT] == 50_000.0
    look(ex, 35)
    assert window[x.FLIGHT] == 50_000.0
    look(ex, 39)
    assert window[x.FLIGHT] == 30_000.0
    assert window[x.ADJUSTED_AT] == 36 * DT_NS  # when it came, not when it is seen
    assert not ex.acks.any()


@pytest.mark.parametrize(("marked", "window_left"), [(True, 60_000.0), (False, 100_000.0)])
def test_only_marked_ones_cut(marked: bool, window_left: float) -> None:
    ex, window = sender(MEAN_DELAY=6_000.0, CUT_AT=-NEVER, ADJUSTED_AT=NEVER)
    come(ex, 10_000, 0, delay=6_000.0, marked=marked)
    look(ex, WAY_BACK)
    assert window[x.CWND] == pytest.approx(window_left)
    assert window[x.INCREASE] == (0.0 if marked else FAIR * 10_000)


def test_a_late_look_counts_times_as_if_it_were_none() -> None:
    looked, late = (sender(ADJUSTED_AT=0.0, ADAPT_AT=0.0) for _ in range(2))
    last = 5 * looked[0].acks.shape[1]
    for step in range(last):
        for ex, window in (looked, late):
            if step % 3 == 0:
                come(ex, 9_000, step, delay=100.0 * (step % 40), marked=step % 5 == 0)
                window[x.FLIGHT] += 9_000
            if step % 11 == 0:
                trim(ex, 500.0, step)
        look(looked[0], step)
    look(late[0], last - 1)
    np.testing.assert_allclose(late[1], looked[1])


@pytest.mark.parametrize("times", [1, 3])
def test_gains_are_those_of_12_us_at_100_gbps(times: int) -> None:
    """A round trip of 150,000 B: 5 packets fair, 4 over 12 us, 0.15 steady, a quarter fast."""
    real = sending(Nscc.for_path(12_000.0, 100.0 * times)).extras.real
    gains = real[[x.FAIR, x.PROPORTION, x.STEADY, x.FAST_SHARE]]
    by_hand = [20_480.0, 16_384 / 12_000, 614.4, 0.25]
    np.testing.assert_allclose(gains, np.array(by_hand) * times)
    rest = [x.TARGET_NS, x.CLEAR_NS, x.LEAST, x.CUT, x.LEAST_LEFT, x.AVERAGE, x.PMAX]
    np.testing.assert_allclose(real[rest], [9_000.0, 1_000.0, 4_096.0, 0.8, 0.5, 0.0125, 1.0])


@pytest.mark.parametrize(
    ("backlog", "share"),
    [(20_000, 0.0), (40_000, 0.0), (50_000, 0.25), (60_000, 0.5), (80_000, 1.0), (99_000, 1.0)],
)
def test_packets_are_marked_between_two_queues(backlog: int, share: float) -> None:
    nscc = Nscc(rtt_ns=RTT, gbps=400.0, target_ns=TARGET, kmin_bytes=40_000, kmax_bytes=80_000)
    state, packets = sending(nscc), 4_000
    ex, counted = state.extras, state.extras.queue[3]
    counted[x.PART] = 1_000  # of a packet, came before
    size = packets * PACKET_BYTES - 900
    _buffers.draw_marks.py_func(state.cfg, ex, state.rng, backlog, 3, 2 * k.NODE_SIZE, size)
    assert (counted[x.PACKETS], counted[x.PART]) == (packets, 100)
    marked = counted[x.MARKED]
    assert counted[x.MARKED_BYTES] == marked * PACKET_BYTES
    assert ex.notes[2, x.MARKS] == marked
    chance = 4 * (share * (1 - share) / packets) ** 0.5
    assert marked / packets == pytest.approx(share, abs=chance)


def test_the_parts_of_a_fragment_share_its_marks() -> None:
    ex = sending(Nscc.for_path(RTT, 400.0)).extras
    columns = [x.OFFSET, x.MARKS, x.SENT_AT, x.ASKS]
    ex.notes[2, columns], ex.notes[5, x.ASKS] = [70_000, 3, 900, 1], 1
    _buffers.split_note.py_func(
        ex, 2 * k.NODE_SIZE, 5 * k.NODE_SIZE, 2 * PACKET_BYTES, 4 * PACKET_BYTES
    )
    assert list(ex.notes[5, columns]) == [70_000, 1, 900, 0]  # the first half, rounded down
    assert list(ex.notes[2, columns]) == [70_000 + 2 * PACKET_BYTES, 2, 900, 1]
