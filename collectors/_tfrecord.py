"""Records of a TensorFlow record file, with their checksums.

Source: tensorflow/core/lib/io/record_writer.h. A record is u64 length, u32 masked CRC32C of the
length, data, u32 masked CRC32C of the data, little-endian; the mask of c is
((c >> 15 | c << 17) + 0xa282ead8) mod 2^32.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import google_crc32c

from xtune.collectors._base import Note, Reject

MAX_RECORD = 1 << 28
_HEADER = 12
_WINDOW = 1 << 16
_ZEROS = bytes(4)
_NO_HEADER = bytes(_HEADER)
_NOT_ZERO = re.compile(rb"[^\0]")
_CUT = Note("cut last record: the writer was alive or was killed")


class Readable(Protocol):
    """What is read: a file or a decompressed stream."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; empty at the end."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record whose checksums are right, and where it starts."""

    offset: int
    data: bytes


def masked_crc(data: bytes) -> int:
    """The checksum of ``data`` as the file has it."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def valid_header(header: bytes) -> int | None:
    """Length of the record that ``header`` starts, or null where its checksum is wrong."""
    if len(header) < _HEADER:
        return None
    length, crc = struct.unpack("<QI", header[:_HEADER])
    return int(length) if masked_crc(header[:8]) == crc else None


class _Pushback:
    """A stream that takes bytes back, so that a search may read ahead."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._back = b""

    def read(self, size: int) -> bytes:
        data, self._back = self._back[:size], self._back[size:]
        while len(data) < size:
            more = self._stream.read(size - len(data))
            if not more:
                break
            data += more
        return data

    def unread(self, data: bytes) -> None:
        self._back = data + self._back


def records(stream: Readable) -> Iterator[Record | Reject | Note]:
    """Records in order.

    A record of wrong data costs itself; after a wrong length the next right header is looked for.
    A cut last record is normal while the writer lives: a note.
    """
    source = _Pushback(stream)
    offset = 0
    while header := source.read(_HEADER):
        length = valid_header(header)
        if length is None and len(header) < _HEADER:
            yield _CUT
            return
        if length is None:
            source.unread(header[1:])
            skipped = 1 + _skip_to_header(source)
            yield Reject(
                f"byte {offset}",
                f"not a record: {skipped} bytes left out",
                "the file is damaged; what stands before and after is kept",
            )
            offset += skipped
            continue
        if length > MAX_RECORD:
            yield Reject(f"byte {offset}", f"a record of {length} bytes is no event")
            return
        body = source.read(length + 4)
        if len(body) < length + 4:
            yield _CUT
            return
        data = body[:length]
        if masked_crc(data) == struct.unpack("<I", body[length:])[0]:
            yield Record(offset, data)
        else:
            yield Reject(f"byte {offset}", "record with a wrong checksum")
        offset += _HEADER + length + 4


def _skip_to_header(source: _Pushback) -> int:
    """Pass over bytes up to a header whose checksum is right, or to the end; how many."""
    skipped = 0
    while True:
        window = source.read(_WINDOW)
        for start in _candidates(window):
            if valid_header(window[start : start + _HEADER]) is not None:
                source.unread(window[start:])
                return skipped + start
        if len(window) < _WINDOW:
            return skipped + len(window)
        source.unread(window[-(_HEADER - 1) :])
        skipped += len(window) - (_HEADER - 1)


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
