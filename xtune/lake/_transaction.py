"""A transaction: files and records that appear in the lake together, or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from xtune.errors import LakeError
from xtune.files import fsync
from xtune.lake import _disk
from xtune.lake._adopt import adopt_file
from xtune.lake._conflict import ConflictError
from xtune.lake._inputs import Inputs
from xtune.lake._ledger import State
from xtune.lake._parquet import conform, split_by_date, table_named
from xtune.lake._part import Part
from xtune.lake._records import DataFile, InputRecord
from xtune.lake._without import without_sources

if TYPE_CHECKING:
    from xtune.lake._lake import Lake

Supersedes = Callable[[Inputs], frozenset[str]]

# Rows wait in memory for a full row group; beyond this the largest buffers are written out.
BUFFER_BYTES = 64 << 20
# A log over years has a file for each day: far more than a process may have open.
OPEN_FILES = 64
COMMIT_ATTEMPTS = 20


class Transaction:
    """Writes and removes files of one lake; made by :meth:`Lake.begin`.

    A context manager: leaving it without :meth:`commit` deletes what it wrote. Not for several
    threads at once.
    """

    def __init__(self, lake: Lake, folder: Path) -> None:
        self._lake = lake
        self._folder = folder
        self._open: dict[tuple[str, str, bool], Part] = {}
        self._done: list[tuple[Path, DataFile]] = []
        self._removes: dict[str, DataFile] = {}
        self._records: dict[str, InputRecord] = {}
        self._extends: dict[str, InputRecord] = {}
        self._supersedes: list[Supersedes] = []
        self._finished = False

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished:
            self.abort()

    def write(
        self,
        table: str,
        data: pa.Table | pa.RecordBatch,
        *,
        date: str | None = None,
        compacted: bool = False,
        source: str | None = None,
    ) -> None:
        """Write rows; all rows of one table, date and ``compacted`` make one file.

        Args:
            table: Full name, ``link_counters`` or ``derived/episodes``.
            data: Any subset of the table's columns, in types that cast to its own.
            date: ``2026-01-31`` or ``unknown``; None splits by the table's time column (UTC).
            compacted: The rows are sorted by the table's ``sort`` columns.
            source: Fills the column ``source`` where ``data`` lacks it.

        Raises:
            LakeError: The table or a column is unknown, or a value does not fit its type.
        """
        self._check_unfinished()
        contract = table_named(table)
        rows = conform(contract, data, source)
        for day, part in split_by_date(contract, rows) if date is None else [(date, rows)]:
            key = (table, day, compacted)
            if key not in self._open:
                self._open[key] = Part(contract, day, self._temporary(), compacted=compacted)
            else:
                self._open[key] = self._open.pop(key)  # most recently used last
            self._open[key].add(part)
        self._bound_memory()

    def adopt(self, table: str, tmp_file: Path, *, date: str, compacted: bool = False) -> None:
        """Take over a Parquet file that something else wrote, on the lake's filesystem.

        A file that already has the table's columns and :meth:`Lake.metadata` is only moved; one
        that differs in order, type or metadata is written anew. ``tmp_file`` is gone afterwards.

        Raises:
            LakeError: It is not Parquet, or its columns do not fit the table.
        """
        self._check_unfinished()
        file = adopt_file(table_named(table), tmp_file, self._temporary)
        target = self._target(table, date)
        self._done.append((file.path, replace(file, path=target, date=date, compacted=compacted)))

    def remove(self, file: DataFile) -> None:
        """Take a live file out; readers that have it listed keep it for a while."""
        self._check_unfinished()
        self._removes[self._lake.name_of(file)] = file

    def record(
        self,
        record: InputRecord,
        supersedes: Supersedes | None = None,
        *,
        extends: InputRecord | None = None,
    ) -> None:
        """Enter an input in the ledger.

        Args:
            record: The input that rows with this ``source`` came from.
            supersedes: Given the lake's inputs, the ids of those whose rows (rejects too) this
                input replaces. Asked at commit, so that it also knows what other processes
                recorded meanwhile.
            extends: The record of the same id that this one takes the place of, because rows are
                added to the input. At commit it must still be what the ledger holds.
        """
        self._check_unfinished()
        self._records[record.id] = record
        if extends is not None:
            self._extends[record.id] = extends
        if supersedes is not None:
            self._supersedes.append(supersedes)

    def abort(self) -> None:
        """Delete what was written; the lake is as if this had never begun."""
        self._finished = True
        for part in self._open.values():
            part.discard()
        for temporary, _ in self._done:
            temporary.unlink(missing_ok=True)

    def commit(self) -> list[str]:
        """Make everything durable, then visible with one rename.

        Returns:
            The new files' paths, relative to the lake; adopted ones in the order of adoption.

        Raises:
            ConflictError: A file to remove is no longer live, or an input is already recorded.
        """
        self._check_unfinished()
        try:
            for part in list(self._open.values()):
                self._close(part)
            if self._done or self._removes or self._records:
                return self._commit()
            return []
        finally:
            self.abort()  # what was moved into place is no longer there to delete

    def _commit(self) -> list[str]:
        ledger = self._lake.ledger
        state = ledger.load()
        for _ in range(COMMIT_ATTEMPTS):
            forgets = self._forgets(state)
            rewritten = without_sources(state.files.values(), forgets, self._temporary)
            with ledger.lock():
                state = ledger.load()
                self._check_conflicts(state)
                if self._forgets(state) == forgets and rewritten.fits(state.files.values()):
                    return self._publish(state, rewritten.added, rewritten.removed, forgets)
            rewritten.discard()
        raise ConflictError("the lake kept changing", "try again when less writes to it")

    def _forgets(self, state: State) -> frozenset[str]:
        return frozenset().union(*(choose(state.inputs) for choose in self._supersedes))

    def _check_conflicts(self, state: State) -> None:
        gone = [name for name in self._removes if name not in state.files]
        if gone:
            raise ConflictError(
                f"{gone[0]}: another process replaced it meanwhile", "run it again"
            )
        for id in self._records:
            if state.inputs.get(id) != self._extends.get(id):
                raise ConflictError(
                    f"input {id} was written by another process"
                    if id in self._extends
                    else f"input {id} is in the lake already"
                )

    def _publish(
        self,
        state: State,
        rewritten: list[tuple[Path, DataFile]],
        replaced: list[DataFile],
        forgets: frozenset[str],
    ) -> list[str]:
        adds = []
        folders = set()
        for temporary, file in [*self._done, *rewritten]:
            target = self._target(file.table, file.date)
            _disk.make_folder(target.parent)
            os.replace(temporary, target)
            folders.add(target.parent)
            adds.append(replace(file, path=target))
        for folder in sorted(folders):
            fsync(folder)
        self._lake.ledger.append(
            time_ns=self._lake.clock(),
            adds=adds,
            removes=[*self._removes, *(self._lake.name_of(file) for file in replaced)],
            inputs=self._records.values(),
            forgets=forgets,
        )
        return [self._lake.name_of(file) for file in adds]

    def _bound_memory(self) -> None:
        buffered = sum(part.buffered_bytes for part in self._open.values())
        if buffered > BUFFER_BYTES:
            for part in sorted(self._open.values(), key=lambda p: -p.buffered_bytes):
                buffered -= part.buffered_bytes
                part.flush()
                if buffered <= BUFFER_BYTES // 2:
                    break
        writing = [part for part in self._open.values() if part.open]
        for part in writing[: len(writing) - OPEN_FILES]:
            self._close(part)

    def _close(self, part: Part) -> None:
        part.close()
        del self._open[part.table.name, part.date, part.compacted]
        self._done.append((part.temporary, part.data_file(part.temporary)))

    def _temporary(self) -> Path:
        return self._folder / f"{secrets.token_hex(8)}.parquet.tmp"

    def _target(self, table: str, date: str) -> Path:
        name = f"{self._lake.clock()}-{secrets.token_hex(4)}.parquet"
        return self._lake.root / table / f"date={date}" / name

    def _check_unfinished(self) -> None:
        if self._finished:
            raise LakeError("this transaction is finished", "begin another")
