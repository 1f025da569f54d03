"""Event files as a training job's SummaryWriter writes them, for the benchmarks of collectors."""

from __future__ import annotations

import struct
from pathlib import Path

from xtune.collectors._tfrecord import masked_crc

#: Own time over that of tensorboard 2.21.0's EventAccumulator, measured on 2 cores.
STORED_LOADER_RATIO = 0.32
_TAGS = (b"train/loss", b"train/grad_norm", b"train/learning_rate", b"gpu/memory")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data)))
    )


def write_events(path: Path, count: int) -> None:
    """Write ``count`` events of one scalar each, a few tags a step."""
    with path.open("wb") as stream:
        version = b"brain.Event:2"
        head = b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a" + bytes([len(version)]) + version
        stream.write(_framed(head))
        for index in range(count):
            step, tag = index // len(_TAGS), _TAGS[index % len(_TAGS)]
            value = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", 1 / (1 + step))
            summary = b"\x0a" + bytes([len(value)]) + value
            wall = b"\x09" + struct.pack("<d", 1.7e9 + step)
            at = b"\x10" + _varint(step)
            stream.write(_framed(wall + at + b"\x2a" + bytes([len(summary)]) + summary))
