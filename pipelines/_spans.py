"""Fast questions about many spans of time: which overlap one, and how much of it they cover."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable

from xtune.pipelines._stretches import Stretch


class Covered:
    """The union of spans; answers in the time of a binary search."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
        self._before = [0]
        for start, end in zip(self._starts, self._ends, strict=True):
            self._before.append(self._before[-1] + end - start)

    def until(self, moment: int) -> int:
        """Covered time before a moment."""
        place = bisect_right(self._starts, moment)
        if not place:
            return 0
        return self._before[place] - max(0, self._ends[place - 1] - moment)

    def within(self, start: int, end: int) -> int:
        """Covered time of a span."""
        return max(0, self.until(end) - self.until(start))

    def pieces(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a span that are covered."""
        place = bisect_right(self._ends, start)
        found = []
        while place < len(self._starts) and self._starts[place] < end:
            found.append((max(start, self._starts[place]), min(end, self._ends[place])))
            place += 1
        return found

    def common(self, other: Covered) -> Covered:
        """What both cover."""
        return Covered(
            piece
            for start, end in zip(self._starts, self._ends, strict=True)
            for piece in other.pieces(start, end)
        )


class Overlaps:
    """Stretches of any ports; answers which overlap a span.

    They are kept by length, a power of two a class: within a class only those that start less
    than a length before a span can reach into it, so one that lasts for weeks costs the others
    nothing.
    """

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        classes: dict[int, list[Stretch]] = defaultdict(list)
        for stretch in stretches:
            classes[stretch.length_ns.bit_length()].append(stretch)
        self._classes = []
        for bits, found in sorted(classes.items()):
            found.sort(key=lambda s: (s.start_ns, s.link))
            self._classes.append((1 << bits, [s.start_ns for s in found], found))

    def within(
        self, start: int, end: int, shortest: float = 0, longest: float = float("inf")
    ) -> list[Stretch]:
        """Stretches that overlap a span, by start, of a length between two bounds."""
        found = []
        for below, starts, of_class in self._classes:
            if below <= shortest or below > 2 * longest + 1:
                continue
            first, last = bisect_left(starts, start - below), bisect_left(starts, end)
            found += [
                s
                for s in of_class[first:last]
                if s.end_ns > start and shortest <= s.length_ns <= longest
            ]
        return sorted(found, key=lambda s: (s.start_ns, s.link))


def by_node(stretches: Iterable[tuple[str, Stretch]]) -> dict[str, Overlaps]:
    """An index for each node, from pairs of node and stretch."""
    grouped: dict[str, list[Stretch]] = defaultdict(list)
    for node, stretch in stretches:
        grouped[node].append(stretch)
    return {node: Overlaps(found) for node, found in grouped.items()}
