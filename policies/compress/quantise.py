"""Block quantisation to 2..8 bits: the reference, in torch operations that run on any device.

A block of ``block`` values shares one scale: absmax / qmax in bf16, rounded up, so that no value
leaves the range of the codes (a scale in fp16 would underflow for gradients near 1e-8).
Values are rounded to nearest, ties to even. ``code * scale`` is exact in fp32 (7 + 8 significant
bits), so the residual ``value - code * scale`` is exact as well and value = Q(value) + residual
holds bit for bit, with or without fused multiply-add.

Codes are stored as unsigned ``q + 2^(bits-1)`` in planes of 8, 4, 2 and 1 bit: byte ``i`` of a
plane of width w holds elements ``i``, ``i + block*w/8``, ... (measured with a prototype: planar
nibbles unpack 2.8 times as fast as interleaved ones in compiled code).
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 2.0**-100  # a block below it sends nothing: 1 / scale would overflow; it stays residual
OVERFLOW_BITS = 0x7F000000  # 2^127: from here on code * scale may overflow; inf and NaN lie above
MAGNITUDE_MASK = 0x7FFFFFFF
PLANES = (8, 4, 2, 1)


def qmax(bits: int) -> int:
    """Largest code."""
    return (1 << (bits - 1)) - 1


def planes(bits: int) -> tuple[int, ...]:
    """Widths of the bit planes that make up a code, least significant first: 6 is 4 and 2."""
    return tuple(width for width in PLANES if bits & width)


def magnitude_bits(values: Tensor) -> Tensor:
    """The magnitudes of fp32 values as int32, whose order is that of the values, NaN on top."""
    return values.view(torch.int32) & MAGNITUDE_MASK


def scales_of(absmax: Tensor, bits: int) -> Tensor:
    """Scale of each block, fp32 values that bf16 holds exactly; 0 for blocks below ``TINY``."""
    # By a tensor: torch divides by a number as a product with its reciprocal on a GPU, which
    # rounds about 1 block in 60,000 to another scale.
    exact = absmax / torch.full_like(absmax, qmax(bits))
    rounded = (exact.view(torch.int32) + 0xFFFF) >> 16
    scales = (rounded << 16).view(torch.float32)
    return torch.where(absmax < TINY, torch.zeros_like(scales), scales)


def quantise(values: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise rows of values.

    Args:
        values: fp32 (blocks, block), contiguous.
        bits: 2..8.

    Returns:
        Codes uint8 (blocks, block), offset by ``2^(bits-1)``; scales fp32 (blocks,); residuals
        fp32 (blocks, block). Rows with a magnitude of 2^127 or more, infinity or NaN give codes
        without meaning.
    """
    worst = magnitude_bits(values).amax(dim=1)
    scales = scales_of(worst.view(torch.float32), bits)
    inverse = torch.where(scales == 0, torch.zeros_like(scales), 1.0 / scales)
    rounded = torch.round(values * inverse[:, None]) + 0.0  # no negative zero
    residual = values - rounded * scales[:, None]
    codes = (rounded.to(torch.int32) + (1 << (bits - 1))).to(torch.uint8)
    return codes, scales, residual


def dequantise(codes: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Values fp32 (blocks, block) of codes (blocks, block) and scales (blocks,)."""
    return (codes.to(torch.float32) - (1 << (bits - 1))) * scales[:, None]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 (blocks, block) as planes, uint8 (blocks, block * bits / 8)."""
    parts = []
    shift = 0
    for width in planes(bits):
        plane = (codes >> shift) & ((1 << width) - 1)
        shift += width
        pieces = plane.view(plane.shape[0], 8 // width, -1)
        packed = pieces[:, 0].clone()
        for k in range(1, 8 // width):
            packed |= pieces[:, k] << (k * width)
        parts.append(packed)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def unpack(packed: Tensor, bits: int, block: int) -> Tensor:
    """Codes uint8 (blocks, block) from their planes."""
    codes = torch.zeros((packed.shape[0], block), dtype=torch.uint8, device=packed.device)
    shift = position = 0
    for width in planes(bits):
        length = block * width // 8
        plane = packed[:, position : position + length]
        position += length
        pieces = [(plane >> (k * width)) & ((1 << width) - 1) for k in range(8 // width)]
        codes |= torch.cat(pieces, dim=1) << shift
        shift += width
    return codes
