"""Loops over bytes, compiled: what reads a number, a pointer or a word at a place in memory.

Importing this module needs numba. Places are an address and an offset, unchecked: whoever calls
has made sure that MARGIN bytes beyond the end may be looked at. Eight bytes at a time where that
is much faster (measured: a message takes 0.2 us in place of 0.5). What is compiled is kept on
disk, and made anew where the file of the function itself is newer, not where one that it calls is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

PRIME = np.uint64(0x9E3779B97F4A7C15)
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
LINE_ENDS = np.uint64(0x0A0A0A0A0A0A0A0A)
CAPITAL_NS = np.uint64(0x4E4E4E4E4E4E4E4E)
FIRST = np.uint64(0xFF)
FIRST_FOUR = np.uint64(0xFFFFFFFF)
LINE_END = np.uint64(10)
LETTERS = np.uint64(0x4040404040404040)  # letters have this bit, line ends and blanks do not
COLONS = np.uint64(0x3A3A3A3A3A3A3A3A)


def _generated(function: Callable[..., Any]) -> Any:
    """A function whose instructions the given one writes."""
    return intrinsic(function)


def _loader(bits: int) -> Any:
    """A function that loads ``bits`` from an address and an offset, without checks."""

    def load(typing: Any, data: Any, at: Any) -> Any:
        result = numba.uint8 if bits == 8 else numba.uint64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits).as_pointer()
            loaded = builder.load(builder.inttoptr(builder.add(*arguments), kind))
            loaded.align = 1
            return loaded

        return result(numba.int64, numba.int64), generate

    return _generated(load)


@_generated
def store_eight(typing: Any, data: Any, at: Any, word: Any) -> Any:
    """Store eight bytes at an address and an offset, without checks."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(64).as_pointer()
        place = builder.inttoptr(builder.add(arguments[0], arguments[1]), kind)
        store = builder.store(arguments[2], place)
        store.align = 1
        return context.get_dummy_value()

    return numba.void(numba.int64, numba.int64, numba.uint64), generate


@_generated
def leading_zeros(typing: Any, word: Any) -> Any:
    """Zero bits at the high end of a word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return numba.uint64(numba.uint64), generate


@_generated
def trailing_zeros(typing: Any, word: Any) -> Any:
    """Zero bits at the low end of a word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return numba.uint64(numba.uint64), generate


def inlined(function: Callable[..., Any]) -> Any:
    """A part of the loops: a call would cost more than what it does."""
    return numba.njit(function, nogil=True, error_model="numpy", inline="always")


load_byte = _loader(8)
load_eight = _loader(64)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call; kept on disk where the folder or the user's cache is writable."""
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # no place for a cache: compile in every process
        return numba.njit(function, nogil=True, error_model="numpy")


def literal(text: str) -> Any:
    """A function that tells whether ``text`` stands at a place; eight bytes at a time."""
    raw = text.encode()
    places = [0] if len(raw) < 8 else sorted({*range(0, len(raw) - 7, 8), len(raw) - 8})
    offsets = tuple(places)
    wanted = tuple(int.from_bytes(raw[at : at + 8], "little") for at in places)
    mask = np.uint64(2 ** (8 * min(8, len(raw))) - 1)

    def matches(data: Any, at: Any) -> Any:
        for i in range(len(offsets)):
            if load_eight(data, at + offsets[i]) & mask != np.uint64(wanted[i]):
                return False
        return True

    return inlined(matches)


_nil = literal("(nil)")


@inlined
def is_digit(byte: Any) -> Any:
    return 48 <= byte <= 57


@compiled
def two_digits(data: Any, at: Any) -> Any:
    """Two digits as a number, -1 where they are none."""
    if is_digit(load_byte(data, at)) and is_digit(load_byte(data, at + 1)):
        return np.int64(load_byte(data, at) - 48) * 10 + np.int64(load_byte(data, at + 1) - 48)
    return np.int64(-1)


