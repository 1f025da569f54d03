"""The lake as its users see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from xtune.errors import LakeError, NoDataError
from xtune.lake import _disk
from xtune.lake._conflict import BusyError
from xtune.lake._inputs import Inputs
from xtune.lake._ledger import Ledger
from xtune.lake._parquet import file_metadata, file_schema, open_parquet, table_named
from xtune.lake._records import DataFile
from xtune.lake._scratch import READER_GRACE_NS, Scratch, sweep
from xtune.lake._transaction import Transaction

Clock = Callable[[], int]


class Lake:
    """One folder of Parquet files with its ledger; made by :meth:`open`.

    Reading writes nothing, so a lake on a read-only disk can be read. The folder is made by the
    first write. Can be sent to another process (it opens the same folder there).

    Attributes:
        root: The folder, absolute.
        clock: Nanoseconds since the epoch, UTC.
        ledger: Which files count.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self.clock = clock
        self.ledger = Ledger(root)
        self._scratch = Scratch(self.ledger)

    @classmethod
    def open(cls, root: Path, *, create: bool = False, clock: Clock = time.time_ns) -> Lake:
        """Open a lake.

        Args:
            root: Its folder.
            create: Where there is none yet, begin one with the first write.
            clock: Nanoseconds since the epoch, UTC.

        Raises:
            NoDataError: There is no lake, and not ``create``.
            LakeError: The path is not a folder, or the lake is damaged or of another schema.
        """
        lake = cls(root.absolute(), clock)
        try:
            is_file = root.exists() and not root.is_dir()
        except OSError as error:  # a folder on the way may not be searched
            raise LakeError(
                f"{root} cannot be read: {error.strerror}", "name another with --lake"
            ) from error
        if is_file:
            raise LakeError(f"{root} is not a folder", "name another with --lake")
        if not lake.ledger.exists and not create:
            raise NoDataError(
                f"there is no lake at {root}", "run xtune collect first, or name one with --lake"
            )
        lake.ledger.load()
        return lake

    def __reduce__(self) -> tuple[Callable[[Path, Clock], Lake], tuple[Path, Clock]]:
        return Lake, (self.root, self.clock)

    def files(self, table: str) -> list[DataFile]:
        """Live files of a table, sorted by (date, path)."""
        name = table_named(table).name
        found = [file for file in self.ledger.load().files.values() if file.table == name]
        return sorted(found, key=lambda file: (file.date, file.path))

    def inputs(self) -> Inputs:
        """What was read, by the id that rows carry as ``source``."""
        return self.ledger.load().inputs

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a table, of the right schema even where there are none.

        Raises:
            LakeError: A live file is missing, damaged or of another schema.
        """
        schema = file_schema(table_named(table))
        if columns is not None:
            schema = pa.schema([schema.field(c) for c in columns], metadata=schema.metadata)
        parts = [schema.empty_table()]
        for file in self.files(table):
            with open_parquet(file.path) as stream:
                parts.append(stream.read(columns=schema.names).select(schema.names).cast(schema))
        return pa.concat_tables(parts)

    def metadata(self, table: str) -> dict[str, str]:
        """What a Parquet file of this table says of itself (DuckDB: ``KV_METADATA``)."""
        return file_metadata(table_named(table))

    def begin(self) -> Transaction:
        """Begin a transaction; also deletes what killed processes left behind."""
        self.sweep()
        return Transaction(self, self._scratch.folder())

    def name_of(self, file: DataFile) -> str:
        """Path of a file within the lake."""
        return str(file.path).removeprefix(f"{self.root}/")

    def scratch(self, table: str) -> Path:
        """This process's folder for unfinished files of a table, on the lake's filesystem.

        It is deleted when the process ends, or swept after it was killed.
        """
        folder = self._scratch.folder() / table_named(table).bare_name
        folder.mkdir(exist_ok=True)
        return folder

    def sweep(self, grace_ns: int = READER_GRACE_NS) -> list[Path]:
        """Delete leftovers of killed processes, and files replaced longer than ``grace_ns`` ago.

        Returns:
            What was deleted.
        """
        return sweep(self.ledger, self.clock(), grace_ns)

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Let one process at a time do ``name`` (``rebuild``); readers are not held up.

        Raises:
            BusyError: Another process is doing it.
            LakeError: The lake cannot be written.
        """
        with self._writable():
            self.ledger.create()
            descriptor = _disk.try_lock(self.ledger.folder / f"{name}.lock")
        if descriptor is None:
            raise BusyError(f"another {name} of {self.root} is running", "wait for it to end")
        with _disk.held(descriptor):
            yield

    @contextmanager
    def shared(self, name: str) -> Iterator[None]:
        """Do ``name`` beside others that do; none of them is in :meth:`exclusive` meanwhile.

        Raises:
            LakeError: The lake cannot be written.
        """
        with self._writable():
            self.ledger.create()
            descriptor = _disk.share_lock(self.ledger.folder / f"{name}.lock")
        with _disk.held(descriptor):
            yield

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LakeError.unwritable(self.root, error) from error
