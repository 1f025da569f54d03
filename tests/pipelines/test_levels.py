"""Levels and stretches against plain Python, over whatever is known and however time is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.pipelines.lakes import LINE_BYTES_S, at
from xtune.pipelines import EpisodeRules
from xtune.pipelines._engine import Session, connect
from xtune.pipelines._samples import SAMPLE

RULES = EpisodeRules(max_gap_s=3.0, min_length_s=2.0, min_samples=2)
_BEFORE = [("carried", pa.bool_()), ("level", pa.int32()), ("known_end_ns", pa.int64())]
Waits = list[float | None]
# None: nothing is known of that interval. The values are on, between and outside the thresholds;
# they come in runs, so that gaps are now shorter and now longer than the longest allowed.
VALUES = st.one_of(
    st.none(),
    st.sampled_from([0.0, 0.12, 0.3]),
    st.sampled_from([0.01, 0.015, 0.02, 0.1, 0.15, 0.35, 0.4, 0.5, 1.0]),
)
WAITS = st.lists(st.tuples(VALUES, st.integers(1, 6)), min_size=1, max_size=12).map(
    lambda runs: [value for value, count in runs for _ in range(count)]
)
# Ports side by side cost hardly more than one: most of a query's time is its planning.
PORTS = st.lists(WAITS, min_size=4, max_size=8)
# Gaps as long as the longest that is allowed and longer; single samples near each other.
AT_LIMITS: list[Waits] = [
    [0.3, 0.3, 0.0, 0.0, 0.0, 0.3, 0.3],
    [0.3, 0.3, 0.0, 0.0, 0.0, 0.0, 0.3, 0.3],
    [0.3, 0.0, 0.3, 0.0, 0.3],
    [0.3, None, 0.3],
    [0.3, 0.3, None, 0.0],
    [0.3, 0.3, None, None, None, None, 0.0],
]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with connect(threads=1) as opened:
        opened.set_variables(RULES.to_json())
        yield opened


def levels_of(waits: Waits) -> list[int | None]:
    """The contract's level after each interval of one second."""
    level, unknown_s, out = 0, 0.0, list[int | None]()
    for wait in waits:
        if wait is None:
            unknown_s += 1
            out.append(None)
            continue
        if unknown_s > RULES.max_gap_s:
            level = 0  # what it was is too long ago
        enter = sum(wait >= threshold for threshold in RULES.enter_wait)
        leave = sum(wait >= threshold for threshold in RULES.exit_wait)
        level = min(max(level, enter), leave)
        unknown_s = 0.0
        out.append(level)
    return out


@dataclass
class Island:
    """One stretch: first and last interval that is congested."""

    first: int
    last: int
    count: int = 1
    unbroken: int = 1
    longest: int = 1
    end_unknown: bool = False


def islands_of(levels: list[int | None]) -> list[Island]:
    """Stretches of congested intervals of one second, as the contract has them."""
    found: list[Island] = []
    for index, level in enumerate(levels):
        if level is None or level < 2:
            continue
        gap = index - found[-1].last - 1 if found else 10**9
        between = levels[found[-1].last + 1 : index] if found else []
        unknown_only = all(v is None for v in between)
        if gap <= RULES.max_gap_s or (unknown_only and gap <= 1):
            island = found[-1]
            island.last = index
            island.count += 1
            island.unbroken = island.unbroken + 1 if unknown_only else 1
            island.longest = max(island.longest, island.unbroken)
        else:
            found.append(Island(index, index))
    for island in found:
        after = levels[island.last + 1 :]
        known = next((i for i, v in enumerate(after) if v is not None), None)
        island.end_unknown = known is None or known > RULES.max_gap_s
    return [i for i in found if i.longest >= 2 and i.last + 1 - i.first >= RULES.min_length_s]


def load(session: Session, ports: list[Waits]) -> None:
    """Make ``samples`` of deltas of one second each, of ports ``0``, ``1`` and so on."""
    waits = [wait for port in ports for wait in port]
    rows = 2 * len(waits)
    schema = pa.schema([("link", pa.string()), *SAMPLE, *_BEFORE])
    columns: dict[str, Any] = {f.name: pa.nulls(rows, f.type) for f in schema}
    times = [at(s) for port in ports for index in range(len(port)) for s in (index, index + 1)]
    links = [str(number) for number, port in enumerate(ports) for _ in range(2 * len(port))]
    columns["link"] = pa.array(links)
    columns["ts"] = pa.array(times).cast(pa.timestamp("ns", tz="UTC"))
    columns["restarts"] = pa.array([True, False] * len(waits))
    columns["data_rate_bytes_s"] = pa.array([float(LINE_BYTES_S)] * rows)
    columns["tick"] = pa.array([8.0] * rows)
    # -1: the source has the counter and it is saturated.
    ticks = [-1 if w is None else round(w * LINE_BYTES_S / 8) for w in waits]
    columns["wait_ticks"] = pa.array([t for rise in ticks for t in (0, rise)], pa.int64())
    for name in ("errors", "marks", "resent"):
        columns[f"{name}_present"] = pa.array([0] * rows, schema.field(f"{name}_present").type)
    session.load("samples", pa.table(columns))


def model_levels(session: Session, ports: list[Waits]) -> list[list[int | None]]:
    load(session, ports)
    session.create("link_levels")
    found: list[list[int | None]] = [[] for _ in ports]
    for link, level in session.rows("SELECT link, level FROM link_levels ORDER BY link, ts"):
        found[int(link)].append(level)
    return found


@given(ports=PORTS)
@example(ports=[[0.3, 0.3, None, None, None, None, 0.12, 0.12]])
@example(ports=[[0.3, 0.3, None, None, None, 0.12, 0.12]])
@settings(max_examples=40, deadline=None)
def test_levels_are_the_state_machines(session: Session, ports: list[Waits]) -> None:
    assert model_levels(session, ports) == [levels_of(waits) for waits in ports]


@given(ports=PORTS)
@example(ports=AT_LIMITS)
@settings(max_examples=25, deadline=None)
def test_stretches_are_gaps_and_islands(session: Session, ports: list[Waits]) -> None:
    levels = model_levels(session, ports)
    session.create("link_runs")
    session.execute("CREATE OR REPLACE TEMP VIEW runs AS FROM link_runs")
    session.execute(
        "CREATE OR REPLACE TEMP VIEW last_known AS SELECT link, max(end_ns) AS known_end_ns"
        " FROM link_levels WHERE level IS NOT NULL GROUP BY link"
    )
    session.create("link_stretches")
    rows = session.rows(
        "SELECT link, start_ns, end_ns, samples, end_unknown FROM link_stretches"
        " WHERE kind = 'wait' ORDER BY link, start_ns"
    )
    expected = [
        (str(port), at(i.first), at(i.last + 1), i.count, i.end_unknown)
        for port, found in enumerate(levels)
        for i in islands_of(found)
    ]
    assert rows == expected
