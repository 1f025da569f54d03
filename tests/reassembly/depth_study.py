"""How many tensors deep arrivals over several paths are out of order (founding document N3).

    python -m tests.reassembly.depth_study

A sender at line rate deals units over paths whose queues fill and drain at random, each path first
in, first out. That is a model, not a measurement of a fabric: depths scale with the difference of
the paths' queueing delays, at most the time that one buffer takes to drain.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from xtune.policies.reassembly import UNIT_BYTES, WINDOW_TENSORS, reorder_depths

LINE_GBPS = 400.0
BUFFERS = (500_000, 1_500_000, 4_000_000)  # bytes; delays of 10, 30 and 80 us at that rate
BURST_NS = (20_000, 200_000)  # a path is crowded, then free, for times between these
PATHS = 4
TENSORS = 10_000
SIZES = (16_000, 32_000, 64_000, 100_000, 250_000, 1_000_000, 4_000_000)


class Path:
    """One queue: while others use it as well, it fills; then it drains.

    Args:
        rng: Draws when the others come and how much they send.
        buffer: Bytes that it holds at most.
    """

    def __init__(self, rng: random.Random, buffer: int) -> None:
        self._buffer = float(buffer)
        self._rng = rng
        self._until_ns = 0.0
        self._load = 0.0  # of the line rate, from others
        self._at_ns = 0.0
        self._bytes = 0.0

    def arrival_ns(self, sent_ns: float, size: int) -> float:
        """When a unit that is sent now comes out; in the order of sending."""
        per_ns = LINE_GBPS / 8.0
        while self._at_ns < sent_ns:
            if self._at_ns >= self._until_ns:
                self._load = self._rng.choice((0.0, 0.0, 0.5, 1.0, 1.5))
                self._until_ns = self._at_ns + self._rng.uniform(*BURST_NS)
            step = min(sent_ns, self._until_ns) - self._at_ns
            grown = self._bytes + (self._load - 1.0) * per_ns * step
            self._bytes = min(max(0.0, grown), self._buffer)
            self._at_ns += step
        self._bytes = min(self._bytes + size, self._buffer)
        return sent_ns + self._bytes / per_ns


def arrivals(
    rng: random.Random, tensor_bytes: int, buffer: int, tensors: int = TENSORS, paths: int = PATHS
) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """Units in the order in which they arrive, and the parts of each tensor."""
    ways = [Path(rng, buffer) for _ in range(paths)]
    counts = dict.fromkeys(range(tensors), -(-tensor_bytes // UNIT_BYTES))
    came: list[tuple[float, tuple[int, int]]] = []
    last = [0.0] * paths
    now_ns, turn = 0.0, 0
    for tensor, count in counts.items():
        for index in range(count):
            size = min(UNIT_BYTES, tensor_bytes - index * UNIT_BYTES)
            now_ns += size * 8.0 / LINE_GBPS
            way = turn % paths
            last[way] = max(last[way], ways[way].arrival_ns(now_ns, size))
            came.append((last[way], (tensor, index)))
            turn += 1
    return [key for _, key in sorted(came, key=lambda pair: pair[0])], counts


def within(depths: Sequence[int], window: int = WINDOW_TENSORS) -> float:
    """The share of arrivals that a window of so many tensors covers."""
    return sum(depth < window for depth in depths) / len(depths)


def main() -> None:
    """Print the table that docs/routing.md has."""
    heads = [f"{b / 1e6:g} MB: within 16 | depth p99.5" for b in BUFFERS]
    print(f"| tensor, KB | {' | '.join(heads)} |")
    print("|---" * (1 + 2 * len(BUFFERS)) + "|")
    for size in SIZES:
        cells = [f"{size // 1000}"]
        for buffer in BUFFERS:
            order, counts = arrivals(random.Random(1), size, buffer)
            depths = sorted(reorder_depths(order, counts))
            cells += [f"{within(depths):.2%}", f"{depths[int(0.995 * (len(depths) - 1))]}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
