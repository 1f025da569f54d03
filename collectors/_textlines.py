"""Lines of a file with their place, in bounded memory, also where the file is cut or damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from xtune.collectors._base import Reject, Source

LINE_LIMIT = 1 << 22

#: What reading a damaged gzip file or a failing disk raises.
READ_ERRORS = (OSError, EOFError, zlib.error)


class Rejects:
    """The first of many rejects that wait for the end of an input, and how many more there were.

    Without a limit a large file of another format, forced through a collector with ``--kind``,
    would fill the memory with them.
    """

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._kept: list[Reject] = []
        self._more = 0

    def append(self, reject: Reject) -> None:
        """Keep one, if there is room, else count it."""
        if len(self._kept) < self._limit:
            self._kept.append(reject)
        else:
            self._more += 1

    def __len__(self) -> int:
        return len(self._kept) + self._more

    def __iter__(self) -> Iterator[Reject]:
        yield from self._kept
        if self._more:
            yield Reject("after them", f"{self._more} more pieces that could not be read")


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end.

    Attributes:
        number: From 1.
        offset: Of its first byte in the (decompressed) content.
        data: The bytes; cut where the line is longer than the limit.
        whole: Whether a line end followed and nothing was cut off.
    """

    number: int
    offset: int
    data: bytes
    whole: bool

    @property
    def text(self) -> str:
        """The line as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode("utf-8", "replace")

    @property
    def place(self) -> str:
        """How a reject names the line."""
        return f"line {self.number} (byte {self.offset})"


class Lines:
    """Iterates over the lines of ``source``; ``rejects`` holds what went wrong, once iterated."""

    def __init__(self, source: Source, limit: int = LINE_LIMIT) -> None:
        self._source = source
        self._limit = limit
        self.rejects: list[Reject] = []

    def __iter__(self) -> Iterator[Line]:
        number = offset = 0
        try:
            with self._source.open() as stream:
                while piece := stream.readline(self._limit):
                    number += 1
                    start, offset = offset, offset + len(piece)
                    ended = piece.endswith(b"\n")
                    if not ended and len(piece) == self._limit:
                        self.rejects.append(
                            Reject(
                                f"line {number} (byte {start})",
                                f"line is longer than {self._limit} bytes; the rest is left out",
                            )
                        )
                        while rest := stream.readline(self._limit):
                            offset += len(rest)
                            if rest.endswith(b"\n"):
                                break
                    data = piece.rstrip(b"\r\n")
                    if number == 1:
                        data = data.removeprefix(b"\xef\xbb\xbf")
                    yield Line(number, start, data, ended)
        except READ_ERRORS as error:
            self.rejects.append(
                Reject(
                    f"byte {offset}",
                    f"cannot be read further: {error}",
                    "the file is cut or damaged; what came before is kept",
                )
            )
