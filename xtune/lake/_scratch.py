"""A place for unfinished files, and how what killed processes left is found and removed.

Each process that writes has a folder ``.scratch/<id>`` whose lock it holds while it lives; a
folder whose lock is free belongs to nobody. Locks tell the living from the dead where process ids
do not: in containers, on other hosts, after an id is used again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from xtune.lake import _disk
from xtune.lake._ledger import Ledger
from xtune.lake._parquet import table_named
from xtune.tables import TABLES

FOLDER = ".scratch"
# A reader that listed the files before they were replaced has this long to open them.
READER_GRACE_NS = 600_000_000_000


class Scratch:
    """This process's folder for unfinished files; made when first asked for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._path: Path | None = None
        self._process = 0

    def folder(self) -> Path:
        """The folder; a forked child gets its own."""
        if self._path is None or self._process != os.getpid():
            parent = self._ledger.root / FOLDER
            with self._ledger.lock():  # so that no sweep sees the folder before its lock is held
                parent.mkdir(exist_ok=True)
                path = parent / secrets.token_hex(6)
                path.mkdir()
                descriptor = _disk.take_lock(path / "lock")
            weakref.finalize(self, _remove, path, descriptor, os.getpid())
            self._path, self._process = path, os.getpid()
        return self._path


def _remove(path: Path, descriptor: int, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            os.close(descriptor)


def abandoned(ledger: Ledger) -> list[Path]:
    """Scratch folders of processes that are no more."""
    found = []
    with suppress(FileNotFoundError):
        for path in sorted((ledger.root / FOLDER).iterdir()):
            with suppress(FileNotFoundError, NotADirectoryError):
                descriptor = _disk.try_lock(path / "lock")
                if descriptor is not None:
                    os.close(descriptor)
                    found.append(path)
    return found


def unnamed(ledger: Ledger) -> list[Path]:
    """Parquet files in the tables' folders that the ledger neither names nor has just removed.

    Call it under the ledger's lock: files are moved into place and named under one lock, so what
    is unnamed then was left by a process that was killed between the two.
    """
    state = ledger.load()
    return [
        path
        for path in parquet_files(ledger.root)
        if (name := path.relative_to(ledger.root).as_posix()) not in state.files
        and name not in state.removed
    ]


def parquet_files(root: Path) -> Iterator[Path]:
    """Every Parquet file on disk in a table's folder, live or not."""
    for name in [*TABLES, "rejected"]:
        yield from sorted((root / table_named(name).name).glob("date=*/*.parquet"))


def sweep(ledger: Ledger, now_ns: int, grace_ns: int = READER_GRACE_NS) -> list[Path]:
    """Delete what no reader can still want: leftovers, and files replaced ``grace_ns`` ago.

    Returns:
        What was deleted.
    """
    deleted: list[Path] = []
    if not abandoned(ledger) and not _expired(ledger, now_ns, grace_ns):
        return deleted
    with ledger.lock():
        dead = abandoned(ledger)
        for path in dead:
            shutil.rmtree(path, ignore_errors=True)
        if dead:
            for path in [*unnamed(ledger), *ledger.folder.glob(".*.tmp")]:
                path.unlink(missing_ok=True)
                deleted.append(path)
        expired = _expired(ledger, now_ns, grace_ns)
        for name in expired:
            (ledger.root / name).unlink(missing_ok=True)
            deleted.append(ledger.root / name)
        if expired:
            ledger.checkpoint(forget=expired)
    return [*dead, *deleted]


def _expired(ledger: Ledger, now_ns: int, grace_ns: int) -> list[str]:
    removed = ledger.load().removed
    # Without grace the clock does not matter: entries are dated later than now where it went back.
    return [name for name, at in removed.items() if not grace_ns or now_ns - at >= grace_ns]
