"""Encode and sum the chunks of a reduce-scatter, all destinations at once: two back-ends.

A chunk is one parameter's part for one destination, laid out in a message of its own. There are
as many of them as ranks times parameters, so nothing is done chunk by chunk in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .layout import Place
from .quantise import dequantise, magnitude_bits, pack, quantise, unpack
from .residual import Feedback
from .wire import BF16_BYTES, SCALE_BYTES, code_bytes

HELD = -1  # instead of a worst magnitude: there was nothing to send
_AT_ONCE = 1 << 18  # elements that the reference has in hand


class ChunkCodec(Protocol):
    """What a reduce-scatter asks of a back-end; places are those of a layout for a world of 1."""

    block: int

    def encode(
        self,
        places: Sequence[Place],
        chunks: Tensor,
        origin: int,
        feedback: Sequence[Feedback],
        messages: Tensor,
        first: int,
    ) -> list[int]:
        """Place the chunks of some destinations in their messages.

        A chunk that is all 0 sends nothing, and its residual waits.

        Args:
            places: the parameters.
            chunks: fp32 (destinations, width), contiguous.
            origin: offset at which the rows of ``chunks`` begin.
            feedback: of each parameter, over all destinations: (destinations, blocks * block),
                flat.
            messages: uint8 (destinations, bytes), contiguous.
            first: the destination of the first row.

        Returns:
            The bits of each parameter's largest magnitude; `HELD` where all its chunks are 0.
        """

    def sum(self, places: Sequence[Place], messages: Tensor, factor: float, out: Tensor) -> None:
        """Sum in fp32 and rank order, times ``factor``, each parameter to its offset in ``out``.

        Args:
            places: the parameters.
            messages: uint8 (ranks, bytes), contiguous.
            factor: taken as fp32.
            out: fp32, flat.
        """

    def sum_bf16(self, messages: Tensor, start: int, factor: float, out: Tensor) -> None:
        """As `sum`, of the bf16 values from byte ``start`` of each message on, as many as ``out``.

        ``start`` and the length of a message are even.
        """


def chunk_table(places: Sequence[Place], block: int, origin: int = 0) -> np.ndarray:
    """Where chunks lie: int64 (places, 5).

    Columns: first element of the chunk, elements, bits, first byte of the codes in a message,
    first byte of the scales.
    """
    rows = [
        (
            place.offset - origin,
            place.elements,
            place.bits,
            place.code_offset + int(place.starts[0]) * code_bytes(place.bits, block),
            place.scale_offset + int(place.starts[0]) * SCALE_BYTES,
        )
        for place in places
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 5)


class TorchChunks:
    """The reference."""

    def __init__(self, *, block: int) -> None:
        self.block = block

    def encode(
        self,
        places: Sequence[Place],
        chunks: Tensor,
        origin: int,
        feedback: Sequence[Feedback],
        messages: Tensor,
        first: int,
    ) -> list[int]:
        """See `ChunkCodec.encode`."""
        table = chunk_table(places, self.block, origin).tolist()
        found = []
        for row, own in zip(table, feedback, strict=True):
            worst = HELD
            for start, stop in self._rows(row[1], len(chunks)):
                part = (chunks[start:stop], messages[start:stop])
                worst = max(worst, self._encode(row, own, *part, first + start))
            found.append(worst)
        return found

    def _rows(self, elements: int, count: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows with as many chunks as are handled at once."""
        step = max(1, _AT_ONCE // elements)
        return ((start, min(start + step, count)) for start in range(0, count, step))

    def _encode(
        self, row: list[int], own: Feedback, chunks: Tensor, messages: Tensor, first: int
    ) -> int:
        """One parameter's chunks for some destinations, a row of ``chunk_table``."""
        offset, elements, bits, code_at, scale_at = row
        count, padded = len(chunks), -(-elements // self.block) * self.block
        chunk = chunks[:, offset : offset + elements]
        sent = (chunk != 0).any(dim=1)
        values = torch.zeros((count, padded))
        values[:, :elements] = chunk
        waits = torch.zeros((count, padded))
        if own.residual is not None:
            waits = own.residual.view(-1, padded)[first : first + count]
            values[:, :elements] += own.gain * waits[:, :elements]
        values[~sent] = 0
        codes, scales, rest = quantise(values.view(-1, self.block), bits)
        packed = pack(codes, bits).view(count, -1)
        messages[:, code_at : code_at + packed.shape[1]] = packed
        scale_bytes = scales.to(torch.bfloat16).view(torch.uint8).view(count, -1)
        messages[:, scale_at : scale_at + scale_bytes.shape[1]] = scale_bytes
        if own.fresh is not None:
            kept = torch.where(sent[:, None], rest.view(count, padded), waits)
            own.fresh.view(-1, padded)[first : first + count] = kept
        return int(magnitude_bits(values).max()) if bool(sent.any()) else HELD

    def sum(self, places: Sequence[Place], messages: Tensor, factor: float, out: Tensor) -> None:
        """See `ChunkCodec.sum`."""
        for row in chunk_table(places, self.block).tolist():
            offset, elements, bits, code_at, scale_at = row
            length = code_bytes(bits, self.block)
            blocks = -(-elements // self.block)
            total = torch.zeros(blocks * self.block)
            for start, stop in self._rows(elements, len(messages)):
                part = messages[start:stop]
                codes = part[:, code_at : code_at + blocks * length].reshape(-1, length)
                scales = part[:, scale_at : scale_at + blocks * SCALE_BYTES].contiguous()
                levels = unpack(codes, bits, self.block)
                fp32 = scales.view(torch.bfloat16).flatten().to(torch.float32)
                for values in dequantise(levels, fp32, bits).view(stop - start, -1):
                    total += values
            out[offset : offset + elements] = total[:elements] * factor

    def sum_bf16(self, messages: Tensor, start: int, factor: float, out: Tensor) -> None:
        """See `ChunkCodec.sum_bf16`."""
        total = torch.zeros_like(out)
        end = start + len(out) * BF16_BYTES
        for values in messages[:, start:end].view(torch.bfloat16):
            total += values
        torch.mul(total, factor, out=out)


class NumbaChunks:
    """Fused kernels on the CPU. Raises ImportError where numba cannot compile them."""

    def __init__(self, *, block: int) -> None:
        import numba

        if getattr(numba.config, "DISABLE_JIT", 0):  # the loops would run in the interpreter
            raise ImportError("NUMBA_DISABLE_JIT is set")
        from . import dense_kernels, kernels

        self.block = block
        self._kernels = kernels
        self._dense = dense_kernels

    def encode(
        self,
        places: Sequence[Place],
        chunks: Tensor,
        origin: int,
        feedback: Sequence[Feedback],
        messages: Tensor,
        first: int,
    ) -> list[int]:
        """See `ChunkCodec.encode`."""
        worst = np.empty(len(places), dtype=np.int32)
        destinations = first + len(chunks)
        sizes = [destinations * place.blocks * self.block for place in places]
        self._kernels.encode_chunks(
            chunks.view(-1).numpy(), chunks.shape[1], first,
            chunk_table(places, self.block, origin),
            _addresses([own.residual for own in feedback], sizes),
            np.array([own.gain for own in feedback], dtype=np.float32),
            _addresses([own.fresh for own in feedback], sizes),
            self.block, messages.view(-1).numpy(), messages.shape[1], worst,
        )  # fmt: skip
        found: list[int] = worst.tolist()
        return found

    def sum(self, places: Sequence[Place], messages: Tensor, factor: float, out: Tensor) -> None:
        """See `ChunkCodec.sum`."""
        self._kernels.sum_chunks(
            messages.view(-1).numpy(), messages.shape[1], chunk_table(places, self.block),
            self.block, np.float32(factor), out.numpy(),
        )  # fmt: skip

    def sum_bf16(self, messages: Tensor, start: int, factor: float, out: Tensor) -> None:
        """See `ChunkCodec.sum_bf16`."""
        halves = messages.view(-1).view(torch.int16).numpy()
        self._dense.sum_bf16(
            halves, messages.shape[1] // BF16_BYTES, start // BF16_BYTES, np.float32(factor),
            out.numpy(),
        )  # fmt: skip


def _addresses(tensors: Sequence[Tensor | None], sizes: Sequence[int]) -> np.ndarray:
    """Of each tensor's first element, 0 for none: int64; a kernel cannot see where one ends."""
    found = np.zeros(len(sizes), dtype=np.int64)
    for i, (tensor, size) in enumerate(zip(tensors, sizes, strict=True)):
        if tensor is None:
            continue
        if tensor.dtype != torch.float32 or tensor.numel() < size or not tensor.is_contiguous():
            raise ValueError(f"a residual of {tensor.numel()} x {tensor.dtype}, not {size} x fp32")
        found[i] = tensor.data_ptr()
    return found


def best_chunks(*, block: int) -> ChunkCodec:
    """The fused kernels where numba is installed, else the reference, which gives the same."""
    try:
        return NumbaChunks(block=block)
    except ImportError:
        return TorchChunks(block=block)
