"""What a rebuild, a shard of one, or a dry run says in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xtune.lake import Lake
from xtune.pipelines._compaction import Compacted
from xtune.pipelines._day_steps import DaysDone
from xtune.pipelines._engine import connect, files_relation
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._refresh import Refreshed
from xtune.pipelines._state import State
from xtune.tables import DERIVED_TABLES, TABLES

# Shown also where they have no row.
_ALWAYS = ("link_rates", "link_episodes", "episodes", "collective_impact")


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildSummary:
    """What a rebuild did and found.

    Attributes:
        table_rows: Derived table's bare name -> rows it has now.
        computed: Partitions of ``link_rates`` computed.
        reused: Partitions that were up to date.
        dropped: Partitions whose inputs are no longer in the ledger.
        days: Days of other tables that were computed, ``<table> <date>``.
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
        made = {name: f"{len(self.computed)} of {total}" for name in ("link_rates",)}
        days = [day.partition(" ")[0] for day in self.days]
        made |= {name: str(days.count(name)) for name in self.table_rows if name in days}
        return [(name, rows, made.get(name, "")) for name, rows in self.table_rows.items()]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSummary:
    """What a shard computed, or a rebuild would.

    Attributes:
        partitions: Partitions of ``link_rates``.
        days: Days of other tables, ``<table> <date>``.
        dry_run: Whether nothing was computed.
    """

    partitions: tuple[str, ...]
    days: tuple[str, ...] = ()
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """One JSON document."""
        return {
            "schema": 1,
            "dry_run": self.dry_run,
            "partitions": list(self.partitions),
            "days": list(self.days),
        }


def summarize(
    lake: Lake,
    state: State,
    inventory: Inventory,
    refreshed: Refreshed,
    days: DaysDone,
    compacted: Compacted,
) -> RebuildSummary:
    """Count what the lake has now."""
    notes = list(inventory.identity.notes)
    for key in sorted(state.notes):
        notes += [note for note in state.notes[key] if note not in notes]
    undated = sum(f.rows for f in lake.files("link_counters") if f.min_ts_ns is None)
    if undated:
        notes.append(f"{undated} counter rows have no time and are in no rate (--time-from)")
    notes += _blind(lake)
    members = lake.read("derived/link_episodes", columns=["link"])
    files = {TABLES[name].bare_name: lake.files(name) for name in DERIVED_TABLES}
    rows = {
        name: sum(file.rows for file in found)
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


def _blind(lake: Lake) -> list[str]:
    """Ports whose congestion nobody knows: no episode of theirs is not the same as none.

    The newest partition is looked at, so that the cost does not grow with the lake.
    """
    files = lake.files("derived/link_rates")
    if not files:
        return []
    newest = max(files, key=lambda file: (file.max_ts_ns or 0, str(file.path)))
    with connect() as session:
        [(ports, blind, rated)] = session.rows(
            "SELECT count(*), count(*) FILTER (NOT known), count(*) FILTER (NOT known AND rated)"
            " FROM (SELECT count(level) > 0 AS known, count(utilization) > 0 AS rated"
            f" FROM {files_relation([newest.path])} GROUP BY link)"
        )
    if not blind:
        return []
    unrated = blind - rated
    reasons = [
        f"{rated} count none, or it sticks at 32 bits (perfquery -x, ibdiagnet)" * bool(rated),
        f"of {unrated} no source says the rate, or how much is sent: collect the output of"
        " ibnetdiscover, or /sys/class/infiniband of each host; in CSV a column rate_gbps"
        " (--map rate_gbps=COLUMN)" * bool(unrated),
    ]
    why = "; ".join(reason for reason in reasons if reason)
    return [f"waiting is unknown on {blind} of {ports} ports, so they open no episode: {why}"]
