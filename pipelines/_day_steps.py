"""Work that is done one UTC day at a time: which days are stale, and how they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xtune.lake import DataFile, Lake
from xtune.pipelines._chunks import NS_PER_DAY, day_start_ns, ns_date, touches
from xtune.pipelines._engine import Session, empty_relation, files_relation, moment
from xtune.pipelines._identity import Identity
from xtune.pipelines._state import State, TableRecord, digest
from xtune.pipelines._tables import DayInput, Rest
from xtune.pipelines._topology import Topology
from xtune.pipelines._write import UNDATED, Rows, live_files, names_of, publish, write_rows
from xtune.pipelines.rules import EpisodeRules
from xtune.tables import TABLES, Table

_LAKE = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class DayContext:
    """What every day of every table shares.

    Attributes:
        lake: Where.
        identity: One name for each port and host.
        topology: The fabric.
        rules: What counts as congestion.
        code: Digest of the pipelines' source.
        fabric: Digests of what a table may rest on, by its name in ``DayTable.rests_on``.
        connect: Opens a session with the rules as its variables.
    """

    lake: Lake
    identity: Identity
    topology: Topology
    rules: EpisodeRules
    code: str
    fabric: Mapping[Rest, str]
    connect: Callable[[], Session]


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """One day of one step: its key, and the files that it reads.

    Attributes:
        key: ``<step> <date>``.
        date: ``2026-01-31``; None for rows without a time, and for the whole lake.
        start_ns: First instant of the day.
        end_ns: First instant after it.
        own: Input -> its files that touch the day.
        near: Input -> its files that touch the day or its reach.
    """

    key: str
    date: str | None
    start_ns: int
    end_ns: int
    own: Mapping[str, tuple[DataFile, ...]]
    near: Mapping[str, tuple[DataFile, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class DayStep:
    """What is made one day at a time.

    Attributes:
        name: Its days are recorded under it.
        outputs: Tables that it fills, by bare name.
        inputs: Tables that it reads, by bare name.
        rests: Digest of what its rows rest on beside inputs.
        run: Makes the relations named as ``outputs``; returns notes for the user.
        span: ``day`` or ``lake``.
        reach_days: Days before and after that a day also reads.
        dates: Its days; None for those of its inputs.
        more: Digest of what a day rests on beside its files.
        own_dates: Whether rows go to the date of their own time, and a day has those of its date;
            otherwise all rows of a run are of its day.
    """

    name: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    rests: str
    run: Callable[[DayInput, Day], list[str]]
    span: str = "day"
    reach_days: int = 0
    dates: tuple[str, ...] | None = None
    more: Callable[[Day], str] = lambda day: ""
    own_dates: bool = False


@dataclass(kw_only=True, slots=True)
class DaysDone:
    """Days computed, ``<table> <date>``, and the number of those that were up to date."""

    computed: list[str] = field(default_factory=list)
    reused: int = 0

    def __add__(self, other: DaysDone) -> DaysDone:
        return DaysDone(computed=self.computed + other.computed, reused=self.reused + other.reused)


class DayWork:
    """One step over all its days; made, run and then published, alone or with others.

    Attributes:
        rows: Day's key -> output -> date -> rows, of the days that were made.
        done: What was made and what was up to date.
    """

    def __init__(self, step: DayStep, context: DayContext, state: State) -> None:
        self.step = step
        self.rows: dict[str, dict[str, dict[str, Rows]]] = {}
        self.done = DaysDone()
        self._context = context
        self._lake = context.lake
        self._state = state
        self._inputs = {name: self._lake.files(contract(name).name) for name in step.inputs}
        self._live = {name: live_files(self._lake, f"derived/{name}") for name in step.outputs}
        self._records: dict[str, TableRecord] = {}
        self._notes: dict[str, list[str]] = {}

    def stale(self, since_ns: int, until_ns: int) -> list[Day]:
        """Days that are not up to date."""
        found = []
        for day in self._days():
            if day.date is not None and not (day.end_ns > since_ns and day.start_ns < until_ns):
                continue
            record = self._record(day)
            if self._keep(day, record):
                self.done.reused += 1
            else:
                self._records[day.key] = record
                found.append(day)
        return found

    def run(self, progress: Callable[[str], None], since_ns: int, until_ns: int) -> None:
        """Make the stale days; nothing is in the lake before :func:`publish_days`."""
        stale = self.stale(since_ns, until_ns)
        keys = {day.key for day in self._days()}
        for key in self._gone(keys, since_ns, until_ns):
            self.rows[key] = {name: {} for name in self.step.outputs}
        for day in stale:
            progress(day.key)
            self.rows[day.key] = self._compute(day)
            self.done.computed.append(day.key)

    def contents(self) -> dict[str, str]:
        """``<output>/<date>`` -> digest of its rows, once what was made is published."""
        found: dict[str, str] = {}
        for key, record in self._state.tables.items():
            if key.partition(" ")[0] == self.step.name and key not in self.rows:
                found |= record.contents
        for of_key in self.rows.values():
            for name, dates in of_key.items():
                found |= {f"{name}/{date}": rows.content for date, rows in dates.items()}
        return found

    def paths(self, name: str, dates: Iterable[str]) -> list[Any]:
        """Files of an output, once what was made is published; they may not be in the lake yet."""
        made = {
            date: rows.path
            for of_key in self.rows.values()
            for date, rows in of_key[name].items()
            if rows.path is not None
        }
        gone = {
            key.partition(" ")[2]
            for key, of_key in self.rows.items()
            if self.step.span == "day" and not of_key[name]
        }
        found = []
        for date in dates:
            if date in made:
                found.append(made[date])
            elif date not in gone:
                found += [file.path for file in self._live[name].get(date, [])]
        return found

    def adopt(self, transaction: Any) -> bool:
        """Put what was made into a transaction; whether there is anything."""
        changed = False
        for name in self.step.outputs:
            live = self._live[name]
            written = {
                date: rows for of_key in self.rows.values() for date, rows in of_key[name].items()
            }
            dates = {date for key in self.rows for date in self._dates_of(key, live)}
            part = {date: live[date] for date in dates if date in live}
            changed |= publish(transaction, f"derived/{name}", written, part)
        return changed

    def record(self) -> None:
        """Remember what was published."""
        names = {}
        for name in self.step.outputs:
            live = live_files(self._lake, f"derived/{name}")
            for date, file in names_of(self._lake, live).items():
                names[f"{name}/{date}"] = file
        for key, of_key in self.rows.items():
            if key not in self._records:
                self._state.tables.pop(key, None)
                self._state.notes.pop(key, None)
                continue
            written = {
                f"{name}/{date}": rows
                for name, dates in of_key.items()
                for date, rows in dates.items()
            }
            self._state.notes[key] = self._notes[key]
            self._state.tables[key] = replace(
                self._records[key],
                files={place: names[place] for place in written},
                contents={place: rows.content for place, rows in written.items()},
                rows=sum(rows.rows for rows in written.values()),
            )

    def _days(self) -> list[Day]:
        step = self.step
        if step.span == "lake":
            files = {name: tuple(found) for name, found in self._inputs.items()}
            key = f"{step.name} {_LAKE}"
            return [Day(key=key, date=None, start_ns=0, end_ns=0, own=files, near=files)]
        if step.dates is not None:
            return [self._day(date) for date in step.dates]
        dates: set[str] = set()
        undated = False
        for file in (file for found in self._inputs.values() for file in found):
            if file.min_ts_ns is None or file.max_ts_ns is None:
                undated = True
                continue
            first, last = file.min_ts_ns // NS_PER_DAY, file.max_ts_ns // NS_PER_DAY
            dates |= {ns_date(day * NS_PER_DAY) for day in range(first, last + 1)}
        days = [self._day(date) for date in sorted(dates)]
        if undated:
            files = {
                name: tuple(f for f in found if f.min_ts_ns is None)
                for name, found in self._inputs.items()
            }
            key = f"{step.name} {UNDATED}"
            days.append(Day(key=key, date=None, start_ns=0, end_ns=0, own=files, near=files))
        return days

    def _day(self, date: str) -> Day:
        start, end = day_start_ns(date), day_start_ns(date) + NS_PER_DAY
        reach = self.step.reach_days * NS_PER_DAY

        def within(low: int, high: int) -> dict[str, tuple[DataFile, ...]]:
            return {
                name: tuple(file for file in found if touches(file, low, high))
                for name, found in self._inputs.items()
            }

        return Day(
            key=f"{self.step.name} {date}",
            date=date,
            start_ns=start,
            end_ns=end,
            own=within(start, end),
            near=within(start - reach, end + reach),
        )

    def _record(self, day: Day) -> TableRecord:
        more = self.step.more(day)
        own, near = (
            {name: [self._lake.name_of(f) for f in found] for name, found in files.items()}
            for files in (day.own, day.near)
        )
        return TableRecord(
            inputs=digest(self.step.rests, more, near),
            own=digest(more, own),
            sources=sorted(_sources(day.near)),
            own_sources=sorted(_sources(day.own)),
        )

    def _keep(self, day: Day, now: TableRecord) -> bool:
        """Whether a day is up to date, or cannot be made anew because its telemetry was pruned.

        Where only days within its reach were pruned, it stays until its own telemetry changes.
        """
        known = self._state.tables.get(day.key)
        if known is None or not self._intact(known):
            return False
        if known.inputs == now.inputs:
            return True
        if self._pruned(known.own_sources, day.own):
            return True
        return self._pruned(known.sources, day.near) and known.own == now.own

    def _pruned(self, known: Iterable[str], files: Mapping[str, tuple[DataFile, ...]]) -> bool:
        """Whether rows of a date are gone of which the ledger still has the input."""
        gone = {source.partition(" ")[0] for source in set(known) - _sources(files)}
        return not gone.isdisjoint(self._lake.inputs())

    def _gone(self, keys: set[str], since_ns: int, until_ns: int) -> list[str]:
        """Recorded days without any input now, and not because it was pruned."""
        found = []
        for key, record in self._state.tables.items():
            name, _, date = key.partition(" ")
            if name != self.step.name or key in keys:
                continue
            if date[:1].isdigit():
                start = day_start_ns(date)
                if not (start + NS_PER_DAY > since_ns and start < until_ns):
                    continue
            if not self._pruned(record.sources, {}):
                found.append(key)
        return found

    def _compute(self, day: Day) -> dict[str, dict[str, Rows]]:
        """Run one day; its rows by output and date."""
        step, context = self.step, self._context
        with context.connect() as session:
            for name in step.inputs:
                session.view(name, self._view(day, name))
            given = DayInput(
                lake=self._lake,
                session=session,
                date=day.date,
                start_ns=day.start_ns,
                end_ns=day.end_ns,
                identity=context.identity,
                topology=context.topology,
                rules=context.rules,
            )
            self._notes[day.key] = step.run(given, day)
            of_day = day.date or UNDATED
            return {
                name: write_rows(
                    self._lake,
                    session,
                    f"derived/{name}",
                    known=self._known(day.key, name),
                    date=None if step.span == "lake" or step.own_dates else of_day,
                    only=of_day if step.own_dates else None,
                )
                for name in step.outputs
            }

    def _known(self, key: str, name: str) -> dict[str, str]:
        """Date -> digest of the rows that the lake has, where its file is the recorded one."""
        record = self._state.tables.get(key)
        names = names_of(self._lake, self._live[name])
        return {
            date: record.contents[f"{name}/{date}"]
            for date, file in names.items()
            if record is not None and record.files.get(f"{name}/{date}") == file
        }

    def _dates_of(self, key: str, live: Mapping[str, list[DataFile]]) -> list[str]:
        return list(live) if self.step.span == "lake" else [key.partition(" ")[2]]

    def _intact(self, record: TableRecord) -> bool:
        """Whether the lake has what was recorded."""
        return all(
            names_of(self._lake, self._live[name]).get(date) == file
            for place, file in record.files.items()
            for name, _, date in [place.partition("/")]
            if name in self._live
        )

    def _view(self, day: Day, name: str) -> str:
        table, files = contract(name), day.near[name]
        if not files:
            return f"FROM {empty_relation(table)}"
        relation = files_relation(file.path for file in files)
        if self.step.span == "lake":
            return f"FROM {relation}"
        if day.date is None:
            return f"FROM {relation} WHERE {table.time} IS NULL"
        reach = self.step.reach_days * NS_PER_DAY
        low, high = moment(day.start_ns - reach), moment(day.end_ns + reach)
        return f"FROM {relation} WHERE {table.time} >= {low} AND {table.time} < {high}"


def publish_days(lake: Lake, state: State, works: Iterable[DayWork]) -> DaysDone:
    """Bring what steps made into the lake, in one commit."""
    works = list(works)
    done = DaysDone()
    if any(work.rows for work in works):
        with lake.begin() as transaction:
            if any([work.adopt(transaction) for work in works]):
                transaction.commit()
        for work in works:
            work.record()
        state.save(sweep=False)
    for work in works:
        done += work.done
    return done


def contract(name: str) -> Table:
    """The table of a bare name."""
    return TABLES.get(name) or TABLES[f"derived/{name}"]


def _sources(files: Mapping[str, tuple[DataFile, ...]]) -> set[str]:
    """``<input> <table> <date>`` of the rows in files: an input may have rows on many dates."""
    return {
        f"{source} {file.table} {file.date}"
        for of_input in files.values()
        for file in of_input
        for source in file.sources
    }
