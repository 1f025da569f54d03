"""Pruning, and what doctor is told."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from xtune.lake import Lake, inspect, prune

DAY = 86_400_000_000_000
NOW = 20_000 * DAY


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Steps of 0, 1, 2 ... 9 days ago and one without a time; episodes of the same days."""
    lake = Lake.open(tmp_path / "lake", create=True, clock=lambda: NOW)
    days = [NOW - age * DAY for age in range(10)]
    ts = pa.array([*days, None], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    with lake.begin() as transaction:
        transaction.write("steps", pa.table({"ts": ts, "step": list(range(11))}))
        transaction.write("derived/concurrency", pa.table({"ts": ts, "jobs": [1] * 11}))
        transaction.commit()
    return lake


def test_prune_drops_old_raw_rows_and_keeps_the_rest(lake: Lake) -> None:
    planned = prune(lake, timedelta(days=3), dry_run=True)
    assert lake.read("steps").num_rows == 11
    old = [file for file in lake.files("steps") if file.rows and file.max_ts_ns is not None]
    done = prune(lake, timedelta(days=3))
    assert planned == done
    assert (done.files, done.rows, done.undated_files) == (6, 6, 1)  # 4 .. 9 days ago
    assert sorted(lake.read("steps")["step"].to_pylist()) == [0, 1, 2, 3, 10]
    assert lake.read("derived/concurrency").num_rows == 11
    assert sum(file.path.exists() for file in old) == 4
    assert done.bytes == sum(f.bytes for f in old if not f.path.exists()) > 0
    assert prune(lake, timedelta(days=3)).files == 0


def test_prune_keeps_what_describes_the_fabric(lake: Lake) -> None:
    """Said once, by an ibnetdiscover or a sampler that began long ago; read by each rebuild."""
    ts = pa.array([NOW - 99 * DAY], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    with lake.begin() as transaction:
        transaction.write("ports", pa.table({"ts": ts, "host": ["n1"]}))
        transaction.write("topology_links", pa.table({"ts": ts, "src_port": [1]}))
        transaction.commit()
    assert prune(lake, timedelta(days=3)).files == 6
    assert lake.read("ports").num_rows == lake.read("topology_links").num_rows == 1


def test_what_to_do_about_damage_is_told_by_the_table(tmp_path: Path) -> None:
    """Raw telemetry is not to be deleted, wherever the lake lies."""
    lake = Lake.open(tmp_path / "derived" / "lake", create=True, clock=lambda: NOW)
    ts = pa.array([NOW], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    with lake.begin() as transaction:
        transaction.write("steps", pa.table({"ts": ts, "step": [1]}))
        transaction.write("derived/concurrency", pa.table({"ts": ts, "jobs": [1]}))
        transaction.commit()
    for name in ("steps", "derived/concurrency"):
        [file] = lake.files(name)
        file.path.unlink()
    health = inspect(lake)
    told = {
        "steps" if "/steps/" in line else "concurrency": mend
        for line, mend in zip(health.damaged, health.mends, strict=True)
    }
    assert told["steps"].startswith("restore it")
    assert told["concurrency"].startswith("delete it; the next xtune rebuild")


def test_health_of_a_sound_lake(lake: Lake) -> None:
    health = inspect(lake)
    assert (health.unfinished, health.damaged, health.ahead) == ((), (), ())
    assert not health.backwards
    assert sum(health.versions.values()) == 22
    assert health.bytes_per_day["steps"]["unknown"] > 0
    assert sum(health.bytes_per_day["steps"].values()) == sum(
        file.path.stat().st_size for file in lake.files("steps")
    )


def test_health_names_damage_and_clocks(lake: Lake) -> None:
    torn, gone = lake.files("steps")[:2]
    torn.path.write_bytes(torn.path.read_bytes()[:-10])
    gone.path.unlink()
    health = inspect(lake)
    assert [str(torn.path) in line or str(gone.path) in line for line in health.damaged] == [
        True,
        True,
    ]
    assert inspect(lake, open_files=False).damaged == ()
    earlier = inspect(Lake.open(lake.root, clock=lambda: NOW - 2 * DAY))
    # Days 0 and 1 ago are then in the future, and so is the ledger's entry.
    assert [file.max_ts_ns for file in earlier.ahead if file.table == "steps"] == [NOW - DAY, NOW]
    assert earlier.backwards


def test_what_a_killed_process_left_is_seen_and_swept(lake: Lake) -> None:
    script = (
        "import os, sys; from pathlib import Path; from xtune.lake import Lake\n"
        "lake = Lake.open(Path(sys.argv[1]))\n"
        "(lake.scratch('steps') / 'half.tmp').write_bytes(b'half')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lake.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert inspect(lake).unfinished == ()  # it is at work
        assert lake.sweep() == []
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.wait(timeout=30) == -9
    stray = lake.root / "steps" / "date=unknown" / "1-00000000.parquet"
    stray.write_bytes(b"moved into place, and then the process was killed")
    left = inspect(lake).unfinished
    assert len(left) == 2 and stray in left
    assert set(lake.sweep()) == set(left)
    assert inspect(lake).unfinished == ()
    assert lake.read("steps").num_rows == 11
