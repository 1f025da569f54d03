"""Where each layer of a bucket lies in the messages: pure arithmetic, equal on every rank."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .wire import (
    BF16_BYTES,
    DENSE_BITS,
    SCALE_BYTES,
    block_bases,
    blocks,
    code_bytes,
    effective_bits,
    owned_blocks,
    payload_bytes,
)

_LAYOUTS_KEPT = 512  # buckets times bits tables; older ones are computed again
MIN_BLOCK_MULTIPLE = 16  # keeps codes byte-aligned for 2..8 bits, and scales 2-byte aligned


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A quantised layer: block ``j`` goes to rank ``(base + j) % world``."""

    name: str
    elements: int
    offset: int  # first element in the bucket's buffer
    bits: int
    blocks: int
    base: int
    code_offset: int  # bytes from the start of a rank's share to the codes of its bits group
    scale_offset: int
    slots: int  # blocks of the group in each rank's share, padding included
    starts: np.ndarray  # int64 (world,): the layer's first slot in each rank's share
    owned: np.ndarray  # int64 (world,): blocks each rank owns


@dataclass(frozen=True, kw_only=True, slots=True)
class DensePart:
    """A layer that travels as bf16: a stretch of the dense section."""

    name: str
    elements: int
    offset: int  # in the bucket's buffer
    start: int  # in the dense section


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One bucket under one bits table."""

    world: int
    block: int
    places: tuple[Place, ...]
    dense: tuple[DensePart, ...]
    dense_share: int  # bf16 elements in each rank's share
    dense_offset: int  # bytes from the start of a share
    payload: int  # bytes of a share
    digest: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTable:
    """The model's layers in model order, and the rank that owns each one's first block."""

    names: tuple[str, ...]
    elements: tuple[int, ...]
    world: int
    block: int
    dense_below: int
    bases: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.block < MIN_BLOCK_MULTIPLE or self.block % MIN_BLOCK_MULTIPLE:
            message = f"compression.block must be a multiple of {MIN_BLOCK_MULTIPLE}"
            raise ValueError(f"{message}, not {self.block}")
        bases = block_bases(
            self.elements, world=self.world, block=self.block, dense_below=self.dense_below
        )
        object.__setattr__(self, "bases", bases)

    def digest(self) -> int:
        """32 bits that differ where names, sizes, order or block size do."""
        text = repr((self.names, self.elements, self.world, self.block, self.dense_below))
        return zlib.crc32(text.encode())

    def model_digest(self) -> int:
        """32 bits over the model alone, the same with any number of ranks."""
        return zlib.crc32(repr((self.names, self.elements)).encode())

    def layout(self, layers: Sequence[int], bits: Sequence[int]) -> Layout:
        """Lay out one bucket.

        Args:
            layers: indices of the bucket's layers, in the order of its buffer, without gaps.
            bits: planned bits of each of them; small layers travel as bf16 all the same.
        """
        sizes = [self.elements[i] for i in layers]
        widths = [
            effective_bits(size, width, self.dense_below)
            for size, width in zip(sizes, bits, strict=True)
        ]
        bases = [self.bases[i] for i in layers]
        filled = {width: np.zeros(self.world, dtype=np.int64) for width in set(widths)}
        starts = []
        for size, width, base in zip(sizes, widths, bases, strict=True):
            starts.append(filled[width].copy())
            if width != DENSE_BITS:
                filled[width] += owned_blocks(blocks(size, self.block), base, self.world)
        code_offset: dict[int, int] = {}
        position = 0
        for width in sorted(filled.keys() - {DENSE_BITS}):
            code_offset[width] = position
            slots = int(filled[width].max())
            position += slots * (code_bytes(width, self.block) + SCALE_BYTES)
        places, dense = [], []
        offset = dense_total = 0
        for i, size, width, base, start in zip(layers, sizes, widths, bases, starts, strict=True):
            if width == DENSE_BITS:
                dense.append(
                    DensePart(name=self.names[i], elements=size, offset=offset, start=dense_total)
                )
                dense_total += size
            else:
                slots = int(filled[width].max())
                count = blocks(size, self.block)
                places.append(
                    Place(
                        name=self.names[i],
                        elements=size,
                        offset=offset,
                        bits=width,
                        blocks=count,
                        base=base,
                        code_offset=code_offset[width],
                        scale_offset=code_offset[width] + slots * code_bytes(width, self.block),
                        slots=slots,
                        starts=start,
                        owned=owned_blocks(count, base, self.world),
                    )
                )
            offset += size
        share = -(-dense_total // self.world)
        payload = position + share * BF16_BYTES
        expected = payload_bytes(sizes, widths, bases, world=self.world, block=self.block)
        if payload != expected:  # the formula is what everybody plans with
            raise RuntimeError(f"layout of {payload} bytes where the formula says {expected}")
        described = repr((self.digest(), tuple(layers), tuple(widths)))
        return Layout(
            world=self.world,
            block=self.block,
            places=tuple(places),
            dense=tuple(dense),
            dense_share=share,
            dense_offset=position,
            payload=payload,
            digest=zlib.crc32(described.encode()),
        )


class Layouts:
    """The layouts of a table's buckets, each computed once, and the one in use.

    Args:
        table: the layers.
    """

    def __init__(self, table: LayerTable) -> None:
        self._table = table
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Layout] = {}
        self._current: Layout | None = None

    def lay_out(self, layers: tuple[int, ...], bits: Sequence[int]) -> Layout:
        """Begin a bucket.

        Args:
            layers: in the order of its buffer.
            bits: planned ones of every layer of the model.
        """
        key = (layers, tuple(bits[i] for i in layers))
        self._current = None
        layout = self._known.get(key)
        if layout is None:
            if len(self._known) >= _LAYOUTS_KEPT:
                self._known.clear()
            layout = self._known[key] = self._table.layout(*key)
        self._current = layout
        return layout

    @property
    def current(self) -> Layout:
        """Of the bucket begun last.

        Raises:
            RuntimeError: there is none.
        """
        if self._current is None:
            raise RuntimeError("digest() lays the bucket out and comes first")
        return self._current
