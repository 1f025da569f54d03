"""Fused CPU kernels: the arithmetic of :mod:`.quantise`, one pass over memory, without the GIL.

Importing this module needs numba. Bit for bit the results of the torch reference: rounding by the
magic number 1.5 * 2^23 is round-half-even for the range of the codes, products are exact, and no
fast-math flag is set. Magnitudes are compared as integers, which vectorises and finds NaN and
infinity for free. One thread: the kernels run beside a busy backward pass, and a barrier of
threads stalls where cores are taken.

What makes the loops vectorise: indices are flat and unsigned, so that no wrap-around test stands
in the way, and every integer is cast back to 32 bits, since numba widens to 64 (measured: the
maximum of a block takes 6 ns in place of 35).
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


def _inlined(function: Callable[..., Any]) -> Any:
    """A part of the kernels; a call with arrays would cost as much as the work on a block."""
    return numba.njit(function, nogil=True, error_model="numpy", inline="always")


@_inlined
def _scale_of(words: Any, block: Any, bits: int, scalar: Any, as_float: Any) -> Any:
    """Bits of the largest magnitude, of the scale rounded up to bf16, and 1 / scale (or 0)."""
    largest = np.int32(0)
    for i in range(block):
        largest = np.int32(max(largest, np.int32(words[i] & _MASK)))
    scalar[0] = largest
    absmax = as_float[0]
    as_float[0] = absmax / np.float32((1 << (bits - 1)) - 1)
    scale_bits = np.int32(np.int32(scalar[0] + _LOW16) >> np.int32(16))
    scalar[0] = np.int32(scale_bits << np.int32(16))
    inverse = _ZERO
    if absmax < _TINY:
        scale_bits = np.int32(0)
        scalar[0] = np.int32(0)
    else:
        inverse = _ONE / as_float[0]
    return largest, scale_bits, inverse


@_inlined
def _pack(words: Any, block: Any, bits: int, message: Any, at: Any) -> None:
    """Codes into a message; the low bits of a shifted float are q in two's complement."""
    if bits == 4:
        half = block // np.uint64(2)
        for i in range(half):  # flipping the top bit of a nibble adds 8 to it
            high = np.int32(words[half + i] << np.int32(4))
            pair = np.int32(words[i] & np.int32(15)) + high
            message[at + i] = np.uint8(np.int32(pair) ^ np.int32(0x88))
    elif bits == 8:
        for i in range(block):
            message[at + i] = np.uint8(words[i] ^ np.int32(0x80))
    else:
        offset = np.int32(1 << (bits - 1))
        shift = 0
        for width in (4, 2, 1):
            if bits & width:
                length = block * np.uint64(width) // np.uint64(8)
                mask = np.int32((1 << width) - 1)
                for i in range(length):
                    packed = 0
                    for k in range(8 // width):
                        code = words[i + np.uint64(k) * length] + offset
                        packed |= ((code >> shift) & mask) << (k * width)
                    message[at + i] = np.uint8(packed)
                at += length
                shift += width


@_inlined
def _unpack(
    message: Any, at: Any, block: Any, bits: int, scale: Any, add: bool, out: Any, to: Any
) -> None:
    """Values of a block into ``out`` from ``to`` on, or added to what is there."""
    if bits == 4:
        half = block // np.uint64(2)
        upper = to + half
        if add:
            for i in range(half):
                pair = np.int32(message[at + i])
                out[to + i] += (np.float32(np.int32(pair & np.int32(15))) - np.float32(8)) * scale
            for i in range(half):
                pair = np.int32(message[at + i])
                high = np.float32(np.int32(pair >> np.int32(4)))
                out[upper + i] += (high - np.float32(8)) * scale
        else:
            for i in range(half):
                pair = np.int32(message[at + i])
                out[to + i] = (np.float32(np.int32(pair & np.int32(15))) - np.float32(8)) * scale
            for i in range(half):
                pair = np.int32(message[at + i])
                high = np.float32(np.int32(pair >> np.int32(4)))
                out[upper + i] = (high - np.float32(8)) * scale
    elif bits == 8:
        if add:
            for i in range(block):
                level = np.float32(np.int32(message[at + i])) - np.float32(128)
                out[to + i] += level * scale
        else:
            for i in range(block):
                level = np.float32(np.int32(message[at + i])) - np.float32(128)
                out[to + i] = level * scale
    else:
        for i in range(block):
            code = 0
            shift = 0
            start = at
            for width in (4, 2, 1):
                if bits & width:
                    length = block * np.uint64(width) // np.uint64(8)
                    packed = np.int64(message[start + i % length])
                    part = (packed >> (np.int64(i // length) * width)) & ((1 << width) - 1)
                    code += int(part << shift)
                    start += length
                    shift += width
            level = np.float32(code - (1 << (bits - 1)))
            if add:
                out[to + i] += level * scale
            else:
                out[to + i] = level * scale


@_inlined
def _read_scale(message: Any, at: Any, scalar: Any, as_float: Any) -> Any:
    """A bf16 scale as fp32."""
    high = np.int32(message[at + np.uint64(1)]) << np.int32(8)
    scalar[0] = np.int32(np.int32(message[at]) | np.int32(high)) << np.int32(16)
    return as_float[0]


@_inlined
def _write_scale(message: Any, at: Any, scale_bits: Any) -> None:
    """A scale as bf16, least significant byte first."""
    message[at] = np.uint8(scale_bits & np.int32(255))
    message[at + np.uint64(1)] = np.uint8(scale_bits >> np.int32(8))


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
    block_size: int, message: Any, stride: int, base: int, world: int, code_offset: int,
    scale_offset: int, starts: Any,
) -> Any:  # fmt: skip
    """Residual, quantise, pack and place one layer; returns bits of the largest magnitude.

    ``gradient`` is fp32 (elements,); with ``carry``, ``gain * residual`` is added first; with
    ``keep``, what is rounded away goes to ``fresh``; both are fp32 (blocks * block,).
    """
    values = np.empty(block_size, np.float32)
    words = values.view(np.int32)
    scalar = np.empty(1, np.int32)
    as_float = scalar.view(np.float32)
    block = np.uint64(block_size)
    elements = np.uint64(gradient.shape[0])
    code_length = block_size * bits // 8
    worst = np.int32(0)
    owner, turn, phase = base, 0, 0  # block j: owner (base + j) % world, turn j // world
    for j in range((gradient.shape[0] + block_size - 1) // block_size):
        at = np.uint64(j) * block
        size = min(block, elements - at)
        if carry:
            for i in range(size):
                values[i] = gradient[at + i] + gain * residual[at + i]
        else:
            for i in range(size):
                values[i] = gradient[at + i]
        for i in range(size, block):
            values[i] = _ZERO
        largest, scale_bits, inverse = _scale_of(words, block, bits, scalar, as_float)
        worst = np.int32(max(worst, largest))
        scale = as_float[0]
        if keep:
            for i in range(block):
                value = values[i]
                shifted = value * inverse + _MAGIC
                values[i] = shifted
                fresh[at + i] = value - (shifted - _MAGIC) * scale
        else:
            for i in range(block):
                values[i] = values[i] * inverse + _MAGIC
        slot = starts[owner] + turn
        start = owner * stride
        _write_scale(message, np.uint64(start + scale_offset + slot * 2), scale_bits)
        code_at = np.uint64(start + code_offset + slot * code_length)
        _pack(words, block, bits, message, code_at)
        owner = owner + 1 if owner + 1 < world else 0
        phase += 1
        if phase == world:
            phase = 0
            turn += 1
    return worst


@_compiled
def encode_zero(
    bits: int, block_size: int, count: int, message: Any, stride: int, base: int, world: int,
    code_offset: int, scale_offset: int, starts: Any,
) -> None:  # fmt: skip
    """Place ``count`` empty blocks, so that a held layer's message has defined bytes."""
    words = np.zeros(block_size, np.int32)
    code_length = block_size * bits // 8
    for j in range(count):
        owner = (base + j) % world
        slot = starts[owner] + j // world
        start = owner * stride
        _write_scale(message, np.uint64(start + scale_offset + slot * 2), np.int32(0))
        code_at = np.uint64(start + code_offset + slot * code_length)
        _pack(words, np.uint64(block_size), bits, message, code_at)


@_compiled
def reduce(
    received: Any, stride: int, world: int, first: int, count: int, carry: bool, residual: Any,
    gain: Any, keep: bool, fresh: Any, bits: int, block_size: int, code_offset: int,
    scale_offset: int, share: Any, lead: int,
) -> Any:  # fmt: skip
    """Mean of all ranks' blocks in rank order, residual, quantise again, into this rank's share.

    ``received`` holds one message of ``stride`` bytes from each rank; the layer's ``count`` slots
    in this rank's share start at ``first``; ``lead`` bytes precede the payload in ``share``.
    """
    total = np.empty(block_size, np.float32)
    words = total.view(np.int32)
    scalar = np.empty(1, np.int32)
    as_float = scalar.view(np.float32)
    block = np.uint64(block_size)
    origin = np.uint64(0)
    code_length = block_size * bits // 8
    part = _ONE / np.float32(world)
    worst = np.int32(0)
    for k in range(count):
        slot = first + k
        at = np.uint64(k) * block
        for i in range(block):
            total[i] = _ZERO
        any_sent = False
        for rank in range(world):
            start = rank * stride
            scale = _read_scale(
                received, np.uint64(start + scale_offset + slot * 2), scalar, as_float
            )
            if scale != _ZERO:
                any_sent = True
                code_at = np.uint64(start + code_offset + slot * code_length)
                _unpack(received, code_at, block, bits, scale, True, total, origin)
        for i in range(block):
            total[i] *= part
        if carry and any_sent:
            for i in range(block):
                total[i] += gain * residual[at + i]
        largest, scale_bits, inverse = _scale_of(words, block, bits, scalar, as_float)
        worst = np.int32(max(worst, largest))
        scale = as_float[0]
        if keep and any_sent:
            for i in range(block):
                value = total[i]
                shifted = value * inverse + _MAGIC
                total[i] = shifted
                fresh[at + i] = value - (shifted - _MAGIC) * scale
        else:
            for i in range(block):
                total[i] = total[i] * inverse + _MAGIC
            if keep:  # nobody sent anything: the residual waits
                for i in range(block):
                    fresh[at + i] = residual[at + i] if carry else _ZERO
        _write_scale(share, np.uint64(lead + scale_offset + slot * 2), scale_bits)
        code_at = np.uint64(lead + code_offset + slot * code_length)
        _pack(words, block, bits, share, code_at)
    return worst


@_compiled
def decode(
    gathered: Any, stride: int, lead: int, world: int, base: int, bits: int, block_size: int,
    code_offset: int, scale_offset: int, starts: Any, out: Any,
) -> None:  # fmt: skip
    """Values of one layer from the shares of all ranks, into ``out`` fp32 (elements,)."""
    tail = np.empty(block_size, np.float32)
    scalar = np.empty(1, np.int32)
    as_float = scalar.view(np.float32)
    block = np.uint64(block_size)
    elements = np.uint64(out.shape[0])
    code_length = block_size * bits // 8
    owner, turn, phase = base, 0, 0
    for j in range((out.shape[0] + block_size - 1) // block_size):
        at = np.uint64(j) * block
        slot = starts[owner] + turn
        start = owner * stride + lead
        scale = _read_scale(gathered, np.uint64(start + scale_offset + slot * 2), scalar, as_float)
        code_at = np.uint64(start + code_offset + slot * code_length)
        if at + block <= elements:
            _unpack(gathered, code_at, block, bits, scale, False, out, at)
        else:
            _unpack(gathered, code_at, block, bits, scale, False, tail, np.uint64(0))
            for i in range(elements - at):
                out[at + i] = tail[i]
        owner = owner + 1 if owner + 1 < world else 0
        phase += 1
        if phase == world:
            phase = 0
            turn += 1
