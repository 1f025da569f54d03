"""Impact of hand-made episodes on hand-made rows, without counters or a rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import pyarrow as pa

from tests.pipelines.lakes import SECOND, T0, at, rows_of
from xtune.lake import Lake
from xtune.pipelines import EpisodeRules
from xtune.pipelines._engine import Session, connect, empty_relation
from xtune.pipelines._episodes import Episode
from xtune.pipelines._identity import Identity
from xtune.pipelines._impact import IMPACT_INPUTS, IMPACT_TABLES, create_episodes, impact_day
from xtune.pipelines._stretches import Stretch
from xtune.pipelines._tables import DayInput
from xtune.pipelines._topology import Topology
from xtune.tables import TABLES

DAY_S = 86400
#: Seconds from the first instant of T0's day to T0.
INTO_DAY_S = T0 // SECOND % DAY_S
MS = 1_000_000

Rows = list[dict[str, Any]]


def episode(
    start_s: float, end_s: float, name: str = "e", *, links: Iterable[str] = ("a/x_0/1",),
    root: str | None = None,
) -> Episode:  # fmt: skip
    """An episode of whole links over one span."""
    members = [Stretch(link=link, start_ns=at(start_s), end_ns=at(end_s)) for link in links]
    return Episode(id=name, root=root, cause="unknown", members=members)


def collective(
    seq: int | None, start_s: float, ms: float, rank: int | None = 0, **more: Any
) -> dict[str, Any]:
    """One collective on one rank, on host a of job ``j``."""
    row = {
        "start_ts": at(start_s), "duration_ns": round(ms * MS), "job": "j", "host": "a",
        "rank": rank, "comm_rank": rank, "comm": "c", "comm_size": 2, "seq": seq,
        "op": "all_reduce", "message_bytes": 1 << 20,
    }  # fmt: skip
    return {**row, **more}


def usual(ms: float = 10, first_s: float = -500, **more: Any) -> Rows:
    """Five collectives that say what is usual."""
    return [collective(1000 + n, first_s + n, ms, **more) for n in range(5)]


def step(number: int, end_s: float, seconds: float | None, **more: Any) -> dict[str, Any]:
    """One training step of job ``j``."""
    row = {"ts": at(end_s), "job": "j", "run": "r", "step": number, "step_time_s": seconds}
    return {**row, **more}


def priced(
    episodes: list[Episode], *, day: int = 0, clocks: Rows | None = None,
    identity: Identity | None = None, sizes: Mapping[str | None, int] | None = None,
    threads: int = 1, **tables: Rows,
) -> dict[str, Rows]:  # fmt: skip
    """Rows of the tables of impact of one day, ``day`` days after T0's, and of the episodes."""
    start = at(day * DAY_S - INTO_DAY_S)
    with connect(threads=threads) as session:
        for name in IMPACT_INPUTS:
            session.view(name, f"FROM {empty_relation(TABLES[name])}")
            if tables.get(name):
                session.execute(f"DROP VIEW {name}")
                session.load(name, _whole(name, tables[name]))
        if clocks:
            values = ", ".join(
                f"('{c['host']}', {c['from_ns']}, {c['to_ns']}, {c['offset_ns']})" for c in clocks
            )
            columns = "(host, from_ns, to_ns, offset_ns)"
            session.table("host_clocks", f"FROM (VALUES {values}) AS clocks{columns}")
        given = DayInput(
            lake=cast(Lake, None), session=session, date="day", start_ns=start,
            end_ns=start + DAY_S * SECOND, identity=identity or Identity(), topology=Topology(),
            rules=EpisodeRules(),
        )  # fmt: skip
        impact_day(given, episodes, sizes)
        create_episodes(session, episodes)
        return {name: _rows(session, name) for name in (*IMPACT_TABLES, "episodes")}


def hours(found: Mapping[str, Rows], kind: str) -> dict[str | None, float]:
    """``impact_by``: name -> GPU hours."""
    return {r["name"]: r["idle_gpu_hours"] for r in found["impact_by"] if r["kind"] == kind}


def _whole(name: str, rows: Rows) -> Any:
    table = rows_of(name, rows)
    schema = TABLES[name].schema
    empty = schema.empty_table()
    return pa.concat_tables([empty, table], promote_options="default").select(schema.names)


def _rows(session: Session, name: str) -> Rows:
    """Times as seconds after T0."""
    times = [f.name for f in TABLES[f"derived/{name}"].schema if str(f.type).startswith("time")]
    seconds = ", ".join(f"(epoch_ns({c}) - {T0}) / 1e9 AS {c}" for c in times)
    found: Rows = session.arrow(f"SELECT * REPLACE ({seconds}) FROM {name}").to_pylist()
    return found
