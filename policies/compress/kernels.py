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

from typing import Any

import numpy as np

from .kernel_tools import bits_of, compiled, float_at, float_of, pointer, routine
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
_TILE = 4096  # elements that are summed in the cache before the next


@routine
def _scale_of(largest: Any, bits: int) -> Any:
    """The scale, absmax / qmax rounded up to bf16, and 1 / scale; both 0 for a tiny block."""
    absmax = float_of(largest)
    exact = absmax / np.float32((1 << (bits - 1)) - 1)
    scale = float_of(np.int32(np.int32(bits_of(exact) + _LOW16) & _HIGH16))
    inverse = _ONE / scale
    if absmax < _TINY:
        scale = inverse = _ZERO
    return scale, inverse


@routine
def _read_scale(at: Any) -> Any:
    """A bf16 scale as fp32."""
    high = np.int32(np.int32(at[1]) << np.int32(24))
    return float_of(np.int32(np.int32(np.int32(at[0]) << np.int32(16)) | high))


@routine
def _write_scale(at: Any, scale: Any) -> None:
    """A scale as bf16, least significant byte first."""
    high = np.int32(bits_of(scale) >> np.int32(16))
    at[0] = np.uint8(high & np.int32(255))
    at[1] = np.uint8(np.int32(high >> np.int32(8)) & np.int32(255))


@routine
def _add_residual(values: Any, residual: Any, gain: Any, size: int, out: Any) -> Any:
    """``values + gain * residual`` into ``out``; bits of the largest magnitude, NaN on top."""
    largest = np.int32(0)
    for i in range(size):
        value = values[i] + gain * residual[i]
        out[i] = value
        largest = np.int32(max(largest, np.int32(bits_of(value) & _MASK)))
    return largest


@routine
def _mean(total: Any, part: Any, residual: Any, gain: Any, block: int, out: Any) -> Any:
    """``part * total + gain * residual`` into ``out``; bits of the largest magnitude."""
    largest = np.int32(0)
    for i in range(block):
        value = total[i] * part + gain * residual[i]
        out[i] = value
        largest = np.int32(max(largest, np.int32(bits_of(value) & _MASK)))
    return largest


@routine
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
                    code = np.int32(bits_of(shifted[k * length + i]) + offset)
                    part = np.int32(np.int32(code >> np.int32(shift)) & mask)
                    packed = np.int32(packed | np.int32(part << np.int32(k * width)))
                codes[start + i] = np.uint8(packed)
            start += length
            shift += width


@routine
def _round4(values: Any, block: int, scale: Any, inverse: Any, rest: Any, codes: Any) -> None:
    """Round and pack a block to 4 bits; what is lost goes to ``rest``.

    In two halves, since nibbles lie half a block apart. Flipping the top bit of a code in two's
    complement adds its offset.
    """
    half = block // 2
    for i in range(half):
        shifted = values[i] * inverse + _MAGIC
        rest[i] = values[i] - (shifted - _MAGIC) * scale
        codes[i] = np.uint8(np.int32(bits_of(shifted) & np.int32(15)))
    for i in range(half):
        shifted = values[half + i] * inverse + _MAGIC
        rest[half + i] = values[half + i] - (shifted - _MAGIC) * scale
        high = np.int32(bits_of(shifted) << np.int32(4))
        pair = np.int32(np.int32(codes[i]) | high)
        codes[i] = np.uint8(np.int32(pair ^ np.int32(0x88)))


@routine
def _round8(values: Any, block: int, scale: Any, inverse: Any, rest: Any, codes: Any) -> None:
    """As `_round4`, to 8 bits."""
    for i in range(block):
        shifted = values[i] * inverse + _MAGIC
        rest[i] = values[i] - (shifted - _MAGIC) * scale
        codes[i] = np.uint8(np.int32(bits_of(shifted) ^ np.int32(0x80)))


@routine
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


@routine
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


@routine
def _unpack8(codes: Any, block: int, scale: Any, add: bool, out: Any) -> None:
    """As `_unpack4`, from 8 bits."""
    if add:
        for i in range(block):
            out[i] += (np.float32(np.int32(codes[i])) - np.float32(128)) * scale
    else:
        for i in range(block):
            out[i] = (np.float32(np.int32(codes[i])) - np.float32(128)) * scale


@routine
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


@routine
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


