"""Blocks of whole lines of a file, in bounded memory: what :mod:`._textlines` does, but faster."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xtune.collectors._base import Reject, Source
from xtune.collectors._textlines import LINE_LIMIT, READ_ERRORS, Line

BLOCK_BYTES = 1 << 20
#: A loop over a block may look so far beyond its end.
MARGIN = 64
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Block:
    """Whole lines, valid until the next block is asked for.

    Attributes:
        number: Of its first line, from 1.
        offset: Of its first byte in the (decompressed) content.
        data: Its bytes are ``data[:size]``; MARGIN more may be looked at.
        size: Where the last line ends.
        whole: Whether the last line has a line end; else the block is that line alone.
        again: Where ``data`` is empty: the file to read it from once it is asked for.
    """

    number: int
    offset: int
    data: bytearray
    size: int
    whole: bool = True
    again: Path | None = None

    def _content(self) -> bytearray:
        if self.again is not None and not self.data:
            self.data = bytearray(self.size)
            with self.again.open("rb", buffering=0) as file:
                file.seek(self.offset)
                file.readinto(self.data)
        return self.data

    def line(self, start: int, end: int, number: int) -> Line:
        """The line ``data[start:end]``, of which ``end`` includes the line end."""
        data = bytes(memoryview(self._content())[start : min(end, start + LINE_LIMIT)])
        whole = self.whole and end - start <= LINE_LIMIT
        place = self.offset + start
        if place == 0:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        return Line(number, place, data.rstrip(b"\r\n"), whole)

    def next_end(self, start: int) -> int:
        """Where the line that starts at ``start`` ends."""
        return (self._content().find(b"\n", start, self.size) + 1) or self.size


class Blocks:
    """Iterates over the blocks of ``source``; ``rejects`` holds what went wrong, once iterated.

    A line that is too long is a block of its own, with its first LINE_LIMIT bytes. Who iterates
    counts lines, and says in ``number`` which is the first of the next block.
    """

    def __init__(self, source: Source, size: int = BLOCK_BYTES) -> None:
        self._source = source
        self._size = size
        self._data = bytearray(LINE_LIMIT + size + MARGIN)
        self._error: Exception | None = None
        self.number = 1
        self.rejects: list[Reject] = []

    def __iter__(self) -> Iterator[Block]:
        data, offset, held = self._data, 0, 0
        try:
            with self._source.open() as stream:
                while read := self._fill(stream, held):
                    total = held + read
                    cut = data.rfind(b"\n", 0, total) + 1
                    if cut:
                        yield Block(self.number, offset, data, cut)
                        offset += cut
                        data[: total - cut] = data[cut:total]
                    held = total - cut
                    if held >= LINE_LIMIT:
                        self.rejects.append(too_long(self.number, offset))
                        yield Block(self.number, offset, data, LINE_LIMIT, whole=False)
                        skipped, held = self._skip(stream, held)
                        offset += skipped
        except READ_ERRORS as error:
            self.rejects.append(
                Reject(
                    f"byte {offset}",
                    f"cannot be read further: {error}",
                    "the file is cut or damaged; what came before is kept",
                )
            )
            return
        if held:
            yield Block(self.number, offset, data, held, whole=False)

    def _fill(self, stream: io.BufferedReader, at: int) -> int:
        """Read the next bytes to ``at``: of a cut gzip stream, all that can be undone."""
        read = 0
        if self._error is not None:
            raise self._error
        with memoryview(self._data) as view:
            try:
                while read < self._size and (
                    more := stream.readinto1(view[at + read : at + self._size])
                ):
                    read += more
            except READ_ERRORS as error:
                if not read:
                    raise
                self._error = error
        return read

    def _skip(self, stream: io.BufferedReader, held: int) -> tuple[int, int]:
        """Pass over the rest of a line that is too long: its bytes, and what is held after it."""
        skipped = held
        while read := self._fill(stream, 0):
            end = self._data.find(b"\n", 0, read) + 1
            if end:
                self._data[: read - end] = self._data[end:read]
                return skipped + end, read - end
            skipped += read
        return skipped, 0


def too_long(number: int, offset: int) -> Reject:
    """A line of which only the beginning is given."""
    return Reject(
        f"line {number} (byte {offset})",
        f"line is longer than {LINE_LIMIT} bytes; the rest is left out",
    )
