"""Keeps episodes by component: what a changed stretch has no bearing on is not looked at again.

Whatever changed is within some spans of time. Only components that rest on such a span are found
and built anew; for that the stretches around it are loaded, as far as those components reach. All
others stay as they were stored.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from xtune.pipelines._chunks import NS_PER_DAY, ns_date
from xtune.pipelines._components import Component, components, seen_from_receivers
from xtune.pipelines._engine import Session, files_relation
from xtune.pipelines._episodes import Episode, build_component
from xtune.pipelines._identity import Identity
from xtune.pipelines._joints import stretches
from xtune.pipelines._spans import Overlaps
from xtune.pipelines._state import PieceRecord, State
from xtune.pipelines._stretches import Stretch, read_stretches
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules

Span = tuple[int, int]
Key = tuple[str, int]
# Time around a span whose stretches are loaded at first: most components reach no further.
_AROUND_NS = 600 * 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One component: what it is made of, what it rests on, and its episodes.

    Attributes:
        waits: Link, start and end of its waiting stretches, by start.
        span: What it rests on, in time.
        episodes: Its episodes.
    """

    waits: tuple[tuple[str, int, int], ...]
    span: Span
    episodes: tuple[Episode, ...]

    @property
    def keys(self) -> set[Key]:
        """Link and start of its waiting stretches."""
        return {(link, start) for link, start, _ in self.waits}

    @property
    def date(self) -> str:
        """The date that it begins on."""
        return ns_date(self.waits[0][1])

    def to_json(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "waits": self.waits,
            "span": self.span,
            "episodes": [episode_json(episode) for episode in self.episodes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Piece:
        """Undo :meth:`to_json`."""
        low, high = data["span"]
        return cls(
            waits=tuple((link, start, end) for link, start, end in data["waits"]),
            span=(low, high),
            episodes=tuple(_read_episode(episode) for episode in data["episodes"]),
        )


@dataclass(kw_only=True)
class PieceMaker:
    """Finds and keeps the components of a lake.

    Attributes:
        session: With the rules as its variables.
        state: Its pieces are brought up to date.
        topology: The fabric.
        identity: One name for each port and host.
        rules: What counts as congestion.
        sampled: Ports of which there are counters.
    """

    session: Session
    state: State
    topology: Topology
    identity: Identity
    rules: EpisodeRules
    sampled: Collection[str]
    _names: list[str] = field(default_factory=list)

    def refresh(self, names: list[str], basis: str) -> None:
        """Make anew what changed.

        Args:
            names: Names of the stored stretches; together they are all.
            basis: Digest of what components rest on beside stretches.
        """
        self._names, state = names, self.state
        stored = [*state.pieces_from, *(piece.name for piece in state.pieces.values())]
        if state.pieces_of != basis or not state.has(stored):
            state.pieces, state.pieces_from = {}, []
        changed = self._changed(state.pieces_from)
        if changed:
            self._replace(changed)
        state.pieces_of, state.pieces_from = basis, sorted(set(names))

    def _changed(self, before: list[str]) -> list[Span]:
        """Spans of stretches that are not as they were, merged."""
        new, old = sorted({*self._names} - {*before}), sorted({*before} - {*self._names})
        if not new and not old:
            return []
        relations = [
            f"(FROM {files_relation(self.state.path(name) for name in found)})"
            for found in (new, old)
            if found
        ]
        differ = relations[0]
        if len(relations) == 2:
            differ = "(({0} EXCEPT ALL {1}) UNION ALL ({1} EXCEPT ALL {0}))".format(*relations)
        spans = self.session.rows(
            f"SELECT DISTINCT start_ns, end_ns FROM {differ} ORDER BY start_ns"
        )
        return merged(spans)

    def _replace(self, changed: list[Span]) -> None:
        made: dict[Key, Piece] = {}
        stays: dict[str, list[Piece]] = {}
        spans, todo, tried = changed, changed, set[Key]()
        while todo:
            for span in by_day(todo):
                made |= {piece.waits[0][:2]: piece for piece in self._find(span)}
            owned = {key for piece in made.values() for key in piece.keys}
            reach = merged([*spans, *(piece.span for piece in made.values())])
            todo = []
            for date, record in self.state.pieces.items():
                if not _touches((record.from_ns, record.until_ns), reach):
                    continue
                stays[date] = []
                for piece in read_pieces(self.state, record):
                    if not _touches(piece.span, spans) and not owned & piece.keys:
                        stays[date].append(piece)
                        continue
                    # What else was of a piece that is gone needs a new one.
                    lost = [w for w in piece.waits if w[:2] not in owned and w[:2] not in tried]
                    tried |= {(link, start) for link, start, _ in lost}
                    todo += [(start, end) for _, start, end in lost]
            todo = merged(todo)
            spans = merged([*spans, *todo])
        by_date: dict[str, list[Piece]] = defaultdict(list)
        for piece in made.values():
            by_date[piece.date].append(piece)
        for date in by_date:
            if date not in stays and date in self.state.pieces:
                stays[date] = list(read_pieces(self.state, self.state.pieces[date]))
        for date in sorted({*stays, *by_date}):
            self._store(date, [*stays.get(date, []), *by_date[date]])

    def _store(self, date: str, pieces: list[Piece]) -> None:
        if not pieces:
            self.state.pieces.pop(date, None)
            return
        ordered = sorted(pieces, key=lambda piece: piece.waits)
        content = json.dumps([piece.to_json() for piece in ordered]).encode()
        self.state.pieces[date] = PieceRecord(
            name=self.state.keep_bytes("pieces", zlib.compress(content, 3)),
            from_ns=min(piece.span[0] for piece in pieces),
            until_ns=max(piece.span[1] for piece in pieces),
        )

    def _find(self, span: Span) -> list[Piece]:
        """All components that rest on some of a span, loaded as far as they reach."""
        low, high = span[0] - _AROUND_NS, span[1] + _AROUND_NS
        while True:
            found = self._within(low, high)
            waits = Overlaps(s for component in found for s in component.waits)
            rests = [(component, self._rest(component, waits)) for component in found]
            near = [(c, rest) for c, rest in rests if _overlap(rest, span)]
            reach = [rest for _, rest in near]
            reach += [
                around
                for component in found
                for s in component.waits
                if _overlap(around := self._around(s), span)
            ]
            need = (
                min((rest[0] for rest in reach), default=low),
                max((rest[1] for rest in reach), default=high),
            )
            if need[0] >= low and need[1] <= high:
                return [self._build(component, rest) for component, rest in near]
            # Twice as far at least, so that a long chain takes few turns.
            low = min(low, need[0] - (span[0] - low if need[0] < low else 0))
            high = max(high, need[1] + (high - span[1] if need[1] > high else 0))

    def _within(self, low: int, high: int) -> list[Component]:
        context = int(self.rules.context_s * 1e9)
        rows = stretches(
            self.session,
            self.state,
            self._names,
            f"end_ns + greatest(end_ns - start_ns, {context}) > {low}"
            f" AND start_ns - greatest(end_ns - start_ns, {context}) < {high}",
        )
        timelines = seen_from_receivers(
            read_stretches(rows.to_pylist()), self.topology, self.sampled
        )
        return components(timelines, self.topology, self.rules, self.sampled)

    def _around(self, stretch: Stretch) -> Span:
        """What the reasons of a wait rest on: as much again on both sides, or the context."""
        margin = max(stretch.length_ns, int(self.rules.context_s * 1e9))
        return stretch.start_ns - margin, stretch.end_ns + margin

    def _rest(self, component: Component, waits: Overlaps) -> Span:
        """What a component rests on: the reasons of all that waits while it lasts."""
        own = [*component.waits, *component.beside, *component.pauses, *component.errors]
        own += [reason.stretch for found in component.reasons for reason in found]
        low, high = min(s.start_ns for s in own), max(s.end_ns for s in own)
        spans = [self._around(s) for s in (*waits.within(low, high), *component.waits)]
        return min(low, *(s[0] for s in spans)), max(high, *(s[1] for s in spans))

    def _build(self, component: Component, rest: Span) -> Piece:
        episodes = build_component(component, self.topology, self.identity, self.rules)
        return Piece(
            waits=tuple((s.link, s.start_ns, s.end_ns) for s in component.waits),
            span=rest,
            episodes=tuple(episodes),
        )


def read_pieces(state: State, record: PieceRecord) -> Iterator[Piece]:
    """Stored components of one date."""
    content = zlib.decompress(state.path(record.name).read_bytes())
    yield from (Piece.from_json(piece) for piece in json.loads(content))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans that neither overlap nor touch, by start."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


def by_day(spans: Iterable[Span]) -> list[Span]:
    """The same time, cut at midnight UTC; what of a day is changed is looked at together."""
    days: dict[int, Span] = {}
    for low, high in spans:
        for day in range(low // NS_PER_DAY, (max(high, low + 1) - 1) // NS_PER_DAY + 1):
            start, end = max(low, day * NS_PER_DAY), min(high, (day + 1) * NS_PER_DAY)
            known = days.get(day, (start, end))
            days[day] = min(known[0], start), max(known[1], end)
    return [days[day] for day in sorted(days)]


def _overlap(a: Span, b: Span) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _touches(span: Span, spans: Iterable[Span]) -> bool:
    return any(_overlap(span, other) for other in spans)


def episode_json(episode: Episode) -> dict[str, Any]:
    """JSON object of an episode, the same whatever process makes it."""
    values = {f.name: getattr(episode, f.name) for f in fields(episode)}
    values["roots"] = sorted(episode.roots)
    values["members"] = [
        {f.name: value for f in fields(m) if (value := getattr(m, f.name)) != f.default}
        for m in episode.members
    ]
    return values


def _read_episode(data: dict[str, Any]) -> Episode:
    values = dict(data)
    values["roots"] = frozenset(values["roots"])
    values["members"] = [Stretch(**member) for member in values["members"]]
    if values.get("core") is not None:
        values["core"] = tuple(values["core"])
    return Episode(**values)
