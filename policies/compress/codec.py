"""Encode, sum and decode one layer in the messages of a bucket: two back-ends, the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .layout import Place
from .quantise import dequantise, magnitude_bits, pack, quantise, unpack
from .residual import Feedback
from .wire import code_bytes

Values = Callable[[Place], Tensor]
Feedbacks = Callable[[Place], Feedback]


class Codec(Protocol):
    """What an exchange asks of a back-end. Messages are uint8 and flat; results are int bits.

    A "worst" is the bit pattern of the largest magnitude: ``OVERFLOW_BITS`` or more means that
    something is not finite. `encode_all` and `reduce_all` ask for what belongs to a layer when its
    turn comes, in the order of ``places``.
    """

    world: int
    rank: int
    block: int
    narrow: bool  # takes and gives bf16 and fp16 as well

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
        """Place a layer in the ``world`` shares of ``message``; None if its gradient is all 0.

        An all-zero gradient (an unused parameter) sends nothing and its residual waits.
        ``fresh`` receives what is rounded away.
        """

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
        """Mean of the blocks this rank owns, in rank order, rounded again into ``share``."""

    def decode(self, place: Place, gathered: Tensor, stride: int, lead: int, out: Tensor) -> None:
        """The layer's values from all shares, into ``out`` fp32 (elements,)."""

    def encode_all(
        self,
        places: Sequence[Place],
        gradient: Values,
        feedback: Feedbacks,
        message: Tensor,
        stride: int,
    ) -> list[int | None]:
        """As `encode`, of several layers, whose results are waited for once."""

    def reduce_all(
        self,
        places: Sequence[Place],
        received: Tensor,
        stride: int,
        feedback: Feedbacks,
        share: Tensor,
        lead: int,
    ) -> int:
        """As `reduce`, of several layers; the worst of them."""


class _OneByOne:
    """Several layers, for a back-end whose work is done when it returns."""

    def encode_all(
        self: Codec,
        places: Sequence[Place],
        gradient: Values,
        feedback: Feedbacks,
        message: Tensor,
        stride: int,
    ) -> list[int | None]:
        """See `Codec.encode_all`."""
        found = []
        for place in places:
            own = feedback(place)
            found.append(
                self.encode(
                    place, gradient(place), own.residual, own.gain, own.fresh, message, stride
                )
            )
        return found

    def reduce_all(
        self: Codec,
        places: Sequence[Place],
        received: Tensor,
        stride: int,
        feedback: Feedbacks,
        share: Tensor,
        lead: int,
    ) -> int:
        """See `Codec.reduce_all`."""
        worst = 0
        for place in places:
            own = feedback(place)
            found = self.reduce(
                place, received, stride, own.residual, own.gain, own.fresh, share, lead
            )
            worst = max(worst, found)
        return worst


