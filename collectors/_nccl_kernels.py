"""Compiled loops over blocks of an NCCL log: find plain messages, number them, write their extras.

Importing this module needs numba; it is imported where a log is large enough to earn the time.
What a plain message is stands in :mod:`._nccl_scan`; what is not plain is left to the patterns of
:mod:`._nccl_lines`, so nothing here has to be clever: in doubt a line is not plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numba.np.arrayobj import make_array


def _loader(bits: int) -> Any:
    """A function that loads ``bits`` from any place of an array of bytes, without checks."""

    def load(typing: Any, data: Any, at: Any) -> Any:
        result = numba.uint8 if bits == 8 else numba.uint64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.gep(array.data, [arguments[1]])
            typed = builder.bitcast(place, ir.IntType(bits).as_pointer())
            loaded = builder.load(typed)
            loaded.align = 1
            return loaded

        return result(data, numba.int64), generate

    return intrinsic(load)


@intrinsic
def _trailing(typing: Any, word: Any) -> Any:
    """Zero bits at the low end of a word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return numba.uint64(numba.uint64), generate


_byte = _loader(8)
_eight = _loader(64)


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call; kept on disk where the folder or the user's cache is writable."""
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # no place for a cache: compile in every process
        return numba.njit(function, nogil=True, error_model="numpy")


# Kinds of items that a scan yields.
COLL, TUNING, OTHER = 0, 1, 2
# What words in a line say (flags of the table of words).
INTEREST, TRIGGER, MARK = 1, 2, 4
# Columns of an item (int64): see Items in _nccl_scan.
(KIND, START, END, NUMBER, PREFIX, USE, CALL, COUNT, OP_COUNT, SECONDS, NANOS, STAMPS, FLAGS) = (
    range(13)
)
COLUMNS = 13
# How the time of an item is known.
NO_STAMP, ZONED, LOCAL, UNPLACED = 0, 1, 2, 3
KEY_BYTES = 320
MARGIN = 64
HASHES = 1 << 12
#: Held by no row, or by a row that :class:`NcclLog` has.
NONE, ELSEWHERE = -1, -2
UNKNOWN, NEVER = -1, -2

_PRIME = np.uint64(0x9E3779B97F4A7C15)
# Eight bytes at once: "0", "`", and what lifts bytes past nine and past six to the high bit.
_ONES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_LOW7 = np.uint64(0x7F7F7F7F7F7F7F7F)
_ZEROS = np.uint64(0x3030303030303030)
_GRAVES = np.uint64(0x6060606060606060)
_PAST_NINE = np.uint64(0x7676767676767676)
_PAST_SIX = np.uint64(0x7979797979797979)
_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_EVEN_PAIRS = np.uint64(0x0000FFFF0000FFFF)
_LINE_ENDS = np.uint64(0x0A0A0A0A0A0A0A0A)
_CAPITAL_NS = np.uint64(0x4E4E4E4E4E4E4E4E)
_FIRST = np.uint64(0xFF)
_FIRST_FOUR = np.uint64(0xFFFFFFFF)
_LINE_END = np.uint64(10)
_LETTERS = np.uint64(0x4040404040404040)  # letters have this bit, line ends and blanks do not
_COLONS = np.uint64(0x3A3A3A3A3A3A3A3A)


def _literal(text: str) -> Any:
    """A function that tells whether ``text`` stands at a place; eight bytes at a time."""
    raw = text.encode()
    places = [0] if len(raw) < 8 else sorted({*range(0, len(raw) - 7, 8), len(raw) - 8})
    offsets = tuple(places)
    wanted = tuple(int.from_bytes(raw[at : at + 8], "little") for at in places)
    mask = np.uint64(2 ** (8 * min(8, len(raw))) - 1)

    def matches(data: Any, at: Any) -> Any:
        for i in range(len(offsets)):
            if _eight(data, at + offsets[i]) & mask != np.uint64(wanted[i]):
                return False
        return True

    return _compiled(matches)


_nil = _literal("(nil)")
_mark = _literal(" NCCL INFO ")
_op_count = _literal("opCount ")
_sendbuff = _literal(" sendbuff ")
_recvbuff = _literal(" recvbuff ")
_acc = _literal(" acc ")
_count = _literal(" count ")
_datatype = _literal(" datatype ")
_op = _literal(" op ")
_root = _literal(" root ")
_comm = _literal(" comm 0x")
_nranks = _literal(" [nranks=")
_stream = _literal("] stream ")
_task = _literal(" task ")
_global_rank = _literal(" globalrank ")
_bytes = _literal(" Bytes -> Algo ")
_proto = _literal(" proto ")


