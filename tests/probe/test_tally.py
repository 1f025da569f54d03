"""What becomes of probes, against cases worked out by hand and a ledger kept beside."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies.probe.config import Path
from xtune.policies.probe.delay import WINDOW_NS, Delay, Least, delays
from xtune.policies.probe.packet import CONGESTED, ECN_CAPABLE, UNKNOWN, Drop, Packet, Signal
from xtune.policies.probe.tally import Outcome, Tally, worse

OWN = Signal(0.2, None, 3.0)


def answer(sequence: int, stamp_ns: int, signal: Signal = UNKNOWN) -> Packet:
    return Packet(True, sequence, 0, stamp_ns, signal)


def test_round_trip_and_jitter_by_the_formula_of_rfc_3550() -> None:
    tally = Tally(1000)
    jitters = []
    for i, rtt_ns in enumerate((100, 260, 180)):
        tally.sent(i, 7000 + i, 10_000 * i)
        found = tally.answered(
            answer(i, 7000 + i, Signal(0.5, 1e-3, 4.0)), OWN, 10_000 * i + rtt_ns
        )
        assert found == Outcome(7000 + i, rtt_ns, Signal(0.5, 1e-3, 3.0))
        jitters.append(tally.reading().jitter_ns)
    assert jitters == [None, 160 / 16, 10 + (80 - 10) / 16]
    reading = tally.reading()
    assert (reading.sent, reading.finished, reading.lost, reading.late) == (3, 3, 0, 0)
    assert (reading.rtt_ns, reading.answered_ns, reading.finished_ns) == (180, 20_180, 20_180)


def test_unanswered_probes_are_lost_in_order_and_late_answers_counted() -> None:
    tally = Tally(1000)
    for i in range(3):
        tally.sent(i, 50 + i, 100 * i)
    assert tally.expire(1000) == []  # exactly in time is in time
    assert tally.answered(answer(1, 51), OWN, 900) == Outcome(51, 800, OWN)
    assert tally.expire(1201) == [Outcome(50, None, UNKNOWN), Outcome(52, None, UNKNOWN)]
    assert tally.reading().history == 0b011
    assert tally.answered(answer(0, 50), OWN, 1300) is None
    assert tally.answered(answer(0, 50), OWN, 1301) is Drop.REPLAYED
    reading = tally.reading()
    assert (reading.lost, reading.late, reading.finished, reading.sent) == (2, 1, 3, 3)
    assert (reading.answered_ns, reading.finished_ns) == (900, 1201)


def test_an_answer_past_its_time_that_was_not_given_up_yet_is_lost_and_late() -> None:
    tally = Tally(1000)
    tally.sent(0, 50, 0)
    assert tally.answered(answer(0, 50), OWN, 1001) == Outcome(50, None, UNKNOWN)
    reading = tally.reading()
    assert (reading.lost, reading.late, reading.rtt_ns, reading.history) == (1, 1, None, 1)


def test_answers_to_probes_of_another_time_are_replays() -> None:
    tally = Tally(1000)
    tally.sent(0, 50, 0)
    assert tally.answered(answer(0, 49), OWN, 1) is Drop.REPLAYED
    assert tally.answered(answer(1, 50), OWN, 1) is Drop.REPLAYED
    assert tally.reading().finished == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 400) | st.none(), max_size=100), st.data())
def test_every_probe_ends_once(trips: list[int | None], data: st.DataObject) -> None:
    """A probe each 10 ns; its answer takes so long, or never comes; 200 ns are in time."""
    events = [(10 * i, 0, i) for i in range(len(trips))]
    events += [(10 * i + trip, 1, i) for i, trip in enumerate(trips) if trip is not None]
    tally, ended = Tally(200), []
    for at, kind, i in sorted(events):
        if kind == 0:
            tally.sent(i, i, at)
        else:
            found = tally.answered(answer(i, i), UNKNOWN, at)
            ended += [found] if isinstance(found, Outcome) else []
        if data.draw(st.booleans()):
            ended += tally.expire(at)
    ended += tally.expire(10**6)
    reading = tally.reading()
    assert sorted(outcome.stamp_ns for outcome in ended) == list(range(len(trips)))
    good = {i for i, trip in enumerate(trips) if trip is not None and trip <= 200}
    assert {o.stamp_ns for o in ended if o.rtt_ns is not None} == good
    assert all(o.rtt_ns == trips[o.stamp_ns] for o in ended if o.rtt_ns is not None)
    assert (reading.sent, reading.finished) == (len(trips), len(trips))
    assert reading.lost == len(trips) - len(good)
    assert reading.late == sum(trip is not None for trip in trips) - len(good)
    lost_bits = sum((o.rtt_ns is None) << p for p, o in enumerate(reversed(ended[-64:])))
    assert reading.history == lost_bits


def test_the_worse_end_counts_and_unknown_is_not_zero() -> None:
    assert worse(Signal(0.1, None, 5.0), Signal(None, 0.0, 2.0)) == Signal(0.1, 0.0, 2.0)
    assert worse(Signal(0.1, 0.3, 1.0), Signal(0.4, 0.2, 9.0)) == Signal(0.4, 0.3, 1.0)
    assert worse(UNKNOWN, UNKNOWN) == UNKNOWN


def test_what_a_probe_waited_is_an_occupancy_and_the_worse_one_counts() -> None:
    tally = Tally(100_000, Delay(20_000, Least()))
    found = []
    for i, (rtt_ns, known) in enumerate([(500, None), (10_500, None), (2500, 0.4), (90_000, 0.4)]):
        tally.sent(i, 50 + i, 1_000_000 * i)
        outcome = tally.answered(
            answer(i, 50 + i, Signal(known, None, None)), UNKNOWN, 1_000_000 * i + rtt_ns
        )
        assert isinstance(outcome, Outcome)
        found.append(outcome.signal.occupancy)
    assert found == [0.0, 0.5, 0.4, 1.0]
    assert tally.expire(10**9) == []
    assert tally.reading().occupancy == 1.0


TRIPS = st.tuples(st.integers(0, 10**6), st.integers(WINDOW_NS // 6, WINDOW_NS // 3))


@given(st.lists(TRIPS, min_size=12, max_size=30))
def test_the_least_round_trip_is_kept_for_one_to_two_windows(
    trips: list[tuple[int, int]],
) -> None:
    delay = Delay(1e9, Least())
    now_ns, seen = 10**12, []
    for rtt_ns, pause_ns in trips:
        now_ns += pause_ns
        seen.append((now_ns, rtt_ns))
        base_ns = rtt_ns - delay.occupancy(rtt_ns, now_ns) * 1e9
        surely = min(rtt for at, rtt in seen if now_ns - at < WINDOW_NS)
        # A window begins with the first trip after the last one's end: up to a pause later.
        perhaps = min(rtt for at, rtt in seen if now_ns - at < 2 * WINDOW_NS + 2 * WINDOW_NS // 3)
        assert perhaps - 0.5 < base_ns < surely + 0.5


def test_marks_are_a_share_of_the_last_sixteen_answers_that_could_be_marked() -> None:
    tally = Tally(1000)
    found = []
    fields = [0, ECN_CAPABLE, CONGESTED, 0] + [ECN_CAPABLE] * 14 + [CONGESTED, ECN_CAPABLE]
    for i, ecn in enumerate(fields):
        tally.sent(i, i, 100 * i)
        tally.answered(answer(i, i)._replace(ecn=ecn), UNKNOWN, 100 * i + 10)
        found.append(tally.reading().marks)
    # Unknown before the first, and where the field was cleared on the way.
    seen = [None, 0.0, 1 / 2, None, *(1 / n for n in range(3, 17)), 2 / 16, 1 / 16]
    assert found == seen
    tally.sent(99, 99, 9000)
    tally.answered(answer(99, 99)._replace(ecn=ECN_CAPABLE), Signal(marks=0.2), 9001)
    assert tally.reading().marks == 0.2  # this end's counters tell of more


def test_an_empty_path_to_the_same_host_tells_what_a_full_one_waits() -> None:
    far = [
        Path(name=str(i), local=("127.0.0.1", 0), remote=("127.0.0.1", 1), dst=dst, number=i,
             full_delay_s=full)
        for i, (dst, full) in enumerate([("b", 2e-5), ("b", 2e-5), ("c", 2e-5), ("b", None)])
    ]  # fmt: skip
    first, second, elsewhere, untold = delays(far)
    assert first and second and elsewhere and untold is None
    assert first.occupancy(20_500, 0) == 0.0  # nothing else is known yet
    assert second.occupancy(500, 1) == 0.0
    assert first.occupancy(20_500, 2) == 1.0
    assert elsewhere.occupancy(20_500, 3) == 0.0
