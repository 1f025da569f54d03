"""However the input arrives and time is cut, the tables are those of one rebuild from scratch."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.pipelines.lakes import (
    SECOND,
    T0_S,
    TICKS_S,
    A,
    B,
    at,
    derived,
    new_lake,
    port_rows,
    put,
    refresh,
)
from xtune.errors import LakeError, NoDataError
from xtune.lake import InputRecord, Lake, prune
from xtune.pipelines import EpisodeRules, rebuild
from xtune.tables import DERIVED_TABLES

DERIVED = tuple(name.removeprefix("derived/") for name in DERIVED_TABLES)
STEP_S = 900.0
# Episodes of hours, since samples are a quarter of an hour apart.
RULES = EpisodeRules(max_gap_s=2000.0, min_length_s=1000.0)


Waits = list[float | None]


def content(lake: Lake) -> dict[str, list[str]]:
    """All rows of the derived tables, in an order of their own."""
    return {name: sorted(map(repr, derived(lake, name))) for name in DERIVED}


def counter_rows(
    link: str, waits: list[float | None], resets: set[int], words: list[int]
) -> list[dict[str, Any]]:
    """Samples a quarter of an hour apart; None leaves one out."""
    rows, ticks, data = [], 0.0, 0
    for index, wait in enumerate(waits):
        ticks += (wait or 0.0) * TICKS_S * STEP_S
        data += words[index % len(words)]
        if index in resets:
            ticks, data = 0.0, 0
        if wait is not None:
            rows.append(
                {
                    "ts": at(index * STEP_S),
                    "link": link,
                    "rate_gbps": 400.0,
                    "port_xmit_wait": round(ticks),
                    "port_xmit_data": data,
                }
            )
    return rows


SERIES = st.lists(
    st.sampled_from([None, 0.0, 0.05, 0.12, 0.12, 0.2, 0.6, 0.6]), min_size=10, max_size=40
)


CASES = {
    "first": SERIES,
    "second": SERIES,
    "resets": st.sets(st.integers(0, 40), max_size=3),
    "day_rows": st.sampled_from([1, 30, 10**6]),
    "data": st.data(),
}


@given(**CASES)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arrival_does_not_matter(
    first: Waits, second: Waits, resets: set[int], day_rows: int, data: st.DataObject
) -> None:
    check_arrival(first, second, resets, day_rows, data)


@pytest.mark.slow
@given(**CASES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arrival_does_not_matter_at_length(
    first: Waits, second: Waits, resets: set[int], day_rows: int, data: st.DataObject
) -> None:
    check_arrival(first, second, resets, day_rows, data)


def check_arrival(
    first: Waits, second: Waits, resets: set[int], day_rows: int, data: st.DataObject
) -> None:
    rows = counter_rows(A, first, resets, [10**9, 0, 10**11])
    rows += counter_rows(B, second, set(), [10**8])
    assume(rows)
    parts = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    hours = data.draw(st.lists(st.integers(1, 30), min_size=3, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        whole, pieces = new_lake(Path(folder) / "whole"), Path(folder) / "pieces"
        put(whole, "link_counters", rows)
        rebuild(whole, rules=RULES, threads=1)
        for number in range(3):
            batch = [row for row, part in zip(rows, parts, strict=True) if part == number]
            # The clock moves on: hours close while their last rows are still to come.
            lake = new_lake(pieces, now_s=hours[number] * 3600)
            if batch:
                put(lake, "link_counters", batch, source=f"{number:012d}")
                rebuild(lake, rules=RULES, threads=1, day_rows=day_rows)
        assert content(Lake.open(pieces)) == content(whole)


def test_a_second_rebuild_does_nothing(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(A, [0, 0.6, 0.6, 0.6, 0]))
    first = rebuild(lake)
    files = [f.path for name in DERIVED for f in lake.files(f"derived/{name}")]
    second = rebuild(lake)
    assert first.computed == ("2026-03-02",)
    assert (second.computed, second.reused) == ((), 1)
    assert [f.path for name in DERIVED for f in lake.files(f"derived/{name}")] == files
    assert second.table_rows == first.table_rows
    assert second.episodes == second.links == 1


def test_a_new_hour_computes_that_hour_alone(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    series = [0.0, 0.6, 0.6, 0.0] * 6
    rows = counter_rows(A, [*series], set(), [10**9])
    put(lake, "link_counters", rows[:20])  # 10:00 to 14:45
    done, _ = refresh(lake, RULES, day_rows=1)
    assert done.computed == [f"2026-03-02T{hour}" for hour in range(10, 15)]
    put(lake, "link_counters", rows[20:], source="1" * 12)  # 15:00 to 15:45
    done, _ = refresh(lake, RULES, day_rows=1)
    assert done.computed == ["2026-03-02T15"]
    assert done.reused == 5


@pytest.mark.parametrize("day_rows", [1, 1000])
def test_one_unknown_interval_over_the_edge_of_an_hour(tmp_path: Path, day_rows: int) -> None:
    """It is longer than the longest gap, and one: it neither closes nor opens, wherever it is."""
    lake = new_lake(tmp_path / "lake")
    waits: Waits = [0.0, 0.0, 0.6, 0.6, 0.6, 0.6, 0.6, 0.0, 0.0]
    for link in (A, B):
        rows = counter_rows(link, waits, {4}, [0])  # cleared between 10:45 and 11:00
        put(lake, "link_counters", rows, source=f"{int(link == B):012d}")
    rules = EpisodeRules(max_gap_s=100.0)
    rebuild(lake, rules=rules, threads=1, day_rows=day_rows)
    found = [
        (row["link"], row["start_ts"], row["end_ts"]) for row in derived(lake, "link_episodes")
    ]
    assert found == [(A, 900.0, 5400.0), (B, 900.0, 5400.0)]


@pytest.mark.parametrize("day_rows", [1, 1000])
def test_a_level_is_held_over_the_edge_of_an_hour(tmp_path: Path, day_rows: int) -> None:
    """0.12 is between the exit and the enter threshold of level 2: what was before decides."""
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", counter_rows(A, [0.0, 0.12, 0.6, *[0.12] * 8], set(), [0]))
    refresh(lake, RULES, day_rows=day_rows)
    levels = {row["ts"]: row["level"] for row in derived(lake, "link_rates")}
    assert [levels[ts] for ts in sorted(levels)] == [1, 3, *[2] * 8]


def test_other_rules_compute_everything_anew(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(A, [0, 0.2, 0.2, 0.2, 0]))
    assert rebuild(lake).episodes == 1
    strict = EpisodeRules(enter_wait=(0.1, 0.3, 0.5), exit_wait=(0.05, 0.25, 0.4))
    summary = rebuild(lake, rules=strict)
    assert summary.computed == ("2026-03-02",)
    assert summary.episodes == 0


def test_without_its_memory_everything_is_computed_anew(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(A, [0, 0.6, 0.6, 0.6, 0]))
    rebuild(lake)
    before = content(lake)
    shutil.rmtree(lake.root / ".rebuild")
    assert rebuild(lake).computed == ("2026-03-02",)
    assert content(lake) == before
    (lake.root / ".rebuild" / "state.json").write_text("{torn")
    rebuild(lake)
    assert content(lake) == before


def test_a_span_leaves_the_rest(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    rows = counter_rows(A, [0.0] * 200, set(), [10**9])  # over three days
    put(lake, "link_counters", rows)
    noon = datetime.fromtimestamp(T0_S, UTC) + timedelta(days=1)
    summary = rebuild(lake, since=noon, until=noon + timedelta(hours=1))
    assert summary.computed == ("2026-03-03",)
    # The first sample of the day has nothing before it yet; the whole rebuild knows better.
    assert summary.table_rows["link_rates"] == 95
    whole = rebuild(lake)
    assert set(whole.computed) == {"2026-03-02", "2026-03-03", "2026-03-04"}
    assert whole.table_rows["link_rates"] == 199


def test_pruned_telemetry_keeps_its_episodes(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake", now_s=40 * 86400)
    record(lake, "a" * 12)
    put(lake, "link_counters", port_rows(A, [0, 0.6, 0.6, 0.6, 0]), source="a" * 12)
    rebuild(lake)
    before = content(lake)
    assert prune(lake, timedelta(days=30)).rows == 6
    later = port_rows(B, [0.0] * 3)
    for row in later:
        row["ts"] += 39 * 86400 * SECOND
    put(lake, "link_counters", later, source="b" * 12)
    rebuild(lake)
    after = content(lake)
    assert after["link_episodes"] == before["link_episodes"]
    assert set(before["link_rates"]) < set(after["link_rates"])


def test_a_date_may_be_cut_otherwise_later(tmp_path: Path) -> None:
    """A day grows too large for one partition, and small enough again."""
    lake = new_lake(tmp_path / "lake", now_s=30 * 86400)
    record(lake, "a" * 12)
    rows = counter_rows(A, [0.0, 0.6, 0.6, 0.0] * 10, set(), [10**9])  # 10:00 to 19:45
    put(lake, "link_counters", rows, source="a" * 12)
    rebuild(lake, rules=RULES, day_rows=1000)
    before = content(lake)
    for day_rows in (10, 1000, 10):
        summary = rebuild(lake, rules=RULES, day_rows=day_rows)
        assert len(summary.computed) == (10 if day_rows == 10 else 1)
        assert summary.dropped == ()
        assert content(lake) == before
    # The first five hours are gone; what is left is small enough for one partition.
    with lake.begin() as transaction:
        for file in sorted(lake.files("link_counters"), key=lambda f: f.min_ts_ns or 0)[:5]:
            transaction.remove(file)
        transaction.commit()
    summary = rebuild(lake, rules=RULES, day_rows=30)
    assert summary.computed == ("2026-03-02",)
    assert content(lake) == before
    assert rebuild(lake, rules=RULES, day_rows=30).computed == ()


def test_telemetry_read_anew_elsewhere_takes_its_episodes_along(tmp_path: Path) -> None:
    """The same file with another --tz: its rows leave their date, and so do its rates."""
    lake = new_lake(tmp_path / "lake")
    record(lake, "a" * 12)
    put(lake, "link_counters", port_rows(A, [0, 0.6, 0.6, 0.6, 0]), source="a" * 12)
    rebuild(lake)
    moved = port_rows(A, [0, 0.6, 0.6, 0.6, 0])
    for row in moved:
        row["ts"] += 86400 * SECOND
    record(lake, "b" * 12, replaces="a" * 12)
    put(lake, "link_counters", moved, source="b" * 12)
    summary = rebuild(lake)
    assert summary.dropped == ("2026-03-02",)
    assert [row["start_ts"] for row in derived(lake, "link_episodes")] == [86401.0]
    assert len(derived(lake, "link_rates")) == 5


def record(lake: Lake, name: str, replaces: str | None = None) -> None:
    entry = InputRecord(
        id=name, name=f"{name}.lp", path=f"/{name}.lp", content=name, size=1, head=name,
        parser="telegraf", parser_version=1, time_ns=at(0),
    )  # fmt: skip
    gone = frozenset({replaces} if replaces else ())
    with lake.begin() as transaction:
        transaction.record(entry, lambda inputs: gone & inputs.keys())
        transaction.commit()


def test_one_rebuild_at_a_time(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(A, [0.0]))
    with lake.exclusive("rebuild"), pytest.raises(LakeError, match="another rebuild"):
        rebuild(new_lake(tmp_path / "lake"))


def test_an_empty_lake_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match="no telemetry"):
        rebuild(new_lake(tmp_path / "lake"))


CHILD = """
import sys
from pathlib import Path
from tests.pipelines.lakes import at
from xtune.lake import Lake
from xtune.pipelines import rebuild
from tests.pipelines.test_incremental import RULES
lake = Lake.open(Path(sys.argv[1]), clock=lambda: at(864000))
print("begun", flush=True)
rebuild(lake, rules=RULES, threads=1, day_rows=1)
print("done", flush=True)
"""


@pytest.mark.slow
def test_killed_and_begun_again(tmp_path: Path) -> None:
    """SIGKILL at several moments of a rebuild; the next one ends as if nothing had happened."""
    rows = counter_rows(A, [0.0, 0.6, 0.6, 0.0, 0.12] * 8, set(), [10**9])
    whole = new_lake(tmp_path / "whole")
    put(whole, "link_counters", rows)
    rebuild(whole, rules=RULES, threads=1)
    expected = content(whole)
    killed = 0
    for index, delay_s in enumerate((0.05, 0.4, 1.0)):
        root = tmp_path / f"lake{index}"
        put(new_lake(root), "link_counters", rows)
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(root)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n"
            time.sleep(delay_s)
            child.send_signal(signal.SIGKILL)
            killed += child.stdout.readline() != "done\n"
        lake = new_lake(root)
        for name in DERIVED:  # what a reader sees in between is whole files
            assert isinstance(lake.read(f"derived/{name}"), pa.Table)
        rebuild(lake, rules=RULES, threads=1, day_rows=1)
        assert content(lake) == expected
        assert not list(root.rglob("*.tmp"))
    assert killed
