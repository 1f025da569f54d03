"""From runs to episodes and what they cost: only what changed, published in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from xtune.pipelines._chunks import NS_PER_DAY, NS_PER_HOUR, by_time, ns_date
from xtune.pipelines._day_steps import (
    Day,
    DayContext,
    DaysDone,
    DayStep,
    DayWork,
    contract,
    publish_days,
)
from xtune.pipelines._engine import Session, empty_relation, files_relation
from xtune.pipelines._episodes import Episode
from xtune.pipelines._impact import (
    IMPACT_INPUTS,
    IMPACT_TABLES,
    create_episodes,
    impact_dates,
    impact_day,
)
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._jobs import Jobs
from xtune.pipelines._joints import join_runs
from xtune.pipelines._pieces import PieceMaker, episode_json, read_pieces
from xtune.pipelines._signals import bad_signals, signal_notes
from xtune.pipelines._state import PieceRecord, State, digest
from xtune.pipelines._tables import DayInput

# Tables that episodes are made from, beside their stretches.
_COSTS = ("episode_costs", "impact_by")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """What it takes to make episodes and their cost.

    Attributes:
        session: With the rules as its variables.
        state: Its chunks are up to date.
        inventory: What the raw tables name.
        context: What every day shares.
        code: Digest of the source and the rules.
    """

    session: Session
    state: State
    inventory: Inventory
    context: DayContext
    code: str

    def run(
        self, progress: Callable[[str], None], since_ns: int = 0, until_ns: int = 2**63 - 1
    ) -> DaysDone:
        """Bring ``link_episodes``, ``episodes`` and the tables of impact up to date."""
        progress("episodes")
        self._refresh_pieces()
        reader = _Reader(self.state)
        impact = DayWork(self._impact_step(reader), self.context, self.state)
        impact.run(progress, since_ns, until_ns)
        costs = _Costs(impact)
        episodes = DayWork(self._episode_step(reader, costs), self.context, self.state)
        episodes.run(progress, since_ns, until_ns)
        return publish_days(self.context.lake, self.state, [impact, episodes])

    def _refresh_pieces(self) -> None:
        state, rules = self.state, self.context.rules
        names = join_runs(self.session, state, self.code, rules.report_level)
        paths = [state.path(name) for name in sorted(set(names))]
        state.notes["signals"] = signal_notes(self.session, paths)
        readings = [file.path for file in self.context.lake.files("derived/signal_margin")]
        if paths and readings:
            facts = self.context.identity.facts
            bad = bad_signals(self.session, readings, paths[0], facts)
            names.append(state.keep_table("signals", bad))
        sampled = self._sampled()
        maker = PieceMaker(
            session=self.session,
            state=state,
            topology=self.context.topology,
            identity=self.context.identity,
            rules=rules,
            sampled=sampled,
        )
        maker.refresh(names, digest(self._basis(), sorted(sampled)))

    def _basis(self) -> str:
        """Digest of the code, the rules and the fabric."""
        fabric = self.context.fabric
        return digest(self.code, fabric["identity"], fabric["topology"])

    def _sampled(self) -> set[str]:
        """Ports of which there are counters: what the last chunk hands on knows all of them."""
        keys = by_time(self.state.chunks)
        if not keys:
            return set()
        paths = [self.state.path(part.carry) for part in self.state.chunks[keys[-1]].parts]
        return {link for (link,) in self.session.rows(f"SELECT link FROM {files_relation(paths)}")}

    def _impact_step(self, reader: _Reader) -> DayStep:
        lake, clocks = self.context.lake, self.inventory.clocks
        jobs = Jobs(lake, self.session, self.state)

        def span(start_ns: int, end_ns: int) -> tuple[int, int]:
            return start_ns - NS_PER_DAY, end_ns + NS_PER_HOUR

        def sizes(day: Day) -> dict[str | None, int]:
            return jobs.sizes(f for name in ("collectives", "steps") for f in day.near[name])

        def more(day: Day) -> str:
            low, high = span(day.start_ns, day.end_ns)
            mark = clocks.mark(day.start_ns - NS_PER_DAY, day.end_ns + NS_PER_DAY)
            known = [(str(job), ranks) for job, ranks in sizes(day).items()]
            found = reader.digest(
                "impact", low, high, lambda e: e.start_ns < high and e.end_ns > low
            )
            return digest(found, mark, known)

        def run(given: DayInput, day: Day) -> list[str]:
            clocks.load(given.session)
            impact_day(given, reader.episodes(*span(day.start_ns, day.end_ns)), sizes(day))
            return []

        return DayStep(
            name="impact",
            outputs=IMPACT_TABLES,
            inputs=IMPACT_INPUTS,
            rests=self._basis(),
            run=run,
            reach_days=1,
            dates=tuple(impact_dates(lake)),
            more=more,
        )

    def _episode_step(self, reader: _Reader, costs: _Costs) -> DayStep:
        def belongs(day: Day) -> Callable[[Episode], bool]:
            return lambda e: any(
                day.start_ns <= ns < day.end_ns
                for ns in (e.start_ns, *(member.start_ns for member in e.members))
            )

        def more(day: Day) -> str:
            found = reader.digest("episodes", day.start_ns, day.end_ns, belongs(day))
            return digest(found, costs.contents(day.start_ns, self._until(reader, day)))

        def run(given: DayInput, day: Day) -> list[str]:
            found = filter(belongs(day), reader.episodes(day.start_ns, day.end_ns))
            costs.load(given.session, day.start_ns, self._until(reader, day))
            create_episodes(given.session, list(found))
            return []

        return DayStep(
            name="episodes",
            outputs=("link_episodes", "episodes"),
            inputs=(),
            rests=self._basis(),
            run=run,
            dates=tuple(reader.dates()),
            more=more,
            own_dates=True,
        )

    @staticmethod
    def _until(reader: _Reader, day: Day) -> int:
        """Until when an episode of a day may have cost something."""
        return max([day.end_ns, *reader.ends(day.start_ns, day.end_ns)])


class _Reader:
    """Stored episodes; each date's are read once, and only where a digest is not known."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._read: dict[str, list[Episode]] = {}

    def dates(self) -> list[str]:
        """Dates on which an episode, or a stretch of one, may begin."""
        days: set[int] = set()
        for record in self._state.pieces.values():
            days |= {*range(record.from_ns // NS_PER_DAY, record.until_ns // NS_PER_DAY + 1)}
        return [ns_date(day * NS_PER_DAY) for day in sorted(days)]

    def episodes(self, low: int, high: int) -> list[Episode]:
        """Episodes of components that touch a span, by start."""
        found = [e for record in self._records(low, high) for e in self._of(record)]
        return sorted(found, key=lambda e: (e.start_ns, e.id))

    def ends(self, low: int, high: int) -> list[int]:
        """Upper bounds of when episodes that touch a span end."""
        return [record.until_ns for record in self._records(low, high)]

    def digest(self, name: str, low: int, high: int, test: Callable[[Episode], bool]) -> str:
        """Digest of the episodes of a span that pass a test; known where nothing changed."""
        names = digest(name, low, high, [record.name for record in self._records(low, high)])
        memo = self._state.memos.get(f"{name} {low}")
        if memo is None or memo[0] != names:
            found = [episode_json(e) for e in self.episodes(low, high) if test(e)]
            memo = self._state.memos[f"{name} {low}"] = [names, digest(found)]
        return memo[1]

    def _records(self, low: int, high: int) -> list[PieceRecord]:
        return [
            record
            for _, record in sorted(self._state.pieces.items())
            if record.from_ns < high and record.until_ns > low
        ]

    def _of(self, record: PieceRecord) -> list[Episode]:
        if record.name not in self._read:
            self._read[record.name] = [
                episode for piece in read_pieces(self._state, record) for episode in piece.episodes
            ]
        return self._read[record.name]


class _Costs:
    """Tables of cost as they are once the impact of changed days is published."""

    def __init__(self, impact: DayWork) -> None:
        self._impact = impact
        self._contents = impact.contents()

    def contents(self, low: int, high: int) -> list[Any]:
        """Digests of the rows of days that touch a span."""
        dates = self._dates(low, high)
        return [self._contents.get(f"{name}/{date}") for name in _COSTS for date in dates]

    def load(self, session: Session, low: int, high: int) -> None:
        """Make views of the days that touch a span."""
        for name in _COSTS:
            paths = self._impact.paths(name, self._dates(low, high))
            relation = files_relation(paths) if paths else empty_relation(contract(name))
            session.view(name, f"FROM {relation}")

    @staticmethod
    def _dates(low: int, high: int) -> Iterable[str]:
        return [ns_date(d * NS_PER_DAY) for d in range(low // NS_PER_DAY, high // NS_PER_DAY + 1)]
