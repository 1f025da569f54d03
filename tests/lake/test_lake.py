"""The lake by itself: what is written comes back, and only what was committed."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xtune.errors import LakeError, NoDataError
from xtune.lake import ConflictError, Lake
from xtune.tables import SCHEMA_VERSION, TABLES

DAY = 86_400_000_000_000


def times(*ns: int | None) -> pa.Array:
    return pa.array(ns, pa.int64()).cast(pa.timestamp("ns", "UTC"))


def write(lake: Lake, table: str, data: pa.Table, source: str | None = None) -> None:
    with lake.begin() as transaction:
        transaction.write(table, data, source=source)
        transaction.commit()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


def test_absent_lake_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match="xtune collect"):
        Lake.open(tmp_path / "lake")


def test_a_file_is_not_a_lake(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    with pytest.raises(LakeError, match="not a folder"):
        Lake.open(tmp_path / "lake", create=True)


def test_reading_writes_nothing(lake: Lake) -> None:
    assert lake.read("steps").num_rows == 0
    assert lake.files("steps") == []
    assert not lake.root.exists()


def test_empty_table_has_the_schema(lake: Lake) -> None:
    assert lake.read("link_counters").schema.equals(TABLES["link_counters"].schema)


def test_maps_lists_and_large_counters_survive(lake: Lake) -> None:
    rows = [
        {
            "ts": 1_700_000_000_123_456_789,
            "link": "0x0000000000000001/1",
            "port_xmit_data": 2**64 - 1,
            "saturated": ["port_xmit_wait", "symbol_error"],
            "labels": [("pod", "a"), ("zone", "b")],
            "extra": [("unknown_counter", 2**63 + 1)],
        },
        {"ts": None, "saturated": [], "labels": None, "extra": None},
    ]
    data = pa.Table.from_pylist(rows, schema=TABLES["link_counters"].schema)
    write(lake, "link_counters", data)
    read = lake.read("link_counters")
    assert read.equals(data)
    assert read.column("ts").cast(pa.int64()).to_pylist() == [1_700_000_000_123_456_789, None]


def test_rows_go_to_their_day_and_null_to_unknown(lake: Lake) -> None:
    ts = times(0, DAY - 1, DAY, -1, None, 20_000 * DAY)
    write(lake, "steps", pa.table({"ts": ts, "step": [0, 1, 2, 3, 4, 5]}))
    found = {f.date: pq.read_table(f.path)["step"].to_pylist() for f in lake.files("steps")}
    assert found == {
        "1969-12-31": [3],
        "1970-01-01": [0, 1],
        "1970-01-02": [2],
        "2024-10-04": [5],  # 20,000 days after the epoch
        "unknown": [4],
    }
    spans = {f.date: (f.min_ts_ns, f.max_ts_ns) for f in lake.files("steps")}
    assert spans["1970-01-01"] == (0, DAY - 1)
    assert spans["unknown"] == (None, None)


def test_files_carry_versions_and_lie_where_the_contract_says(lake: Lake) -> None:
    write(lake, "derived/concurrency", pa.table({"ts": times(0), "jobs": [2]}))
    (file,) = lake.files("derived/concurrency")
    assert file.path.parent == lake.root / "derived" / "concurrency" / "date=1970-01-01"
    metadata = pq.read_metadata(file.path)
    assert metadata.metadata[b"xtune.schema"] == str(SCHEMA_VERSION).encode()
    assert b"xtune.version" in metadata.metadata
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_columns_are_chosen_in_the_order_asked(lake: Lake) -> None:
    write(lake, "steps", pa.table({"step": [1], "job": ["a"]}))
    assert lake.read("steps", ["step", "job"]).to_pydict() == {"step": [1], "job": ["a"]}


@pytest.mark.parametrize(
    ("table", "data", "match"),
    [
        ("steps", pa.table({"stpe": [1]}), "no column stpe"),
        ("stpes", pa.table({"step": [1]}), "no table stpes"),
        ("steps", pa.table({"step": ["one"]}), "steps.step"),
        ("derived/concurrency", pa.table({"ts": times(0)}), "jobs is null in 1 rows"),
    ],
)
def test_what_does_not_fit_the_contract_is_refused(
    lake: Lake, table: str, data: pa.Table, match: str
) -> None:
    with lake.begin() as transaction, pytest.raises(LakeError, match=match):
        transaction.write(table, data)


def test_without_commit_nothing_is_left(lake: Lake) -> None:
    with lake.begin() as transaction:
        transaction.write("steps", pa.table({"step": [1]}))
        transaction.write("steps", pa.table({"step": list(range(200_000))}))  # on disk already
    assert lake.files("steps") == []
    assert [p for p in lake.root.rglob("*") if p.suffix in (".parquet", ".tmp")] == []
    with pytest.raises(LakeError, match="finished"):
        transaction.commit()


def test_many_writes_of_one_day_make_one_file(lake: Lake) -> None:
    with lake.begin() as transaction:
        for step in range(50):
            transaction.write("steps", pa.table({"ts": times(step), "step": [step]}))
        transaction.commit()
    (file,) = lake.files("steps")
    assert file.rows == 50
    assert pq.read_metadata(file.path).num_row_groups == 1


def test_years_of_days_need_few_open_files(lake: Lake) -> None:
    with lake.begin() as transaction:
        for repeat in range(2):
            days = [day * DAY for day in range(300)]
            # Large enough that buffers are written out and files stay open.
            filler = ["x" * 300_000] * len(days)
            transaction.write("steps", pa.table({"ts": times(*days), "job": filler}))
            assert repeat < 2
        transaction.commit()
    assert sum(f.rows for f in lake.files("steps")) == 600
    assert len({f.date for f in lake.files("steps")}) == 300


def test_a_removed_file_stays_for_readers_until_swept(lake: Lake) -> None:
    write(lake, "steps", pa.table({"step": [1]}))
    (old,) = lake.files("steps")
    with lake.begin() as transaction:
        transaction.remove(old)
        transaction.write("steps", pa.table({"step": [2]}))
        transaction.commit()
    assert lake.read("steps")["step"].to_pylist() == [2]
    assert pq.read_table(old.path)["step"].to_pylist() == [1]
    assert lake.sweep() == []
    assert lake.sweep(grace_ns=0) == [old.path]
    assert not old.path.exists()
    assert Lake.open(lake.root).read("steps")["step"].to_pylist() == [2]


def test_two_that_remove_one_file_conflict(lake: Lake) -> None:
    write(lake, "steps", pa.table({"step": [1]}))
    (old,) = lake.files("steps")
    other = Lake.open(lake.root)
    with lake.begin() as mine, other.begin() as theirs:
        for transaction in (mine, theirs):
            transaction.remove(old)
            transaction.write("steps", pa.table({"step": [1]}), compacted=True)
        mine.commit()
        with pytest.raises(ConflictError):
            theirs.commit()
    assert lake.read("steps")["step"].to_pylist() == [1]


def test_adopts_a_file_of_another_program(lake: Lake) -> None:
    schema = TABLES["steps"].schema.with_metadata(lake.metadata("steps"))
    data = pa.Table.from_pylist([{"ts": 5, "step": 7, "source": "a"}], schema=schema)
    fits, differs = (lake.scratch("steps") / name for name in ("fits.tmp", "differs.tmp"))
    pq.write_table(data, fits)
    inode = fits.stat().st_ino
    pq.write_table(pa.table({"step": pa.array([8], pa.int16()), "source": ["b"]}), differs)
    with lake.begin() as transaction:
        transaction.adopt("steps", fits, date="1970-01-01", compacted=True)
        transaction.adopt("steps", differs, date="unknown")
        transaction.commit()
    first, second = lake.files("steps")
    assert (first.path.stat().st_ino, first.compacted) == (inode, True)  # moved, not copied
    assert (first.sources, first.min_ts_ns, first.rows) == (("a",), 5, 1)
    assert (second.sources, second.min_ts_ns, second.rows) == (("b",), None, 1)
    assert sorted(lake.read("steps")["step"].to_pylist()) == [7, 8]
    assert list(lake.scratch("steps").iterdir()) == []


def test_does_not_adopt_what_is_not_parquet(lake: Lake) -> None:
    torn = lake.scratch("steps") / "torn.tmp"
    torn.write_bytes(b"PAR1 and then nothing")
    with lake.begin() as transaction, pytest.raises(LakeError, match="cannot be taken"):
        transaction.adopt("steps", torn, date="unknown")


def test_another_schema_is_refused_in_one_line(lake: Lake) -> None:
    write(lake, "steps", pa.table({"step": [1]}))
    (entry,) = lake.root.glob("ledger/*.json")
    for place, name in (("adds", "table schema 99"), ("entry", "ledger schema 99")):
        content = json.loads(entry.read_text())
        (content["adds"][0] if place == "adds" else content)["schema"] = 99
        copy = lake.root.parent / place
        (copy / "ledger").mkdir(parents=True)
        (copy / "ledger" / entry.name).write_text(json.dumps(content))
        with pytest.raises(LakeError, match=name) as caught:
            Lake.open(copy)
        assert "\n" not in str(caught.value)


def test_a_parquet_file_of_another_schema_is_refused(lake: Lake) -> None:
    write(lake, "steps", pa.table({"step": [1]}))
    (file,) = lake.files("steps")
    pq.write_table(
        pa.table({"step": [1]}).replace_schema_metadata({"xtune.schema": "0"}), file.path
    )
    with pytest.raises(LakeError, match="table schema 0"):
        lake.read("steps")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\x00" * 100])
def test_a_damaged_entry_is_named(lake: Lake, content: bytes) -> None:
    write(lake, "steps", pa.table({"step": [1]}))
    (entry,) = lake.root.glob("ledger/*.json")
    entry.write_bytes(content)
    with pytest.raises(LakeError, match=entry.name):
        Lake.open(lake.root)


def test_a_missing_file_is_named(lake: Lake) -> None:
    write(lake, "steps", pa.table({"step": [1]}))
    (file,) = lake.files("steps")
    file.path.unlink()
    with pytest.raises(LakeError, match=file.path.name):
        lake.read("steps")


def test_a_moved_lake_is_whole(lake: Lake, tmp_path: Path) -> None:
    write(lake, "steps", pa.table({"step": [1]}))
    moved = lake.root.rename(tmp_path / "elsewhere")
    assert Lake.open(moved).read("steps")["step"].to_pylist() == [1]


def test_can_be_sent_to_another_process(lake: Lake) -> None:
    write(lake, "steps", pa.table({"step": [1]}))
    copy = pickle.loads(pickle.dumps(lake))
    assert copy.read("steps").equals(lake.read("steps"))


def test_one_rebuild_at_a_time(lake: Lake) -> None:
    with (
        lake.exclusive("rebuild"),
        pytest.raises(LakeError, match="another rebuild"),
        Lake.open(lake.root).exclusive("rebuild"),
    ):
        pass
    with lake.exclusive("rebuild"):
        pass


def test_threads_may_share_a_lake(lake: Lake) -> None:
    def work(thread: int) -> None:
        for number in range(15):
            write(lake, "steps", pa.table({"step": [thread * 100 + number]}))
            lake.files("steps")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    expected = [thread * 100 + number for thread in range(4) for number in range(15)]
    assert sorted(lake.read("steps")["step"].to_pylist()) == expected
    assert sorted(Lake.open(lake.root).read("steps")["step"].to_pylist()) == expected
