"""Undoes gzip while it is read, within limits."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_MAGIC = b"\x1f\x8b"
# Telemetry packs 10 to 130 times smaller, one line over and over 340 times, nothing but zeros
# 1,030 times (measured with gzip -6 and -9).
MAX_RATIO = 500
#: Up to here any ratio is taken: reading it costs a second.
FREE_BYTES = 256 << 20
MAX_BYTES = 64 << 30

_INPUT_BYTES = 1 << 17


class GzipBombError(OSError):
    """A few bytes that claim to be very many."""


class Inflated(io.RawIOBase):
    """The content of a gzip stream: all its members, one after another, zeros after them left.

    Raises while it is read: ``EOFError`` where the stream is cut, ``zlib.error`` or
    ``gzip.BadGzipFile`` where it is damaged, :class:`GzipBombError`; what stands before was given.

    Args:
        stream: The packed bytes; closed with this.
        begun: What was read of them already.
    """

    def __init__(self, stream: IO[bytes], begun: bytes = b"") -> None:
        self._stream = stream
        self._held = begun
        self._inflate = zlib.decompressobj(wbits=31)
        self._packed = len(begun)
        self._size = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a part of ``buffer``; 0 at the end."""
        view = memoryview(buffer).cast("B")
        while True:
            if self._inflate.eof and not self._next_member():
                return 0
            ended = not self._held and not self._more()
            data = self._inflate.decompress(self._held, len(view))
            self._held = self._inflate.unconsumed_tail
            if data:
                self._size += len(data)
                self._check()
                view[: len(data)] = data
                return len(data)
            if ended and not self._inflate.eof:
                raise EOFError("the gzip stream is cut")

    def close(self) -> None:
        """Close the packed stream too."""
        self._stream.close()
        super().close()

    def _more(self) -> bool:
        self._held = self._stream.read(_INPUT_BYTES)
        self._packed += len(self._held)
        return bool(self._held)

    def _next_member(self) -> bool:
        """Whether another member follows the one that ended."""
        self._held = self._inflate.unused_data.lstrip(b"\0")
        while not self._held:
            if not self._more():
                return False
            self._held = self._held.lstrip(b"\0")
        if len(self._held) < len(GZIP_MAGIC):
            first = self._held
            self._more()
            self._held = first + self._held
        if not self._held.startswith(GZIP_MAGIC):
            raise gzip.BadGzipFile("something else follows the gzip stream")
        self._inflate = zlib.decompressobj(wbits=31)
        return True

    def _check(self) -> None:
        ratio = self._size > FREE_BYTES and self._size > MAX_RATIO * self._packed
        if ratio or self._size > MAX_BYTES:
            limit = f"{MAX_RATIO} times its size" if ratio else f"{MAX_BYTES >> 30} GiB"
            raise GzipBombError(
                f"gzip that undoes to more than {limit}; if it is genuine, undo it with gunzip"
                " and collect the result"
            )


def inflated(stream: IO[bytes], begun: bytes = b"") -> io.BufferedReader:
    """:class:`Inflated` with a buffer, so that it has lines."""
    return io.BufferedReader(Inflated(stream, begun), _INPUT_BYTES)
