"""Records of a TensorFlow record file, with their checksums.

Source: tensorflow/core/lib/io/record_writer.h. A record is u64 length, u32 masked CRC32C of the
length, data, u32 masked CRC32C of the data, little-endian; the mask of c is
((c >> 15 | c << 17) + 0xa282ead8) mod 2^32.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import google_crc32c

from xtune.collectors._base import Note, Reject

MAX_RECORD = 1 << 28
_HEADER = 12
_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_BLOCK = 1 << 18
_WINDOW = 1 << 16
_ZEROS = bytes(4)
_NO_HEADER = bytes(_HEADER)
_NOT_ZERO = re.compile(rb"[^\0]")
_CUT = Note("cut last record: the writer was alive or was killed")


class Readable(Protocol):
    """What is read: a file or a decompressed stream."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; empty at the end."""


class Record(NamedTuple):
    """One record whose checksums are right, and where it starts."""

    offset: int
    data: bytes


def masked_crc(data: bytes) -> int:
    """The checksum of ``data`` as the file has it."""
    return _masked(google_crc32c.value(data))


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def valid_header(header: bytes) -> int | None:
    """Length of the record that ``header`` starts, or null where its checksum is wrong."""
    if len(header) < _HEADER:
        return None
    length, crc = _HEAD.unpack_from(header)
    return int(length) if masked_crc(header[:8]) == crc else None


class _Buffer:
    """The part of a stream that is being looked at."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.data = b""
        self.at = 0
        self.base = 0

    @property
    def offset(self) -> int:
        return self.base + self.at

    def need(self, size: int) -> bool:
        """Read on until ``size`` bytes are there; false where the stream ends before."""
        if self.at + size <= len(self.data):
            return True
        pieces = [self.data[self.at :]]
        have = len(pieces[0])
        self.base += self.at
        self.at = 0
        try:
            while have < size and (piece := self._stream.read(max(size - have, _BLOCK))):
                pieces.append(piece)
                have += len(piece)
        finally:  # a damaged stream raises: what it gave before stays
            self.data = b"".join(pieces)
        return have >= size


def records(stream: Readable) -> Iterator[Record | Reject | Note]:
    """Records in order.

    A record of wrong data costs itself; after a wrong length the next right header is looked for.
    A cut last record is normal while the writer lives: a note.
    """
    buffer = _Buffer(stream)
    checksum = google_crc32c.value
    while buffer.need(_HEADER):
        data, at, offset = buffer.data, buffer.at, buffer.offset
        length, crc = _HEAD.unpack_from(data, at)
        if _masked(checksum(data[at : at + 8])) != crc:
            buffer.at += 1
            skipped = 1 + _skip_to_header(buffer)
            yield Reject(
                f"byte {offset}",
                f"not a record: {skipped} bytes left out",
                "the file is damaged; what stands before and after is kept",
            )
            continue
        if length > MAX_RECORD:
            yield Reject(f"byte {offset}", f"a record of {length} bytes is no event")
            return
        size = _HEADER + length + 4
        if not buffer.need(size):
            yield _CUT
            return
        data, at = buffer.data, buffer.at
        body = data[at + _HEADER : at + size - 4]
        buffer.at = at + size
        if _masked(checksum(body)) == _CRC.unpack_from(data, at + size - 4)[0]:
            yield Record(offset, body)
        else:
            yield Reject(f"byte {offset}", "record with a wrong checksum")
    if buffer.at < len(buffer.data):
        yield _CUT


def _skip_to_header(buffer: _Buffer) -> int:
    """Pass over bytes up to a header whose checksum is right, or to the end; how many."""
    begun = buffer.offset
    while True:
        whole = buffer.need(_WINDOW)
        window = buffer.data[buffer.at : buffer.at + _WINDOW]
        for start in _candidates(window):
            if valid_header(window[start : start + _HEADER]) is not None:
                buffer.at += start
                return buffer.offset - begun
        if not whole:
            buffer.at = len(buffer.data)
            return buffer.offset - begun
        buffer.at += len(window) - (_HEADER - 1)


def _candidates(window: bytes) -> Iterator[int]:
    """Where a header may start: its length, below 2^32, ends in four zero bytes.

    Runs of zeros, which a crash leaves at a file's end, hold none: no checksum of 0 is 0.
    """
    start = 0
    while (zeros := window.find(_ZEROS, start + 4)) >= 0:
        start = zeros - 4
        if start > len(window) - _HEADER:
            return
        if window.startswith(_NO_HEADER, start):
            other = _NOT_ZERO.search(window, start)
            start = (other.start() if other else len(window)) - _HEADER + 1
            continue
        yield start
        start += 1
