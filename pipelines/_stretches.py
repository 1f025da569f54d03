"""Stretches of ports, as the graph work sees them, and fast look-ups of those that overlap."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

# Two stretches belong together when they share at least this part of the shorter one: reads of
# two ports are a moment apart, so neighbours in time overlap by a sample without any connection.
SHARED = 0.2
# How well stretches agree of which the samples are too far apart to tell.
MAY_BE = 0.75
KINDS = ("wait", "busy", "received", "errors", "pauses", "signal")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """One stretch of one port (a row of model ``link_stretches``); None is unknown.

    Attributes:
        signal: What brought a waiting stretch to its level: wait, pause, marks or discards.
        mark_rate: Mean ECN marks and notifications a second.
        discard_rate: Mean packets dropped a second.
        seen_from: The port that was sampled, where that is the one at the other end.
    """

    link: str
    start_ns: int
    end_ns: int
    samples: int = 0
    peak_level: int | None = None
    mean_wait_fraction: float | None = None
    peak_utilization: float | None = None
    mean_utilization: float | None = None
    bytes: float | None = None
    errors: float | None = None
    end_unknown: bool = False
    signal: str | None = None
    mark_rate: float | None = None
    discard_rate: float | None = None
    seen_from: str | None = None

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from other stretches of its kind."""
        return self.link, self.start_ns

    @property
    def id(self) -> str:
        """The same for the same port and start, whenever it is computed."""
        return hash_id("link_episode", *self.key)

    @property
    def step_ns(self) -> int:
        """About how far apart its samples are."""
        return self.length_ns // self.samples if self.samples else 0

    def part(self, start_ns: int, end_ns: int) -> Stretch:
        """The part of it within a span."""
        start, end = max(self.start_ns, start_ns), min(self.end_ns, end_ns)
        if (start, end) == (self.start_ns, self.end_ns):
            return self
        share = (end - start) / self.length_ns
        return replace(
            self,
            start_ns=start,
            end_ns=end,
            samples=max(1, round(self.samples * share)) if self.samples else 0,
            bytes=None if self.bytes is None else self.bytes * share,
            errors=None if self.errors is None else self.errors * share,
            end_unknown=self.end_unknown and end == self.end_ns,
        )


def hash_id(*parts: object) -> str:
    """16 hex digits of a hash of the parts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def overlap_ns(a: Stretch, b: Stretch) -> int:
    """How long both last at once."""
    return max(0, min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns))


def together(a: Stretch, b: Stretch) -> bool:
    """Whether two stretches share enough time to belong together."""
    shared = overlap_ns(a, b)
    return shared > 0 and shared >= SHARED * min(a.length_ns, b.length_ns)


def fit(a: Stretch, b: Stretch) -> float:
    """How well two stretches agree in time: 0 not at all, 1 the same span.

    Shared time over the time that either lasts; but what starts together, or ends together, to a
    sample, is hardly so by chance. A sample tells the mean of its interval: a stretch began at any
    time within its first one, and ended at any time within its last. Where that alone accounts
    for all that differs, two of few samples may well be one.
    """
    if not together(a, b):
        return 0.0
    shared = overlap_ns(a, b)
    whole = shared / (a.length_ns + b.length_ns - shared)
    step = max(a.step_ns, b.step_ns)
    starts, ends = abs(a.start_ns - b.start_ns), abs(a.end_ns - b.end_ns)
    slack = min(1.25 * step, 0.4 * min(a.length_ns, b.length_ns))
    edges = (starts <= slack) + (ends <= slack)
    if edges < 2 and whole >= SHARED and max(starts, ends) <= 1.25 * step:
        return max(whole, MAY_BE)
    return max(whole, (0.0, 0.7, 1.0)[edges])


class Timeline:
    """Stretches by link; those of one link do not overlap."""

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        grouped: dict[str, list[Stretch]] = defaultdict(list)
        for stretch in stretches:
            grouped[stretch.link].append(stretch)
        self._by_link = {
            link: sorted(found, key=lambda s: s.start_ns) for link, found in grouped.items()
        }
        self._ends = {link: [s.end_ns for s in found] for link, found in self._by_link.items()}

    def __contains__(self, link: str) -> bool:
        return link in self._by_link

    def __iter__(self) -> Iterator[Stretch]:
        for link in sorted(self._by_link):
            yield from self._by_link[link]

    def of(self, link: str) -> Sequence[Stretch]:
        """All stretches of a link."""
        return self._by_link.get(link, ())

    def within(self, link: str, start_ns: int, end_ns: int) -> Sequence[Stretch]:
        """Stretches of a link that overlap a span."""
        found = self._by_link.get(link)
        if not found:
            return ()
        first = last = bisect_left(self._ends[link], start_ns + 1)
        while last < len(found) and found[last].start_ns < end_ns:
            last += 1
        return found[first:last]

    def covered_ns(self, link: str, start_ns: int, end_ns: int) -> int:
        """Time of a span that stretches of a link cover."""
        return sum(
            min(s.end_ns, end_ns) - max(s.start_ns, start_ns)
            for s in self.within(link, start_ns, end_ns)
        )

    def errors_in(self, link: str, start_ns: int, end_ns: int) -> float:
        """Errors in a span, each stretch's spread evenly over it."""
        total = 0.0
        for s in self.within(link, start_ns, end_ns):
            shared = min(s.end_ns, end_ns) - max(s.start_ns, start_ns)
            total += (s.errors or 0.0) * shared / s.length_ns
        return total


def read_stretches(rows: Iterable[Mapping[str, Any]]) -> dict[str, Timeline]:
    """Timelines by kind, from rows of model ``link_stretches``."""
    kinds: dict[str, list[Stretch]] = {kind: [] for kind in KINDS}
    names = [name for name in Stretch.__slots__ if name != "seen_from"]
    for row in rows:
        values = {name: row[name] for name in names if row.get(name) is not None}
        kinds.setdefault(row["kind"], []).append(Stretch(**values))
    return {kind: Timeline(found) for kind, found in kinds.items()}
