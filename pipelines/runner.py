"""``rebuild``: compaction, rates, levels, episodes, causes and cost, only where inputs changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import pyarrow as pa

from xtune.errors import NoDataError
from xtune.lake import Lake
from xtune.pipelines._chunks import DAY_ROWS
from xtune.pipelines._clocks import Clocks
from xtune.pipelines._compaction import Compacted, compact
from xtune.pipelines._days import DayContext, DaysDone, fabric_digests, refresh_days
from xtune.pipelines._engine import Session, files_relation
from xtune.pipelines._episodes import Episode, build_episodes, seen_from_receivers
from xtune.pipelines._impact import run_impact
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._refresh import Refreshed, Refresher
from xtune.pipelines._state import State, TableRecord, digest
from xtune.pipelines._stretches import read_stretches
from xtune.pipelines._tables import day_tables
from xtune.pipelines._topology import Topology
from xtune.pipelines._work import Work
from xtune.pipelines._write import known_contents, live_files, names_of, publish, write_rows
from xtune.pipelines.rules import EpisodeRules
from xtune.tables import DERIVED_TABLES, TABLES

_FINAL = (
    "derived/link_episodes",
    "derived/episodes",
    "derived/collective_impact",
    "derived/episode_costs",
    "derived/impact_by",
)
_ALWAYS = ("derived/link_rates", *_FINAL)
_EVER_NS = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildSummary:
    """What a rebuild did and found.

    Attributes:
        table_rows: Derived table's bare name -> rows it has now.
        computed: Partitions of ``link_rates`` computed.
        reused: Partitions that were up to date.
        days: Days of other tables that were computed, ``<table> <date>``.
        dropped: Partitions whose inputs are no longer in the ledger.
        compacted: Raw files before and after compaction.
        episodes: Episodes in the lake.
        links: Links with an episode.
        notes: What a user should know, one line each.
    """

    table_rows: dict[str, int]
    computed: tuple[str, ...]
    reused: int
    dropped: tuple[str, ...]
    days: tuple[str, ...]
    compacted: Compacted
    episodes: int
    links: int
    notes: tuple[str, ...]

    def rows(self) -> list[tuple[str, int, str]]:
        """For a table: derived table, its rows, partitions computed now."""
        total = len(self.computed) + self.reused
        return [
            (name, rows, f"{len(self.computed)} of {total}" if name == "link_rates" else "")
            for name, rows in self.table_rows.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """One JSON document."""
        return {
            "schema": 1,
            "tables": self.table_rows,
            "partitions": {
                "computed": list(self.computed),
                "reused": self.reused,
                "dropped": list(self.dropped),
            },
            "days": list(self.days),
            "compacted": {
                "files_before": self.compacted.files_before,
                "files_after": self.compacted.files_after,
                "rows": self.compacted.rows,
            },
            "episodes": self.episodes,
            "links": self.links,
            "notes": list(self.notes),
        }


def rebuild(
    lake: Lake,
    *,
    rules: EpisodeRules | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    memory: str | None = None,
    threads: int | None = None,
    progress: Callable[[int, str], None] | None = None,
    day_rows: int = DAY_ROWS,
) -> RebuildSummary:
    """Bring every derived table up to date.

    A killed rebuild leaves the tables as after its last commit; the next one goes on from there.

    Args:
        lake: Where.
        rules: What counts as congestion.
        since: Partitions of ``link_rates`` that end before are left as they are.
        until: Partitions that begin after are left as they are.
        memory: Most memory DuckDB uses, such as ``2GB``.
        threads: Threads DuckDB uses.
        progress: Told the number of steps done and the one begun.
        day_rows: Rows of a day up to which it is one partition; a larger one is cut into hours.

    Raises:
        NoDataError: The lake holds nothing to rebuild from.
        LakeError: Another rebuild is running, or the lake is damaged.
    """
    rules = rules or EpisodeRules()
    report = progress or (lambda done, text: None)
    if not any(lake.files(name) for name, table in TABLES.items() if not table.derived):
        raise NoDataError("the lake holds no telemetry", "run xtune collect first")
    with lake.exclusive("rebuild"):
        state = State.load(lake.root)
        scratch = lake.scratch("derived/link_rates")
        work = Work(rules=rules, memory=memory, threads=threads)
        with work.connect(scratch) as session:
            report(0, "compaction")
            compacted = compact(lake, session, day_rows, state=state)
            inventory = Inventory(lake, session, state)
            code = code_digest(rules)
            topology = Topology.build(inventory.topology, inventory.identity)
            context = DayContext(
                lake=lake,
                identity=inventory.identity,
                topology=topology,
                rules=rules,
                code=source_digest(),
                fabric=fabric_digests(inventory, rules),
                connect=lambda: work.connect(scratch),
            )
            span = _ns(since, 0), _ns(until, _EVER_NS)
            tables = day_tables()
            early = [table for table in tables if table.before_rates]
            done = refresh_days(early, context, state, lambda text: report(0, text), *span)
            inventory.clocks = Clocks.read(lake)
            refresher = Refresher(lake, state, inventory, code, work, day_rows)
            refreshed = refresher.run(*span, report)
            _finish(lake, session, state, inventory, topology, rules, code, report)
            state.save()
            last = len(state.chunks) + 2
            late = [table for table in tables if not table.before_rates]
            done += refresh_days(late, context, state, lambda text: report(last, text), *span)
            state.save()
        return _summary(lake, state, inventory, refreshed, done, compacted)


def code_digest(rules: EpisodeRules) -> str:
    """What decides the rows beside the inputs: the source of the pipelines, and the rules."""
    return digest(source_digest(), rules.to_json())


def source_digest() -> str:
    """Digest of the source of the pipelines."""
    folder = resources.files("xtune.pipelines")
    sources = [*folder.iterdir(), *(folder / "sql").iterdir()]
    return digest(
        {path.name: path.read_text() for path in sources if path.name.endswith((".py", ".sql"))}
    )


def _finish(
    lake: Lake,
    session: Session,
    state: State,
    inventory: Inventory,
    topology: Topology,
    rules: EpisodeRules,
    code: str,
    report: Callable[[int, str], None],
) -> None:
    """Episodes and impact, where anything they rest on changed; one commit."""
    keys = sorted(state.chunks)
    raw = {table: lake.files(table) for table in ("collectives", "steps")}
    inputs = digest(
        code,
        [state.chunks[k].stored for k in keys],
        inventory.topology,
        sorted(inventory.identity.host_of_guid.items()),
        sorted(inventory.identity.hosts.items()),
        sorted(inventory.clocks.stretches.items()),
        [[file.path.name for file in files] for files in raw.values()],
    )
    known = {table: state.tables.get(table, TableRecord(inputs="")) for table in _FINAL}
    live = {table: live_files(lake, table) for table in _FINAL}
    if all(
        known[table].inputs == inputs and known[table].files == names_of(lake, live[table])
        for table in _FINAL
    ):
        return
    report(len(keys), "episodes")
    episodes = _episodes(session, state, keys, topology, inventory, rules)
    report(len(keys) + 1, "impact")
    inventory.clocks.load(session)
    run_impact(lake, session, episodes, topology, inventory.identity, rules)
    written = {}
    with lake.begin() as transaction:
        for table in _FINAL:
            contents = known_contents(lake, known[table], live[table])
            written[table] = write_rows(lake, session, table, known=contents)
        if any([publish(transaction, t, written[t], live[t]) for t in _FINAL]):
            transaction.commit()
    for table in _FINAL:
        state.tables[table] = TableRecord(
            inputs=inputs,
            files=names_of(lake, live_files(lake, table)),
            contents={date: rows.content for date, rows in written[table].items()},
            rows=sum(rows.rows for rows in written[table].values()),
        )


def _episodes(
    session: Session,
    state: State,
    keys: list[str],
    topology: Topology,
    inventory: Inventory,
    rules: EpisodeRules,
) -> list[Episode]:
    if not keys:
        return []
    runs = files_relation(
        state.path(name)
        for name in sorted({part.runs for key in keys for part in state.chunks[key].parts})
    )
    last = files_relation(state.path(part.carry) for part in state.chunks[keys[-1]].parts)
    session.view("runs", f"FROM {runs}")
    session.view(
        "last_known",
        f"SELECT link, known_end_ns FROM {last} WHERE level >= {rules.report_level}",
    )
    session.create("link_stretches")
    rows = session.arrow("FROM link_stretches").to_pylist()
    sampled = {link for (link,) in session.rows(f"SELECT link FROM {last}")}
    timelines = seen_from_receivers(read_stretches(rows), topology, sampled, rules)
    return build_episodes(timelines, topology, inventory.identity, rules, sampled)


def _summary(
    lake: Lake,
    state: State,
    inventory: Inventory,
    refreshed: Refreshed,
    days: DaysDone,
    compacted: Compacted,
) -> RebuildSummary:
    notes = list(inventory.identity.notes)
    for key in sorted(state.notes):
        notes += [note for note in state.notes[key] if note not in notes]
    undated = sum(f.rows for f in lake.files("link_counters") if f.min_ts_ns is None)
    if undated:
        notes.append(f"{undated} counter rows have no time and are in no rate (--time-from)")
    members: pa.Table = lake.read("derived/link_episodes", columns=["link"])
    files = {name: lake.files(name) for name in DERIVED_TABLES}
    rows = {
        TABLES[name].bare_name: sum(file.rows for file in found)
        for name, found in files.items()
        if found or name in _ALWAYS
    }
    return RebuildSummary(
        table_rows=rows,
        computed=tuple(refreshed.computed),
        reused=refreshed.reused,
        dropped=tuple(refreshed.dropped),
        days=tuple(days.computed),
        compacted=compacted,
        episodes=rows["episodes"],
        links=len(members["link"].unique()),
        notes=tuple(notes),
    )


def _ns(moment: datetime | None, default: int) -> int:
    if moment is None:
        return default
    delta = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 10**9 + delta.microseconds * 1000
