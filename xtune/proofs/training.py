"""One run: a full-precision warm start, or a branch of it under one method.

All ranks hold the same weights, which the engine guarantees bit by bit, so the process keeps one
model: it takes the gradient of each rank's batch in turn, reduces them as ranks, checks that every
rank got the same bits, and makes one step of the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xtune.files import write_atomically
from xtune.policies.compress import wire
from xtune.proofs.corpus import Corpus
from xtune.proofs.methods import (
    Buckets,
    EngineSide,
    Method,
    Side,
    keep_share_of,
)
from xtune.proofs.model import Llama, Shape, optimizer
from xtune.proofs.peers import Bf16Side, DropResidualSide, PowerSide
from xtune.proofs.ranks import Ranks, layers_of
from xtune.proofs.regulated import RegulatedSide

_EVALUATION_BATCH = 32  # windows
Say = Callable[[str], None]


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

    def gradients(self, step: int, rank: int) -> tuple[list[Tensor], float]:
        """A rank's gradients by bucket, and its loss, in iteration ``step``."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(self._batch(step, rank))
        loss.backward()  # type: ignore[no-untyped-call]
        buffers = [
            torch.cat([_gradient(self.parameters[i]).flatten() for i in bucket])
            for bucket in self.buckets
        ]
        return buffers, float(loss.detach())

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

    def _batch(self, step: int, rank: int) -> Tensor:
        """Random windows: a function of seed, step and rank alone, so no state to resume."""
        random = np.random.default_rng((self._seed, step, rank))
        length = self.settings.shape.context + 1
        starts = random.integers(0, self._train.numel() - length, self.settings.windows)
        return torch.stack([self._train[start : start + length] for start in starts])


def make_sides(method: Method, course: Course, ranks: Ranks) -> tuple[list[Side], float | None]:
    """Each rank's side of a method, and the share of elements kept where it drops any."""
    settings, layers, buckets = course.settings, course.layers, course.buckets
    keep = keep_share_of(method, layers, buckets, settings.world)
    makers: dict[str, Callable[[Any], Side]] = {
        "bf16": Bf16Side,
        "drop_residual": lambda c: DropResidualSide(method, c, layers, buckets, keep or 1.0),
        "powersgd": lambda c: PowerSide(c, course.shapes, buckets, method.rank),
        "regulated": lambda c: RegulatedSide(
            c, layers, buckets, course.parameters, settings.steps
        ),
    }
    make = makers.get(method.kind, lambda c: EngineSide(method, c, layers, buckets, keep))
    return [make(channel) for channel in ranks.channels()], keep