@routine
def _is_zero(values: Any, size: int) -> bool:
    """Whether all values are 0; stops at the first that is not."""
    for i in range(size):  # noqa: SIM110 - all() over a generator does not compile to a loop
        if values[i] != _ZERO:
            return False
    return True


@routine
def _weigh(
    gradient: Any, residual: Any, gain: Any, carry: bool, nothing: Any, first: int, count: int,
    elements: int, block: int, bits: int, values: Any, scales: Any, inverses: Any,
) -> Any:  # fmt: skip
    """A burst of blocks with what they carry, and their scales; bits of the largest magnitude."""
    worst = np.int32(0)
    for k in range(count):
        start, at = (first + k) * block, k * block
        size = min(block, elements - start)
        for i in range(size, block):
            values[at + i] = _ZERO
        kept = pointer(residual, start) if carry else pointer(nothing, 0)
        largest = _add_residual(pointer(gradient, start), kept, gain, size, pointer(values, at))
        worst = np.int32(max(worst, largest))
        scales[k], inverses[k] = _scale_of(largest, bits)
    return worst


@routine
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
        _write_scale(pointer(message, share + scale_offset + slot * 2), _ZERO)
        codes = pointer(message, share + code_offset + slot * code_length)
        _pack(pointer(zeros, 0), block, bits, codes)


@compiled
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
    if _is_zero(pointer(gradient, 0), elements):
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
        largest = _weigh(
            pointer(gradient, 0), pointer(residual, 0), weight, carry, pointer(nothing, 0), j,
            count, elements, block, bits, pointer(values, 0), pointer(scales, 0),
            pointer(inverses, 0),
        )  # fmt: skip
        worst = np.int32(max(worst, largest))
        for k in range(count):
            slot = starts[owner] + turn
            share = owner * stride
            rest = pointer(fresh, (j + k) * block) if keep else pointer(spare, 0)
            codes = pointer(message, share + code_offset + slot * code_length)
            _round(pointer(values, k * block), block, bits, scales[k], inverses[k], rest, codes)
            _write_scale(pointer(message, share + scale_offset + slot * 2), scales[k])
            owner = owner + 1 if owner + 1 < world else 0
            phase += 1
            if phase == world:
                phase = 0
                turn += 1
    return worst


@compiled
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
            scale = _read_scale(pointer(received, rank * stride + scale_at))
            if scale != _ZERO:
                codes = pointer(received, rank * stride + code_at)
                _unpack(codes, block, bits, scale, sent, pointer(total, 0), pointer(spare, 0))
                sent = True
        if not sent:
            total[:] = _ZERO
        kept = pointer(residual, start) if carry and sent else pointer(nothing, 0)
        largest = _mean(pointer(total, 0), part, kept, weight, block, pointer(mean, 0))
        worst = np.int32(max(worst, largest))
        scale, inverse = _scale_of(largest, bits)
        rest = pointer(fresh, start) if keep and sent else pointer(spare, 0)
        _round(pointer(mean, 0), block, bits, scale, inverse, rest, pointer(share, lead + code_at))
        _write_scale(pointer(share, lead + scale_at), scale)
        if keep and not sent:  # nobody sent anything: the residual waits
            for i in range(block):
                fresh[start + i] = residual[start + i] if carry else _ZERO
    return worst


@compiled
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
        scale = _read_scale(pointer(gathered, share + scale_offset + slot * 2))
        codes = pointer(gathered, share + code_offset + slot * code_length)
        whole = start + block <= elements
        to = pointer(out, start) if whole else pointer(spare, 0)
        _unpack(codes, block, bits, scale, False, to, pointer(spare, 0))
        if not whole:
            for i in range(elements - start):
                out[start + i] = spare[i]
        owner = owner + 1 if owner + 1 < world else 0
        phase += 1
        if phase == world:
            phase = 0
            turn += 1


