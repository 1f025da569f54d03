"""Finds the plain messages in a block of an NCCL log, compiled.

What a plain message is stands in :mod:`._nccl_scan`; what is not plain is left to the patterns of
:mod:`._nccl_lines`, so nothing here has to be clever: in doubt a line is not plain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xtune.collectors._nccl_machine import (
    CAPITAL_NS,
    COLONS,
    FIRST,
    FIRST_FOUR,
    LETTERS,
    LINE_END,
    LINE_ENDS,
    PRIME,
    at_line_end,
    compiled,
    hexadecimal,
    high_bits,
    is_digit,
    is_letter,
    literal,
    load_byte,
    load_eight,
    natural,
    pointer,
    slot_of,
    trailing_zeros,
)
from xtune.collectors._nccl_prefix import (
    KEY_BYTES,
    NO_STAMP,
    mask_head,
    number_of_key,
    prefix_start,
)

# Kinds of items that a scan yields.
COLL, TUNING, OTHER = 0, 1, 2
# What words in a line say (flags of the table of words).
INTEREST, TRIGGER, MARK = 1, 2, 4
# Columns of an item (int64): see Items in _nccl_scan.
(KIND, START, END, NUMBER, PREFIX, USE, CALL, COUNT, OP_COUNT, SECONDS, NANOS, STAMPS, FLAGS) = (
    range(13)
)
COLUMNS = 13
HASHES = 1 << 12
#: Held by no row, or by a row that :class:`NcclLog` has.
NONE, ELSEWHERE = -1, -2
UNKNOWN, NEVER = -1, -2

_mark = literal(" NCCL INFO ")
_op_count = literal("opCount ")
_sendbuff = literal(" sendbuff ")
_recvbuff = literal(" recvbuff ")
_acc = literal(" acc ")
_count = literal(" count ")
_datatype = literal(" datatype ")
_op = literal(" op ")
_root = literal(" root ")
_comm = literal(" comm 0x")
_nranks = literal(" [nranks=")
_stream = literal("] stream ")
_task = literal(" task ")
_global_rank = literal(" globalrank ")
_bytes = literal(" Bytes -> Algo ")
_proto = literal(" proto ")


@compiled
def four_hash(word: Any) -> Any:
    """A place below HASHES for the first four of eight bytes."""
    return ((word & FIRST_FOUR) * PRIME) >> np.uint64(52)


@compiled
def _is(data: Any, at: Any, words: Any, row: Any, lengths: Any) -> Any:
    """Whether word ``row`` stands at ``at``."""
    same = True
    for i in range(lengths[row]):
        same = same and load_byte(data, at + i) == words[row, i]
    return same


def _known_row(width: int) -> Any:
    """A function that numbers rows of ``width`` integers."""

    def known(values: Any, slots: Any, rows: Any, size: Any) -> Any:
        """Number of a row, a new one where it is new; -1 where the table is full."""
        hashed = np.uint64(width)
        for i in range(width):
            hashed = (hashed ^ np.uint64(values[i])) * PRIME
            hashed ^= hashed >> np.uint64(32)
        at = slot_of(hashed, slots)
        while slots[at] >= 0:
            row = slots[at]
            different = np.int64(0)
            for i in range(width):
                different |= rows[row, i] ^ values[i]
            if different == 0:
                return row
            at = (at + 1) & (slots.shape[0] - 1)
        row = size[0]
        if row >= rows.shape[0]:
            return np.int64(-1)
        for i in range(width):
            rows[row, i] = values[i]
        size[0] = row + 1
        slots[at] = row
        return row

    return compiled(known)


USE_WIDTH, CALL_WIDTH = 4, 8
_known_use = _known_row(USE_WIDTH)
_known_call = _known_row(CALL_WIDTH)


@compiled
def _colon(data: Any, at: Any, call: Any) -> Any:
    """Where a name before a colon ends, its bytes in ``call[0:3]``; -1 where it is none.

    That it is a name such as AllReduce is looked at once, where its number is made.
    """
    call[0] = call[1] = call[2] = 0
    for word in range(3):
        eight = load_eight(data, at + 8 * word)
        colons = high_bits(eight, COLONS)
        if colons != 0:
            size = trailing_zeros(colons) >> np.uint64(3)
            if size > 0:
                shift = np.uint64(64) - np.uint64(8) * size
                if (eight << shift) & (LETTERS << shift) != LETTERS << shift:
                    return np.int64(-1)
                call[word] = np.int64(eight << shift)
            return at + 8 * word + np.int64(size)
        if eight & LETTERS != LETTERS:
            return np.int64(-1)
        call[word] = np.int64(eight)
    return np.int64(-1)


@compiled
def _collective(data: Any, i: Any, items: Any, made: Any, call: Any, use: Any) -> Any:
    """Read the rest of a COLL message after its name; -1 where it is not plain, else its end."""
    bad = np.int64(-1)
    op_count, i = hexadecimal(data, i + 8)
    if i < 0 or not _sendbuff(data, i):
        return bad
    i = pointer(data, i + 10)
    if i < 0 or not _recvbuff(data, i):
        return bad
    i = pointer(data, i + 10)
    if i < 0:
        return bad
    if _acc(data, i):
        i = pointer(data, i + 5)
        if i < 0:
            return bad
    if not _count(data, i):
        return bad
    count, i = natural(data, i + 7, 18)
    if i < 0 or not _datatype(data, i):
        return bad
    call[3], i = natural(data, i + 10, 9)
    if i < 0 or not _op(data, i):
        return bad
    call[4], i = natural(data, i + 4, 9)
    if i < 0 or not _root(data, i):
        return bad
    i += 6
    minus = load_byte(data, i) == 45
    if minus:
        i += 1
    root_at = i
    root, i = natural(data, root_at, 9)
    if (
        i < 0
        or (load_byte(data, root_at) == 48 and (minus or i > root_at + 1))
        or not _comm(data, i)
    ):
        return bad
    call[5] = -root if minus else root
    comm, i = hexadecimal(data, i + 8)
    if i < 0 or not _nranks(data, i):
        return bad
    ranks, i = natural(data, i + 9, 9)
    if i < 0 or ranks == 0 or load_byte(data, i) != 93:
        return bad
    call[6] = ranks
    use[3] = -1
    if _stream(data, i):
        i = pointer(data, i + 9)
        if i < 0:
            return bad
    else:
        i += 1
    if _task(data, i):
        _, i = natural(data, i + 6, 9)
        if i < 0 or not _global_rank(data, i):
            return bad
        use[3], i = natural(data, i + 12, 9)
        if i < 0:
            return bad
    if not at_line_end(data, i):
        return bad
    use[1], use[2] = np.int64(comm), ranks
    items[made, COUNT], items[made, OP_COUNT] = count, np.int64(op_count)
    return i


@compiled
def _word(data: Any, at: Any, packed: Any, first: Any) -> Any:
    """Where a word of at most 14 letters, digits and _ ends, packed into two numbers; else -1."""
    packed[first] = packed[first + 1] = 0
    i = at
    while (
        is_letter(load_byte(data, i)) or is_digit(load_byte(data, i)) or load_byte(data, i) == 95
    ):
        place = i - at
        if place >= 14:
            return np.int64(-1)
        packed[first + place // 7] |= np.int64(load_byte(data, i)) << np.int64(8 * (place % 7))
        i += 1
    return i if i > at else np.int64(-1)


@compiled
def _tuning(data: Any, i: Any, items: Any, made: Any, call: Any) -> Any:
    """Read the rest of a TUNING message after its name; -1 where it is not plain."""
    bad = np.int64(-1)
    items[made, COUNT], i = natural(data, i, 18)
    if i < 0 or not _bytes(data, i):
        return bad
    i = _word(data, i + 15, call, 3)
    if i < 0 or not _proto(data, i):
        return bad
    i = _word(data, i + 7, call, 5)
    if i < 0 or (load_byte(data, i) != 32 and not at_line_end(data, i)):
        return bad
    return i


@compiled
def _words(data: Any, i: Any, words: Any, lengths: Any, flags: Any, firsts: Any) -> Any:
    """Flags of the words between ``i`` and the end of the line, and that end.

    ``firsts`` says by a hash of four bytes whether some word begins so.
    """
    said = 0
    while True:
        eight = load_eight(data, i)
        if eight & FIRST == LINE_END:
            return said, i
        if firsts[four_hash(eight)]:
            for row in range(lengths.shape[0]):
                if eight & FIRST == np.uint64(words[row, 0]) and _is(data, i, words, row, lengths):
                    said |= flags[row]
        i += 1


@compiled
def _find_mark(data: Any, at: Any) -> Any:
    """Where the first mark of this line stands, else its end."""
    i = at
    while True:
        word = load_eight(data, i)
        hits = high_bits(word, LINE_ENDS) | high_bits(word, CAPITAL_NS)
        if hits == 0:
            i += 8
            continue
        i += np.int64(trailing_zeros(hits) >> np.uint64(3))
        if load_byte(data, i) == 10:
            return i
        if i > at and _mark(data, i - 1):
            return i - 1
        i += 1


@compiled
def scan(
    data: Any, at: Any, end: Any, number: Any, zone: Any, heads: Any, uses: Any, calls: Any,
    lexicon: Any, longest: Any, items: Any,
) -> Any:  # fmt: skip
    """Find the items of the lines in ``load_byte(data, at:end)``, which ends with a line end.

    Returns how many, where and before which line the scan stopped (``items`` may be full), and how
    many are not plain. Counts the uses of communicators.
    """
    head_slots, head_keys, head_sizes = heads
    use_slots, use_rows, use_size, use_counts = uses
    call_slots, call_rows, call_size = calls
    words, lengths, flags, firsts = lexicon
    key = np.zeros(KEY_BYTES, np.uint8)
    key_at, keys_at = key.ctypes.data, head_keys.ctypes.data
    found = np.zeros(6, np.int64)
    use = np.zeros(USE_WIDTH, np.int64)
    call = np.zeros(CALL_WIDTH, np.int64)
    made = others = 0
    while at < end and made < items.shape[0]:
        start = at
        i = _find_mark(data, start)
        items[made, START], items[made, NUMBER] = start, number
        number += 1
        plain = np.int64(-1)
        if load_byte(data, i) != 10:
            body = i + 11
            name_end = _colon(data, body, call)
            head = np.int64(-1)
            if name_end > body and load_byte(data, name_end + 1) == 32:
                head, tid_end = prefix_start(data, start, i)
            if head >= 0:
                if _op_count(data, name_end + 2):
                    call[7] = 0
                    plain = _collective(data, name_end + 2, items, made, call, use)
                    items[made, KIND] = COLL
                elif is_digit(load_byte(data, name_end + 2)):
                    call[7] = 1
                    plain = _tuning(data, name_end + 2, items, made, call)
                    items[made, KIND] = TUNING
                    if plain > 0:
                        said, stop = _words(data, plain, words, lengths, flags, firsts)
                        plain = stop if said & (INTEREST | MARK) == 0 else np.int64(-1)
            if plain > 0:
                items[made, PREFIX] = -1
                if head == start:
                    found[2] = NO_STAMP
                    length = tid_end - head
                    if length <= KEY_BYTES - 8:
                        items[made, PREFIX] = number_of_key(
                            data, head, length, head_slots, head_keys, keys_at, head_sizes
                        )
                else:
                    length = mask_head(data, start, head, tid_end, zone, key, found)
                    if length > 0:
                        items[made, PREFIX] = number_of_key(
                            key_at, 0, length, head_slots, head_keys, keys_at, head_sizes
                        )
                items[made, CALL] = _known_call(call, call_slots, call_rows, call_size)
                items[made, USE] = 0
                if items[made, KIND] == COLL:
                    use[0] = items[made, PREFIX]
                    items[made, USE] = -1
                    if items[made, PREFIX] >= 0:
                        items[made, USE] = _known_use(use, use_slots, use_rows, use_size)
                if items[made, PREFIX] < 0 or items[made, CALL] < 0 or items[made, USE] < 0:
                    plain = np.int64(-1)
        if plain > 0:
            items[made, SECONDS], items[made, NANOS], items[made, STAMPS] = (
                found[0],
                found[1],
                found[2],
            )
            at = plain + 1 if load_byte(data, plain) == 10 else plain + 2
            items[made, END] = at
            if items[made, KIND] == COLL:
                use_counts[items[made, USE]] += 1
            made += 1
            continue
        said, stop = _words(data, start, words, lengths, flags, firsts)
        at = stop + 1
        if said & (INTEREST | TRIGGER) or at - start > longest:
            items[made, KIND], items[made, END], items[made, FLAGS] = OTHER, at, said
            made += 1
            others += 1
    return made, at, number, others
