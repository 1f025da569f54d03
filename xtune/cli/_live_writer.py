"""Writes what is sampled live: every few seconds, whole or not at all, once."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.errors import LakeError

if TYPE_CHECKING:
    import pyarrow as pa

    from xtune.collectors import Rows
    from xtune.lake import InputRecord, Lake

#: Rows wait in memory while the lake cannot be written; what comes beyond this is lost.
HELD_BYTES = 256 << 20


class LiveWriter:
    """One input of the ledger that grows with each flush.

    While the lake cannot be written (a full disk) rows wait in memory and are written with the
    next flush that succeeds. A flush that failed late may have reached the ledger all the same:
    what the ledger says counts, so nothing is written twice.

    Args:
        lake: Where rows go.
        name: How to call the input.
        path: Where it is.
        parser: Name and version of what reads it.
        host: This host.
        say: Told when writing begins to fail, and when it works again.
    """

    def __init__(
        self,
        lake: Lake,
        *,
        name: str,
        path: Path,
        parser: tuple[str, int],
        host: str,
        say: Callable[[str], None],
    ) -> None:
        self.rows = 0
        self.lost = 0
        self._lake = lake
        self._name = name
        self._path = path
        self._parser = parser
        self._host = host
        self._say = say
        self._held: list[Rows] = []
        self._id = secrets.token_hex(6)
        self._last: InputRecord | None = None
        # A flush that is not known to have ended well, and how many of what is held were in it.
        self._tried: tuple[InputRecord, int] | None = None
        self._problem = ""

    @property
    def held(self) -> int:
        """Rows that are not written yet."""
        return sum(int(item.batch.num_rows) for item in self._held)

    def flush(self, items: Sequence[Rows]) -> int:
        """Write ``items`` and what is held; the number of rows written, 0 where that failed."""
        self._held += items
        try:
            count = self._settle() + self._write()
        except (OSError, LakeError) as error:
            self._failed(error)
            return 0
        if self._problem:
            self._say(f"{self._lake.root} can be written again: {count} rows were")
            self._problem = ""
        return count

    def finish(self, items: Sequence[Rows]) -> int:
        """Write the rest.

        Raises:
            LakeError: It cannot be written; says how many rows are lost.
        """
        count = self.flush(items)
        if self._problem:
            raise LakeError(
                f"{self._problem}; {self.held + self.lost} rows are lost, {self.rows} are kept",
                "make room or check permissions",
            )
        return count

    def _write(self) -> int:
        import pyarrow as pa

        if not self._held:
            return 0
        by_table: dict[str, list[pa.RecordBatch]] = {}
        for item in self._held:
            by_table.setdefault(item.table, []).append(item.batch)
        record = self._record()
        self._tried = record, len(self._held)
        with self._lake.begin() as transaction:
            for table, batches in by_table.items():
                transaction.write(table, pa.Table.from_batches(batches), source=record.id)
            transaction.record(record, extends=self._last)
            transaction.commit()
        return self._accept()

    def _record(self) -> InputRecord:
        from xtune.lake import InputRecord

        name, version = self._parser
        rows = Counter(self._last.rows if self._last else {})
        for item in self._held:
            rows[item.table] += int(item.batch.num_rows)
        return InputRecord(
            id=self._id,
            name=self._name,
            path=str(self._path.absolute()),
            content=self._id,  # what was sampled cannot be read again
            size=0,
            head="",
            parser=name,
            parser_version=version,
            whose={"host": self._host},
            time_ns=time.time_ns(),
            rows=dict(rows),
        )

    def _settle(self) -> int:
        """Learn what became of a flush that failed; the number of rows it wrote after all."""
        if self._tried is None:
            return 0
        found = self._lake.inputs().get(self._id)
        if found == self._tried[0]:
            return self._accept()
        self._tried = None
        if found != self._last:  # somebody replaced this input: go on as another
            self._id, self._last = secrets.token_hex(6), None
        return 0

    def _accept(self) -> int:
        """Take what was tried as written."""
        assert self._tried is not None
        self._last, items = self._tried
        self._tried = None
        count = sum(int(item.batch.num_rows) for item in self._held[:items])
        del self._held[:items]
        self.rows += count
        return count

    def _failed(self, error: OSError | LakeError) -> None:
        root = self._lake.root
        if isinstance(error, LakeError):
            problem = f"{root}: cannot be written: {error.message}"
        else:
            problem = LakeError.unwritable(root, error).message
        if not self._problem:
            self._say(f"{problem}; {self.held} rows wait in memory")
        self._problem = problem
        tried = self._tried[1] if self._tried else 0
        while len(self._held) > tried and self._bytes() > HELD_BYTES:
            self.lost += int(self._held.pop().batch.num_rows)

    def _bytes(self) -> int:
        return sum(int(item.batch.nbytes) for item in self._held)
