"""Scans a large NCCL log block by block for its plain messages.

A message is plain where it stands alone and whole in its line, after a prefix that is told from
others byte by byte: then it says what the patterns of :mod:`._nccl_lines` would find. Prefixes,
communicators' uses and kinds of calls get numbers, so that Python looks at each of them once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from xtune.collectors import _nccl_kernels as kernels
from xtune.collectors import _nccl_prefix as prefix
from xtune.collectors._nccl_blocks import Block
from xtune.collectors._textlines import LINE_LIMIT

_ITEMS = 1 << 15
# A TUNING message with this in it may be one with an Init line's end.
_POINTER = b"comm 0x"
_HEADS, _USES, _CALLS = 1 << 13, 1 << 15, 1 << 14


class Scanner:
    """Numbers for prefixes (``heads``), uses and calls that stay valid from block to block.

    Args:
        interest: Words of lines that may say something of NCCL.
        trigger: Words of lines that others may read.
        marks: Words that start a message.
        zone: Whether the user names the zone of local times.
    """

    def __init__(
        self,
        interest: Collection[bytes],
        trigger: Collection[bytes],
        marks: Collection[bytes],
        *,
        zone: bool,
    ) -> None:
        self._head_keys = np.zeros(_HEADS * prefix.KEY_BYTES, np.uint8)
        self._head_sizes = np.zeros(_HEADS + 1, np.int64)
        self._heads = (
            np.full(4 * _HEADS, -1, np.int64),
            self._head_keys,
            self._head_sizes,
        )
        self.use_rows = np.zeros((_USES, kernels.USE_WIDTH), np.int64)
        self._use_size = np.zeros(1, np.int64)
        self.use_counts = np.zeros(_USES, np.int64)
        self._uses = (
            np.full(4 * _USES, -1, np.int64),
            self.use_rows,
            self._use_size,
            self.use_counts,
        )
        self.call_rows = np.zeros((_CALLS, kernels.CALL_WIDTH), np.int64)
        self._call_size = np.zeros(1, np.int64)
        self._calls = (np.full(4 * _CALLS, -1, np.int64), self.call_rows, self._call_size)
        flagged = {word: kernels.TRIGGER for word in trigger}
        flagged |= {word: kernels.INTEREST for word in interest}
        flagged |= {word: kernels.MARK for word in (*marks, _POINTER)}
        self._lexicon = _lexicon(flagged)
        self._zone = zone
        self._items = np.zeros((_ITEMS, kernels.COLUMNS), np.int64)

    @property
    def capacity(self) -> tuple[int, int, int]:
        """How many prefixes, uses and calls there can be."""
        return _HEADS, _USES, _CALLS

    @property
    def heads(self) -> int:
        """How many prefixes are known."""
        return int(self._head_sizes[0])

    @property
    def calls(self) -> int:
        """How many kinds of calls are known."""
        return int(self._call_size[0])

    def is_choice(self, call: int) -> bool:
        """Whether a call's row is that of a TUNING message."""
        return bool(self.call_rows[call, 7])

    def scan(self, block: Block, at: int, number: int) -> tuple[Any, int, int, int]:
        """Items from ``at`` on, valid until the next call; else as :meth:`scan_into`."""
        made, at, number, others = self.scan_into(self._items, block, at, number)
        return self._items[:made], at, number, others

    def scan_into(
        self, items: Any, block: Block, at: int, number: int
    ) -> tuple[int, int, int, int]:
        """Fill ``items``.

        Returns how many, where and before which line the scan stopped, and how many of the items
        are not plain.
        """
        data = np.frombuffer(block.data, np.uint8)
        made, at, number, others = kernels.scan(
            data.ctypes.data, at, block.size, number, self._zone,
            self._heads, self._uses, self._calls, self._lexicon, LINE_LIMIT, items,
        )  # fmt: skip
        return int(made), int(at), int(number), int(others)


def _lexicon(flagged: dict[bytes, int]) -> tuple[Any, Any, Any, Any]:
    """Words of four letters at least, their lengths and flags, and how they begin."""
    words = np.zeros((len(flagged), max(map(len, flagged))), np.uint8)
    firsts = np.zeros(kernels.HASHES, np.uint8)
    for row, word in enumerate(flagged):
        words[row, : len(word)] = list(word)
        firsts[kernels.four_hash(np.uint64(int.from_bytes(word[:4], "little")))] = 1
    lengths = np.array([len(word) for word in flagged], np.int64)
    return words, lengths, np.array(list(flagged.values()), np.int64), firsts


def unpacked(row: Any, first: int, count: int) -> str:
    """A name that a scan packed into ``count`` numbers of a row, eight letters each."""
    packed: bytes = row[first : first + count].tobytes()
    return packed.replace(b"\0", b"").decode("latin-1")