@routine
def _hold(
    residual: Any, carry: bool, keep: bool, fresh: Any, blocks: int, block: int, bits: int,
    zeros: Any, codes: Any, scales: Any,
) -> None:  # fmt: skip
    """Place a chunk's blocks empty; its residual waits."""
    for j in range(blocks):
        _pack(zeros, block, bits, pointer(codes, j * (block * bits // 8)))
        _write_scale(pointer(scales, j * 2), _ZERO)
    if keep:
        for i in range(blocks * block):
            fresh[i] = residual[i] if carry else _ZERO


@compiled
def encode_chunks(
    chunks: Any, width: int, first: int, table: Any, residuals: Any, gains: Any, fresh: Any,
    block: int, messages: Any, stride: int, worst: Any,
) -> None:  # fmt: skip
    """As `encode`, of many layers' chunks for many destinations, each with a message.

    ``chunks`` is fp32, a row of ``width`` for each destination from the ``first`` on, and
    ``messages`` have a row of ``stride`` bytes for each of them. By layer: ``table`` int64
    (layers, 5) is of `chunk_codec.chunk_table`; ``residuals`` and ``fresh`` are addresses of fp32
    (all destinations, blocks * block), or 0; ``worst`` receives the largest of what `encode`
    returns.
    """
    values = np.empty(_BURST * block, np.float32)
    scales = np.empty(_BURST, np.float32)
    inverses = np.empty(_BURST, np.float32)
    nothing = np.full(block, _NOTHING)
    zeros = np.full(block, _MAGIC)
    spare = np.empty(block, np.float32)
    worst[:] = -1
    for row in range(chunks.shape[0] // width):
        for p in range(table.shape[0]):
            elements, bits = table[p, 1], table[p, 2]
            gradient = pointer(chunks, row * width + table[p, 0])
            codes = pointer(messages, row * stride + table[p, 3])
            to = pointer(messages, row * stride + table[p, 4])
            blocks = (elements + block - 1) // block
            carry, keep = residuals[p] != 0, fresh[p] != 0
            before = (first + row) * blocks * block
            old = pointer(float_at(residuals[p]), before)
            new = pointer(float_at(fresh[p]), before)
            if _is_zero(gradient, elements):
                _hold(old, carry, keep, new, blocks, block, bits, pointer(zeros, 0), codes, to)
                continue
            weight = gains[p] if carry else _ONE
            for j in range(0, blocks, _BURST):
                count = min(_BURST, blocks - j)
                largest = _weigh(
                    gradient, old, weight, carry, pointer(nothing, 0), j, count, elements, block,
                    bits, pointer(values, 0), pointer(scales, 0), pointer(inverses, 0),
                )  # fmt: skip
                worst[p] = max(worst[p], largest)
                for k in range(count):
                    rest = pointer(new, (j + k) * block) if keep else pointer(spare, 0)
                    at = pointer(codes, (j + k) * (block * bits // 8))
                    block_values = pointer(values, k * block)
                    _round(block_values, block, bits, scales[k], inverses[k], rest, at)
                    _write_scale(pointer(to, (j + k) * 2), scales[k])


@routine
def _following(table: Any, block: int, layer: int, k: int) -> Any:
    """The layer and the number in it of the block that follows another."""
    if (k + 1) * block < table[layer, 1]:
        return layer, k + 1
    return layer + 1, 0


@compiled
def sum_chunks(messages: Any, stride: int, table: Any, block: int, factor: Any, out: Any) -> None:
    """Sum many layers' chunks over the messages, in their order; each to its offset in ``out``.

    As many blocks at a time as stay in the cache, of however many layers. ``messages`` are of
    ``stride`` bytes; ``factor`` and ``out`` are fp32; ``table`` is as of `encode_chunks`.
    """
    tile = max(1, _TILE // block)
    total = np.empty(tile * block, np.float32)
    spare = np.empty(block, np.float32)
    layers = table.shape[0]
    first, begin = 0, 0  # layer, and block in it, where the tile begins
    while first < layers:
        done = 0
        for rank in range(messages.shape[0] // stride):
            layer, k, done = first, begin, 0
            while layer < layers and done < tile:
                bits = table[layer, 2]
                scale_at = rank * stride + table[layer, 4] + k * 2
                scale = _read_scale(pointer(messages, scale_at))
                at = rank * stride + table[layer, 3] + k * (block * bits // 8)
                codes, to = pointer(messages, at), pointer(total, done * block)
                _unpack(codes, block, bits, scale, rank > 0, to, pointer(spare, 0))
                layer, k = _following(table, block, layer, k)
                done += 1
        for slot in range(done):
            start, at = begin * block, table[first, 0] + begin * block
            for i in range(min(block, table[first, 1] - start)):
                out[at + i] = total[slot * block + i] * factor
            first, begin = _following(table, block, first, begin)