class Reduction:
    """All ranks' sides of one method, and what their reductions cost."""

    def __init__(self, method: Method, course: Course) -> None:
        self._ranks = Ranks(course.settings.world)
        self.sides, self.keep_share = make_sides(method, course, self._ranks)

    def __call__(
        self, step: int, buffers: Sequence[Sequence[Tensor]], losses: Sequence[float]
    ) -> int:
        """Reduce in place; bytes sent by a rank, their mean rounded up.

        Raises:
            RuntimeError: two ranks hold different results.
        """
        sent = self._ranks.run(lambda r: self.sides[r].reduce(step, buffers[r], losses[r]))
        for theirs in buffers[1:]:
            for mine, other in zip(buffers[0], theirs, strict=True):
                if not torch.equal(mine.view(torch.int32), other.view(torch.int32)):
                    raise RuntimeError(f"the ranks' gradients differ after step {step}")
        return -(-sum(sent) // len(sent))

    def state_dict(self) -> list[dict[str, Any]]:
        """Of all ranks."""
        return [side.state_dict() for side in self.sides]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on from there, as all ranks at once."""
        self._ranks.run(lambda r: self.sides[r].load_state_dict(states[r]))

    def close(self) -> None:
        """End the ranks' threads."""
        self._ranks.close()


def warm_start(
    settings: Settings, corpus: Corpus, seed: int, target: Path, say: Say = lambda _: None
) -> None:
    """Train in full precision and keep the state that all branches start from.

    Not resumable in itself: it is shorter than the work between two checkpoints of a branch.
    """
    course = Course(settings, corpus, seed)
    for step in range(settings.warm):
        buffers, _ = _all_gradients(course, step)
        course.apply(step, _mean(buffers))
        if (step + 1) % settings.every == 0:
            say(f"warm start {step + 1}/{settings.warm}")
    state = {**course.state_dict(), "held_out": course.held_out_loss()}
    save_state(target, state)


def branch(
    settings: Settings,
    corpus: Corpus,
    seed: int,
    method: Method,
    *,
    warm: Path,
    checkpoint: Path,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Run a method from a warm start to the end, going on from a checkpoint if there is one.

    Returns:
        Held-out losses (nats per token, at the start and every ``settings.every`` iterations),
        training losses, bytes sent by a rank, relative error power of the reduced gradient, both
        as one number for each such stretch, and what the method says of itself.
    """
    course = Course(settings, corpus, seed)
    reduction = Reduction(method, course)
    start = load_state(warm)
    course.load_state_dict(start)
    done = 0
    record: dict[str, Any] = {
        "held_out": [start["held_out"]], "train": [], "bytes": [], "error_power": [],
    }  # fmt: skip
    if checkpoint.exists():
        state = load_state(checkpoint)
        course.load_state_dict(state)
        reduction.load_state_dict(state["sides"])
        done, record = state["done"], state["record"]
    stretch, errors = 0, []
    for step in range(done, settings.steps):
        buffers, losses = _all_gradients(course, settings.warm + step)
        exact = _mean(buffers) if step % settings.error_every == 0 else None
        stretch += reduction(step, buffers, losses)
        if exact is not None:
            errors.append(_error_power(buffers[0], exact))
        course.apply(settings.warm + step, buffers[0])
        record["train"].append(sum(losses) / len(losses))
        if (step + 1) % settings.every == 0 or step + 1 == settings.steps:
            record["held_out"].append(course.held_out_loss())
            record["bytes"].append(stretch)
            record["error_power"].append(sum(errors) / len(errors) if errors else None)
            stretch, errors = 0, []
            say(f"{step + 1}/{settings.steps}, held-out loss {record['held_out'][-1]:.4f}")
            if step + 1 < settings.steps:
                state = {
                    **course.state_dict(),
                    "sides": reduction.state_dict(),
                    "done": step + 1,
                    "record": record,
                }
                save_state(checkpoint, state)
    about = reduction.sides[0].about()
    reduction.close()
    elements = sum(course.sizes)
    return {
        **record,
        "keep_share": reduction.keep_share,
        "dense_bytes_bf16": wire.dense_bytes(elements, settings.world, wire.BF16_BYTES),
        "dense_bytes_fp32": wire.dense_bytes(elements, settings.world, wire.FP32_BYTES),
        "buckets": len(course.buckets),
        "parameters": elements,
        "about": about,
    }


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Tensors and plain data, atomically."""
    buffer = BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """What `save_state` wrote."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def _all_gradients(course: Course, step: int) -> tuple[list[list[Tensor]], list[float]]:
    taken = [course.gradients(step, rank) for rank in range(course.settings.world)]
    return [buffers for buffers, _ in taken], [loss for _, loss in taken]


def _mean(buffers: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The exact mean over the ranks, summed in fp32 in rank order as the local channel does."""
    world = len(buffers)
    totals = [buffer * (1.0 / world) for buffer in buffers[0]]
    for theirs in buffers[1:]:
        for total, buffer in zip(totals, theirs, strict=True):
            total += buffer * (1.0 / world)
    return totals


def _error_power(reduced: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Squared distance from the exact mean over its squared norm."""
    error = sum(float((a - b).square().sum()) for a, b in zip(reduced, exact, strict=True))
    power = sum(float(b.square().sum()) for b in exact)
    return error / power if power else 0.0


def _gradient(parameter: torch.nn.Parameter) -> Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter) if gradient is None else gradient


def _evenly(tokens: np.ndarray, settings: Settings) -> Tensor:
    """Windows spread evenly over the held-out tokens, as many as asked for or as there are."""
    length = settings.shape.context + 1
    count = min(settings.held_out_windows, (tokens.size - 1) // settings.shape.context)
    starts = np.linspace(0, tokens.size - length, count).astype(int)
    return torch.from_numpy(np.stack([tokens[s : s + length] for s in starts]).astype(np.int64))
