"""Reads one log by several collectors, each of which takes its own lines out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from xtune.collectors import _registry
from xtune.collectors._base import Collector, Context, Item, Source

# Less sure of a log than this, a second collector is not asked for its lines.
CONFIDENCE = 0.5


class Together(Collector):
    """Several collectors of different ``lines_of``, one reading of the input after another."""

    parts: ClassVar[tuple[Collector, ...]]

    def claim(self, path: Path, head: bytes) -> float:
        """As sure as the surest."""
        return max(part.claim(path, head) for part in self.parts)

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """What each of them reads."""
        for part in self.parts:
            yield from part.read(source, context)


def _together(parts: Sequence[Collector]) -> Collector:
    """One collector of several: a class of its own, as name and version are the class's."""
    ordered = tuple(sorted(parts, key=lambda part: part.name))
    told = {
        "parts": ordered,
        "name": "+".join(part.name for part in ordered),
        "title": "; ".join(part.title for part in ordered),
        "version": sum(part.version for part in ordered),
        "name_tells": any(part.name_tells for part in ordered),
    }
    made: Collector = type("Together", (Together,), told)()
    return made


def with_others(
    best: Collector, path: Path, head: bytes, collectors: Mapping[str, Collector]
) -> Collector:
    """``best``, together with those that read other kinds of lines of the same log."""
    if not best.lines_of:
        return best
    surest: dict[str, tuple[float, Collector]] = {}
    for other in collectors.values():
        if other.lines_of and other.lines_of != best.lines_of:
            sure = _registry.confidence(other, path, head)
            if sure >= CONFIDENCE and sure > surest.get(other.lines_of, (0.0, None))[0]:
                surest[other.lines_of] = sure, other
    others = [other for _, other in surest.values()]
    return _together([best, *others]) if others else best
