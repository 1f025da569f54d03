"""What every answer of the kernel's netlink is made of (``include/uapi/linux/netlink.h``)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF  # without the flags for nested and byte order


def aligned(length: int) -> int:
    """Bytes that a message or an attribute of so many takes."""
    return (length + 3) & ~3


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in a message's tail, kinds without their flags."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += aligned(length)
