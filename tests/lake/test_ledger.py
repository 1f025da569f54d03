"""Entries, checkpoints, and readers that are overtaken by them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from xtune.errors import LakeError
from xtune.lake._ledger import MIN_TAIL, Ledger
from xtune.lake._records import DataFile


def file(root: Path, number: int) -> DataFile:
    path = root / "steps" / "date=unknown" / f"{number}.parquet"
    return DataFile(path=path, table="steps", date="unknown", rows=1, bytes=1)


def append(
    ledger: Ledger, number: int, *, time_ns: int = 0, removes: tuple[str, ...] = ()
) -> None:
    with ledger.lock():
        ledger.append(time_ns=time_ns, adds=[file(ledger.root, number)], removes=removes)


def test_order_survives_a_clock_that_goes_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    append(ledger, 1, time_ns=1000)
    append(ledger, 2, time_ns=5, removes=("steps/date=unknown/1.parquet",))
    append(ledger, 1, time_ns=7)
    assert sorted(Ledger(tmp_path).load().files) == [
        "steps/date=unknown/1.parquet",
        "steps/date=unknown/2.parquet",
    ]


def test_checkpoints_keep_the_folder_short(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number in range(3 * MIN_TAIL):
        append(ledger, number)
        assert len(list(ledger.folder.glob("*.json"))) <= MIN_TAIL + 2
    assert len(Ledger(tmp_path).load().files) == 3 * MIN_TAIL
    assert len(list(ledger.folder.glob("checkpoint-*"))) == 1


def test_a_missing_entry_is_an_error_not_a_gap(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number in range(3):
        append(ledger, number, time_ns=number)
    sorted(ledger.folder.glob("*.json"))[1].unlink()
    with pytest.raises(LakeError, match="is missing"):
        Ledger(tmp_path).load()


def test_a_snapshot_does_not_change(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    append(ledger, 1)
    before = ledger.load()
    append(ledger, 2)
    assert len(before.files) == 1
    assert len(ledger.load().files) == 2


def test_readers_see_a_growing_prefix_while_checkpoints_run(tmp_path: Path) -> None:
    writer = Ledger(tmp_path)
    append(writer, 0)
    done = threading.Event()
    seen: list[list[int]] = []

    def read() -> None:
        sizes: list[int] = []
        seen.append(sizes)
        keeping = Ledger(tmp_path)
        while not done.is_set():
            sizes.append(len(Ledger(tmp_path).load().files))
            sizes.append(len(keeping.load().files))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 2 * MIN_TAIL):
        append(writer, number)
        if number % 10 == 0:
            with writer.lock():
                writer.checkpoint()
    done.set()
    for thread in threads:
        thread.join()
    for sizes in seen:
        assert sizes == sorted(sizes)
        assert all(1 <= size <= 2 * MIN_TAIL for size in sizes)


@pytest.fixture(autouse=True)
def thread_errors_fail(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    errors: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    yield
    assert errors == []
