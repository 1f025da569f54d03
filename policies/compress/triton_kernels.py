"""Fused GPU kernels: the arithmetic of :mod:`.quantise` in Triton, one pass over memory.

Importing this module needs triton. Bit for bit the results of the torch reference: rounding by
the magic number 1.5 * 2^23 is round-half-even for the range of the codes, divisions are the
correctly rounded ones, and launches must forbid contraction (`OPTIONS`), since
``gradient + gain * residual`` rounds its product first. Rows are blocks. A block is cut into
``PIECES`` equal pieces, enough that each plane's byte holds the same column of several pieces, so
that packing needs no exchange between threads. A program has ``ROWS`` of them; those that lie in
full blocks take a path without masks, which is what makes 128-bit accesses possible.

Tensor cores are not used: dequantise and add does 2 floating-point operations for 8.5 bytes moved
(4.5 with a bf16 accumulator), at most 0.45 a byte, where an H100 does 20 fp32 operations in the
time of a byte on its ordinary cores. There is no matrix product in it either: each value is used
once. Faster arithmetic would wait for the same bytes, so they are ruled out.
"""

# ruff: noqa: RUF005 - the language cannot unpack a tuple into another
from __future__ import annotations

import triton
import triton.language as tl

from .quantise import MAGNITUDE_MASK, TINY, planes

OPTIONS = {"enable_fp_fusion": False, "num_warps": 4}
_THREADS = 128
_ACCESS = 16  # bytes a thread loads or stores at once
_RUNTIME = (  # no other code for another value of these; how messages are aligned is in UNIT
    "elements", "blocks", "count", "slot", "stride", "code_offset", "scale_offset", "lead", "base",
)  # fmt: skip

_MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23
_TINY = tl.constexpr(TINY)
_MASK = tl.constexpr(MAGNITUDE_MASK)


