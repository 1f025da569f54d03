"""Fused CPU kernels: the arithmetic of :mod:`.quantise`, one pass over memory, without the GIL.

Importing this module needs numba. Bit for bit the results of the torch reference: rounding by the
magic number 1.5 * 2^23 is round-half-even for the range of the codes, products are exact, and no
fast-math flag is set. Magnitudes are compared as integers, which vectorises and finds NaN and
infinity for free. One thread: the kernels run beside a busy backward pass, and a barrier of
threads stalls where cores are taken.

A layer's loop calls small routines on a block, with plain pointers: each compiles quickly, for any
block, and its loops vectorise, since no flag, no stride and no wrap-around test is in them. Every
integer is cast back to 32 bits, since numba widens to 64; floats and their bits change into each
other in registers; memory is written in order, in bursts of two blocks, which prefetchers need
(measured: out of order or in bursts of eight blocks a layer of 64 MB takes twice the time).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from .quantise import MAGNITUDE_MASK, PLANES, TINY

_MAGIC = np.float32(12582912.0)  # 1.5 * 2^23
_TINY = np.float32(TINY)
_MASK = np.int32(MAGNITUDE_MASK)
_LOW16 = np.int32(0xFFFF)
_HIGH16 = np.int32(-0x10000)
_ZERO = np.float32(0.0)
_NOTHING = np.float32(-0.0)  # added to any value it changes no bit
_ONE = np.float32(1.0)
_BURST = 2  # blocks


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call; kept on disk where the folder or the user's cache is writable."""
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # no place for a cache: compile in every process
        return numba.njit(function, nogil=True, error_model="numpy")


def _routine(function: Callable[..., Any]) -> Any:
    """A part of the kernels that Python does not call, so that no wrapper need be compiled."""
    inside: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(function, nogil=True, error_model="numpy", **inside)


def _operation(function: Callable[..., Any]) -> Any:
    """A few instructions of LLVM, merged into the routine around them."""
    return intrinsic(function)


@_operation
def _bits_of(_: Any, value: Any) -> Any:
    """The bits of an fp32 as int32, in a register."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


@_operation
def _float_of(_: Any, bits: Any) -> Any:
    """The fp32 of these int32 bits, in a register."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@_operation