@inlined
def natural(data: Any, at: Any, most: Any) -> Any:
    """A decimal number of at most ``most`` digits and its end, which is -1 where there is none."""
    word = load_eight(data, at)
    other = (((word & _LOW7) ^ _ZEROS) + _PAST_NINE | word) & _HIGH
    digits = np.int64(trailing_zeros(other) >> np.uint64(3)) if other != 0 else np.int64(8)
    if digits == 0:
        return np.int64(0), np.int64(-1)
    word = (word << np.uint64(64 - 8 * digits)) & _NIBBLES
    word = (word * np.uint64(2561)) >> np.uint64(8)  # 10 * 2^8 + 1: pairs of digits
    word = ((word & _EVEN_BYTES) * np.uint64(6553601)) >> np.uint64(16)  # 100 * 2^16 + 1
    value = np.int64(((word & _EVEN_PAIRS) * np.uint64(42949672960001)) >> np.uint64(32))
    end = at + digits
    if digits == 8:
        while is_digit(load_byte(data, end)):
            value = value * 10 + np.int64(load_byte(data, end) - 48)
            end += 1
            if end - at > most:
                return value, np.int64(-1)
    return value, end if digits <= most else np.int64(-1)


@inlined
def _hex_digits(word: Any) -> Any:
    """How many of the first of eight bytes are digits of a hexadecimal number in lower case."""
    low = word & _LOW7
    digit = ~((low ^ _ZEROS) + _PAST_NINE)
    letter = low ^ _GRAVES
    hexadecimal = (digit | ((letter + _LOW7) & ~(letter + _PAST_SIX))) & ~word & _HIGH
    return np.int64(trailing_zeros(hexadecimal ^ _HIGH) >> np.uint64(3))


@inlined
def _hex_value(word: Any, digits: Any) -> Any:
    """The number that the first ``digits`` of eight bytes say: 1 to 8 hexadecimal digits."""
    word = word << np.uint64(64 - 8 * digits)
    nibbles = (word & _NIBBLES) + np.uint64(9) * ((word >> np.uint64(6)) & _ONES)
    pairs = ((nibbles & _EVEN_BYTES) << np.uint64(4)) | ((nibbles >> np.uint64(8)) & _EVEN_BYTES)
    fours = ((pairs & _EVEN_PAIRS) << np.uint64(8)) | ((pairs >> np.uint64(16)) & _EVEN_PAIRS)
    return ((fours & np.uint64(0xFFFFFFFF)) << np.uint64(16)) | (fours >> np.uint64(32))


@inlined
def hexadecimal(data: Any, at: Any) -> Any:
    """A number as %lx prints it (no leading zeros) and where it ends; end -1 where not so."""
    word = load_eight(data, at)
    digits = _hex_digits(word)
    none = np.int64(-1)
    if digits == 0 or (load_byte(data, at) == 48 and digits > 1):
        return np.uint64(0), none
    value = _hex_value(word, digits)
    if digits < 8:
        return value, at + digits
    word = load_eight(data, at + 8)
    digits = _hex_digits(word)
    if digits == 0:
        return value, at + 8
    if digits == 8:
        return value, none
    return (value << np.uint64(4 * digits)) | _hex_value(word, digits), at + 8 + digits


@inlined
def pointer(data: Any, at: Any) -> Any:
    """Where a pointer ends, 0x and hexadecimal digits or (nil); -1 where there is none."""
    if load_byte(data, at) == 48 and load_byte(data, at + 1) == 120:
        end = at + 2
        while True:
            digits = _hex_digits(load_eight(data, end))
            end += digits
            if digits < 8:
                return end if end > at + 2 else np.int64(-1)
    return at + 5 if _nil(data, at) else np.int64(-1)


@inlined
def is_letter(byte: Any) -> Any:
    return 65 <= byte <= 90 or 97 <= byte <= 122


@inlined
def high_bits(word: Any, pattern: Any) -> Any:
    """The high bit of the first byte that is the pattern's, and maybe of some after it."""
    rest = word ^ pattern
    return (rest - _ONES) & ~rest & _HIGH


@inlined
def at_line_end(data: Any, at: Any) -> Any:
    """Whether a line ends here."""
    byte = load_byte(data, at)
    return byte == 10 or (byte == 13 and load_byte(data, at + 1) == 10)


@inlined
def slot_of(hashed: Any, slots: Any) -> Any:
    mixed = (hashed ^ (hashed >> np.uint64(29))) * PRIME
    return np.int64(mixed >> np.uint64(32)) & (slots.shape[0] - 1)


@inlined
def first_bytes(word: Any, left: Any) -> Any:
    """The first ``left`` of eight bytes, 1 to 7; the others zero."""
    return word & (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * left))
