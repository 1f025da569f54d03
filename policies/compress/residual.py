"""Error feedback: what was rounded away, kept by parameter name and added to the next round.

DDP rebuilds its buckets after the first iteration, so nothing here knows of buckets or offsets.
Two residuals a layer: the worker's (what this rank's own gradient lost) and the owner's (what the
mean of the blocks that this rank sums lost in the second rounding). An exchange stages new
residuals and commits them only once every rank is known to have succeeded with finite values;
what was kept before stays at hand until the iteration ends, for a step that is skipped.

A residual that block quantisation leaves is bounded by itself: no element exceeds half a step of
its block, 1/14 of the block's largest magnitude at 4 bits and 1/2 at 2 bits. What a selection of
few elements leaves is not, so a layer whose residual outgrows its gradient carries less of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .device import settle

WORKER, OWNER, SHRINK, SHARE = "worker", "owner", "shrink", "share"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STEP_DOWN = 0.9  # factor on what is carried, each time that a residual is found too large
_Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """What a layer's values are given of what was rounded away before.

    Attributes:
        residual: fp32, or None; valid until that of the next layer is asked for.
        gain: share of it that is carried.
        fresh: receives what is rounded away now, where it is kept.
    """

    residual: Tensor | None
    gain: float
    fresh: Tensor | None


class ResidualStore:
    """Residuals of one rank, with spare buffers so that a round allocates nothing.

    Args:
        decay: share of the residual that is carried into the next round (beta), 1 keeps all;
            one number, or one by layer name. Carried whole it doubles the noise power, not
            carried it is lost for good; docs/compression.md has what either costs.
        enabled: without error feedback nothing is kept.
        dtype: of what is kept between rounds; bfloat16 halves the memory and loses at most 2^-9
            of a residual each time it is put away. Arithmetic is fp32 in any case.
        limit: norm of a layer's residual, in norms of its gradient, above which less is carried.
        device: that has the residuals, host memory by default.
    """

    def __init__(
        self,
        *,
        decay: float | Mapping[str, float],
        enabled: bool,
        dtype: torch.dtype = torch.float32,
        limit: float = math.inf,
        device: torch.device | None = None,
    ) -> None:
        self.decay = decay
        self.enabled = enabled
        self._dtype = dtype
        self._limit = limit
        self._device = torch.device("cpu") if device is None else device
        self._loss_scale = 1.0
        self._kept: dict[_Key, Tensor] = {}
        self._staged: list[tuple[_Key, Tensor | None, float | None]] = []
        # What was kept when the iteration began, its share, and who has a use for the buffer.
        self._before: dict[_Key, tuple[Tensor | None, float | None, ResidualStore]] = {}
        self._spare: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._wide: dict[str, Tensor] = {}  # fp32 copy of what was asked for last, by kind
        self._shrink: dict[str, float] = {}  # factor on the share carried, by layer
        self._share: dict[str, float] = {}  # of worker's residuals that have one of their own

    def branch(self) -> ResidualStore:
        """The same residuals for another thread, which reduces other layers at the same time.

        Spare buffers are its own: on an accelerator the last use of one may still be under way on
        the stream that gave it back.
        """
        other = copy.copy(self)
        other._staged, other._wide, other._spare = [], {}, {}
        return other

    def gain(self, name: str) -> float:
        """Share of a layer's residual that the next round carries."""
        decay = self.decay if isinstance(self.decay, float | int) else self.decay[name]
        return self._share.get(name, decay) * self.shrink(name)

    def shrink(self, name: str) -> float:
        """What is left of a layer's share after its residual was found too large."""
        return self._shrink.get(name, 1.0)

    def watch(self, name: str, gradient_norm: float) -> None:
        """Compare a layer's residual with this rank's gradient, and carry less or more of it.

        Args:
            name: the layer.
            gradient_norm: of this rank's own gradient, in the units of the residual.
        """
        residual = self._kept.get((WORKER, name))
        if residual is None or not 0 < gradient_norm < math.inf:
            return
        if float(torch.linalg.vector_norm(residual, dtype=torch.float32)) > (
            self._limit * gradient_norm
        ):
            self._shrink[name] = self.shrink(name) * STEP_DOWN
        elif name in self._shrink:
            grown = self._shrink.pop(name) / STEP_DOWN
            if grown < 1.0:
                self._shrink[name] = grown

    @property
    def narrow(self) -> bool:
        """Whether what is kept is converted to be used: `get` has one at a time of a kind."""
        return self._dtype != torch.float32

    def get(self, kind: str, name: str) -> Tensor | None:
        """The residual of a layer, fp32 and flat, or None; valid until the next of its kind."""
        kept = self._kept.get((kind, name))
        if kept is None or kept.dtype == torch.float32:
            return kept
        wide = self._wide.get(kind)
        if wide is None or wide.numel() < kept.numel():
            wide = torch.empty(kept.numel(), dtype=torch.float32, device=kept.device)
            self._wide[kind] = wide
        return wide[: kept.numel()].copy_(kept)

    def fresh(self, elements: int) -> Tensor:
        """A buffer for a new residual; its content is undefined."""
        return self._buffer(elements, torch.float32)

    def feedback(self, kind: str, name: str, elements: int) -> Feedback:
        """What a layer has as residual, and room for the new one of ``elements``."""
        return Feedback(
            residual=self.get(kind, name),
            gain=self.gain(name),
            fresh=self.fresh(elements) if self.enabled else None,
        )

    def _buffer(self, elements: int, dtype: torch.dtype) -> Tensor:
        try:
            return self._spare[elements, dtype].pop()
        except LookupError:
            return torch.empty(elements, dtype=dtype, device=self._device)

    def stage(
        self, kind: str, name: str, residual: Tensor | None, *, share: float | None = None
    ) -> None:
        """Propose a layer's new residual.

        Args:
            kind: `WORKER` or `OWNER`.
            name: the layer.
            residual: None: it was sent whole and is to be dropped.
            share: of it that the next round carries, whatever its mode; by default the layer's.
        """
        self._staged.append(((kind, name), residual, share))

    def offer(self, kind: str, name: str, own: Feedback, *, held: bool) -> None:
        """Stage what a layer's values left, unless it was ``held``: then its residual waits."""
        if own.fresh is None:
            return
        if held:
            self.recycle(own.fresh)
        else:
            self.stage(kind, name, own.fresh)

    def recycle(self, buffer: Tensor) -> None:
        """Give back a buffer that holds nothing."""
        self._spare.setdefault((buffer.numel(), buffer.dtype), []).append(buffer)

    def commit(self) -> None:
        """Every rank succeeded: the staged residuals hold, unless the iteration ends badly."""
        for key, residual, share in self._staged:
            old, before = self._kept.pop(key, None), self._share.get(key[1])
            if residual is not None:
                self._kept[key] = self._put_away(residual)
            if key[0] == WORKER:
                self._put_share(key[1], share)
            if key not in self._before:
                self._before[key] = old, before, self
            elif old is not None:
                self.recycle(old)
        self._staged.clear()

    def _put_share(self, name: str, share: float | None) -> None:
        if share is None:
            self._share.pop(name, None)
        else:
            self._share[name] = share

    def _put_away(self, residual: Tensor) -> Tensor:
        """What is kept of a new residual."""
        if self._dtype == torch.float32:
            return residual
        kept = self._buffer(residual.numel(), self._dtype).copy_(residual)
        self.recycle(residual)
        return kept

    def end(self, *, finite: bool) -> None:
        """The iteration is over.

        Args:
            finite: whether all its gradients were, on all ranks; if not, the step is skipped, and
                residuals are what they were before it.
        """
        for key, (old, share, owner) in self._before.items():
            if finite:
                if old is not None:
                    owner.recycle(old)
                continue
            new = self._kept.pop(key, None)
            if new is not None:
                owner.recycle(new)
            if old is not None:
                self._kept[key] = old
            if key[0] == WORKER:
                self._put_share(key[1], share)
        self._before.clear()

    def discard(self) -> None:
        """Some rank failed or was not finite: the residuals stay as they were."""
        for _, residual, _ in self._staged:
            if residual is not None:
                self.recycle(residual)
        self._staged.clear()

    def set_loss_scale(self, scale: float) -> None:
        """The factor of the coming gradients; what is stored follows a change of it."""
        if not (math.isfinite(scale) and scale > 0):  # all gradients will be skipped
            return
        factor = scale / self._loss_scale
        if factor != 1.0:
            before = [old for old, _, _ in self._before.values() if old is not None]
            for residual in [*self._kept.values(), *before]:
                residual.mul_(factor)
                settle(residual)  # other lanes use it on streams of their own
            self._loss_scale = scale

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Copies of both residuals by parameter name, in unscaled units of the gradient.

        To be called between iterations. They are in host memory, so that ranks may go on from
        them on other devices. Under ``shrink``, the layers that carry less than their share;
        under ``share``, those whose residual has one of its own.
        """
        out: dict[str, dict[str, Any]] = {WORKER: {}, OWNER: {}}
        out |= {SHRINK: dict(self._shrink), SHARE: dict(self._share)}
        for (kind, name), residual in self._kept.items():
            out[kind][name] = residual.cpu() / self._loss_scale
        return out

    def load_state_dict(
        self, state: Mapping[str, Mapping[str, Any]], sizes: Mapping[_Key, int]
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
                kept = residual.detach().to("cpu", self._dtype, copy=True).flatten()
                loaded[kind, name] = kept.mul_(self._loss_scale).to(self._device)
        shrink = {str(name): float(factor) for name, factor in state[SHRINK].items()}
        share = {str(name): float(part) for name, part in state[SHARE].items()}
        self.clear()
        self._kept.update(loaded)  # in place: branches share all three
        self._shrink.update(shrink)
        self._share.update(share)

    def clear(self) -> None:
        """Drop all residuals, and the buffers for new ones."""
        self.discard()
        for held in (self._before, self._kept, self._shrink, self._share, self._spare, self._wide):
            held.clear()