class TorchCodec(_OneByOne):
    """The reference, on any device."""

    narrow = True

    def __init__(self, *, world: int, rank: int, block: int) -> None:
        self.world = world
        self.rank = rank
        self.block = block

    def _codes(self, place: Place, message: Tensor, stride: int, lead: int) -> Tensor:
        """View of a bits group's codes: (ranks, slots, bytes of a block)."""
        length = code_bytes(place.bits, self.block)
        start = lead + place.code_offset
        rows = message.view(-1, stride)[:, start : start + place.slots * length]
        return rows.view(-1, place.slots, length)

    def _scales(self, place: Place, message: Tensor, stride: int, lead: int) -> Tensor:
        """View of a bits group's scales: bf16 (ranks, slots)."""
        start = lead + place.scale_offset
        rows = message.view(-1, stride)[:, start : start + place.slots * 2]
        return rows.view(torch.bfloat16)

    def _where(self, place: Place, device: torch.device) -> tuple[Tensor, Tensor]:
        """Owner and slot of each block of a layer."""
        block = np.arange(place.blocks)
        owner = (place.base + block) % self.world
        slot = place.starts[owner] + block // self.world
        return torch.from_numpy(owner).to(device), torch.from_numpy(slot).to(device)

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
        """See `Codec.encode`."""
        held = not bool((gradient != 0).any())
        values = torch.zeros(
            place.blocks * self.block, dtype=torch.float32, device=gradient.device
        )
        if not held:
            values[: place.elements] = gradient
            if residual is not None:
                values[: place.elements] += gain * residual[: place.elements]
        rows = values.view(-1, self.block)
        codes, scales, rest = quantise(rows, place.bits)
        owner, slot = self._where(place, message.device)
        self._codes(place, message, stride, 0)[owner, slot] = pack(codes, place.bits)
        self._scales(place, message, stride, 0)[owner, slot] = scales.to(torch.bfloat16)
        if held:
            return None
        if fresh is not None:
            fresh.copy_(rest.flatten())
        return int(magnitude_bits(values).max())

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
        first, count = int(place.starts[self.rank]), int(place.owned[self.rank])
        if count == 0:
            return 0
        codes = self._codes(place, received, stride, 0)[:, first : first + count]
        scales = self._scales(place, received, stride, 0)[:, first : first + count]
        total = torch.zeros((count, self.block), dtype=torch.float32, device=share.device)
        for rank in range(self.world):
            levels = unpack(codes[rank], place.bits, self.block)
            total += dequantise(levels, scales[rank].to(torch.float32), place.bits)
        total *= float(np.float32(1.0) / np.float32(self.world))
        sent = (scales != 0).any(dim=0)
        if residual is not None:
            total[sent] += gain * residual.view(-1, self.block)[sent]
        codes_out, scales_out, rest = quantise(total, place.bits)
        mine = (0, slice(first, first + count))
        self._codes(place, share, share.numel(), lead)[mine] = pack(codes_out, place.bits)
        self._scales(place, share, share.numel(), lead)[mine] = scales_out.to(torch.bfloat16)
        if fresh is not None:
            kept = torch.zeros_like(rest) if residual is None else residual.view_as(rest)
            fresh.copy_(torch.where(sent[:, None], rest, kept).flatten())
        return int(magnitude_bits(total).max())

    def decode(self, place: Place, gathered: Tensor, stride: int, lead: int, out: Tensor) -> None:
        """See `Codec.decode`."""
        owner, slot = self._where(place, gathered.device)
        codes = unpack(
            self._codes(place, gathered, stride, lead)[owner, slot], place.bits, self.block
        )
        scales = self._scales(place, gathered, stride, lead)[owner, slot]
        values = dequantise(codes, scales.to(torch.float32), place.bits)
        out.copy_(values.flatten()[: place.elements])


class NumbaCodec(_OneByOne):
    """Fused kernels on the CPU. Raises ImportError where numba cannot compile them."""

    narrow = False

    def __init__(self, *, world: int, rank: int, block: int) -> None:
        import numba

        if getattr(numba.config, "DISABLE_JIT", 0):  # the loops would run in the interpreter
            raise ImportError("NUMBA_DISABLE_JIT is set")
        from . import kernels

        self.world = world
        self.rank = rank
        self.block = block
        self._kernels = kernels
        self._none = np.empty(0, dtype=np.float32)

    def _array(self, tensor: Tensor | None) -> Any:
        return self._none if tensor is None else tensor.numpy()

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
        """See `Codec.encode`."""
        worst = int(
            self._kernels.encode(
                gradient.numpy(), residual is not None, self._array(residual), np.float32(gain),
                fresh is not None, self._array(fresh), place.bits, self.block, message.numpy(),
                stride, place.base, self.world, place.code_offset, place.scale_offset,
                place.starts,
            )
        )  # fmt: skip
        return None if worst < 0 else worst

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
        first, count = int(place.starts[self.rank]), int(place.owned[self.rank])
        return int(
            self._kernels.reduce(
                received.numpy(), stride, self.world, first, count, residual is not None,
                self._array(residual), np.float32(gain), fresh is not None, self._array(fresh),
                place.bits, self.block, place.code_offset, place.scale_offset, share.numpy(),
                lead,
            )
        )  # fmt: skip

    def decode(self, place: Place, gathered: Tensor, stride: int, lead: int, out: Tensor) -> None:
        """See `Codec.decode`."""
        self._kernels.decode(
            gathered.numpy(), stride, lead, self.world, place.base, place.bits, self.block,
            place.code_offset, place.scale_offset, place.starts, out.numpy(),
        )  # fmt: skip


def best_codec(*, world: int, rank: int, block: int, on: torch.device | None = None) -> Codec:
    """The fused kernels where numba is installed, else the reference, which gives the same.

    Args:
        world: ranks.
        rank: this one.
        block: elements that share a scale.
        on: device that has messages and gradients, where they are not in host memory.
    """
    if on is not None:
        from .triton_codec import TritonCodec

        return TritonCodec(world=world, rank=rank, block=block)
    try:
        return NumbaCodec(world=world, rank=rank, block=block)
    except ImportError:
        return TorchCodec(world=world, rank=rank, block=block)
