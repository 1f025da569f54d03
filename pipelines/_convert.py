"""The macros ``counter``, ``octets``, ``together`` and ``present`` of the models, compiled.

They read whole columns of a file of counters; ``tests/pipelines/test_kernel.py`` holds them
against the macros. Out come -1 for a counter that is not known and -2 for one that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pyarrow as pa

_SENTINEL = np.uint64(1 << 60)
_STUCK = np.uint64(2**32 - 1)
_NEVER = np.uint64(2**64 - 1)


@numba.njit(nogil=True, cache=True)
def _counter(values, stuck, unit, out):  # type: ignore[no-untyped-def]
    for i in range(values.shape[0]):
        value = values[i]
        if value >= _SENTINEL or value == stuck:
            out[i] = -1
        else:
            out[i] = np.int64(value) * unit


@numba.njit(nogil=True, cache=True)
def _add(part, bit, total, present):  # type: ignore[no-untyped-def]
    for i in range(part.shape[0]):
        value = part[i]
        if value != -2:
            present[i] |= bit
            total[i] = -1 if value < 0 or total[i] < 0 else total[i] + value


def counter(column: pa.Array, *, narrow: bool = False, unit: int = 1) -> Any:
    """One counter as read, times its unit.

    Args:
        column: uint64.
        narrow: Whether some sources keep it in 32 bits, where it sticks at the maximum.
        unit: What one stands for.
    """
    values = column.fill_null(0) if column.null_count else column
    out = np.empty(len(column), dtype=np.int64)
    _counter(values.to_numpy(), _STUCK if narrow else _NEVER, unit, out)
    if column.null_count:
        out[column.is_null().to_numpy(zero_copy_only=False)] = -2
    return out


def together(columns: Sequence[pa.Array | None]) -> tuple[Any, Any]:
    """Several counters as one, and which of them are there; None where no row has one."""
    [length] = {len(column) for column in columns if column is not None}
    total, present = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    for place, column in enumerate(columns):
        if column is not None:
            _add(counter(column), 1 << place, total, present)
    total[present == 0] = -2
    return total, present