def _from(_: Any, array: Any, index: Any) -> Any:
    """Pointer to an element of a flat, contiguous array, which has to outlive it.

    A scratch array does: it is used again in the next round of the loop.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.gep(held.data, [args[1]])

    pointer: Any = types.CPointer
    return pointer(array.dtype)(array, types.int64), generate


@_routine
def _scale_of(largest: Any, bits: int) -> Any:
    """The scale, absmax / qmax rounded up to bf16, and 1 / scale; both 0 for a tiny block."""
    absmax = _float_of(largest)
    exact = absmax / np.float32((1 << (bits - 1)) - 1)
    scale = _float_of(np.int32(np.int32(_bits_of(exact) + _LOW16) & _HIGH16))
    inverse = _ONE / scale
    if absmax < _TINY:
        scale = inverse = _ZERO
    return scale, inverse


@_routine
def _read_scale(at: Any) -> Any:
    """A bf16 scale as fp32."""
    high = np.int32(np.int32(at[1]) << np.int32(24))
    return _float_of(np.int32(np.int32(np.int32(at[0]) << np.int32(16)) | high))


@_routine
def _write_scale(at: Any, scale: Any) -> None:
    """A scale as bf16, least significant byte first."""
    high = np.int32(_bits_of(scale) >> np.int32(16))
    at[0] = np.uint8(high & np.int32(255))
    at[1] = np.uint8(np.int32(high >> np.int32(8)) & np.int32(255))


@_routine
def _add_residual(values: Any, residual: Any, gain: Any, size: int, out: Any) -> Any:
    """``values + gain * residual`` into ``out``; bits of the largest magnitude, NaN on top."""
    largest = np.int32(0)
    for i in range(size):
        value = values[i] + gain * residual[i]
        out[i] = value
        largest = np.int32(max(largest, np.int32(_bits_of(value) & _MASK)))
    return largest


@_routine
def _mean(total: Any, part: Any, residual: Any, gain: Any, block: int, out: Any) -> Any:
    """``part * total + gain * residual`` into ``out``; bits of the largest magnitude."""
    largest = np.int32(0)
    for i in range(block):
        value = total[i] * part + gain * residual[i]
        out[i] = value
        largest = np.int32(max(largest, np.int32(_bits_of(value) & _MASK)))
    return largest


@_routine
def _pack(shifted: Any, block: int, bits: int, codes: Any) -> None:
    """Planes of codes: the low bits of a shifted float are its code in two's complement."""
    offset = np.int32(1 << (bits - 1))
    shift = 0
    start = 0
    for width in PLANES:
        if bits & width:
            length = block * width // 8
            mask = np.int32((1 << width) - 1)
            for i in range(length):
                packed = np.int32(0)
                for k in range(8 // width):
                    code = np.int32(_bits_of(shifted[k * length + i]) + offset)
                    part = np.int32(np.int32(code >> np.int32(shift)) & mask)
                    packed = np.int32(packed | np.int32(part << np.int32(k * width)))
                codes[start + i] = np.uint8(packed)
            start += length
            shift += width


@_routine
def _round4(values: Any, block: int, scale: Any, inverse: Any, rest: Any, codes: Any) -> None:
    """Round and pack a block to 4 bits; what is lost goes to ``rest``.

    In two halves, since nibbles lie half a block apart. Flipping the top bit of a code in two's
    complement adds its offset.
    """
    half = block // 2
    for i in range(half):
        shifted = values[i] * inverse + _MAGIC
        rest[i] = values[i] - (shifted - _MAGIC) * scale
        codes[i] = np.uint8(np.int32(_bits_of(shifted) & np.int32(15)))
    for i in range(half):
        shifted = values[half + i] * inverse + _MAGIC
        rest[half + i] = values[half + i] - (shifted - _MAGIC) * scale
        high = np.int32(_bits_of(shifted) << np.int32(4))
        pair = np.int32(np.int32(codes[i]) | high)
        codes[i] = np.uint8(np.int32(pair ^ np.int32(0x88)))


@_routine
def _round8(values: Any, block: int, scale: Any, inverse: Any, rest: Any, codes: Any) -> None:
    """As `_round4`, to 8 bits."""
    for i in range(block):
        shifted = values[i] * inverse + _MAGIC
        rest[i] = values[i] - (shifted - _MAGIC) * scale
        codes[i] = np.uint8(np.int32(_bits_of(shifted) ^ np.int32(0x80)))


@_routine
def _round(
    values: Any, block: int, bits: int, scale: Any, inverse: Any, rest: Any, codes: Any
) -> None:
    """Round and pack a block; what is lost goes to ``rest``."""
    if bits == 4:
        _round4(values, block, scale, inverse, rest, codes)
    elif bits == 8:
        _round8(values, block, scale, inverse, rest, codes)
    else:
        for i in range(block):
            shifted = values[i] * inverse + _MAGIC
            rest[i] = values[i] - (shifted - _MAGIC) * scale
            values[i] = shifted
        _pack(values, block, bits, codes)


@_routine
def _unpack4(codes: Any, block: int, scale: Any, add: bool, out: Any) -> None:
    """Values of a block of 4 bits into ``out``, or added to what is there."""
    half = block // 2
    if add:
        for i in range(half):
            low = np.float32(np.int32(np.int32(codes[i]) & np.int32(15)))
            out[i] += (low - np.float32(8)) * scale
        for i in range(half):
            high = np.float32(np.int32(np.int32(codes[i]) >> np.int32(4)))
            out[half + i] += (high - np.float32(8)) * scale
    else:
        for i in range(half):
            low = np.float32(np.int32(np.int32(codes[i]) & np.int32(15)))
            out[i] = (low - np.float32(8)) * scale
        for i in range(half):
            high = np.float32(np.int32(np.int32(codes[i]) >> np.int32(4)))
            out[half + i] = (high - np.float32(8)) * scale


@_routine
def _unpack8(codes: Any, block: int, scale: Any, add: bool, out: Any) -> None:
    """As `_unpack4`, from 8 bits."""
    if add:
        for i in range(block):
            out[i] += (np.float32(np.int32(codes[i])) - np.float32(128)) * scale
    else:
        for i in range(block):
            out[i] = (np.float32(np.int32(codes[i])) - np.float32(128)) * scale


@_routine
def _unpack_any(codes: Any, block: int, bits: int, scale: Any, out: Any) -> None:
    """Values of a block of any bits into ``out``; sums of its planes are exact in fp32."""
    for i in range(block):
        out[i] = -np.float32(1 << (bits - 1))
    weight = _ONE
    start = 0
    for width in PLANES:
        if bits & width:
            length = block * width // 8
            mask = np.int32((1 << width) - 1)
            for k in range(8 // width):
                piece = k * length
                right = np.int32(k * width)
                for i in range(length):
                    part = np.int32(np.int32(np.int32(codes[start + i]) >> right) & mask)
                    out[piece + i] += weight * np.float32(part)
            start += length
            weight *= np.float32(1 << width)
    for i in range(block):
        out[i] *= scale


@_routine
def _unpack(
    codes: Any, block: int, bits: int, scale: Any, add: bool, out: Any, spare: Any
) -> None:
    """Values of a block into ``out``, or added to what is there."""
    if bits == 4:
        _unpack4(codes, block, scale, add, out)
    elif bits == 8:
        _unpack8(codes, block, scale, add, out)
    elif add:
        _unpack_any(codes, block, bits, scale, spare)
        for i in range(block):
            out[i] += spare[i]
    else:
        _unpack_any(codes, block, bits, scale, out)


@_routine
def _is_zero(values: Any) -> bool:
    """Whether all values are 0; stops at the first that is not."""
    for value in values:  # noqa: SIM110 - all() over a generator does not compile to a loop
        if value != _ZERO:
            return False
    return True


@_routine
def _encode_zero(
    bits: int, block: int, count: int, message: Any, stride: int, base: int, world: int,
    code_offset: int, scale_offset: int, starts: Any,
) -> None:  # fmt: skip
    """Place ``count`` empty blocks, so that a held layer's message has defined bytes."""
    zeros = np.full(block, _MAGIC)
    code_length = block * bits // 8
    for j in range(count):
        owner = (base + j) % world
        slot = starts[owner] + j // world
        share = owner * stride
        _write_scale(_from(message, share + scale_offset + slot * 2), _ZERO)
        codes = _from(message, share + code_offset + slot * code_length)
        _pack(_from(zeros, 0), block, bits, codes)


@_compiled
def encode(
    gradient: Any, carry: bool, residual: Any, gain: Any, keep: bool, fresh: Any, bits: int,
    block: int, message: Any, stride: int, base: int, world: int, code_offset: int,
    scale_offset: int, starts: Any,
) -> Any:  # fmt: skip
    """Residual, quantise, pack and place one layer; returns bits of the largest magnitude.

    A gradient that is all 0 is placed as empty blocks, whatever its residual: -1 is returned.

    ``gradient`` is fp32 (elements,); with ``carry``, ``gain * residual`` is added first; with
    ``keep``, what is rounded away goes to ``fresh``; both are fp32 (blocks * block,).
    """
    elements = gradient.shape[0]
    blocks = (elements + block - 1) // block
    if _is_zero(gradient):
        _encode_zero(
            bits, block, blocks, message, stride, base, world, code_offset, scale_offset, starts
        )
        return np.int32(-1)
    values = np.empty(_BURST * block, np.float32)
    scales = np.empty(_BURST, np.float32)
    inverses = np.empty(_BURST, np.float32)
    nothing = np.full(block, _NOTHING)
    spare = np.empty(block, np.float32)
    weight = gain if carry else _ONE
    code_length = block * bits // 8
    worst = np.int32(0)
    owner, turn, phase = base, 0, 0  # block j: owner (base + j) % world, turn j // world
    for j in range(0, blocks, _BURST):
        count = min(_BURST, blocks - j)
        for k in range(count):
            start, at = (j + k) * block, k * block
            size = min(block, elements - start)
            for i in range(size, block):
                values[at + i] = _ZERO
            kept = _from(residual, start) if carry else _from(nothing, 0)
            largest = _add_residual(_from(gradient, start), kept, weight, size, _from(values, at))
            worst = np.int32(max(worst, largest))
            scales[k], inverses[k] = _scale_of(largest, bits)
        for k in range(count):
            slot = starts[owner] + turn
            share = owner * stride
            rest = _from(fresh, (j + k) * block) if keep else _from(spare, 0)
            codes = _from(message, share + code_offset + slot * code_length)
            _round(_from(values, k * block), block, bits, scales[k], inverses[k], rest, codes)
            _write_scale(_from(message, share + scale_offset + slot * 2), scales[k])
            owner = owner + 1 if owner + 1 < world else 0
            phase += 1
            if phase == world:
                phase = 0
                turn += 1
    return worst


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
    mean = np.empty(block, np.float32)
    spare = np.empty(block, np.float32)
    nothing = np.full(block, _NOTHING)
    code_length = block * bits // 8
    part = _ONE / np.float32(world)
    weight = gain if carry else _ONE
    worst = np.int32(0)
    for k in range(count):
        start = k * block
        scale_at = scale_offset + (first + k) * 2
        code_at = code_offset + (first + k) * code_length
        sent = False
        for rank in range(world):
            scale = _read_scale(_from(received, rank * stride + scale_at))
            if scale != _ZERO:
                codes = _from(received, rank * stride + code_at)
                _unpack(codes, block, bits, scale, sent, _from(total, 0), _from(spare, 0))
                sent = True
        if not sent:
            total[:] = _ZERO
        kept = _from(residual, start) if carry and sent else _from(nothing, 0)
        largest = _mean(_from(total, 0), part, kept, weight, block, _from(mean, 0))
        worst = np.int32(max(worst, largest))
        scale, inverse = _scale_of(largest, bits)
        rest = _from(fresh, start) if keep and sent else _from(spare, 0)
        _round(_from(mean, 0), block, bits, scale, inverse, rest, _from(share, lead + code_at))
        _write_scale(_from(share, lead + scale_at), scale)
        if keep and not sent:  # nobody sent anything: the residual waits
            for i in range(block):
                fresh[start + i] = residual[start + i] if carry else _ZERO
    return worst


@_compiled
def decode(
    gathered: Any, stride: int, lead: int, world: int, base: int, bits: int, block: int,
    code_offset: int, scale_offset: int, starts: Any, out: Any,
) -> None:  # fmt: skip
    """Values of one layer from the shares of all ranks, into ``out`` fp32 (elements,)."""
    spare = np.empty(block, np.float32)
    code_length = block * bits // 8
    elements = out.shape[0]
    owner, turn, phase = base, 0, 0
    for j in range((elements + block - 1) // block):
        start = j * block
        slot = starts[owner] + turn
        share = owner * stride + lead
        scale = _read_scale(_from(gathered, share + scale_offset + slot * 2))
        codes = _from(gathered, share + code_offset + slot * code_length)
        whole = start + block <= elements
        to = _from(out, start) if whole else _from(spare, 0)
        _unpack(codes, block, bits, scale, False, to, _from(spare, 0))
        if not whole:
            for i in range(elements - start):
                out[start + i] = spare[i]
        owner = owner + 1 if owner + 1 < world else 0
        phase += 1
        if phase == world:
            phase = 0
            turn += 1
