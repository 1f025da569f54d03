"""Error feedback: what was rounded away, kept by parameter name and added to the next round.

DDP rebuilds its buckets after the first iteration, so nothing here knows of buckets or offsets.
Two residuals a layer: the worker's (what this rank's own gradient lost) and the owner's (what the
mean of the blocks that this rank sums lost in the second rounding). An exchange stages new
residuals and commits them only once every rank is known to have succeeded with finite values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

WORKER, OWNER = "worker", "owner"


class ResidualStore:
    """Residuals of one rank, with spare buffers so that a round allocates nothing.

    Args:
        decay: share of the residual that is carried into the next round (beta); 1 keeps all.
            Measured with a prototype: 4-bit rounding under Adam costs 0.5 % perplexity at 1 and
            0.1 % at 0.5, since a residual injected whole doubles the noise power.
        enabled: without error feedback nothing is kept.
    """

    def __init__(self, *, decay: float, enabled: bool) -> None:
        self.decay = decay
        self.enabled = enabled
        self._loss_scale = 1.0
        self._kept: dict[tuple[str, str], Tensor] = {}
        self._staged: list[tuple[tuple[str, str], Tensor | None]] = []
        self._spare: dict[int, list[Tensor]] = {}

    def get(self, kind: str, name: str) -> Tensor | None:
        """The residual of a layer, fp32 and flat, or None."""
        return self._kept.get((kind, name))

    def fresh(self, elements: int) -> Tensor:
        """A buffer for a new residual; its content is undefined."""
        pool = self._spare.get(elements)
        return pool.pop() if pool else torch.empty(elements, dtype=torch.float32)

    def stage(self, kind: str, name: str, residual: Tensor | None) -> None:
        """Propose a layer's new residual; None: it was sent whole and is to be dropped."""
        self._staged.append(((kind, name), residual))

    def recycle(self, buffer: Tensor) -> None:
        """Give back a buffer that holds nothing."""
        self._spare.setdefault(buffer.numel(), []).append(buffer)

    def commit(self) -> None:
        """Every rank succeeded: the staged residuals hold."""
        for key, residual in self._staged:
            old = self._kept.pop(key, None)
            if old is not None:
                self.recycle(old)
            if residual is not None:
                self._kept[key] = residual
        self._staged.clear()

    def discard(self) -> None:
        """Some rank failed or was not finite: the residuals stay as they were."""
        for _, residual in self._staged:
            if residual is not None:
                self.recycle(residual)
        self._staged.clear()

    def set_loss_scale(self, scale: float) -> None:
        """The factor of the coming gradients; what is stored follows a change of it."""
        if not (math.isfinite(scale) and scale > 0):  # all gradients will be skipped
            return
        factor = scale / self._loss_scale
        if factor != 1.0:
            for residual in self._kept.values():
                residual.mul_(factor)
            self._loss_scale = scale

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Copies of both residuals by parameter name, in unscaled units of the gradient."""
        out: dict[str, dict[str, Tensor]] = {WORKER: {}, OWNER: {}}
        for (kind, name), residual in self._kept.items():
            out[kind][name] = residual / self._loss_scale
        return out

    def load_state_dict(
        self, state: Mapping[str, Mapping[str, Tensor]], sizes: Mapping[tuple[str, str], int]
    ) -> None:
        """Take residuals back.

        Args:
            state: what `state_dict` returned.
            sizes: elements of each (kind, name) that this rank has.

        Raises:
            ValueError: a residual of another size or of a layer that is not there.
        """
        loaded = {}
        for kind in (WORKER, OWNER):
            for name, residual in state[kind].items():
                if sizes.get((kind, name)) != residual.numel():
                    raise ValueError(f"residual {name}: {residual.numel()} elements do not fit")
                kept = residual.detach().to("cpu", torch.float32, copy=True).flatten()
                loaded[kind, name] = kept.mul_(self._loss_scale)
        self.clear()
        self._kept = loaded

    def clear(self) -> None:
        """Drop all residuals."""
        self.discard()
        self._kept.clear()

    def norm(self) -> float:
        """Euclidean norm of the worker's residuals: how much is waiting to be sent."""
        squares = [
            float(torch.linalg.vector_norm(residual)) ** 2
            for (kind, _), residual in self._kept.items()
            if kind == WORKER
        ]
        return float(sum(squares) ** 0.5)
