"""Brings day tables up to date: which days are stale, run each, one commit a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from xtune.lake import DataFile, Lake
from xtune.pipelines._chunks import NS_PER_DAY, day_start_ns, ns_date, touches
from xtune.pipelines._engine import Session, empty_relation, files_relation, moment
from xtune.pipelines._identity import Identity
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._state import State, TableRecord, digest
from xtune.pipelines._tables import DayInput, DayTable, Rest
from xtune.pipelines._topology import Topology
from xtune.pipelines._write import (
    UNDATED,
    Rows,
    known_contents,
    live_files,
    names_of,
    publish,
    write_rows,
)
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


@dataclass(kw_only=True, slots=True)
class DaysDone:
    """Days computed, ``<table> <date>``, and the number of those that were up to date."""

    computed: list[str] = field(default_factory=list)
    reused: int = 0

    def __add__(self, other: DaysDone) -> DaysDone:
        return DaysDone(computed=self.computed + other.computed, reused=self.reused + other.reused)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Day:
    """One day of one table: its key, and the files that it reads."""

    key: str
    date: str | None
    start_ns: int
    end_ns: int
    own: Mapping[str, tuple[DataFile, ...]]
    near: Mapping[str, tuple[DataFile, ...]]

    def sources(self, files: Mapping[str, tuple[DataFile, ...]]) -> set[str]:
        return {source for of_input in files.values() for f in of_input for source in f.sources}


def fabric_digests(inventory: Inventory, rules: EpisodeRules) -> dict[Rest, str]:
    """Digests of what a table may rest on beside its inputs."""
    identity = inventory.identity
    names = (identity.hosts, identity.guids, identity.nodes, identity.facts, identity.host_of)
    return {
        "identity": digest(
            [sorted((str(k), repr(v)) for k, v in of.items()) for of in names],
            sorted(identity.host_of_guid.items()),
        ),
        "topology": digest(inventory.topology),
        "rules": digest(rules.to_json()),
    }


def refresh_days(
    tables: Iterable[DayTable],
    context: DayContext,
    state: State,
    progress: Callable[[str], None],
    since_ns: int = 0,
    until_ns: int = 2**63 - 1,
) -> DaysDone:
    """Make the stale days of tables, in the order given; one commit a table.

    A day stays as it is when telemetry that it was made from was pruned since.
    """
    done = DaysDone()
    for table in tables:
        _Refresh(table, context, state, done).run(progress, since_ns, until_ns)
    return done


class _Refresh:
    def __init__(self, table: DayTable, context: DayContext, state: State, done: DaysDone) -> None:
        self._table = table
        self._context = context
        self._lake = context.lake
        self._state = state
        self._done = done
        self._name = f"derived/{table.name}"
        self._inputs = {name: self._lake.files(_contract(name).name) for name in table.inputs}
        self._code = digest(
            context.code, table.name, *(context.fabric[part] for part in table.rests_on)
        )

    def run(self, progress: Callable[[str], None], since_ns: int, until_ns: int) -> None:
        stale: dict[str, tuple[_Day, TableRecord]] = {}
        days = self._days()
        for day in days:
            if day.date is not None and not (day.end_ns > since_ns and day.start_ns < until_ns):
                continue
            record = self._record(day)
            if self._keep(day, record):
                self._done.reused += 1
            else:
                stale[day.key] = day, record
        live = live_files(self._lake, self._name)
        done: dict[str, dict[str, Rows]] = {}
        for key in self._gone({day.key for day in days}, since_ns, until_ns):
            done[key] = {}
        for key, (day, _) in stale.items():
            progress(key)
            done[key] = self._compute(day, live)
        if done:
            self._commit(done, {key: record for key, (_, record) in stale.items()})
            self._done.computed += stale

    def _days(self) -> list[_Day]:
        if self._table.span == "lake":
            files = {name: tuple(found) for name, found in self._inputs.items()}
            key = f"{self._table.name} {_LAKE}"
            return [_Day(key=key, date=None, start_ns=0, end_ns=0, own=files, near=files)]
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
            key = f"{self._table.name} {UNDATED}"
            days.append(_Day(key=key, date=None, start_ns=0, end_ns=0, own=files, near=files))
        return days

    def _day(self, date: str) -> _Day:
        start, end = day_start_ns(date), day_start_ns(date) + NS_PER_DAY
        reach = self._table.reach_days * NS_PER_DAY

        def within(low: int, high: int) -> dict[str, tuple[DataFile, ...]]:
            return {
                name: tuple(file for file in found if touches(file, low, high))
                for name, found in self._inputs.items()
            }

        return _Day(
            key=f"{self._table.name} {date}",
            date=date,
            start_ns=start,
            end_ns=end,
            own=within(start, end),
            near=within(start - reach, end + reach),
        )

    def _record(self, day: _Day) -> TableRecord:
        names = {
            part: {name: [self._relative(f) for f in found] for name, found in files.items()}
            for part, files in (("own", day.own), ("near", day.near))
        }
        return TableRecord(
            inputs=digest(self._code, names["near"]),
            own=digest(names["own"]),
            sources=sorted(day.sources(day.near)),
            own_sources=sorted(day.sources(day.own)),
        )

    def _keep(self, day: _Day, now: TableRecord) -> bool:
        """Whether a day is up to date, or cannot be made anew because its telemetry was pruned.

        Where only days within its reach were pruned, it stays until its own telemetry changes.
        """
        known = self._state.tables.get(day.key)
        if known is None or not self._intact(known):
            return False
        if known.inputs == now.inputs:
            return True
        kept = self._lake.inputs().keys()
        if (set(known.sources) - day.sources(day.near)) & kept:
            own_gone = set(known.own_sources) - day.sources(day.own)
            return bool(own_gone & kept) or known.own == now.own
        return False

    def _gone(self, keys: set[str], since_ns: int, until_ns: int) -> list[str]:
        """Recorded days without any input now, and not because it was pruned."""
        found = []
        for key, record in self._state.tables.items():
            name, _, date = key.partition(" ")
            if name != self._table.name or key in keys:
                continue
            if date[:1].isdigit():
                start = day_start_ns(date)
                if not (start + NS_PER_DAY > since_ns and start < until_ns):
                    continue
            if not set(record.sources) & self._lake.inputs().keys():
                found.append(key)
        return found

    def _compute(self, day: _Day, live: Mapping[str, list[DataFile]]) -> dict[str, Rows]:
        """Run one day; its rows by date."""
        table, context = self._table, self._context
        with context.connect() as session:
            for name in table.inputs:
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
            self._state.notes[day.key] = table.prepare(given) if table.prepare else []
            session.create(table.name)
            return write_rows(
                self._lake,
                session,
                self._name,
                known=known_contents(self._lake, self._state.tables.get(day.key), live),
                date=None if table.span == "lake" else day.date or UNDATED,
            )

    def _commit(self, done: Mapping[str, dict[str, Rows]], now: Mapping[str, TableRecord]) -> None:
        """Publish what was computed; a day that is gone has no record in ``now``."""
        live = live_files(self._lake, self._name)
        dates = {
            date
            for key in done
            for date in (live if self._table.span == "lake" else [key.partition(" ")[2]])
        }
        written = {date: rows for of_key in done.values() for date, rows in of_key.items()}
        with self._lake.begin() as transaction:
            changed = publish(
                transaction, self._name, written, {d: live[d] for d in dates if d in live}
            )
            if changed:
                transaction.commit()
        names = names_of(self._lake, live_files(self._lake, self._name))
        for key, of_key in done.items():
            if key not in now:
                self._state.tables.pop(key, None)
                self._state.notes.pop(key, None)
                continue
            self._state.tables[key] = replace(
                now[key],
                files={date: names[date] for date in of_key},
                contents={date: rows.content for date, rows in of_key.items()},
                rows=sum(rows.rows for rows in of_key.values()),
            )
        self._state.save()

    def _intact(self, record: TableRecord) -> bool:
        """Whether the lake has what was recorded."""
        names = names_of(self._lake, live_files(self._lake, self._name))
        return all(names.get(date) == name for date, name in record.files.items())

    def _view(self, day: _Day, name: str) -> str:
        contract, files = _contract(name), day.near[name]
        if not files:
            return f"FROM {empty_relation(contract)}"
        relation = files_relation(file.path for file in files)
        if self._table.span == "lake":
            return f"FROM {relation}"
        if day.date is None:
            return f"FROM {relation} WHERE {contract.time} IS NULL"
        reach = self._table.reach_days * NS_PER_DAY
        low, high = moment(day.start_ns - reach), moment(day.end_ns + reach)
        return f"FROM {relation} WHERE {contract.time} >= {low} AND {contract.time} < {high}"

    def _relative(self, file: DataFile) -> str:
        return file.path.relative_to(self._lake.root).as_posix()


def _contract(name: str) -> Table:
    return TABLES.get(name) or TABLES[f"derived/{name}"]
