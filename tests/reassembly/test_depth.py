"""The model of arrivals behind the table on reorder depth."""

from __future__ import annotations

import random

from tests.reassembly.depth_study import PATHS, arrivals, within
from xtune.policies.reassembly import Reassembly, Unit, reorder_depths

BUFFER = 1_500_000


def test_one_path_or_equal_delays_keep_the_order() -> None:
    order, counts = arrivals(random.Random(1), 100_000, BUFFER, 500, paths=1)
    assert order == sorted(order) and set(reorder_depths(order, counts)) == {0}


def test_depth_is_at_most_what_is_sent_while_one_buffer_drains() -> None:
    for size in (50_000, 200_000, 2_500_000):
        order, counts = arrivals(random.Random(2), size, BUFFER, 1000)
        assert sorted(order) == [(t, i) for t in range(1000) for i in range(counts[t])]
        assert max(reorder_depths(order, counts)) <= BUFFER / size + PATHS


def test_sixteen_tensors_cover_large_tensors_and_not_small_ones() -> None:
    """16 tensors against a queue of 1.5 MB: from about 94 kB on, by division."""
    large = reorder_depths(*arrivals(random.Random(3), 120_000, BUFFER, 3000))
    small = reorder_depths(*arrivals(random.Random(3), 32_000, BUFFER, 3000))
    assert within(large) == 1.0 and within(small) < 0.9


def test_the_stream_counts_the_same_depths() -> None:
    order, counts = arrivals(random.Random(4), 120_000, BUFFER, 1000)
    stream = Reassembly()
    for tensor, index in order:
        stream.offer(
            Unit(epoch=0, tensor=tensor, index=index, count=counts[tensor], payload=b""), 0
        )
        stream.swap()
    depths = reorder_depths(order, counts)
    assert stream.depths == [depths.count(depth) for depth in range(16)]
