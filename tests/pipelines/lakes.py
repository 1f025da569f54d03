"""Small lakes and rows for the tests of the pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from xtune.lake import Lake
from xtune.pipelines import EpisodeRules
from xtune.pipelines._chunks import DAY_ROWS
from xtune.pipelines._compaction import compact
from xtune.pipelines._engine import connect
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._refresh import Refreshed, Refresher
from xtune.pipelines._source import code_digest
from xtune.pipelines._state import State
from xtune.pipelines._work import Work
from xtune.tables import TABLES

#: 2026-03-02T10:00:00Z.
T0_S = 1_772_445_600
SECOND = 1_000_000_000
T0 = T0_S * SECOND
#: 400 Gb/s: 50e9 bytes a second; at 8 byte times a tick, this many ticks are a second of waiting.
LINE_BYTES_S = 50_000_000_000
TICKS_S = LINE_BYTES_S // 8
A, B = "0x00000000000000aa/1", "0x00000000000000bb/2"


def at(seconds: float) -> int:
    """Nanoseconds since the epoch, ``seconds`` after T0."""
    return T0 + round(seconds * SECOND)


def rows_of(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Arrow rows of a table; times are nanoseconds since the epoch."""
    rows = list(rows)
    schema = TABLES[table].schema
    names = [n for n in schema.names if any(n in row for row in rows)]
    columns = [
        pa.array([row.get(name) for row in rows], pa.int64()).cast(schema.field(name).type)
        if pa.types.is_timestamp(schema.field(name).type)
        else pa.array([row.get(name) for row in rows], schema.field(name).type)
        for name in names
    ]
    return pa.table(columns, names=names)


def put(lake: Lake, table: str, rows: Iterable[Mapping[str, Any]], source: str = "0" * 12) -> None:
    """Write rows into a lake."""
    with lake.begin() as transaction:
        transaction.write(table, rows_of(table, rows), source=source)
        transaction.commit()


def new_lake(folder: Path, now_s: float = 10 * 86400) -> Lake:
    """A lake whose clock stands ``now_s`` after T0: long after everything a test writes."""
    return Lake.open(folder, create=True, clock=lambda: at(now_s))


def counters(
    seconds: Iterable[float], link: str = A, rate: float | None = 400.0, **columns: Iterable[Any]
) -> list[dict[str, Any]]:
    """Rows of ``link_counters`` of one port; a None among the values leaves the counter out."""
    times = list(seconds)
    series = {name: list(values) for name, values in columns.items()}
    return [
        {
            "ts": at(time),
            "link": link,
            "rate_gbps": rate,
            **{name: values[i] for name, values in series.items() if values[i] is not None},
        }
        for i, time in enumerate(times)
    ]


def port_rows(
    link: str, wait: Iterable[float], utilization: Iterable[float] | None = None, step_s: float = 1
) -> list[dict[str, Any]]:
    """Counters of a port that waits and sends at the given shares, one interval each."""
    wait = list(wait)
    utilization = list(utilization) if utilization is not None else [0.1] * len(wait)
    ticks = words = 0.0
    times, waits, data = [0.0], [0], [0]
    for i, (waited, sent) in enumerate(zip(wait, utilization, strict=True)):
        ticks += waited * TICKS_S * step_s
        words += sent * LINE_BYTES_S / 4 * step_s
        times.append((i + 1) * step_s)
        waits.append(round(ticks))
        data.append(round(words))
    return counters(times, link, port_xmit_wait=waits, port_xmit_data=data)


def derived(lake: Lake, name: str) -> list[dict[str, Any]]:
    """Rows of a derived table; times as seconds after T0."""
    table = lake.read(f"derived/{name}")
    columns = {}
    for column in table.column_names:
        data = table[column]
        if pa.types.is_timestamp(data.type):
            ns = data.cast(pa.int64()).to_pylist()
            columns[column] = [None if v is None else (v - T0) / SECOND for v in ns]
        else:
            columns[column] = data.to_pylist()
    return [{name: values[i] for name, values in columns.items()} for i in range(table.num_rows)]


def refresh(
    lake: Lake, rules: EpisodeRules | None = None, day_rows: int = DAY_ROWS
) -> tuple[Refreshed, State]:
    """The first half of a rebuild: compaction and ``link_rates``."""
    rules = rules or EpisodeRules()
    state = State.load(lake.root)
    with connect(threads=1) as session:
        session.set_variables(rules.to_json())
        compact(lake, session, day_rows)
        inventory = Inventory(lake, session, state)
        work = Work(rules=rules, threads=1)
        refresher = Refresher(lake, state, inventory, code_digest(rules), work, session, day_rows)
        done = refresher.run(0, 2**63 - 1, lambda done, text: None)
        state.save()
    return done, state