def pieces(bits: int) -> int:
    """How many pieces a block is cut into: one for each code in a byte of the narrowest plane.

    At least 2, so that a block of 256 at 8 bits stays within a warp, whose threads find its
    largest magnitude without a barrier.
    """
    return max(8 // min(planes(bits)), 2)


def rows(bits: int, block: int, element_bytes: int) -> int:
    """Blocks of one program: each thread gets one wide access for each piece."""
    return max(1, _THREADS * (_ACCESS // element_bytes) * pieces(bits) // block)


@triton.jit
def _get(source, mask, MASKED: tl.constexpr):
    """What lies there; 0 where masked."""
    if MASKED:
        values = tl.load(source, mask=mask, other=0)
    else:
        values = tl.load(source)
    return values


@triton.jit
def _put(target, values, mask, MASKED: tl.constexpr):
    if MASKED:
        tl.store(target, values, mask=mask)
    else:
        tl.store(target, values)


@triton.jit
def _quantise(values, BITS: tl.constexpr, PIECES: tl.constexpr):
    """Of each row: bits of the largest magnitude, scale bits (bf16), scale and 1 / scale."""
    worst = values[0].to(tl.int32, bitcast=True) & _MASK
    for p in tl.static_range(1, PIECES):
        worst = tl.maximum(worst, values[p].to(tl.int32, bitcast=True) & _MASK)
    worst = tl.max(worst, axis=1)
    absmax = worst.to(tl.float32, bitcast=True)
    largest_code = tl.full(absmax.shape, (1 << (BITS - 1)) - 1, tl.float32)
    exact = tl.div_rn(absmax, largest_code).to(tl.int32, bitcast=True)
    rounded = tl.where(absmax < _TINY, 0, (exact + 0xFFFF) >> 16)
    scale = (rounded << 16).to(tl.float32, bitcast=True)
    one = tl.full(scale.shape, 1.0, tl.float32)
    inverse = tl.where(scale == 0.0, 0.0, tl.div_rn(one, tl.where(scale == 0.0, one, scale)))
    return worst, rounded, scale, inverse


@triton.jit
def _pack_plane(
    shifted, codes, mask, BITS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    MASKED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    SIZE: tl.constexpr = BLOCK // PIECES
    SHIFT: tl.constexpr = BITS // (2 * WIDTH) * (2 * WIDTH)  # bits in the wider planes
    PARTS: tl.constexpr = PIECES * WIDTH // 8
    columns = tl.arange(0, SIZE)[None, :]
    for s in tl.static_range(PARTS):
        packed = tl.zeros(shifted[0].shape, tl.int32)
        for k in tl.static_range(8 // WIDTH):
            code = shifted[k * PARTS + s].to(tl.int32, bitcast=True) + (1 << (BITS - 1))
            packed |= ((code >> SHIFT) & ((1 << WIDTH) - 1)) << (k * WIDTH)
        _put(codes + (BLOCK * SHIFT // 8 + s * SIZE) + columns, packed.to(tl.uint8), mask, MASKED)


@triton.jit
def _pack(
    shifted, codes, mask, BITS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Codes of rows as planes at ``codes`` (rows, 1); the low bits of a shifted float are q."""
    for i in tl.static_range(4):
        if BITS & (8 >> i):
            _pack_plane(shifted, codes, mask, BITS, BLOCK, PIECES, MASKED, 8 >> i)


@triton.jit
def _unpack_plane(
    levels, codes, mask, BITS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    MASKED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``levels`` of the wider planes, a tuple of pieces, with those of one more."""
    SIZE: tl.constexpr = BLOCK // PIECES
    SHIFT: tl.constexpr = BITS // (2 * WIDTH) * (2 * WIDTH)
    PARTS: tl.constexpr = PIECES * WIDTH // 8
    columns = tl.arange(0, SIZE)[None, :]
    packed = ()
    for s in tl.static_range(PARTS):
        byte = _get(codes + (BLOCK * SHIFT // 8 + s * SIZE) + columns, mask, MASKED)
        packed = packed + (byte.to(tl.int32),)
    more = ()
    for p in tl.static_range(PIECES):
        field = (packed[p % PARTS] >> (p // PARTS * WIDTH)) & ((1 << WIDTH) - 1)
        if SHIFT:
            field = levels[p] | (field << SHIFT)
        more = more + (field,)
    return more


@triton.jit
def _unpack(
    codes, scale, mask, BITS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Values of rows, a tuple of pieces, from the planes at ``codes`` (rows, 1)."""
    levels = ()
    for i in tl.static_range(4):
        if BITS & (8 >> i):
            levels = _unpack_plane(levels, codes, mask, BITS, BLOCK, PIECES, MASKED, 8 >> i)
    values = ()
    for p in tl.static_range(PIECES):
        level = (levels[p] - (1 << (BITS - 1))).to(tl.float32)
        values = values + (level * scale[:, None],)
    return values


@triton.jit
def _store(target, values, mask, MASKED: tl.constexpr, INTERPRETED: tl.constexpr):
    """fp32 values to nearest, ties to even, in the type of the target."""
    if INTERPRETED and target.dtype.scalar.element_ty == tl.bfloat16:  # it would truncate
        words = values.to(tl.int32, bitcast=True)
        words = (words + 0x7FFF + ((words >> 16) & 1)) & -0x10000
        values = tl.where(values == values, words.to(tl.float32, bitcast=True), values)
    _put(target, values.to(target.dtype.scalar.element_ty), mask, MASKED)


@triton.jit
def _bf16_at(message, at):
    """Where the scales lie, as 16-bit words."""
    return (message + at).to(tl.pointer_type(tl.int16), bitcast=True)


@triton.jit
def _encode_rows(
    gradient, residual, fresh, message, starts, words, elements, blocks, stride, code_offset,
    scale_offset, base, gain, WORLD: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, PIECES: tl.constexpr, CARRY: tl.constexpr,
    KEEP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    SIZE: tl.constexpr = BLOCK // PIECES
    first = tl.program_id(0).to(tl.int64) * (ROWS * BLOCK)
    row = tl.arange(0, ROWS)
    inside = row[:, None] * BLOCK + tl.arange(0, SIZE)[None, :]
    block = tl.program_id(0) * ROWS + row
    there = block < blocks
    wanted = there[:, None]
    values = ()
    nonzero = tl.zeros((ROWS, SIZE), tl.int32)
    for p in tl.static_range(PIECES):
        at = first + inside + p * SIZE
        value = _get(gradient + first + (inside + p * SIZE), at < elements, MASKED)
        value = value.to(tl.float32)
        if CARRY:
            nonzero |= value.to(tl.int32, bitcast=True) & _MASK
            carried = _get(residual + first + (inside + p * SIZE), at < elements, MASKED)
            value = value + gain * carried
        values = values + (value,)
    worst, scale_bits, scale, inverse = _quantise(values, BITS, PIECES)
    tl.atomic_max(words, tl.max(worst, axis=0), sem="relaxed")
    if CARRY:
        any_value = tl.max(tl.max(nonzero, axis=1), axis=0)
        tl.store(words + 1, 1, mask=any_value != 0)
    shifted = ()
    for p in tl.static_range(PIECES):
        moved = values[p] * inverse[:, None] + _MAGIC
        shifted = shifted + (moved,)
        if KEEP:
            rest = values[p] - (moved - _MAGIC) * scale[:, None]
            _put(fresh + first + (inside + p * SIZE), rest, wanted, MASKED)
    owner = (base + block) % WORLD
    start = owner.to(tl.int64) * (stride.to(tl.int64) * UNIT)
    slot = tl.load(starts + owner) + block // WORLD
    scale_at = _bf16_at(message, start + scale_offset + slot * 2)
    _put(scale_at, scale_bits.to(tl.int16), there, MASKED)
    codes = message + (
        start + code_offset.to(tl.int64) * UNIT + slot.to(tl.int64) * (BLOCK * BITS // 8)
    )
    _pack(shifted, codes[:, None], wanted, BITS, BLOCK, PIECES, MASKED)


@triton.jit(do_not_specialize=_RUNTIME)
def encode(
    gradient, residual, fresh, message, starts, words, elements, blocks, stride, code_offset,
    scale_offset, base, gain, WORLD: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, PIECES: tl.constexpr, CARRY: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """Residual, quantise, pack and place one layer.

    ``gradient`` is (elements,) in fp32, bf16 or fp16; with ``CARRY``, ``gain * residual`` is added
    first; with ``KEEP``, what is rounded away goes to ``fresh``; both are fp32 (blocks * BLOCK,).
    ``words`` gets the bits of the largest magnitude and, with ``CARRY``, 1 if some gradient is
    not 0; both are 0 before.
    """
    if (tl.program_id(0) + 1) * ROWS <= elements // BLOCK:
        _encode_rows(
            gradient, residual, fresh, message, starts, words, elements, blocks, stride,
            code_offset, scale_offset, base, gain, WORLD, UNIT, BITS, BLOCK, ROWS, PIECES, CARRY,
            KEEP, False,
        )  # fmt: skip
    else:
        _encode_rows(
            gradient, residual, fresh, message, starts, words, elements, blocks, stride,
            code_offset, scale_offset, base, gain, WORLD, UNIT, BITS, BLOCK, ROWS, PIECES, CARRY,
            KEEP, True,
        )  # fmt: skip


@triton.jit
def _reduce_rows(
    received, residual, fresh, share, words, count, slot, stride, code_offset, scale_offset, lead,
    gain, part, WORLD: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECES: tl.constexpr, CARRY: tl.constexpr, KEEP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    SIZE: tl.constexpr = BLOCK // PIECES
    first = tl.program_id(0).to(tl.int64) * (ROWS * BLOCK)
    row = tl.arange(0, ROWS)
    inside = row[:, None] * BLOCK + tl.arange(0, SIZE)[None, :]
    place = tl.program_id(0) * ROWS + row
    there = place < count
    wanted = there[:, None]
    scale_at = scale_offset + (slot + place).to(tl.int64) * 2
    code_at = code_offset.to(tl.int64) * UNIT + (slot + place).to(tl.int64) * (BLOCK * BITS // 8)
    totals = ()
    for _ in tl.static_range(PIECES):
        totals = totals + (tl.zeros((ROWS, SIZE), tl.float32),)
    sent = tl.zeros((ROWS,), tl.int32)
    message = received
    for _ in tl.range(WORLD, loop_unroll_factor=2):
        scale_bits = _get(_bf16_at(message, scale_at), there, MASKED)
        scale = (scale_bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        sent |= (scale != 0.0).to(tl.int32)
        codes = (message + code_at)[:, None]
        values = _unpack(codes, scale, wanted, BITS, BLOCK, PIECES, MASKED)
        summed = ()
        for p in tl.static_range(PIECES):
            summed = summed + (totals[p] + values[p],)
        totals = summed
        message += stride.to(tl.int64) * UNIT
    anybody = sent[:, None] != 0
    means = ()
    kept = ()  # of the residual, where nobody sent anything: it waits
    for p in tl.static_range(PIECES):
        mean = totals[p] * part
        if CARRY:
            carried = _get(residual + first + (inside + p * SIZE), wanted, MASKED)
            mean = tl.where(anybody, mean + gain * carried, mean)
            kept = kept + (carried,)
        else:
            kept = kept + (tl.zeros((ROWS, SIZE), tl.float32),)
        means = means + (mean,)
    worst, new_bits, scale, inverse = _quantise(means, BITS, PIECES)
    tl.atomic_max(words, tl.max(worst, axis=0), sem="relaxed")
    shifted = ()
    for p in tl.static_range(PIECES):
        moved = means[p] * inverse[:, None] + _MAGIC
        shifted = shifted + (moved,)
        if KEEP:
            rest = means[p] - (moved - _MAGIC) * scale[:, None]
            rest = tl.where(anybody, rest, kept[p])
            _put(fresh + first + (inside + p * SIZE), rest, wanted, MASKED)
    _put(_bf16_at(share, lead * UNIT + scale_at), new_bits.to(tl.int16), there, MASKED)
    _pack(shifted, (share + (lead * UNIT + code_at))[:, None], wanted, BITS, BLOCK, PIECES, MASKED)


@triton.jit(do_not_specialize=_RUNTIME)
def reduce(
    received, residual, fresh, share, words, count, slot, stride, code_offset, scale_offset, lead,
    gain, part, WORLD: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECES: tl.constexpr, CARRY: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Mean of all ranks' blocks in rank order, residual, quantise again, into this rank's share.

    ``received`` holds one message of ``stride`` bytes from each rank; the layer's ``count`` slots
    in this rank's share start at ``slot``; ``part`` is 1 / WORLD; ``lead`` bytes precede the
    payload in ``share``. ``words`` gets the bits of the largest magnitude and is 0 before.
    """
    if (tl.program_id(0) + 1) * ROWS <= count:
        _reduce_rows(
            received, residual, fresh, share, words, count, slot, stride, code_offset,
            scale_offset, lead, gain, part, WORLD, UNIT, BITS, BLOCK, ROWS, PIECES, CARRY, KEEP,
            False,
        )  # fmt: skip
    else:
        _reduce_rows(
            received, residual, fresh, share, words, count, slot, stride, code_offset,
            scale_offset, lead, gain, part, WORLD, UNIT, BITS, BLOCK, ROWS, PIECES, CARRY, KEEP,
            True,
        )  # fmt: skip


@triton.jit
def _decode_rows(
    gathered, starts, out, elements, blocks, stride, code_offset, scale_offset, base,
    WORLD: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECES: tl.constexpr, ADD: tl.constexpr, INTERPRETED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    SIZE: tl.constexpr = BLOCK // PIECES
    first = tl.program_id(0).to(tl.int64) * (ROWS * BLOCK)
    row = tl.arange(0, ROWS)
    inside = row[:, None] * BLOCK + tl.arange(0, SIZE)[None, :]
    block = tl.program_id(0) * ROWS + row
    there = block < blocks
    owner = (base + block) % WORLD
    start = owner.to(tl.int64) * (stride.to(tl.int64) * UNIT)
    slot = tl.load(starts + owner) + block // WORLD
    scale_at = start + scale_offset + slot * 2
    scale_bits = _get(_bf16_at(gathered, scale_at), there, MASKED)
    scale = (scale_bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    codes = gathered + (
        start + code_offset.to(tl.int64) * UNIT + slot.to(tl.int64) * (BLOCK * BITS // 8)
    )
    values = _unpack(codes[:, None], scale, there[:, None], BITS, BLOCK, PIECES, MASKED)
    for p in tl.static_range(PIECES):
        wanted = first + inside + p * SIZE < elements
        to = out + first + (inside + p * SIZE)
        value = values[p]
        if ADD:
            value = _get(to, wanted, MASKED).to(tl.float32) + value
        _store(to, value, wanted, MASKED, INTERPRETED)


@triton.jit(do_not_specialize=_RUNTIME)
def decode(
    gathered, starts, out, elements, blocks, stride, code_offset, scale_offset, base,
    WORLD: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PIECES: tl.constexpr, ADD: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Values of one layer from the shares of all ranks into ``out`` (elements,), or added to it.

    ``out`` is fp32, bf16 or fp16; the sum is taken in fp32. Both offsets include the bytes that
    precede a payload.
    """
    if (tl.program_id(0) + 1) * ROWS <= elements // BLOCK:
        _decode_rows(
            gathered, starts, out, elements, blocks, stride, code_offset, scale_offset, base,
            WORLD, UNIT, BITS, BLOCK, ROWS, PIECES, ADD, INTERPRETED, False,
        )  # fmt: skip
    else:
        _decode_rows(
            gathered, starts, out, elements, blocks, stride, code_offset, scale_offset, base,
            WORLD, UNIT, BITS, BLOCK, ROWS, PIECES, ADD, INTERPRETED, True,
        )  # fmt: skip
