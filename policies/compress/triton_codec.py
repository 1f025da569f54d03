"""The codec on a GPU: the bits of the reference, from fused Triton kernels."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .codec import Feedbacks, Values
from .device import settle
from .layout import Place
from .residual import Feedback

_LAUNCH = threading.Lock()
_STARTS_KEPT = 4096  # layers times bits tables; 4 bytes a rank each
_WIDEST = 8  # bytes of codes that a thread can use at once
_WORDS = 4  # results of a layer: two, in a row of 16 bytes, so that all have one alignment


class TritonCodec:
    """Fused kernels for messages, gradients and residuals that lie on one device.

    Gradients and results may be fp32, bf16 or fp16; residuals are fp32. On the CPU it runs where
    ``TRITON_INTERPRET=1`` was set before triton was imported, for tests. To encode or reduce any
    number of layers it waits for the device once, to read two words of each; `decode` and
    `decode_add` never wait, but for the first call for a layer, which copies its slots to the
    device. All start on the current stream, and calls must not overlap: one thread, one stream.

    Args:
        world: ranks.
        rank: this one.
        block: elements that share a scale, a power of two from 16 on.

    Raises:
        ImportError: triton is not there.
        ValueError: another block size.
    """

    narrow = True

    def __init__(self, *, world: int, rank: int, block: int) -> None:
        from . import triton_kernels

        if block < 16 or block & (block - 1):
            raise ValueError(f"the Triton kernels need a block of a power of two, not {block}")
        self.world = world
        self.rank = rank
        self.block = block
        self._kernels = triton_kernels
        self._starts: dict[tuple[torch.device, bytes], Tensor] = {}
        self._words: dict[torch.device, Tensor] = {}

    def encode(
        self,
        place: Place,
        gradient: Tensor,
        residual: Tensor | None,
        gain: float,
        fresh: Tensor | None,
        message: Tensor,
        stride: int,
    ) -> int | None:
        """See `Codec.encode`; where the result is None, what ``fresh`` holds means nothing."""
        own = Feedback(residual=residual, gain=gain, fresh=fresh)
        return self.encode_all((place,), lambda _: gradient, lambda _: own, message, stride)[0]

    def encode_all(
        self,
        places: Sequence[Place],
        gradient: Values,
        feedback: Feedbacks,
        message: Tensor,
        stride: int,
    ) -> list[int | None]:
        """See `Codec.encode_all`."""
        words = self._cleared(message.device, len(places))
        carried = []
        for place, row in zip(places, words, strict=True):
            own = feedback(place)
            carried.append(own.residual is not None)
            self._start_encode(place, gradient(place), own, message, stride, row)
        found: list[int | None] = []
        for place, carries, (worst, any_value, *_) in zip(
            places,
            carried,
            words.tolist(),
            strict=True,  # waits for the device
        ):
            held = not (any_value if carries else worst)
            if held and carries:  # the residual went into the message, where it must not be
                none = Feedback(residual=None, gain=0.0, fresh=None)
                self._start_encode(place, gradient(place), none, message, stride, words[0])
            found.append(None if held else worst)
        return found

    def _start_encode(
        self,
        place: Place,
        gradient: Tensor,
        own: Feedback,
        message: Tensor,
        stride: int,
        words: Tensor,
    ) -> None:
        """Start the kernel, which fills two words (see `triton_kernels.encode`)."""
        residual, fresh = own.residual, own.fresh
        starts = self._on_device(place, message.device)
        grid, shape = self._shape(place.bits, place.blocks, 4)
        unit = math.gcd(stride, place.code_offset, _WIDEST)
        with _launching(message):
            self._kernels.encode[grid](
                gradient, _or(residual, starts), _or(fresh, starts), message, starts, words,
                place.elements, place.blocks, stride // unit, place.code_offset // unit,
                place.scale_offset, place.base, float(own.gain), WORLD=self.world, UNIT=unit,
                CARRY=residual is not None, KEEP=fresh is not None, **shape,
            )  # fmt: skip

    def reduce(
        self,
        place: Place,
        received: Tensor,
        stride: int,
        residual: Tensor | None,
        gain: float,
        fresh: Tensor | None,
        share: Tensor,
        lead: int,
    ) -> int:
        """See `Codec.reduce`."""
        own = Feedback(residual=residual, gain=gain, fresh=fresh)
        return self.reduce_all((place,), received, stride, lambda _: own, share, lead)

    def reduce_all(
        self,
        places: Sequence[Place],
        received: Tensor,
        stride: int,
        feedback: Feedbacks,
        share: Tensor,
        lead: int,
    ) -> int:
        """See `Codec.reduce_all`."""
        words = self._cleared(share.device, len(places))
        for place, row in zip(places, words, strict=True):
            own = feedback(place)
            if place.owned[self.rank]:
                self._start_reduce(place, received, stride, own, share, lead, row)
        return max((worst for worst, *_ in words.tolist()), default=0)  # waits for the device

    def _start_reduce(
        self,
        place: Place,
        received: Tensor,
        stride: int,
        own: Feedback,
        share: Tensor,
        lead: int,
        words: Tensor,
    ) -> None:
        """Start the kernel, which fills the first of two words with the result of `reduce`."""
        residual, fresh = own.residual, own.fresh
        first, count = int(place.starts[self.rank]), int(place.owned[self.rank])
        grid, shape = self._shape(place.bits, count, 4)
        unit = math.gcd(stride, place.code_offset, lead, _WIDEST)
        with _launching(share):
            self._kernels.reduce[grid](
                received, _or(residual, words), _or(fresh, words), share, words, count, first,
                stride // unit, place.code_offset // unit, place.scale_offset, lead // unit,
                float(own.gain), float(np.float32(1.0) / np.float32(self.world)), WORLD=self.world,
                UNIT=unit, CARRY=residual is not None, KEEP=fresh is not None, **shape,
            )  # fmt: skip

    def decode(self, place: Place, gathered: Tensor, stride: int, lead: int, out: Tensor) -> None:
        """See `Codec.decode`; ``out`` may also be bf16 or fp16."""
        self._decode(place, gathered, stride, lead, out, add=False)

    def decode_add(
        self, place: Place, gathered: Tensor, stride: int, lead: int, total: Tensor
    ) -> None:
        """Add the layer's values to ``total`` (elements,), in fp32, in one pass."""
        self._decode(place, gathered, stride, lead, total, add=True)

    def _decode(
        self, place: Place, gathered: Tensor, stride: int, lead: int, out: Tensor, *, add: bool
    ) -> None:
        starts = self._on_device(place, gathered.device)
        grid, shape = self._shape(place.bits, place.blocks, out.element_size())
        code_offset = lead + place.code_offset
        unit = math.gcd(stride, code_offset, _WIDEST)
        with _launching(gathered):
            self._kernels.decode[grid](
                gathered, starts, out, place.elements, place.blocks, stride // unit,
                code_offset // unit, lead + place.scale_offset, place.base,
                WORLD=self.world, UNIT=unit, ADD=add, INTERPRETED=not gathered.is_cuda, **shape,
            )  # fmt: skip

    def _shape(self, bits: int, blocks: int, element_bytes: int) -> tuple[tuple[int], Any]:
        """Grid, and the compile-time arguments that all kernels share."""
        rows = self._kernels.rows(bits, self.block, element_bytes)
        shape = {
            "BITS": bits,
            "BLOCK": self.block,
            "ROWS": rows,
            "PIECES": self._kernels.pieces(bits),
            **self._kernels.OPTIONS,
        }
        return (-(-blocks // rows),), shape

    def _cleared(self, device: torch.device, layers: int) -> Tensor:
        """Zeroed words for the results of a kernel for each of some layers."""
        words = self._words.get(device)
        if words is None or len(words) < layers:
            words = torch.zeros((layers, _WORDS), dtype=torch.int32, device=device)
            self._words[device] = words
        return words[:layers].zero_()

    def _on_device(self, place: Place, device: torch.device) -> Tensor:
        """The first slots of a layer in each share, copied to the device once."""
        key = (device, place.starts.tobytes())
        starts = self._starts.get(key)
        if starts is None:
            if len(self._starts) >= _STARTS_KEPT:
                settle(next(iter(self._starts.values())))  # kernels under way read them
                self._starts.clear()
            starts = torch.from_numpy(place.starts.astype(np.int32)).to(device)
            self._starts[key] = starts
        return starts


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """A kernel argument is never None; what is not used may be anything."""
    return stand_in if tensor is None else tensor


@contextmanager
def _launching(tensor: Tensor) -> Iterator[None]:
    """Kernels start on the tensor's device, and one at a time.

    A first launch compiles, and the interpreter keeps its place in the grid: neither is for
    several threads.
    """
    with _LAUNCH, torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext():
        yield
