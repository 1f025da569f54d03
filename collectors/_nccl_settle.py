"""Numbers the operations of an NCCL log and writes their column ``extra``, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from xtune.collectors._nccl_kernels import (
    CALL,
    COUNT,
    ELSEWHERE,
    END,
    FLAGS,
    INTEREST,
    KIND,
    NONE,
    OP_COUNT,
    OTHER,
    PREFIX,
    START,
    TUNING,
    USE,
)
from xtune.collectors._nccl_machine import (
    compiled,
    inlined,
    leading_zeros,
    load_eight,
    store_eight,
)

#: Columns of rows: the item; numbers of user, call and tuning call; count of operations.
ITEM, USER, ROW_CALL, CHOICE, SEQ, SIZE, ROW_OP_COUNT = range(7)
ROW_COLUMNS = 7

_OP_COUNT = np.uint64(int.from_bytes(b"op_count", "little"))


@compiled
def settle(
    items: Any, at: Any, made: Any, longest: Any, threads: Any, slots: Any, versions: Any,
    counters: Any, kinds: Any, factors: Any, ops: Any, held: Any, released: Any, rows: Any,
    filled: Any,
) -> Any:  # fmt: skip
    """Number operations and give TUNING to them, from item ``at`` on; stop where help is needed.

    ``rows`` takes the columns above. Returns the item stopped at,
    how many rows are filled, and how many threads in ``released`` hold another row now.
    """
    let_go = 0
    while at < made:
        if items[at, KIND] == OTHER:
            if items[at, FLAGS] & INTEREST == 0 and items[at, END] - items[at, START] <= longest:
                at += 1
                continue
            break
        thread = threads[items[at, PREFIX]]
        call = items[at, CALL]
        if thread < 0 or kinds[call] < 0:
            break
        if items[at, KIND] == TUNING:
            row = held[thread]
            if row == ELSEWHERE:
                break
            if row >= 0:
                same = rows[SIZE, row] == items[at, COUNT]
                if same and ops[rows[ROW_CALL, row]] == ops[call]:
                    rows[CHOICE, row] = call
                    held[thread] = NONE
            at += 1
            continue
        slot = slots[items[at, USE]]
        if slot < 0:
            break
        rows[ITEM, filled], rows[USER, filled] = at, versions[items[at, USE]]
        rows[ROW_CALL, filled], rows[ROW_OP_COUNT, filled] = call, items[at, OP_COUNT]
        rows[SEQ, filled] = rows[SIZE, filled] = rows[CHOICE, filled] = -1
        if kinds[call] == 1 and counters[slot] >= 0:
            rows[SEQ, filled] = counters[slot]
            counters[slot] += 1
        if factors[call] >= 0 and (
            factors[call] == 0 or items[at, COUNT] <= np.int64(0x7FFFFFFFFFFFFFFF) // factors[call]
        ):
            rows[SIZE, filled] = items[at, COUNT] * factors[call]
        if held[thread] == ELSEWHERE:
            released[let_go] = thread
            let_go += 1
        held[thread] = filled
        filled += 1
        at += 1
    return at, filled, let_go


@inlined
def _copy(source: Any, first: Any, size: Any, target: Any, at: Any) -> Any:
    """Copy bytes, and up to seven more: what comes after is written later."""
    for i in range(0, size, 8):
        store_eight(target, at + i, load_eight(source, first + i))


@inlined
def _copy_ends(ends: Any, low: Any, high: Any, shift: Any, target: Any, entry: Any) -> Any:
    """Ends of the entries of a part, moved to where its bytes are now."""
    for e in range(high - low):
        target[entry + e] = ends[low + 1 + e] + shift


@compiled
def write_extras(
    users: Any, op_counts: Any, calls: Any, call_parts: Any, user_parts: Any,
    keys: Any, values: Any, key_ends: Any, value_ends: Any, map_ends: Any,
) -> Any:  # fmt: skip
    """Write the map ``extra`` of each row in Arrow's layout.

    A part is (bytes of keys, ends of keys, bytes of values, ends of values, first entry), where
    ends begin with 0. Returns how many entries there are.
    """
    # Taken apart once: to count references to arrays costs more than to copy a row.
    call_keys, call_key_ends, call_values, call_value_ends, call_first = call_parts
    user_keys, user_key_ends, user_values, user_value_ends, user_first = user_parts
    hexits = (48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 97, 98, 99, 100, 101, 102)
    key_at = value_at = entry = np.int64(0)
    for r in range(users.shape[0]):
        store_eight(keys, key_at, _OP_COUNT)
        key_at += 8
        number = np.uint64(op_counts[r])
        digits = np.int64(16) - np.int64(leading_zeros(number | np.uint64(1)) >> np.uint64(2))
        for i in range(digits):
            nibble = (number >> np.uint64(4 * (digits - 1 - i))) & np.uint64(15)
            store_eight(values, value_at + i, np.uint64(hexits[np.int64(nibble)]))
        value_at += digits
        key_ends[entry], value_ends[entry] = key_at, value_at
        entry += 1

        low, high = call_first[calls[r]], call_first[calls[r] + 1]
        from_key, from_value = call_key_ends[low], call_value_ends[low]
        key_size, value_size = call_key_ends[high] - from_key, call_value_ends[high] - from_value
        _copy(call_keys, from_key, key_size, keys, key_at)
        _copy(call_values, from_value, value_size, values, value_at)
        _copy_ends(call_key_ends, low, high, key_at - from_key, key_ends, entry)
        _copy_ends(call_value_ends, low, high, value_at - from_value, value_ends, entry)
        key_at, value_at, entry = key_at + key_size, value_at + value_size, entry + high - low

        low, high = user_first[users[r]], user_first[users[r] + 1]
        from_key, from_value = user_key_ends[low], user_value_ends[low]
        key_size, value_size = user_key_ends[high] - from_key, user_value_ends[high] - from_value
        _copy(user_keys, from_key, key_size, keys, key_at)
        _copy(user_values, from_value, value_size, values, value_at)
        _copy_ends(user_key_ends, low, high, key_at - from_key, key_ends, entry)
        _copy_ends(user_value_ends, low, high, value_at - from_value, value_ends, entry)
        key_at, value_at, entry = key_at + key_size, value_at + value_size, entry + high - low
        map_ends[r] = entry
    return entry