@_compiled
def _digit(byte: Any) -> Any:
    return 48 <= byte <= 57


@_compiled
def _two(data: Any, at: Any) -> Any:
    """Two digits as a number, -1 where they are none."""
    if _digit(_byte(data, at)) and _digit(_byte(data, at + 1)):
        return np.int64(_byte(data, at) - 48) * 10 + np.int64(_byte(data, at + 1) - 48)
    return np.int64(-1)


@_compiled
def _natural(data: Any, at: Any, most: Any) -> Any:
    """A decimal number of at most ``most`` digits and where it ends; end -1 where there is none."""
    value = np.int64(0)
    end = at
    while _digit(_byte(data, end)):
        value = value * 10 + np.int64(_byte(data, end) - 48)
        end += 1
        if end - at > most:
            return value, np.int64(-1)
    return (value, end) if end > at else (value, np.int64(-1))


@_compiled
def _hex_digits(word: Any) -> Any:
    """How many of the first of eight bytes are digits of a hexadecimal number in lower case."""
    low = word & _LOW7
    digit = ~((low ^ _ZEROS) + _PAST_NINE)
    letter = low ^ _GRAVES
    hexadecimal = (digit | (((letter + _LOW7) & ~(letter + _PAST_SIX)))) & ~word & _HIGH
    return np.int64(_trailing(hexadecimal ^ _HIGH) >> np.uint64(3))


@_compiled
def _hex_value(word: Any, digits: Any) -> Any:
    """The number that the first ``digits`` of eight bytes say: 1 to 8 hexadecimal digits."""
    word = word << np.uint64(64 - 8 * digits)
    nibbles = (word & _NIBBLES) + np.uint64(9) * ((word >> np.uint64(6)) & _ONES)
    pairs = ((nibbles & _EVEN_BYTES) << np.uint64(4)) | ((nibbles >> np.uint64(8)) & _EVEN_BYTES)
    fours = ((pairs & _EVEN_PAIRS) << np.uint64(8)) | ((pairs >> np.uint64(16)) & _EVEN_PAIRS)
    return ((fours & np.uint64(0xFFFFFFFF)) << np.uint64(16)) | (fours >> np.uint64(32))


@_compiled
def _hexadecimal(data: Any, at: Any) -> Any:
    """A number as %lx prints it (no leading zeros) and where it ends; end -1 where not so."""
    word = _eight(data, at)
    digits = _hex_digits(word)
    none = np.int64(-1)
    if digits == 0 or (_byte(data, at) == 48 and digits > 1):
        return np.uint64(0), none
    value = _hex_value(word, digits)
    if digits < 8:
        return value, at + digits
    word = _eight(data, at + 8)
    digits = _hex_digits(word)
    if digits == 0:
        return value, at + 8
    if digits == 8:
        return value, none
    return (value << np.uint64(4 * digits)) | _hex_value(word, digits), at + 8 + digits


@_compiled
def _pointer(data: Any, at: Any) -> Any:
    """Where a pointer ends, 0x and hexadecimal digits or (nil); -1 where there is none."""
    if _byte(data, at) == 48 and _byte(data, at + 1) == 120:
        end = at + 2
        while True:
            digits = _hex_digits(_eight(data, end))
            end += digits
            if digits < 8:
                return end if end > at + 2 else np.int64(-1)
    return at + 5 if _nil(data, at) else np.int64(-1)


@_compiled
def four_hash(word: Any) -> Any:
    """A place below HASHES for the first four of eight bytes."""
    return ((word & _FIRST_FOUR) * _PRIME) >> np.uint64(52)


@_compiled
def _is(data: Any, at: Any, words: Any, row: Any, lengths: Any) -> Any:
    """Whether word ``row`` stands at ``at``."""
    for i in range(lengths[row]):
        if _byte(data, at + i) != words[row, i]:
            return False
    return True


