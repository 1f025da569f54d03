"""Reassembly by hand-made cases: each verdict, gaps, the budget, reconnection, order of sums."""

from __future__ import annotations

import random

import numpy as np
import pytest

from xtune.policies.reassembly import UNIT_COST_BYTES, Reassembly, Unit, Verdict, reorder_depths


def unit(tensor: int, index: int = 0, count: int = 1, *, epoch: int = 0, size: int = 8) -> Unit:
    return Unit(epoch=epoch, tensor=tensor, index=index, count=count, payload=bytes(size))


def names(units: list[Unit]) -> list[tuple[int, int]]:
    return [(u.tensor, u.index) for u in units]


def of_units(units: int, size: int = 1000) -> Reassembly:
    """A stream whose budget is that of so many units of that size."""
    return Reassembly(budget_bytes=units * (size + UNIT_COST_BYTES), unit_bytes=size)


def test_units_come_out_in_the_order_they_were_sent_in() -> None:
    stream = Reassembly()
    for tensor, index in [(1, 1), (0, 1), (1, 0), (0, 0), (2, 0)]:
        count = 1 if tensor == 2 else 2
        assert stream.offer(unit(tensor, index, count), 0) is Verdict.ADMITTED
    assert names(stream.swap()) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert stream.swap() == [] and stream.resident_bytes == 0


def test_one_buffer_fills_while_the_other_is_drained() -> None:
    stream = Reassembly()
    stream.offer(unit(0, size=100), 0)
    draining = stream.swap()
    stream.offer(unit(1, size=200), 0)
    assert names(draining) == [(0, 0)]  # the one that fills is another
    assert stream.resident_bytes == 300 + 2 * UNIT_COST_BYTES
    assert names(stream.swap()) == [(1, 0)]
    assert stream.resident_bytes == 200 + UNIT_COST_BYTES


def test_each_verdict_says_what_the_sender_has_to_do() -> None:
    stream = Reassembly(window=4)
    assert stream.offer(unit(0), 0) is Verdict.ADMITTED
    assert stream.offer(unit(0), 0) is Verdict.LATE
    assert stream.offer(unit(2, 1, 2), 0) is Verdict.ADMITTED
    assert stream.offer(unit(2, 1, 2), 0) is Verdict.DUPLICATE
    assert stream.offer(unit(2, 0, 3), 0) is Verdict.INVALID  # of 2 parts, or of 3?
    assert stream.offer(unit(2, 2, 2), 0) is Verdict.INVALID
    assert stream.offer(unit(-1), 0) is Verdict.INVALID
    assert stream.offer(unit(1, size=stream.unit_bytes + 1), 0) is Verdict.INVALID
    assert stream.offer(unit(4), 0) is Verdict.ADMITTED
    assert stream.offer(unit(5), 0) is Verdict.BEYOND_WINDOW
    assert stream.offer(unit(0, epoch=1), 0) is Verdict.NEWER_EPOCH
    assert {v for v in Verdict if v.again} == {
        Verdict.BEYOND_WINDOW, Verdict.OVER_BUDGET, Verdict.NEWER_EPOCH
    }  # fmt: skip
    assert stream.verdicts == {
        Verdict.ADMITTED: 3, Verdict.LATE: 1, Verdict.DUPLICATE: 1, Verdict.INVALID: 4,
        Verdict.BEYOND_WINDOW: 1, Verdict.NEWER_EPOCH: 1,
    }  # fmt: skip


def test_a_released_part_of_a_tensor_under_way_is_late() -> None:
    stream = Reassembly()
    stream.offer(unit(0, 0, 2), 0)
    assert stream.offer(unit(0, 0, 2), 0) is Verdict.LATE
    assert stream.offer(unit(0, 0, 3), 0) is Verdict.INVALID
    stream.offer(unit(0, 1, 2), 0)
    assert names(stream.swap()) == [(0, 0), (0, 1)] and stream.resident_bytes > 0


