"""What stands before a message of NCCL in its line, compiled: who writes, and when.

Gives what the patterns of :mod:`._nccl_lines` and :mod:`._stamps` find, or says that they have to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xtune.collectors._nccl_machine import (
    PRIME,
    compiled,
    first_bytes,
    is_digit,
    is_letter,
    load_byte,
    load_eight,
    slot_of,
    two_digits,
)

# How the time of a line is known.
NO_STAMP, ZONED, LOCAL, UNPLACED = 0, 1, 2, 3
KEY_BYTES = 320


@compiled
def _days(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01 of the Gregorian calendar."""
    y = year - 1 if month <= 2 else year
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@compiled
def _stamp(data: Any, at: Any, end: Any, found: Any) -> Any:
    """Read a date and time at ``at``: length, 0 where there is none, -1 where it is a strange one.

    ``found[3:6]`` take seconds since 1970 (UTC where zoned, else local), nanoseconds, and which.
    """
    if at + 19 > end or load_byte(data, at + 4) != 45 or load_byte(data, at + 7) != 45:
        return 0
    century, year = two_digits(data, at), two_digits(data, at + 2)
    month, day = two_digits(data, at + 5), two_digits(data, at + 8)
    hour, minute, second = (
        two_digits(data, at + 11),
        two_digits(data, at + 14),
        two_digits(data, at + 17),
    )
    if min(century, year, month, day, hour, minute, second) < 0:
        return 0
    if (
        (load_byte(data, at + 10) != 32 and load_byte(data, at + 10) != 84)
        or load_byte(data, at + 13) != 58
        or load_byte(data, at + 16) != 58
    ):
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
    if (
        i + 1 < end
        and (load_byte(data, i) == 46 or load_byte(data, i) == 44)
        and is_digit(load_byte(data, i + 1))
    ):
        i += 1
        digits = 0
        while i < end and is_digit(load_byte(data, i)):
            nanos = nanos * 10 + np.int64(load_byte(data, i) - 48)
            i += 1
            digits += 1
            if digits > 9:
                return -1
        for _ in range(9 - digits):
            nanos *= 10
    seconds = _days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
    zoned = LOCAL
    if i < end and load_byte(data, i) == 90:
        zoned = ZONED
        i += 1
    elif (
        i + 5 <= end
        and (load_byte(data, i) == 43 or load_byte(data, i) == 45)
        and two_digits(data, i + 1) >= 0
    ):
        minutes_at = i + 4 if load_byte(data, i + 3) == 58 else i + 3
        if minutes_at + 2 <= end and two_digits(data, minutes_at) >= 0:
            hours, minutes = two_digits(data, i + 1), two_digits(data, minutes_at)
            if hours > 23 or minutes > 59:
                return -1
            east = hours * 3600 + minutes * 60
            seconds += east if load_byte(data, i) == 45 else -east
            zoned = ZONED
            i = minutes_at + 2
    if i < end and (
        is_digit(load_byte(data, i))
        or load_byte(data, i) == 58
        or load_byte(data, i) == 46
        or load_byte(data, i) == 44
    ):
        return -1
    found[3], found[4], found[5] = seconds, nanos, zoned
    return i - at


@compiled
def _clock(data: Any, at: Any, end: Any) -> Any:
    """Length of a time of day without date at ``at``; 0 where there is none."""
    i = at
    while i < end and is_digit(load_byte(data, i)):
        i += 1
    if (
        not 1 <= i - at <= 2
        or i + 6 > end
        or load_byte(data, i) != 58
        or load_byte(data, i + 3) != 58
    ):
        return 0
    if two_digits(data, i + 1) < 0 or two_digits(data, i + 4) < 0:
        return 0
    i += 6
    if (
        i + 1 < end
        and (load_byte(data, i) == 46 or load_byte(data, i) == 44)
        and is_digit(load_byte(data, i + 1))
    ):
        i += 1
        while i < end and is_digit(load_byte(data, i)):
            i += 1
    if i < end and (
        load_byte(data, i) == 58
        or load_byte(data, i) == 95
        or is_digit(load_byte(data, i))
        or is_letter(load_byte(data, i))
    ):
        return 0
    return i - at


