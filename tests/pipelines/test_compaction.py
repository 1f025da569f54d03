"""Compaction: closed hours sorted by (link, ts), the same rows, whatever came when."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.lakes import A, B, counters, new_lake, put
from xtune.lake import Lake
from xtune.pipelines._chunks import plan
from xtune.pipelines._compaction import compact
from xtune.pipelines._engine import connect

HOUR = 3600


def rows(lake: Lake) -> list[str]:
    return sorted(map(repr, lake.read("link_counters").to_pylist()))


def run(lake: Lake, day_rows: int = 10**6) -> tuple[int, int]:
    with connect(threads=1) as session:
        done = compact(lake, session, day_rows)
    return done.files_before, done.files_after


def fill(lake: Lake) -> None:
    """Two hours of two ports in three files, out of order, with labels and extra counters."""
    for source in range(3):
        batch = [
            {**row, "labels": [("rack", str(source))], "extra": [("lifespan", 12)]}
            for link in (B, A)
            for row in counters(range(7000 + source, 0, -600), link, port_xmit_data=range(12))
        ]
        put(lake, "link_counters", batch, source=f"{source:012d}")


def test_a_closed_day_becomes_one_sorted_file(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    fill(lake)
    before = rows(lake)
    assert run(lake) == (3, 1)
    [file] = lake.files("link_counters")
    assert (file.compacted, file.rows, file.sources) == (
        True,
        72,
        ("000000000000", "000000000001", "000000000002"),
    )
    table = pq.read_table(file.path)
    keys = list(
        zip(table["link"].to_pylist(), table["ts"].cast(pa.int64()).to_pylist(), strict=True)
    )
    assert keys == sorted(keys)
    assert rows(lake) == before
    assert run(lake) == (0, 0)


def test_a_large_day_is_cut_into_hours(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    fill(lake)
    before = rows(lake)
    assert run(lake, day_rows=50) == (3, 2)
    first, second = sorted(lake.files("link_counters"), key=lambda f: f.min_ts_ns or 0)
    assert first.max_ts_ns is not None and second.min_ts_ns is not None
    assert first.max_ts_ns < second.min_ts_ns
    assert [chunk.key for chunk in plan(lake.files("link_counters"), 50)] == [
        "2026-03-02T10",
        "2026-03-02T11",
    ]
    assert rows(lake) == before


def test_the_open_hour_waits(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake", now_s=HOUR + 600)  # 11:10: hour 10 is closed, 11 is not
    fill(lake)
    before = rows(lake)
    run(lake)
    assert {file.compacted for file in lake.files("link_counters")} == {True, False}
    assert rows(lake) == before
    assert run(lake) == (0, 0)
    later = new_lake(tmp_path / "lake", now_s=HOUR + 240)  # within the grace of five minutes
    assert run(later) == (0, 0)


def test_late_rows_join_their_hour(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    fill(lake)
    run(lake)
    put(lake, "link_counters", counters([30], A, port_xmit_data=[7]), source="9" * 12)
    before = rows(lake)
    assert run(lake) == (2, 1)
    assert rows(lake) == before


def test_rows_without_a_time_are_left(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", [{"link": A, "port_xmit_data": 5}])
    assert run(lake) == (0, 0)
    [file] = lake.files("link_counters")
    assert (file.date, file.compacted) == ("unknown", False)


def test_a_day_that_grows_is_cut_into_hours_and_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xtune.pipelines._chunks.OPEN_ROWS", 10)
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", counters(range(0, 7200, 300)))  # 24 rows in hours 10 and 11
    hours = [chunk.key for chunk in plan(lake.files("link_counters"))]
    assert hours == ["2026-03-02T10", "2026-03-02T11"]
    put(lake, "link_counters", counters([86400]), source="1" * 12)
    files = lake.files("link_counters")
    assert [chunk.key for chunk in plan(files)] == ["2026-03-02", "2026-03-03"]
    assert [chunk.key for chunk in plan(files, recorded=hours)] == [*hours, "2026-03-03"]
    assert [chunk.key for chunk in plan(files, 24, hours)] == [*hours, "2026-03-03"]
