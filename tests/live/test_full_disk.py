"""A lake that cannot be written for a while: rows wait, and each is written once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.processes import FOLLOW, LIVE, Running, number
from tests.live.test_follow import content, decision
from tests.live.test_processes import readings, tree
from xtune.lake import Lake, inspect


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MB of its own."""
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no filesystem can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """A file that takes what room is left."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    return filler


def test_rows_wait_while_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    root, lake = tree(tmp_path / "sys"), small_disk / "lake"
    running = Running(LIVE, lake, root, "h", 0.02, "-", 0.1)
    running.wait_for("rows flushed")
    filler = fill(small_disk)
    said = running.wait_for("cannot be written")
    assert "No space left on device" in said
    time.sleep(0.5)
    filler.unlink()
    running.wait_for("can be written again")
    running.wait_for("rows flushed")
    status, out, said = running.end(signal.SIGINT)
    assert status == 130 and "Traceback" not in said
    assert sum("cannot be written" in line for line in running.lines) == 1
    found = readings(lake)
    assert max(found.values()) == 1
    assert found.total() == 2 * number(r"(\d+) samples", out)
    assert inspect(Lake.open(lake)).damaged == ()


@pytest.mark.slow
def test_a_disk_that_stays_full_is_one_line_and_loses_nothing_reported(
    small_disk: Path, tmp_path: Path
) -> None:
    root, lake = tree(tmp_path / "sys"), small_disk / "lake"
    running = Running(LIVE, lake, root, "h", 0.02, 3.0, 0.1)
    running.wait_for("rows flushed", 2)
    filler = fill(small_disk)
    status, _, said = running.end()
    assert status == 1 and "Traceback" not in said
    last = running.lines[-1]
    assert last.startswith("xtune: ") and "No space left on device" in last and "lost" in last
    filler.unlink()
    assert number(r"(\d+) are kept", last) == readings(lake).total() + 2
    assert max(readings(lake).values()) == 1
    assert Running(LIVE, lake, root, "h", 0.05, 0.2, 5).end()[0] == 0
    assert inspect(Lake.open(lake)).unfinished == ()


def test_followed_files_are_read_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    path, lake = tmp_path / "d.jsonl", small_disk / "lake"
    path.write_bytes(decision(0))
    running = Running(FOLLOW, lake, path, 0.05, "-", 0.05)
    running.wait_for("1 rows in the lake")
    filler = fill(small_disk)
    with path.open("ab") as file:
        file.write(decision(1))
    running.wait_for("cannot be written")
    filler.unlink()
    running.wait_for("2 rows in the lake")
    status, _, said = running.end(signal.SIGINT)
    assert status == 130 and "Traceback" not in said
    assert Lake.open(lake).read("decisions")["step"].to_pylist() == [0, 1]


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))\n"


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """A quota's fault: any file beyond 30 kB cannot be written, on a real filesystem."""
    root, lake = tree(tmp_path / "sys"), tmp_path / "lake"
    running = Running(LIVE, lake, root, "h", 0.01, 2.0, 0.1, before=LIMITED)
    status, out, said = running.end()
    assert "Traceback" not in said
    found = readings(lake)
    assert max(found.values()) == 1
    if status == 0:
        assert found.total() == 2 * number(r"(\d+) samples", out)
    else:
        assert status == 1 and "File too large" in said


class Failing:
    """Makes the n-th call of a system function fail, once each time it is armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)
        self.left = -1

        def call(*arguments: Any, **given: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(28, "No space left on device")
            return real(*arguments, **given)

        monkeypatch.setattr(f"os.{name}", call)


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_fault_at_every_step_of_a_flush(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at those after the rows are in the ledger: they must not be written again."""
    from xtune.cli._live_writer import LiveWriter
    from xtune.collectors import Context, rows_of

    lake = Lake.open(tmp_path / "lake", create=True)
    said: list[str] = []
    writer = LiveWriter(lake, name="n", path=tmp_path, parser=("p", 1), host="h", say=said.append)
    context = Context(now_ns=lambda: 0)
    failing = Failing(monkeypatch, name)
    count = 0
    for step in range(1, 9):
        failing.left = step
        writer.flush([rows_of("steps", context, {"step": [count], "ts": [count + 1]}, 1)])
        count += 1
        failing.left = -1
        if step % 3 == 0:
            writer.flush([])
            assert sorted(lake.read("steps")["step"].to_pylist()) == list(range(count))
    writer.finish([])
    assert sorted(lake.read("steps")["step"].to_pylist()) == list(range(count))
    assert said and writer.rows == count and writer.held == 0
    assert content(lake)["steps"].total() == count
    (record,) = lake.inputs().values()
    assert record.rows == {"steps": count}


def test_an_input_that_somebody_replaced_goes_on_as_another(tmp_path: Path) -> None:
    from dataclasses import replace

    from xtune.cli._live_writer import LiveWriter
    from xtune.collectors import Context, rows_of

    lake = Lake.open(tmp_path / "lake", create=True)
    said: list[str] = []
    writer = LiveWriter(lake, name="n", path=tmp_path, parser=("p", 1), host="h", say=said.append)
    context = Context(now_ns=lambda: 0)

    def rows(step: int) -> Any:
        return [rows_of("steps", context, {"step": [step], "ts": [step + 1]}, 1)]

    writer.flush(rows(0))
    (record,) = lake.inputs().values()
    with lake.begin() as transaction:
        transaction.record(replace(record, id="another"), lambda inputs: frozenset({record.id}))
        transaction.commit()
    writer.flush(rows(1))
    writer.finish(rows(2))
    assert sorted(lake.read("steps")["step"].to_pylist()) == [1, 2]
    assert len(lake.inputs()) == 2 and writer.held == 0
