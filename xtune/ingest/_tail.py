"""A growing file of which each line stands alone: only what is new is read.

The ledger holds one record for it, which grows with each flush: hash and length of what was read
so far. So a later start goes on where the last flush ended, whatever killed the process, and a
plain ``xtune collect`` of the same file finds it read. A last line without an end waits.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Reject
from xtune.ingest._content import CHUNK_BYTES, SIGN_BYTES, Content
from xtune.ingest._identity import Identity
from xtune.ingest._read import Reading
from xtune.lake import ConflictError, InputRecord, Inputs

PIECE_BYTES = 16 << 20
#: Bytes before the new ones that must be as they were: a file cut and written anew may be longer.
GUARD_BYTES = 1024

_PLACE = re.compile(r"line (\d+) \(byte (\d+)\)")


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of a file that are not in the lake yet."""

    data: bytes
    hasher: Any  # of all up to their end
    first: bytes  # the first bytes of the file


class Tail:
    """One followed file.

    Args:
        path: Where it is.
        name: How the user calls it.
        collector: Reads it.
        identify: The ledger's key for a content at a place.
        inputs: What the lake holds.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        collector: Collector,
        identify: Callable[[Path, Content], Identity],
        inputs: Inputs,
    ) -> None:
        self.path, self.name, self.collector = path, name, collector
        self.record: InputRecord | None = None
        self.offset = 0
        self._identify = identify
        self._lines = 0
        self._hasher: Any = hashlib.sha256()
        self._first = b""
        self._guard = b""
        self._least = 0
        self._superseded: frozenset[str] = frozenset()
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._handle)
        self.inode = (status.st_dev, status.st_ino)
        try:
            self._resume(inputs, status.st_size)
        except BaseException:
            os.close(self._handle)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def move(self, path: Path, name: str, inputs: Inputs) -> None:
        """It has another name now."""
        self.path, self.name = path, name
        self._seen = self._alike(inputs)

    def size(self) -> int:
        """Bytes in the file now, also where it has no name any more."""
        return os.fstat(self._handle).st_size

    def intact(self) -> bool:
        """Whether what was read is still there: it was neither cut nor written anew."""
        if self.size() < self.offset:
            return False
        return os.pread(self._handle, len(self._guard), self.offset - len(self._guard)) == (
            self._guard
        )

    def piece(self, *, rest: bool = False) -> Piece | None:
        """The next whole lines, about PIECE_BYTES at most; None where there are none.

        Where an earlier reading ended within a line, the first piece reaches beyond that line: it
        stands in that reading's place.

        Args:
            rest: Also a last line without an end: nothing will be added to it.
        """
        size = PIECE_BYTES + max(0, self._least - self.offset)
        data = _pread(self._handle, size, self.offset)
        end = data.rfind(b"\n") + 1
        full = len(data) == size
        if (rest and not full) or (full and end == 0):  # the end, or one line that long
            end = len(data)
        if end == 0 or self.offset + end <= self._least:
            return None
        data = data[:end]
        hasher = self._hasher.copy()
        hasher.update(data)
        first = self._first
        if len(first) < SIGN_BYTES:
            first = (first + data[:SIGN_BYTES])[:SIGN_BYTES]
        return Piece(data, hasher, first)

    def identity(self, piece: Piece) -> Identity:
        """The ledger's key of the file up to the end of a piece."""
        content = Content(
            digest=piece.hasher.hexdigest(),
            size=self.offset + len(piece.data),
            sign=hashlib.sha256(piece.first).hexdigest() if len(piece.first) == SIGN_BYTES else "",
            beginnings=self._beginnings,
        )
        return self._identify(self.path, content)

    def next_record(
        self, identity: Identity, reading: Reading, time_ns: int, begins: tuple[str, ...]
    ) -> InputRecord:
        """The record with a piece added to it; ``begins`` is for a first one."""
        old = self.record
        rows = dict(old.rows) if old else {}
        for table, count in reading.rows.items():
            rows[table] = rows.get(table, 0) + count
        first = dict(old.first_reject) if old else {}
        if not first and reading.reasons:
            first = asdict(reading.reasons[0])
        return InputRecord(
            id=old.id if old else identity.id,
            name=self.name,
            path=identity.path,
            content=identity.content.digest,
            size=identity.content.size,
            head=identity.content.sign,
            parser=identity.parser,
            parser_version=identity.parser_version,
            reading=identity.reading,
            whose=identity.whose,
            time_ns=time_ns,
            rows=rows,
            rejects=(old.rejects if old else 0) + reading.rejects,
            first_reject=first,
            begins=old.begins if old else begins,
        )

    def supersedes(self, identity: Identity) -> Callable[[Inputs], frozenset[str]]:
        """What a commit asks: refuses where somebody else read this file meanwhile."""

        def choose(inputs: Inputs) -> frozenset[str]:
            if self._alike(inputs) != self._seen:
                raise ConflictError(f"{self.path} was read by another process meanwhile")
            self._superseded = frozenset() if self.record else identity.supersedes(inputs)
            return self._superseded

        return choose

    def accept(self, piece: Piece, record: InputRecord) -> None:
        """A piece is in the lake."""
        old = self.record.id if self.record else ""
        kept = {one for one in self._seen if one[0] not in {*self._superseded, old}}
        self._seen = frozenset({*kept, (record.id, record.content)})
        self.record = record
        self.offset = record.size
        self._lines += piece.data.count(b"\n")
        self._hasher, self._first = piece.hasher, piece.first
        self._guard = (self._guard + piece.data)[-GUARD_BYTES:]

    def place(self, reject: Reject) -> Reject:
        """A reject of a piece, with its place in the whole file."""
        found = _PLACE.fullmatch(reject.offset)
        if not found:
            return reject
        line, byte = int(found[1]) + self._lines, int(found[2]) + self.offset
        return replace(reject, offset=f"line {line} (byte {byte})")

    def _alike(self, inputs: Inputs) -> frozenset[tuple[str, str]]:
        place = self._identify(self.path, Content(digest="", size=0)).path
        return frozenset((record.id, record.content) for record in inputs.alike(path=place))

    def _resume(self, inputs: Inputs, size: int) -> None:
        """Find out what of it the lake has."""
        first = _pread(self._handle, SIGN_BYTES, 0)
        sign = hashlib.sha256(first).hexdigest() if len(first) == SIGN_BYTES else ""
        whole = "" if sign else hashlib.sha256(first).hexdigest()
        here = self._identify(self.path, Content(digest="", size=0))
        alike = inputs.alike(path=here.path, head=sign, content=whole)
        records = [record for record in alike if record.size and here.same_owner(record)]
        self._seen = self._alike(inputs)
        self._beginnings: dict[int, str] = {}
        best: InputRecord | None = None
        hasher, at, lines = hashlib.sha256(), 0, 0
        for end in sorted({record.size for record in records if record.size <= size}):
            last = b""
            while at < end and (last := _pread(self._handle, min(CHUNK_BYTES, end - at), at)):
                hasher.update(last)
                lines += last.count(b"\n")
                at += len(last)
            self._beginnings[end] = hasher.hexdigest()
            for record in records:
                if record.size != end or record.content != self._beginnings[end]:
                    continue
                best = None  # only the longest may be added to
                self._least = end
                if last.endswith(b"\n") and self._goes_on(record, here):
                    best = record
                    self._hasher, self._lines = hasher.copy(), lines
        if best is None:
            self._hasher, self._lines = hashlib.sha256(), 0
        else:
            self.record, self.offset = best, best.size
            self._first = first[: best.size]
            start = max(0, best.size - GUARD_BYTES)
            self._guard = _pread(self._handle, best.size - start, start)

    def _goes_on(self, record: InputRecord, here: Identity) -> bool:
        """Whether new lines may be added to a record's."""
        alike = (record.parser, record.parser_version) == (here.parser, here.parser_version)
        if not alike or (record.reading, record.whose) != (here.reading, here.whose):
            return False
        return record.path == here.path or not _holds(Path(record.path), record)


def _holds(path: Path, record: InputRecord) -> bool:
    """Whether the file that a record is of still begins with its content."""
    whole = hashlib.sha256()
    left = record.size
    try:
        with path.open("rb") as stream:
            while left and (data := stream.read(min(CHUNK_BYTES, left))):
                whole.update(data)
                left -= len(data)
    except OSError:
        return False
    return left == 0 and whole.hexdigest() == record.content


def _pread(handle: int, size: int, offset: int) -> bytes:
    parts = []
    while size > 0 and (data := os.pread(handle, size, offset)):
        parts.append(data)
        size -= len(data)
        offset += len(data)
    return b"".join(parts)
