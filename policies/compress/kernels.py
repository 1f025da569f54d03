"""Fused CPU kernels: the arithmetic of :mod:`.quantise`, one pass over memory, without the GIL.

Importing this module needs numba. Bit for bit the results of the torch reference: rounding by the
magic number 1.5 * 2^23 is round-half-even for the range of the codes, products are exact, and no
fast-math flag is set. Magnitudes are compared as integers, which vectorises and finds NaN and
infinity for free. Indices into messages are unsigned so that no wrap-around test stands in the
way of vector code. One thread: the kernels run beside a busy backward pass, and a barrier of
threads stalls where cores are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from .quantise import MAGNITUDE_MASK, TINY

_MAGIC = np.float32(12582912.0)  # 1.5 * 2^23
_TINY = np.float32(TINY)
_MASK = np.int32(MAGNITUDE_MASK)
_LOW16 = np.int32(0xFFFF)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call; kept on disk where the folder or the user's cache is writable."""
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # no place for a cache: compile in every process
        return numba.njit(function, nogil=True, error_model="numpy")


@_compiled
def _quantise_row(
    values: Any, keep: Any, residual: Any, bits: int, message: Any, code_at: int, scale_at: int,
    words: Any, codes: Any, scalar: Any,
) -> Any:  # fmt: skip
    """Quantise one block into a message; returns the bits of its largest magnitude.

    ``values`` and ``words`` are two views, fp32 and int32, of one scratch block. ``scalar`` is an
    int32 scratch of one element.
    """
    block = values.shape[0]
    largest = np.int32(0)
    for i in range(block):
        largest = max(largest, words[i] & _MASK)
    as_float = scalar.view(np.float32)
    scalar[0] = largest
    absmax = as_float[0]
    as_float[0] = absmax / np.float32((1 << (bits - 1)) - 1)
    scale_bits = (scalar[0] + _LOW16) >> np.int32(16)
    scalar[0] = scale_bits << np.int32(16)
    scale = as_float[0]
    inverse = _ZERO
    if absmax < _TINY:
        scale_bits = np.int32(0)
        scale = _ZERO
    else:
        inverse = _ONE / scale
    message[scale_at] = np.uint8(scale_bits & np.int32(255))
    message[scale_at + 1] = np.uint8(scale_bits >> np.int32(8))
    if keep:
        for i in range(block):
            shifted = values[i] * inverse + _MAGIC
            residual[i] = values[i] - (shifted - _MAGIC) * scale
            values[i] = shifted
    else:
        for i in range(block):
            values[i] = values[i] * inverse + _MAGIC
    # The low bits of the shifted float are q in two's complement.
    offset = np.int32(1 << (bits - 1))
    target = np.uint64(code_at)
    if bits == 8:
        for i in range(block):
            codes[i] = np.uint8(words[i] + offset)
        for i in range(np.uint64(block)):
            message[target + i] = codes[i]
        return largest
    if bits == 4:
        half = block // 2
        for i in range(half):
            low = (words[i] + offset) & np.int32(15)
            codes[i] = np.uint8(low | ((words[i + half] + offset) << np.int32(4)))
        for i in range(np.uint64(half)):
            message[target + i] = codes[i]
        return largest
    shift = 0
    for width in (4, 2, 1):
        if bits & width:
            length = block * width // 8
            mask = np.int32((1 << width) - 1)
            for i in range(length):
                packed = np.int32(0)
                for k in range(8 // width):
                    code = words[i + k * length] + offset
                    packed |= ((code >> np.int32(shift)) & mask) << np.int32(k * width)
                codes[i] = np.uint8(packed)
            for i in range(np.uint64(length)):
                message[target + i] = codes[i]
            target += np.uint64(length)
            shift += width
    return largest


@_compiled
def _read_row(message: Any, code_at: int, bits: int, codes: Any, levels: Any) -> None:
    """Codes of one block as fp32 levels ``q``."""
    block = levels.shape[0]
    source = np.uint64(code_at)
    offset = np.float32(1 << (bits - 1))
    if bits == 8:
        for i in range(np.uint64(block)):
            levels[i] = np.float32(message[source + i]) - offset
        return
    if bits == 4:
        half = block // 2
        for i in range(np.uint64(half)):
            codes[i] = message[source + i]
        for i in range(half):
            levels[i] = np.float32(codes[i] & np.uint8(15)) - offset
        for i in range(half):
            levels[i + half] = np.float32(codes[i] >> np.uint8(4)) - offset
        return
    for i in range(block):
        levels[i] = -offset
    shift = 0
    for width in (4, 2, 1):
        if bits & width:
            length = block * width // 8
            mask = np.int32((1 << width) - 1)
            for i in range(length):
                packed = np.int32(message[source + np.uint64(i)])
                for k in range(8 // width):
                    part = (packed >> np.int32(k * width)) & mask
                    levels[i + k * length] += np.float32(part << np.int32(shift))
            source += np.uint64(length)
            shift += width


@_compiled
def _read_scale(message: Any, at: int, scalar: Any) -> Any:
    """A bf16 scale as fp32."""
    high = np.int32(message[at + 1]) << np.int32(8)
    scalar[0] = (np.int32(message[at]) | high) << np.int32(16)
    return scalar.view(np.float32)[0]


@_compiled
def is_zero(values: Any) -> bool:
    """Whether all values are 0; stops at the first that is not."""
    for value in values:  # noqa: SIM110 - all() over a generator does not compile to a loop
        if value != _ZERO:
            return False
    return True


@_compiled
def encode(
    gradient: Any, carry: bool, residual: Any, gain: Any, keep: bool, fresh: Any, bits: int,
    block: int, message: Any, stride: int, base: int, world: int, code_offset: int,
    scale_offset: int, starts: Any,
) -> Any:  # fmt: skip
    """Residual, quantise, pack and place one layer; returns bits of the largest magnitude.

    ``gradient`` is fp32 (elements,); with ``carry``, ``gain * residual`` is added first; with
    ``keep``, what is rounded away goes to ``fresh``; both are fp32 (blocks * block,).
    """
    elements = gradient.shape[0]
    full = elements // block
    count = (elements + block - 1) // block
    values = np.empty(block, np.float32)
    words = values.view(np.int32)
    codes = np.empty(block, np.uint8)
    scalar = np.empty(1, np.int32)
    rows = gradient[: full * block].reshape((full, block))
    old = residual[: residual.shape[0] // block * block].reshape((-1, block))
    new = fresh[: fresh.shape[0] // block * block].reshape((-1, block))
    code_length = block * bits // 8
    worst = np.int32(0)
    for j in range(count):
        if j < full:
            if carry:
                for i in range(block):
                    values[i] = rows[j, i] + gain * old[j, i]
            else:
                for i in range(block):
                    values[i] = rows[j, i]
        else:
            rest = elements - full * block
            for i in range(rest):
                values[i] = gradient[full * block + i]
                if carry:
                    values[i] += gain * old[j, i]
            for i in range(rest, block):
                values[i] = _ZERO
        owner = (base + j) % world
        slot = starts[owner] + j // world
        code_at = owner * stride + code_offset + slot * code_length
        scale_at = owner * stride + scale_offset + slot * 2
        target = new[j] if keep else values
        largest = _quantise_row(
            values, keep, target, bits, message, code_at, scale_at, words, codes, scalar
        )
        worst = max(worst, largest)
    return worst


@_compiled
def encode_zero(
    bits: int, block: int, count: int, message: Any, stride: int, base: int, world: int,
    code_offset: int, scale_offset: int, starts: Any,
) -> None:  # fmt: skip
    """Place ``count`` empty blocks, so that a held layer's message has defined bytes."""
    values = np.zeros(block, np.float32)
    words = values.view(np.int32)
    codes = np.empty(block, np.uint8)
    scalar = np.empty(1, np.int32)
    code_length = block * bits // 8
    for j in range(count):
        owner = (base + j) % world
        slot = starts[owner] + j // world
        for i in range(block):
            values[i] = _ZERO
        code_at = owner * stride + code_offset + slot * code_length
        scale_at = owner * stride + scale_offset + slot * 2
        _quantise_row(
            values, False, values, bits, message, code_at, scale_at, words, codes, scalar
        )


@_compiled
def reduce(
    received: Any, stride: int, world: int, first: int, count: int, carry: bool, residual: Any,
    gain: Any, keep: bool, fresh: Any, bits: int, block: int, code_offset: int,
    scale_offset: int, share: Any, lead: int,
) -> Any:  # fmt: skip
    """Mean of all ranks' blocks in rank order, residual, quantise again, into this rank's share.

    ``received`` holds one message of ``stride`` bytes from each rank; the layer's ``count`` slots
    in this rank's share start at ``first``; ``lead`` bytes precede the payload in ``share``.
    """
    total = np.empty(block, np.float32)
    words = total.view(np.int32)
    levels = np.empty(block, np.float32)
    codes = np.empty(block, np.uint8)
    scalar = np.empty(1, np.int32)
    old = residual[: residual.shape[0] // block * block].reshape((-1, block))
    new = fresh[: fresh.shape[0] // block * block].reshape((-1, block))
    code_length = block * bits // 8
    part = _ONE / np.float32(world)
    worst = np.int32(0)
    for k in range(count):
        slot = first + k
        for i in range(block):
            total[i] = _ZERO
        any_sent = False
        for rank in range(world):
            scale = _read_scale(received, rank * stride + scale_offset + slot * 2, scalar)
            if scale != _ZERO:
                any_sent = True
                code_at = rank * stride + code_offset + slot * code_length
                _read_row(received, code_at, bits, codes, levels)
                for i in range(block):
                    total[i] += levels[i] * scale
        for i in range(block):
            total[i] *= part
        if carry and any_sent:
            for i in range(block):
                total[i] += gain * old[k, i]
        target = new[k] if keep else total
        largest = _quantise_row(
            total, keep, target, bits, share, lead + code_offset + slot * code_length,
            lead + scale_offset + slot * 2, words, codes, scalar,
        )  # fmt: skip
        worst = max(worst, largest)
        if keep and not any_sent:  # nobody sent anything: the residual waits
            for i in range(block):
                new[k, i] = old[k, i] if carry else _ZERO
    return worst


@_compiled
def decode(
    gathered: Any, stride: int, lead: int, world: int, base: int, bits: int, block: int,
    code_offset: int, scale_offset: int, starts: Any, out: Any,
) -> None:  # fmt: skip
    """Values of one layer from the shares of all ranks, into ``out`` fp32 (elements,)."""
    elements = out.shape[0]
    full = elements // block
    count = (elements + block - 1) // block
    levels = np.empty(block, np.float32)
    codes = np.empty(block, np.uint8)
    scalar = np.empty(1, np.int32)
    rows = out[: full * block].reshape((full, block))
    code_length = block * bits // 8
    for j in range(count):
        owner = (base + j) % world
        slot = starts[owner] + j // world
        start = owner * stride + lead
        scale = _read_scale(gathered, start + scale_offset + slot * 2, scalar)
        _read_row(gathered, start + code_offset + slot * code_length, bits, codes, levels)
        if j < full:
            for i in range(block):
                rows[j, i] = levels[i] * scale
        else:
            for i in range(elements - full * block):
                out[full * block + i] = levels[i] * scale