def test_later_units_never_take_the_room_of_the_next_one() -> None:
    stream = of_units(8)  # four held, two in each buffer
    offered = [stream.offer(unit(t, size=1000), 0) for t in (1, 2, 3, 4, 5)]
    assert offered == [Verdict.ADMITTED] * 4 + [Verdict.OVER_BUDGET]
    assert stream.offer(unit(0, size=1000), 0) is Verdict.ADMITTED
    assert names(stream.swap()) == [(0, 0), (1, 0)]
    assert stream.offer(unit(5, size=1000), 0) is Verdict.ADMITTED
    assert names(stream.swap()) == [(2, 0), (3, 0)]
    assert names(stream.swap()) == [(4, 0), (5, 0)]


def test_a_consumer_that_does_not_drain_stops_the_sender_and_nothing_else() -> None:
    stream = of_units(8)
    offered = [stream.offer(unit(t, size=1000), 0) for t in range(7)]
    assert offered == [Verdict.ADMITTED] * 6 + [Verdict.OVER_BUDGET]
    assert stream.gap is None and stream.awaited == (6, 0)  # nothing is missing from the network
    out = [names(stream.swap()) for _ in range(3)]
    assert out == [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(4, 0), (5, 0)]]
    assert stream.offer(unit(6, size=1000), 0) is Verdict.ADMITTED


def test_tiny_units_are_bounded_too() -> None:
    stream = Reassembly(budget_bytes=100 * UNIT_COST_BYTES, unit_bytes=8)
    offered = [stream.offer(unit(1, i, 1000, size=0), 0) for i in range(100)]
    assert offered.count(Verdict.ADMITTED) == 50
    assert stream.resident_bytes == 50 * UNIT_COST_BYTES


def test_a_gap_is_named_and_has_an_age() -> None:
    stream = Reassembly(window=4)
    stream.offer(unit(0, 0, 2), 10)
    assert stream.gap is None
    stream.offer(unit(1), 20)
    stream.offer(unit(3), 30)
    assert stream.gap is not None
    assert (stream.gap.tensor, stream.gap.index, stream.gap.since_ns) == (0, 1, 20)
    stream.offer(unit(0, 1, 2), 40)
    assert stream.gap is not None  # 1 was held, so 2 is missing, known since now
    assert (stream.gap.tensor, stream.gap.index, stream.gap.since_ns) == (2, 0, 40)
    stream.offer(unit(2), 50)
    assert stream.gap is None and stream.awaited == (4, 0)


def test_a_refused_unit_shows_a_gap_as_well() -> None:
    stream = Reassembly(window=4)
    assert stream.offer(unit(7), 5) is Verdict.BEYOND_WINDOW
    assert stream.gap is not None and stream.gap.since_ns == 5


def test_reconnection_resumes_at_a_whole_tensor() -> None:
    stream = Reassembly()
    for tensor, index, count in [(0, 0, 1), (1, 0, 2), (3, 0, 1)]:
        stream.offer(unit(tensor, index, count), 0)
    assert stream.reconnect(4) == 1
    assert names(stream.swap()) == [(0, 0)] and stream.discarded == 2
    assert stream.offer(unit(1, 1, 2), 0) is Verdict.LATE
    assert stream.offer(unit(1, 0, 3, epoch=4), 0) is Verdict.ADMITTED  # cut anew
    assert [u.epoch for u in stream.swap()] == [4]
    with pytest.raises(ValueError, match="epoch 4 is not later than 4"):
        stream.reconnect(4)


def test_what_waits_for_the_consumer_is_sent_again() -> None:
    """Tensors that came whole but found no room in the buffer were held, so they are gone."""
    stream = of_units(8)
    for tensor in range(5):
        stream.offer(unit(tensor, size=1000), 0)
    assert stream.awaited == (5, 0) and stream.reconnect(1) == 2
    assert names(stream.swap()) == [(0, 0), (1, 0)] and stream.awaited == (2, 0)


def test_what_was_discarded_leaves_no_gap() -> None:
    stream = Reassembly()
    stream.offer(unit(1), 0)
    stream.reconnect(1)
    assert stream.gap is None
    stream.offer(unit(0, epoch=1), 0)
    assert stream.gap is None and stream.awaited == (1, 0)