@_compiled
def _days(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01 of the Gregorian calendar."""
    y = year - 1 if month <= 2 else year
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@_compiled
def _stamp(data: Any, at: Any, end: Any, found: Any) -> Any:
    """Read a date and time at ``at``: length, 0 where there is none, -1 where it is a strange one.

    ``found[3:6]`` take seconds since 1970 (UTC where zoned, else local), nanoseconds, NO_STAMP..LOCAL.
    """
    if at + 19 > end or _byte(data, at + 4) != 45 or _byte(data, at + 7) != 45:
        return 0
    century, year = _two(data, at), _two(data, at + 2)
    month, day = _two(data, at + 5), _two(data, at + 8)
    hour, minute, second = _two(data, at + 11), _two(data, at + 14), _two(data, at + 17)
    if min(century, year, month, day, hour, minute, second) < 0:
        return 0
    if (_byte(data, at + 10) != 32 and _byte(data, at + 10) != 84) or _byte(data, at + 13) != 58 or _byte(data, at + 16) != 58:
        return 0
    year += century * 100
    longest = 31
    if month in (4, 6, 9, 11):
        longest = 30
    elif month == 2:
        longest = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if not 1980 <= year < 2200 or not 1 <= month <= 12 or not 1 <= day <= longest:
        return -1
    if hour > 23 or minute > 59 or second > 59:
        return -1
    nanos = np.int64(0)
    i = at + 19
    if i + 1 < end and (_byte(data, i) == 46 or _byte(data, i) == 44) and _digit(_byte(data, i + 1)):
        i += 1
        digits = 0
        while i < end and _digit(_byte(data, i)):
            nanos = nanos * 10 + np.int64(_byte(data, i) - 48)
            i += 1
            digits += 1
            if digits > 9:
                return -1
        for _ in range(9 - digits):
            nanos *= 10
    seconds = _days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
    zoned = LOCAL
    if i < end and _byte(data, i) == 90:
        zoned = ZONED
        i += 1
    elif i + 5 <= end and (_byte(data, i) == 43 or _byte(data, i) == 45) and _two(data, i + 1) >= 0:
        minutes_at = i + 4 if _byte(data, i + 3) == 58 else i + 3
        if minutes_at + 2 <= end and _two(data, minutes_at) >= 0:
            hours, minutes = _two(data, i + 1), _two(data, minutes_at)
            if hours > 23 or minutes > 59:
                return -1
            east = hours * 3600 + minutes * 60
            seconds += east if _byte(data, i) == 45 else -east
            zoned = ZONED
            i = minutes_at + 2
    if i < end and (_digit(_byte(data, i)) or _byte(data, i) == 58 or _byte(data, i) == 46 or _byte(data, i) == 44):
        return -1
    found[3], found[4], found[5] = seconds, nanos, zoned
    return i - at


@_compiled
def _clock(data: Any, at: Any, end: Any) -> Any:
    """Length of a time of day without date at ``at``; 0 where there is none."""
    i = at
    while i < end and _digit(_byte(data, i)):
        i += 1
    if not 1 <= i - at <= 2 or i + 6 > end or _byte(data, i) != 58 or _byte(data, i + 3) != 58:
        return 0
    if _two(data, i + 1) < 0 or _two(data, i + 4) < 0:
        return 0
    i += 6
    if i + 1 < end and (_byte(data, i) == 46 or _byte(data, i) == 44) and _digit(_byte(data, i + 1)):
        i += 1
        while i < end and _digit(_byte(data, i)):
            i += 1
    if i < end and (_byte(data, i) == 58 or _byte(data, i) == 95 or _digit(_byte(data, i)) or _letter(_byte(data, i))):
        return 0
    return i - at


@_compiled
def _letter(byte: Any) -> Any:
    return 65 <= byte <= 90 or 97 <= byte <= 122


@_compiled
def _masked(data: Any, start: Any, head: Any, end: Any, zone: Any, key: Any, found: Any) -> Any:
    """Copy what tells a writer, ``start:end``, to ``key`` without the times before ``head``.

    Returns the length, -1 where the line is not plain. ``found`` takes seconds, nanoseconds and
    how the time is known.
    """
    found[2] = NO_STAMP
    if end - start > KEY_BYTES - 8:
        return -1
    length = 0
    i = start
    before = 0
    while i < head:
        byte = _byte(data, i)
        if byte < 32 or byte > 126:
            return -1
        if _digit(byte) and not _digit(before):
            size = _stamp(data, i, head, found)
            if size < 0:
                return -1
            if size > 0:
                if found[5] == ZONED or zone:
                    found[0], found[1], found[2] = found[3], found[4], found[5]
                elif found[2] == NO_STAMP:
                    found[2] = UNPLACED
                key[length] = 1
            elif not (_letter(before) or before == 95):
                size = _clock(data, i, head)
                key[length] = 2
            if size > 0:
                length += 1
                i += size
                before = _byte(data, i - 1)
                continue
        key[length] = byte
        length += 1
        before = byte
        i += 1
    key[length] = 0
    length += 1
    for j in range(head, end):
        key[length] = _byte(data, j)
        length += 1
    return length


@_compiled
def _place(hashed: Any, slots: Any) -> Any:
    mixed = (hashed ^ (hashed >> np.uint64(29))) * _PRIME
    return np.int64(mixed >> np.uint64(32)) & (slots.shape[0] - 1)


@_compiled
def _tail(word: Any, left: Any) -> Any:
    """The first ``left`` of eight bytes, 1 to 7; the others zero."""
    return word & (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * left))


@_compiled
def _known_key(data: Any, at: Any, length: Any, slots: Any, keys: Any, sizes: Any) -> Any:
    """Number of ``data[at : at + length]``, a new one where new; -1 where the table is full."""
    hashed = np.uint64(length)
    whole = length & ~7
    left = length & 7
    for i in range(0, whole, 8):
        hashed = (hashed ^ _eight(data, at + i)) * _PRIME
        hashed ^= hashed >> np.uint64(32)
    if left:
        hashed = (hashed ^ _tail(_eight(data, at + whole), left)) * _PRIME
    place = _place(hashed, slots)
    while slots[place] >= 0:
        row = slots[place]
        if sizes[1 + row] == length:
            base = row * KEY_BYTES
            same = left == 0 or (
                _tail(_eight(data, at + whole), left) == _eight(keys, base + whole)
            )
            for i in range(0, whole, 8):
                same = same and _eight(data, at + i) == _eight(keys, base + i)
            if same:
                return row
        place = (place + 1) & (slots.shape[0] - 1)
    row = sizes[0]
    if (row + 1) * KEY_BYTES > keys.shape[0]:
        return np.int64(-1)
    for i in range(length):
        keys[row * KEY_BYTES + i] = _byte(data, at + i)
    sizes[1 + row] = length
    sizes[0] = row + 1
    slots[place] = row
    return row


@_compiled
def _known_row(values: Any, weights: Any, slots: Any, rows: Any, size: Any) -> Any:
    """Number of a row of integers, a new one where it is new; -1 where the table is full."""
    hashed = np.uint64(0)
    for i in range(values.shape[0]):
        hashed += np.uint64(values[i] ^ (values[i] >> 31)) * weights[i]
    at = _place(hashed, slots)
    while slots[at] >= 0:
        row = slots[at]
        same = True
        for i in range(values.shape[0]):
            if rows[row, i] != values[i]:
                same = False
                break
        if same:
            return row
        at = (at + 1) & (slots.shape[0] - 1)
    row = size[0]
    if row >= rows.shape[0]:
        return np.int64(-1)
    for i in range(values.shape[0]):
        rows[row, i] = values[i]
    size[0] = row + 1
    slots[at] = row
    return row


@_compiled
def _prefix_start(data: Any, start: Any, mark: Any) -> Any:
    """Where ``host:pid:tid [device]`` before a mark starts and its tid ends; -1 where not so."""
    none = np.int64(-1)
    i = mark - 1
    if i <= start or _byte(data, i) != 93:
        return none, none
    i -= 1
    while i > start and _digit(_byte(data, i)):
        i -= 1
    if i == mark - 2:
        return none, none
    if _byte(data, i) == 45:
        i -= 1
    if i - 1 <= start or _byte(data, i) != 91 or _byte(data, i - 1) != 32:
        return none, none
    tid_end = i - 1
    i = tid_end
    for _ in range(2):
        number_end = i
        i -= 1
        while i > start and _digit(_byte(data, i)):
            i -= 1
        if not 1 <= number_end - i - 1 <= 10 or i <= start or _byte(data, i) != 58:
            return none, none
    first = none
    i -= 1
    while i >= start:
        byte = _byte(data, i)
        if _letter(byte) or _digit(byte):
            first = i
        elif byte != 95 and byte != 46 and byte != 45:
            break
        i -= 1
    return first, tid_end


@_compiled
def _same(word: Any, pattern: Any) -> Any:
    """The high bit of the first byte that is the pattern's, and maybe of some after it."""
    rest = word ^ pattern
    return (rest - _ONES) & ~rest & _HIGH


@_compiled
def _colon(data: Any, at: Any, call: Any) -> Any:
    """Where a name before a colon ends, its bytes in ``call[0:3]``; -1 where it is none.

    That it is a name such as AllReduce is looked at once, where its number is made.
    """
    call[0] = call[1] = call[2] = 0
    for word in range(3):
        eight = _eight(data, at + 8 * word)
        colons = _same(eight, _COLONS)
        if colons != 0:
            size = _trailing(colons) >> np.uint64(3)
            if size > 0:
                shift = np.uint64(64) - np.uint64(8) * size
                if (eight << shift) & (_LETTERS << shift) != _LETTERS << shift:
                    return np.int64(-1)
                call[word] = np.int64(eight << shift)
            return at + 8 * word + np.int64(size)
        if eight & _LETTERS != _LETTERS:
            return np.int64(-1)
        call[word] = np.int64(eight)
    return np.int64(-1)


@_compiled
def _line_end(data: Any, at: Any) -> Any:
    """Whether a line ends here."""
    return _byte(data, at) == 10 or (_byte(data, at) == 13 and _byte(data, at + 1) == 10)


@_compiled
def _collective(data: Any, i: Any, items: Any, made: Any, call: Any, use: Any) -> Any:
    """Read the rest of a COLL message after its name; -1 where it is not plain, else its end."""
    bad = np.int64(-1)
    op_count, i = _hexadecimal(data, i + 8)
    if i < 0 or not _sendbuff(data, i):
        return bad
    i = _pointer(data, i + 10)
    if i < 0 or not _recvbuff(data, i):
        return bad
    i = _pointer(data, i + 10)
    if i < 0:
        return bad
    if _acc(data, i):
        i = _pointer(data, i + 5)
        if i < 0:
            return bad
    if not _count(data, i):
        return bad
    count, i = _natural(data, i + 7, 18)
    if i < 0 or not _datatype(data, i):
        return bad
    call[3], i = _natural(data, i + 10, 9)
    if i < 0 or not _op(data, i):
        return bad
    call[4], i = _natural(data, i + 4, 9)
    if i < 0 or not _root(data, i):
        return bad
    i += 6
    minus = _byte(data, i) == 45
    if minus:
        i += 1
    root_at = i
    root, i = _natural(data, root_at, 9)
    if i < 0 or (_byte(data, root_at) == 48 and (minus or i > root_at + 1)) or not _comm(data, i):
        return bad
    call[5] = -root if minus else root
    comm, i = _hexadecimal(data, i + 8)
    if i < 0 or not _nranks(data, i):
        return bad
    ranks, i = _natural(data, i + 9, 9)
    if i < 0 or ranks == 0 or _byte(data, i) != 93:
        return bad
    call[6] = ranks
    use[3] = -1
    if _stream(data, i):
        i = _pointer(data, i + 9)
        if i < 0:
            return bad
    else:
        i += 1
    if _task(data, i):
        _, i = _natural(data, i + 6, 9)
        if i < 0 or not _global_rank(data, i):
            return bad
        use[3], i = _natural(data, i + 12, 9)
        if i < 0:
            return bad
    if not _line_end(data, i):
        return bad
    use[1], use[2] = np.int64(comm), ranks
    items[made, COUNT], items[made, OP_COUNT] = count, np.int64(op_count)
    return i


@_compiled
def _word(data: Any, at: Any, packed: Any, first: Any) -> Any:
    """Where a word of at most 14 letters, digits and _ ends, packed into two numbers; else -1."""
    packed[first] = packed[first + 1] = 0
    i = at
    while _letter(_byte(data, i)) or _digit(_byte(data, i)) or _byte(data, i) == 95:
        place = i - at
        if place >= 14:
            return np.int64(-1)
        packed[first + place // 7] |= np.int64(_byte(data, i)) << np.int64(8 * (place % 7))
        i += 1
    return i if i > at else np.int64(-1)


@_compiled
def _tuning(data: Any, i: Any, items: Any, made: Any, call: Any) -> Any:
    """Read the rest of a TUNING message after its name; -1 where it is not plain."""
    bad = np.int64(-1)
    items[made, COUNT], i = _natural(data, i, 18)
    if i < 0 or not _bytes(data, i):
        return bad
    i = _word(data, i + 15, call, 3)
    if i < 0 or not _proto(data, i):
        return bad
    i = _word(data, i + 7, call, 5)
    if i < 0 or (_byte(data, i) != 32 and not _line_end(data, i)):
        return bad
    return i


@_compiled
def _words(data: Any, i: Any, words: Any, lengths: Any, flags: Any, firsts: Any) -> Any:
    """Flags of the words between ``i`` and the end of the line, and that end.

    ``firsts`` says by a hash of four bytes whether some word begins so.
    """
    said = 0
    while True:
        eight = _eight(data, i)
        if eight & _FIRST == _LINE_END:
            return said, i
        if firsts[four_hash(eight)]:
            for row in range(lengths.shape[0]):
                if eight & _FIRST == np.uint64(words[row, 0]) and _is(data, i, words, row, lengths):
                    said |= flags[row]
        i += 1


@_compiled
def _find_mark(data: Any, at: Any) -> Any:
    """Where the first mark of this line stands, else its end."""
    i = at
    while True:
        word = _eight(data, i)
        hits = _same(word, _LINE_ENDS) | _same(word, _CAPITAL_NS)
        if hits == 0:
            i += 8
            continue
        i += np.int64(_trailing(hits) >> np.uint64(3))
        if _byte(data, i) == 10:
            return i
        if i > at and _mark(data, i - 1):
            return i - 1
        i += 1


@_compiled
def scan(
    data: Any, at: Any, end: Any, number: Any, zone: Any, heads: Any, uses: Any, calls: Any,
    lexicon: Any, longest: Any, items: Any,
) -> Any:  # fmt: skip
    """Find the items of the lines in ``_byte(data, at:end)``, which ends with a line end.

    Returns how many, and where and before which line the scan stopped: ``items`` may be full.
    """
    weights, head_slots, head_keys, head_sizes = heads
    use_slots, use_rows, use_size = uses
    call_slots, call_rows, call_size = calls
    words, lengths, flags, firsts = lexicon
    key = np.zeros(KEY_BYTES, np.uint8)
    found = np.zeros(6, np.int64)
    use = np.zeros(4, np.int64)
    call = np.zeros(8, np.int64)
    made = 0
    while at < end and made < items.shape[0]:
        start = at
        i = _find_mark(data, start)
        items[made, START], items[made, NUMBER] = start, number
        number += 1
        plain = np.int64(-1)
        if _byte(data, i) != 10:
            body = i + 11
            name_end = _colon(data, body, call)
            head = np.int64(-1)
            if name_end > body and _byte(data, name_end + 1) == 32:
                head, tid_end = _prefix_start(data, start, i)
            if head >= 0:
                if _op_count(data, name_end + 2):
                    call[7] = 0
                    plain = _collective(data, name_end + 2, items, made, call, use)
                    items[made, KIND] = COLL
                elif _digit(_byte(data, name_end + 2)):
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
                        items[made, PREFIX] = _known_key(
                            data, head, length, head_slots, head_keys, head_sizes
                        )
                else:
                    length = _masked(data, start, head, tid_end, zone, key, found)
                    if length > 0:
                        items[made, PREFIX] = _known_key(
                            key, 0, length, head_slots, head_keys, head_sizes
                        )
                items[made, CALL] = _known_row(call, weights, call_slots, call_rows, call_size)
                items[made, USE] = 0
                if items[made, KIND] == COLL:
                    use[0] = items[made, PREFIX]
                    items[made, USE] = -1
                    if items[made, PREFIX] >= 0:
                        items[made, USE] = _known_row(use, weights, use_slots, use_rows, use_size)
                if items[made, PREFIX] < 0 or items[made, CALL] < 0 or items[made, USE] < 0:
                    plain = np.int64(-1)
        if plain > 0:
            items[made, SECONDS], items[made, NANOS], items[made, STAMPS] = found[0], found[1], found[2]
            at = plain + 1 if _byte(data, plain) == 10 else plain + 2
            items[made, END] = at
            made += 1
            continue
        said, stop = _words(data, start, words, lengths, flags, firsts)
        at = stop + 1
        if said & (INTEREST | TRIGGER) or at - start > longest:
            items[made, KIND], items[made, END], items[made, FLAGS] = OTHER, at, said
            made += 1
    return made, at, number


@_compiled
def settle(
    items: Any, at: Any, made: Any, longest: Any, threads: Any, slots: Any, versions: Any, counters: Any,
    kinds: Any, factors: Any, ops: Any, held: Any, released: Any, rows: Any, filled: Any,
) -> Any:  # fmt: skip
    """Number operations and give TUNING to them, from item ``at`` on; stop where help is needed.

    ``rows`` takes per row: item, version, seq, size, tuning call. Returns the item stopped at,
    how many rows are filled, and how many threads in ``released`` hold another row now.
    """
    let_go = 0
    while at < made:
        item = items[at]
        if item[KIND] == OTHER:
            if item[FLAGS] & INTEREST == 0 and item[END] - item[START] <= longest:
                at += 1
                continue
            break
        thread = threads[item[PREFIX]]
        call = item[CALL]
        if thread < 0 or kinds[call] < 0:
            break
        if item[KIND] == TUNING:
            row = held[thread]
            if row == ELSEWHERE:
                break
            if row >= 0:
                operation = rows[row]
                if ops[items[operation[0], CALL]] == ops[call] and operation[3] == item[COUNT]:
                    operation[4] = call
                    held[thread] = NONE
            at += 1
            continue
        slot = slots[item[USE]]
        if slot < 0:
            break
        row = rows[filled]
        row[0], row[1], row[4] = at, versions[item[USE]], -1
        row[2] = -1
        if kinds[call] == 1 and counters[slot] >= 0:
            row[2] = counters[slot]
            counters[slot] += 1
        row[3] = -1
        if factors[call] >= 0 and (
            factors[call] == 0 or item[COUNT] <= np.int64(0x7FFFFFFFFFFFFFFF) // factors[call]
        ):
            row[3] = item[COUNT] * factors[call]
        if held[thread] == ELSEWHERE:
            released[let_go] = thread
            let_go += 1
        held[thread] = filled
        filled += 1
        at += 1
    return at, filled, let_go


@_compiled
def write_extras(
    users: Any, op_counts: Any, calls: Any, call_parts: Any, user_parts: Any,
    keys: Any, values: Any, key_ends: Any, value_ends: Any, map_ends: Any,
) -> Any:  # fmt: skip
    """Write the map ``extra`` of each row in Arrow's layout; with no room, only add up sizes.

    A part is (bytes of keys, ends of keys, bytes of values, ends of values, first entry).
    """
    first = (111, 112, 95, 99, 111, 117, 110, 116)  # op_count
    hexits = (48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 97, 98, 99, 100, 101, 102)
    key_at = value_at = entry = 0
    write = keys.shape[0] > 0
    for r in range(users.shape[0]):
        number = np.uint64(op_counts[r])
        digits = 1
        while number >> np.uint64(4 * digits) != 0 and digits < 16:
            digits += 1
        if write:
            for i in range(8):
                keys[key_at + i] = first[i]
            for i in range(digits):
                nibble = (number >> np.uint64(4 * (digits - 1 - i))) & np.uint64(15)
                values[value_at + i] = hexits[np.int64(nibble)]
        key_at += 8
        value_at += digits
        if write:
            key_ends[entry], value_ends[entry] = key_at, value_at
        entry += 1
        for part, which in ((call_parts, calls[r]), (user_parts, users[r])):
            part_keys, part_key_ends, part_values, part_value_ends, part_first = part
            low, high = part_first[which], part_first[which + 1]
            from_key = part_key_ends[low - 1] if low > 0 else 0
            from_value = part_value_ends[low - 1] if low > 0 else 0
            if high > low:
                to_key, to_value = part_key_ends[high - 1], part_value_ends[high - 1]
                if write:
                    for i in range(to_key - from_key):
                        keys[key_at + i] = part_keys[from_key + i]
                    for i in range(to_value - from_value):
                        values[value_at + i] = part_values[from_value + i]
                    for e in range(high - low):
                        key_ends[entry + e] = key_at + part_key_ends[low + e] - from_key
                        value_ends[entry + e] = value_at + part_value_ends[low + e] - from_value
                key_at += to_key - from_key
                value_at += to_value - from_value
                entry += high - low
        if write:
            map_ends[r] = entry
    return key_at, value_at, entry
