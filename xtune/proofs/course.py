"""The model of one seed on its data: settings, gradients of each rank's batch, optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xtune.policies.compress import wire
from xtune.proofs.corpus import Corpus
from xtune.proofs.methods import Buckets
from xtune.proofs.model import Llama, Shape, optimizer
from xtune.proofs.ranks import layers_of

_EVALUATION_BATCH = 32  # windows


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All that a run's result depends on, but for method, seed and corpus."""

    warm: int = 200  # iterations in full precision, which all methods share
    steps: int = 1000  # of the branch
    world: int = 4
    windows: int = 4  # of ``shape.context`` tokens, per rank and iteration
    peak_rate: float = 3e-3
    rise: int = 100  # iterations of the learning rate's warm-up
    floor: float = 0.05  # of the peak, where the cosine ends
    clip: float = 1.0
    every: int = 100  # iterations between evaluations, and between checkpoints
    held_out_windows: int = 320
    error_every: int = 10  # iterations between measurements of the error
    bucket_bytes: int = wire.MIB
    first_bucket_bytes: int = wire.MIB // 4
    shape: Shape = field(default_factory=Shape)

    def rate(self, step: int) -> float:
        """Learning rate in iteration ``step``, counted from the start of the warm start."""
        if step < self.rise:
            return self.peak_rate * (step + 1) / self.rise
        done = (step - self.rise) / max(1, self.warm + self.steps - self.rise)
        return self.peak_rate * (
            self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


class Course:
    """The model of one seed on its data, and how its gradients are taken and applied.

    Args:
        settings: of the study.
        corpus: tokens.
        seed: of weights and data order.
    """

    def __init__(self, settings: Settings, corpus: Corpus, seed: int) -> None:
        self.settings = settings
        self.model = Llama(settings.shape, seed)
        self.optimizer = optimizer(self.model)
        self._seed = seed
        self._train = torch.from_numpy(corpus.train.astype(np.int64))
        self._held_out = _evenly(corpus.held_out, settings)
        named = list(self.model.named_parameters())
        self.parameters = [parameter for _, parameter in named]
        self.shapes = [tuple(parameter.shape) for parameter in self.parameters]
        elements = [parameter.numel() for parameter in self.parameters]
        self.layers = layers_of([name for name, _ in named], elements)
        found = wire.ddp_buckets(
            elements,
            cap_bytes=settings.bucket_bytes,
            first_cap_bytes=settings.first_bucket_bytes,
        )
        self.buckets: Buckets = [tuple(bucket) for bucket in found]
        self.sizes = [sum(elements[i] for i in bucket) for bucket in self.buckets]

    def batch(self, step: int, rank: int) -> Tensor:
        """Random windows: a function of seed, step and rank alone, so no state to resume."""
        random = np.random.default_rng((self._seed, step, rank))
        length = self.settings.shape.context + 1
        starts = random.integers(0, self._train.numel() - length, self.settings.windows)
        return torch.stack([self._train[start : start + length] for start in starts])

    def gradients(self, step: int, rank: int) -> tuple[list[Tensor], float]:
        """A rank's gradients by bucket, and its loss, in iteration ``step``."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(self.batch(step, rank))
        loss.backward()  # type: ignore[no-untyped-call]
        return self.collected(), float(loss.detach())

    def collected(self) -> list[Tensor]:
        """The parameters' gradients, one flat copy a bucket."""
        return [
            torch.cat([_gradient(self.parameters[i]).flatten() for i in bucket])
            for bucket in self.buckets
        ]

    def apply(self, step: int, buffers: Sequence[Tensor]) -> None:
        """One step of the optimizer with reduced gradients."""
        for bucket, buffer in zip(self.buckets, buffers, strict=True):
            pieces = torch.split(buffer, [self.layers[i].elements for i in bucket])
            for i, piece in zip(bucket, pieces, strict=True):
                self.parameters[i].grad = piece.view(self.shapes[i])
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(step)
        self.optimizer.step()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Cross-entropy on the held-out windows, nats per token."""
        total = 0.0
        for windows in torch.split(self._held_out, _EVALUATION_BATCH):
            total += float(self.model.loss(windows)) * len(windows)
        return total / len(self._held_out)

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def _gradient(parameter: torch.nn.Parameter) -> Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter) if gradient is None else gradient


def _evenly(tokens: np.ndarray, settings: Settings) -> Tensor:
    """Windows spread evenly over the held-out tokens, as many as asked for or as there are."""
    length = settings.shape.context + 1
    count = min(settings.held_out_windows, (tokens.size - 1) // settings.shape.context)
    starts = np.linspace(0, tokens.size - length, count).astype(int)
    return torch.from_numpy(np.stack([tokens[s : s + length] for s in starts]).astype(np.int64))