def test_a_long_stream_leaves_nothing_behind() -> None:
    stream = Reassembly()
    for tensor in range(100):
        stream.offer(unit(tensor), 0)
        stream.swap()
    stream.swap()
    assert stream.resident_bytes == 0 and stream._counts == {} and stream._held == {}


def test_reconnection_can_begin_anew() -> None:
    stream = Reassembly()
    for tensor in range(3):
        stream.offer(unit(tensor), 0)
    assert stream.reconnect(1, resume=False) == 0
    assert stream.swap() == [] and stream.discarded == 3
    assert stream.offer(unit(0, epoch=1), 0) is Verdict.ADMITTED


def test_an_aborted_stream_holds_nothing_and_refuses_all() -> None:
    stream = Reassembly()
    stream.offer(unit(0), 0)
    stream.offer(unit(2), 0)
    stream.abort("rank 3 left")
    assert stream.resident_bytes == 0 and stream.swap() == [] and stream.gap is None
    assert stream.offer(unit(1), 0) is Verdict.ABORTED and stream.aborted == "rank 3 left"
    assert stream.reconnect(1) == 0 and stream.aborted is None
    assert stream.offer(unit(0, epoch=1), 0) is Verdict.ADMITTED


@pytest.mark.parametrize("words", [{"window": 0}, {"budget_bytes": 4_000_000}, {"unit_bytes": 0}])
def test_a_budget_must_hold_the_largest_unit_in_each_place(words: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="budget_bytes"):
        Reassembly(**words)


def test_a_view_is_charged_by_its_bytes() -> None:
    stream = Reassembly()
    values = np.zeros(10, dtype=np.float64).data
    stream.offer(Unit(epoch=0, tensor=1, index=0, count=1, payload=values), 0)
    assert stream.resident_bytes == 80 + UNIT_COST_BYTES


def test_sums_have_the_bits_of_the_unrouted_run() -> None:
    """Three senders, each over paths of its own, summed in rank order as they are released."""
    values = np.random.default_rng(1).standard_normal((3, 12, 64)).astype(np.float32)
    values *= np.float32(10.0) ** np.arange(-6, 6, dtype=np.float32)[None, :, None]
    unrouted = np.zeros(64, np.float32)
    for tensor in range(12):
        for rank in range(3):
            unrouted += values[rank, tensor]
    arrived_sum = np.zeros(64, np.float32)
    streams = [Reassembly() for _ in range(3)]
    arrivals = [
        (rank, tensor, half) for rank in range(3) for tensor in range(12) for half in (0, 1)
    ]
    random.Random(7).shuffle(arrivals)
    for rank, tensor, half in arrivals:
        part = values[rank, tensor, 32 * half : 32 * half + 32]
        arrived_sum[32 * half : 32 * half + 32] += part
        sent = Unit(epoch=0, tensor=tensor, index=half, count=2, payload=part.data)
        assert streams[rank].offer(sent, 0) is Verdict.ADMITTED
    released = [stream.swap() for stream in streams]
    routed = np.zeros(64, np.float32)
    for units in zip(*released, strict=True):
        for got in units:
            at = 32 * got.index
            routed[at : at + 32] += np.frombuffer(got.payload, np.float32)
    assert routed.tobytes() == unrouted.tobytes()
    assert arrived_sum.tobytes() != unrouted.tobytes()  # so the order does matter here


def test_depth_counts_tensors_before_the_first_incomplete_one() -> None:
    arrivals = [(0, 0), (2, 0), (1, 0), (0, 1), (1, 1), (3, 0)]
    counts = {0: 2, 1: 2, 2: 1, 3: 1}
    assert reorder_depths(arrivals, counts) == [0, 2, 1, 0, 0, 0]
    stream = Reassembly()
    assert stream.depth_quantile(0.5) is None
    for tensor, index in arrivals:
        stream.offer(unit(tensor, index, counts[tensor]), 0)
    assert stream.depths[:4] == [4, 1, 1, 0]
    assert [stream.depth_quantile(q) for q in (0.5, 4 / 6, 0.8, 1.0)] == [0, 0, 1, 2]
