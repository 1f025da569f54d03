"""Fields of a protobuf message, read from its wire format without its descriptor.

Source: protobuf.dev, "Encoding". Only what event files need: no groups.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Field number, wire type and value (integer, or bytes) of each field in order.

    Raises:
        ValueError: The bytes are no message.
    """
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if number == 0:
            raise ValueError(f"field number 0 at byte {position}")
        if kind == VARINT:
            value, position = _varint(data, position)
        else:
            if kind == BYTES:
                length, position = _varint(data, position)
            elif kind in (FIXED64, FIXED32):
                length = 8 if kind == FIXED64 else 4
            else:
                raise ValueError(f"wire type {kind} at byte {position}")
            if length > end - position:
                raise ValueError(f"field {number} ends beyond the message")
            value = data[position : position + length]
            position += length
        yield number, kind, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError(f"varint without end at byte {position}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position


def signed(value: int) -> int:
    """A varint as int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def float64(data: bytes) -> float:
    """A fixed64 field as double."""
    return float(struct.unpack("<d", data)[0])


def float32(data: bytes) -> float:
    """A fixed32 field as float."""
    return float(struct.unpack("<f", data)[0])
