"""The methods beside ours, after their papers, over the same channel with the same byte counts.

- bf16: what everybody does. Cast, all-reduce in bf16.
- Dropping with residual (Aji and Heafield, EMNLP 2017): what is not sent is added to the next
  gradient. The selection and the wire format are those of the engine's mode ``drop``.
- PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019): rank-r factors, one power iteration,
  warm start and error feedback, with the orthogonalisation, the first factors and the rule of
  what is too small to compress of torch's own hook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from xtune.policies.compress.bucket import Bucket
from xtune.policies.compress.wire import kept_elements
from xtune.policies.plan import Layer
from xtune.proofs.methods import Buckets, Method
from xtune.proofs.ranks import LocalChannel, build_exchange

LEAST_RATE = 2  # a matrix is sent as factors if that is at least so many times smaller


class Bf16Side:
    """A plain all-reduce of bf16 values."""

    def __init__(self, channel: LocalChannel) -> None:
        self._channel = channel

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """See `Side.reduce`."""
        self._channel.reset()
        for buffer in buffers:
            narrow = buffer.to(torch.bfloat16)
            self._channel.all_reduce_mean(narrow)
            buffer.copy_(narrow)
        return self._channel.sent_bytes

    def state_dict(self) -> dict[str, Any]:
        """See `Side.state_dict`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Side.load_state_dict`."""

    def about(self) -> dict[str, Any]:
        """See `Side.about`."""
        return {}


class DropResidualSide:
    """The engine's dropping with a residual around it."""

    def __init__(
        self,
        method: Method,
        channel: LocalChannel,
        layers: Sequence[Layer],
        buckets: Buckets,
        keep_share: float,
    ) -> None:
        self._exchange = build_exchange(channel, layers, method.compression(keep_share))
        self._buckets = buckets
        self._keep_share = keep_share
        self._bits = (16,) * len(layers)
        sizes = [sum(layers[i].elements for i in bucket) for bucket in buckets]
        self.residuals = [torch.zeros(size) for size in sizes]

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """See `Side.reduce`."""
        sent = 0
        for index, (layers, buffer) in enumerate(zip(self._buckets, buffers, strict=True)):
            residual = self.residuals[index].add_(buffer)
            buffer.copy_(residual)
            kept = kept_elements(buffer.numel(), self._keep_share)
            chosen = torch.topk(buffer.abs(), kept, sorted=False).indices
            residual[chosen] -= residual[chosen].to(torch.bfloat16).to(torch.float32)
            reduced = self._exchange.reduce(
                Bucket(index=index, layers=layers, buffer=buffer),
                step=step, mode="drop", bits=self._bits, loss=loss,
            )  # fmt: skip
            if reduced.failed or not reduced.finite:
                raise RuntimeError(f"step {step}, bucket {index} was not reduced as planned")
            sent += reduced.wire_bytes
        return sent

    def state_dict(self) -> dict[str, Any]:
        """See `Side.state_dict`."""
        return {"residuals": self.residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Side.load_state_dict`."""
        self.residuals = [residual.clone() for residual in state["residuals"]]

    def about(self) -> dict[str, Any]:
        """See `Side.about`."""
        return {}


class PowerSide:
    """PowerSGD over all matrices of the model at once.

    Args:
        channel: collectives.
        shapes: of each layer, model order.
        buckets: layer indices of each bucket.
        rank: of the factors.
        seed: of the first factors, the same on every rank.
    """

    def __init__(
        self,
        channel: LocalChannel,
        shapes: Sequence[tuple[int, ...]],
        buckets: Buckets,
        rank: int,
        seed: int = 0,
    ) -> None:
        self._channel = channel
        self._rank = rank
        self._places: list[tuple[int, int, tuple[int, ...]]] = []  # bucket, offset, shape
        for index, bucket in enumerate(buckets):
            offset = 0
            for layer in bucket:
                self._places.append((index, offset, shapes[layer]))
                offset += torch.Size(shapes[layer]).numel()
        generator = torch.Generator().manual_seed(seed)
        self.factors: dict[int, Tensor] = {}
        self.residuals: dict[int, Tensor] = {}
        for place, (_, _, shape) in enumerate(self._places):
            if self._pays(shape):
                columns = torch.Size(shape[1:]).numel()
                width = min(shape[0], columns, rank)
                self.factors[place] = torch.randn(columns, width, generator=generator)
                self.residuals[place] = torch.zeros(shape[0], columns)

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """See `Side.reduce`."""
        self._channel.reset()
        world = self._channel.world
        matrices, rest = {}, []
        for place, (index, offset, shape) in enumerate(self._places):
            flat = buffers[index][offset : offset + torch.Size(shape).numel()]
            if place in self.factors:
                matrices[place] = flat.view(shape[0], -1)
            else:
                rest.append(flat)
        for place, matrix in matrices.items():
            matrix += self.residuals[place]
            self.residuals[place].copy_(matrix)
        if rest:
            self._mean(rest)
        right = {place: _orthogonal(self.factors[place]) for place in matrices}
        left = {place: matrix @ right[place] for place, matrix in matrices.items()}
        self._sum(left)
        left = {place: _orthogonal(factor) for place, factor in left.items()}
        self.factors = {place: matrix.T @ left[place] for place, matrix in matrices.items()}
        self._sum(self.factors)
        for place, matrix in matrices.items():
            self.factors[place] /= world
            matrix.copy_(left[place] @ self.factors[place].T)
            self.residuals[place] -= matrix
        return self._channel.sent_bytes

    def _pays(self, shape: tuple[int, ...]) -> bool:
        rows, columns = shape[0], torch.Size(shape[1:]).numel()
        width = min(rows, columns, self._rank)
        return (rows + columns) * width * LEAST_RATE < rows * columns

    def _mean(self, parts: list[Tensor]) -> None:
        together = torch.cat(parts)
        self._channel.all_reduce_mean(together)
        for part, values in zip(
            parts, torch.split(together, [p.numel() for p in parts]), strict=True
        ):
            part.copy_(values)

    def _sum(self, factors: dict[int, Tensor]) -> None:
        together = torch.cat([factor.flatten() for factor in factors.values()])
        self._channel.all_reduce_sum(together)
        sizes = [factor.numel() for factor in factors.values()]
        for factor, values in zip(factors.values(), torch.split(together, sizes), strict=True):
            factor.copy_(values.view_as(factor))

    def state_dict(self) -> dict[str, Any]:
        """See `Side.state_dict`."""
        return {"factors": self.factors, "residuals": self.residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Side.load_state_dict`."""
        self.factors = {place: factor.clone() for place, factor in state["factors"].items()}
        self.residuals = {place: kept.clone() for place, kept in state["residuals"].items()}

    def about(self) -> dict[str, Any]:
        """See `Side.about`."""
        return {}


def _orthogonal(matrix: Tensor) -> Tensor:
    """Orthonormal columns that span the same space."""
    q: Tensor = torch.linalg.qr(matrix).Q
    return q
