"""One run: a full-precision warm start, or a branch of it under one method.

All ranks hold the same weights, which the engine guarantees bit by bit, so the process keeps one
model: it takes the gradient of each rank's batch in turn, reduces them as ranks, checks that every
rank got the same bits, and makes one step of the optimizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import xtune.policies
from xtune.files import write_atomically
from xtune.policies.compress import wire
from xtune.proofs.corpus import Corpus
from xtune.proofs.course import Course, Settings
from xtune.proofs.methods import (
    EngineSide,
    Method,
    NormsSide,
    Side,
    keep_share_of,
)
from xtune.proofs.peers import Bf16Side, DropResidualSide, PowerSide
from xtune.proofs.ranks import Ranks
from xtune.proofs.regulated import RegulatedSide
from xtune.proofs.two_widths import TwoWidthsSide

Say = Callable[[str], None]


def make_sides(method: Method, course: Course, ranks: Ranks) -> tuple[list[Side], float | None]:
    """Each rank's side of a method, and the share of elements kept where it drops any."""
    settings, layers, buckets = course.settings, course.layers, course.buckets
    keep = keep_share_of(method, layers, buckets, settings.world)
    makers: dict[str, Callable[[Any], Side]] = {
        "bf16": Bf16Side,
        "drop_residual": lambda c: DropResidualSide(method, c, layers, buckets, keep or 1.0),
        "norms": lambda c: NormsSide(method, c, layers, buckets),
        "two_widths": lambda c: TwoWidthsSide(method, c, layers, buckets),
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

    A checkpoint of another engine is left: one run must not be of two.

    Returns:
        Held-out losses (nats per token, at the start and every ``settings.every`` iterations),
        training losses, bytes sent by a rank, relative error power of the reduced gradient, both
        as one number for each such stretch, and what the method says of itself.
    """
    course = Course(settings, corpus, seed)
    reduction = Reduction(method, course)
    start = load_state(warm)
    course.load_state_dict(start)
    done, record = 0, _Record(held_out=[start["held_out"]])
    engine = engine_digest()
    state = load_state(checkpoint) if checkpoint.exists() else {}
    if state and state["engine"] != engine:
        say("starts anew, since its checkpoint is of another engine")
    elif state:
        course.load_state_dict(state)
        reduction.load_state_dict(state["sides"])
        done, record = state["done"], _Record(**state["record"])
    while done < settings.steps:
        until = min(settings.steps, (done // settings.every + 1) * settings.every)
        record.add(*_stretch(course, reduction, done, until), course.held_out_loss())
        done = until
        say(f"{done}/{settings.steps}, held-out loss {record.held_out[-1]:.4f}")
        if done < settings.steps:
            own = {"engine": engine, "done": done, "record": asdict(record)}
            kept = {**course.state_dict(), "sides": reduction.state_dict(), **own}
            save_state(checkpoint, kept)
    about = reduction.sides[0].about()
    reduction.close()
    elements = sum(course.sizes)
    return {
        **asdict(record),
        "engine_sha256": engine,
        "keep_share": reduction.keep_share,
        "dense_bytes_bf16": wire.dense_bytes(elements, settings.world, wire.BF16_BYTES),
        "dense_bytes_fp32": wire.dense_bytes(elements, settings.world, wire.FP32_BYTES),
        "buckets": len(course.buckets),
        "parameters": elements,
        "about": about,
    }


@dataclass(kw_only=True, slots=True)
class _Record:
    """What is measured of a branch, by stretch of it."""

    held_out: list[float]  # one more: at the start
    train: list[float] = field(default_factory=list)  # by iteration
    bytes: list[int] = field(default_factory=list)
    error_power: list[float | None] = field(default_factory=list)

    def add(
        self, train: list[float], sent: int, error_power: float | None, held_out: float
    ) -> None:
        """Take a stretch."""
        self.train += train
        self.bytes.append(sent)
        self.error_power.append(error_power)
        self.held_out.append(held_out)


def _stretch(
    course: Course, reduction: Reduction, start: int, stop: int
) -> tuple[list[float], int, float | None]:
    """Iterations of a branch: training losses, bytes a rank sent, mean error power."""
    settings = course.settings
    train, sent, errors = [], 0, []
    for step in range(start, stop):
        buffers, losses = _all_gradients(course, settings.warm + step)
        exact = _mean(buffers) if step % settings.error_every == 0 else None
        sent += reduction(step, buffers, losses)
        if exact is not None:
            errors.append(_error_power(buffers[0], exact))
        course.apply(settings.warm + step, buffers[0])
        train.append(sum(losses) / len(losses))
    return train, sent, sum(errors) / len(errors) if errors else None


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Tensors and plain data, atomically."""
    buffer = BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """What `save_state` wrote."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def engine_digest() -> str:
    """SHA-256 over the engine's source, so that a stored run says which engine made it."""
    digest = hashlib.sha256()
    root = Path(str(xtune.policies.__file__)).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


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
