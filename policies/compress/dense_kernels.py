"""The CPU kernel of what travels as bf16. Importing this module needs numba; see `kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .kernel_tools import compiled, float_of, pointer, routine

_TILE = 4096  # elements that are summed in the cache before the next
_ZERO = np.float32(0.0)


@routine
def _add(source: Any, count: int, total: Any) -> None:
    """Add bf16 values, whose bits are the upper half of an fp32's."""
    for i in range(count):
        total[i] += float_of(np.int32(np.int32(source[i]) << np.int32(16)))


@compiled
def sum_bf16(messages: Any, stride: int, start: int, factor: Any, out: Any) -> None:
    """Sum over the messages, in their order, times ``factor``.

    ``messages`` are int16, of ``stride`` each, with bf16 values from ``start`` on; ``factor`` and
    ``out`` (values,) are fp32.
    """
    total = np.empty(_TILE, np.float32)
    for first in range(0, out.shape[0], _TILE):
        count = min(_TILE, out.shape[0] - first)
        total[:] = _ZERO
        for rank in range(messages.shape[0] // stride):
            source = pointer(messages, rank * stride + start + first)
            _add(source, count, pointer(total, 0))
        for i in range(count):
            out[first + i] = total[i] * factor
