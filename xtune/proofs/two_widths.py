"""Quantised with other bits in the second phase than in the first: a question to the engine.

The arithmetic is that of the two-phase exchange, written over whole layers from the reference
quantiser; with equal widths it gives the engine's bits. Each rank computes what the owners do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xtune.policies.compress import wire
from xtune.policies.compress.quantise import dequantise, quantise
from xtune.policies.plan import Layer
from xtune.proofs.methods import Buckets, Method, plan_of
from xtune.proofs.ranks import LocalChannel


class TwoWidthsSide:
    """One rank's side.

    Args:
        method: bits of the first phase, ``second_bits`` of the second, gain of both residuals.
        channel: collectives.
        layers: of the model.
        buckets: layer indices of each bucket.
    """

    def __init__(
        self, method: Method, channel: LocalChannel, layers: Sequence[Layer], buckets: Buckets
    ) -> None:
        compression = method.compression()
        self._channel = channel
        self._buckets = buckets
        self._sizes = [layer.elements for layer in layers]
        self._first = plan_of(method, layers, channel.world).bits
        second = method.second_bits
        self._second = tuple(b if b == wire.DENSE_BITS else second or b for b in self._first)
        self._gain = method.gain or 0.0
        self._block = compression.block
        self._dense_below = compression.dense_below_elements
        self._residuals: dict[int, tuple[Tensor, Tensor]] = {}  # worker's and owners', by layer

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """See `Side.reduce`."""
        for bucket, buffer in zip(self._buckets, buffers, strict=True):
            offset = 0
            for i in bucket:
                part = buffer[offset : offset + self._sizes[i]]
                offset += self._sizes[i]
                if self._first[i] == wire.DENSE_BITS:
                    mean = self._mean(part.to(torch.bfloat16).to(torch.float32))
                    part.copy_(mean.to(torch.bfloat16))
                else:
                    self._quantised(i, part)
        return sum(self._bytes(bucket) for bucket in self._buckets)

    def _quantised(self, layer: int, part: Tensor) -> None:
        size = wire.blocks(part.numel(), self._block) * self._block
        worker, owner = self._residuals.get(layer, (torch.zeros(size), torch.zeros(size)))
        values = torch.zeros(size)
        values[: part.numel()] = part
        values += self._gain * worker
        rounded, worker = self._round(values, self._first[layer])
        total = self._mean(rounded) + self._gain * owner
        mean, owner = self._round(total, self._second[layer])
        part.copy_(mean[: part.numel()])
        self._residuals[layer] = worker, owner

    def _round(self, values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        """Values as they arrive, and what is left."""
        codes, scales, rest = quantise(values.view(-1, self._block), bits)
        return dequantise(codes, scales, bits).flatten(), rest.flatten()

    def _mean(self, mine: Tensor) -> Tensor:
        world = self._channel.world
        everyone = torch.empty(world * mine.numel())
        self._channel.all_gather(everyone, mine)
        total = torch.zeros_like(mine)
        for row in everyone.view(world, -1):
            total += row
        return total * float(np.float32(1.0) / np.float32(world))

    def _bytes(self, bucket: Sequence[int]) -> int:
        """What the exchange would send: a share in each phase, by the wire formula."""
        world = self._channel.world
        bases = wire.block_bases(
            self._sizes, world=world, block=self._block, dense_below=self._dense_below
        )
        both = sum(
            wire.two_phase_bytes(
                wire.payload_bytes(
                    [self._sizes[i] for i in bucket],
                    [bits[i] for i in bucket],
                    [bases[i] for i in bucket],
                    world=world,
                    block=self._block,
                ),
                world,
            )
            for bits in (self._first, self._second)
        )
        return both // 2

    def state_dict(self) -> dict[str, Any]:
        """See `Side.state_dict`."""
        return {"residuals": self._residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Side.load_state_dict`."""
        self._residuals = {i: (a.clone(), b.clone()) for i, (a, b) in state["residuals"].items()}

    def about(self) -> dict[str, Any]:
        """See `Side.about`."""
        return {}