@compiled
def mask_head(data: Any, start: Any, head: Any, end: Any, zone: Any, key: Any, found: Any) -> Any:
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
        byte = load_byte(data, i)
        if byte < 32 or byte > 126:
            return -1
        if is_digit(byte) and not is_digit(before):
            size = _stamp(data, i, head, found)
            if size < 0:
                return -1
            if size > 0:
                if found[5] == ZONED or zone:
                    found[0], found[1], found[2] = found[3], found[4], found[5]
                elif found[2] == NO_STAMP:
                    found[2] = UNPLACED
                key[length] = 1
            elif not (is_letter(before) or before == 95):
                size = _clock(data, i, head)
                key[length] = 2
            if size > 0:
                length += 1
                i += size
                before = load_byte(data, i - 1)
                continue
        key[length] = byte
        length += 1
        before = byte
        i += 1
    key[length] = 0
    length += 1
    for j in range(head, end):
        key[length] = load_byte(data, j)
        length += 1
    return length


@compiled
def number_of_key(
    data: Any, at: Any, length: Any, slots: Any, keys: Any, keys_at: Any, sizes: Any
) -> Any:
    """Number of ``data[at : at + length]``, a new one where new; -1 where the table is full."""
    hashed = np.uint64(length)
    whole = length & ~7
    left = length & 7
    for i in range(0, whole, 8):
        hashed = (hashed ^ load_eight(data, at + i)) * PRIME
        hashed ^= hashed >> np.uint64(32)
    if left:
        hashed = (hashed ^ first_bytes(load_eight(data, at + whole), left)) * PRIME
    place = slot_of(hashed, slots)
    while slots[place] >= 0:
        row = slots[place]
        if sizes[1 + row] == length:
            base = row * KEY_BYTES
            same = left == 0 or (
                first_bytes(load_eight(data, at + whole), left)
                == load_eight(keys_at, base + whole)
            )
            for i in range(0, whole, 8):
                same = same and load_eight(data, at + i) == load_eight(keys_at, base + i)
            if same:
                return row
        place = (place + 1) & (slots.shape[0] - 1)
    row = sizes[0]
    if (row + 1) * KEY_BYTES > keys.shape[0]:
        return np.int64(-1)
    for i in range(length):
        keys[row * KEY_BYTES + i] = load_byte(data, at + i)
    sizes[1 + row] = length
    sizes[0] = row + 1
    slots[place] = row
    return row


@compiled
def prefix_start(data: Any, start: Any, mark: Any) -> Any:
    """Where ``host:pid:tid [device]`` before a mark starts and its tid ends; -1 where not so."""
    none = np.int64(-1)
    i = mark - 1
    if i <= start or load_byte(data, i) != 93:
        return none, none
    i -= 1
    while i > start and is_digit(load_byte(data, i)):
        i -= 1
    if i == mark - 2:
        return none, none
    if load_byte(data, i) == 45:
        i -= 1
    if i - 1 <= start or load_byte(data, i) != 91 or load_byte(data, i - 1) != 32:
        return none, none
    tid_end = i - 1
    i = tid_end
    for _ in range(2):
        number_end = i
        i -= 1
        while i > start and is_digit(load_byte(data, i)):
            i -= 1
        if not 1 <= number_end - i - 1 <= 10 or i <= start or load_byte(data, i) != 58:
            return none, none
    first = none
    i -= 1
    while i >= start:
        byte = load_byte(data, i)
        if is_letter(byte) or is_digit(byte):
            first = i
        elif byte != 95 and byte != 46 and byte != 45:
            break
        i -= 1
    return first, tid_end
