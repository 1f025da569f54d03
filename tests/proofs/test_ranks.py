"""Ranks in one process do what real gloo processes do, to the bit and to the byte."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.compress.ranks import run
from tests.proofs.small import corpus, settings
from xtune.policies import hook
from xtune.policies.attach import attach
from xtune.policies.compress.channel import Channel
from xtune.policies.compress.header import Header
from xtune.policies.spec import Period, Policy
from xtune.proofs.corpus import Corpus
from xtune.proofs.course import Course, Settings
from xtune.proofs.methods import EngineSide, keep_share_of, methods, planned_bytes
from xtune.proofs.ranks import LocalChannel, Ranks
from xtune.proofs.training import Reduction

WORLD = 4
SEED = 3


def _weights(course: Course) -> np.ndarray:
    """Bit patterns; an array, since a tensor would be passed on as an open file."""
    flat = torch.cat([p.detach().flatten() for p in course.parameters])
    return flat.view(torch.int32).numpy()


def _local(made: Settings, text: Corpus, name: str) -> tuple[np.ndarray, list[int]]:
    """Weights and bytes of each iteration, in this process."""
    course = Course(made, text, SEED)
    reduction = Reduction(methods()[name], course)
    sent = []
    for step in range(made.steps):
        taken = [course.gradients(step, rank) for rank in range(WORLD)]
        buffers = [buffers for buffers, _ in taken]
        sent.append(reduction(step, buffers, [loss for _, loss in taken]))
        course.apply(step, buffers[0])
    reduction.close()
    return _weights(course), sent


def _gloo(
    rank: int, world: int, made: Settings, text: Corpus, names: list[str]
) -> list[tuple[np.ndarray, list[int]]]:
    """The same as one of four processes, through the engine's own channel."""
    assert dist.group.WORLD is not None
    out = []
    for name in names:
        method = methods()[name]
        course = Course(made, text, SEED)
        channel: Any = Channel(dist.group.WORLD)
        keep = keep_share_of(method, course.layers, course.buckets, world)
        side = EngineSide(method, channel, course.layers, course.buckets, keep)
        sent = []
        for step in range(made.steps):
            buffers, loss = course.gradients(step, rank)
            sent.append(side.reduce(step, buffers, loss))
            course.apply(step, buffers)
        out.append((_weights(course), sent))
    return out


def _hooked(
    rank: int, world: int, made: Settings, text: Corpus, name: str
) -> tuple[np.ndarray, int]:
    """The same under DDP with the policy attached: a training job as users have it."""
    # The hook's first iterations are dense, which gloo sums in an order of its own.
    hook.FIRST_STEPS = 0
    course = Course(made, text, SEED)
    compression = replace(methods()[name].compression(), curvature_gain=0.0, least_gain=0.0)
    policy = Policy(name="proof", compression=compression, period=Period(iterations=10_000))
    model = DistributedDataParallel(course.model, bucket_cap_mb=0.5)
    handle = attach(model, policy=policy, environ={}, link_gbps=1e-9)
    for step in range(made.steps):
        course.optimizer.zero_grad(set_to_none=True)
        windows = course.batch(step, rank)
        logits = model(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        course.apply(step, course.collected())
        handle.step(loss)
    return _weights(course), handle.metrics()["failed_steps"]


def test_a_few_iterations_equal_those_of_gloo_to_the_bit_and_byte() -> None:
    made, text = settings(steps=4), corpus()
    names = ["q4_8_g0.5", "shared_equal", "drop_equal"]
    results = run(WORLD, _gloo, made, text, names)
    for place, name in enumerate(names):
        weights, sent = _local(made, text, name)
        for theirs in results:
            assert np.array_equal(weights, theirs[place][0])
            assert sent == theirs[place][1]
    course = Course(made, text, SEED)
    formula = planned_bytes(methods()["q4_8_g0.5"], course.layers, course.buckets, WORLD)
    assert results[0][0][1] == [formula] * made.steps
    assert len(course.buckets) > 2


@pytest.mark.slow
def test_twenty_four_iterations_of_the_real_model_equal_those_of_gloo() -> None:
    made = Settings(steps=24, warm=0, rise=8)
    text = corpus()
    names = ["q4_8_g0.5", "q4_g1", "shared_10"]
    results = run(WORLD, _gloo, made, text, names)
    for place, name in enumerate(names):
        weights, sent = _local(made, text, name)
        for theirs in results:
            assert np.array_equal(weights, theirs[place][0])
            assert sent == theirs[place][1]


@pytest.mark.slow
def test_twenty_four_iterations_equal_those_of_ddp_with_the_policy_attached() -> None:
    made, text = Settings(steps=24, warm=0, rise=8), corpus()
    weights, _ = _local(made, text, "q4_8_g0.5")
    for theirs, failed in run(WORLD, _hooked, made, text, "q4_8_g0.5"):
        assert failed == 0
        assert np.array_equal(weights, theirs)


def _collectives(channel: Any, rank: int) -> tuple[list[np.ndarray], list[int]]:
    """Results and bytes of every collective, on values that differ by rank."""
    generator = torch.Generator().manual_seed(rank)
    world = channel.world
    out: list[np.ndarray] = []
    sent: list[int] = []

    def done(*tensors: Tensor) -> None:
        out.extend(tensor.numpy().copy() for tensor in tensors)
        sent.append(channel.sent_bytes)

    said = channel.headers(Header(step=5, bucket=rank, digest=rank * 7, loss=0.5 * rank))
    done(torch.tensor([[h.step, h.bucket, h.digest, h.loss] for h in said]))
    share = torch.randint(0, 255, (80,), dtype=torch.uint8, generator=generator)
    gathered = torch.empty(world * 80, dtype=torch.uint8)
    channel.all_gather(gathered, share)
    done(gathered)
    words = channel.all_gather_words(gathered, share, Header(step=1, bucket=2, digest=rank))
    done(gathered, torch.tensor([word.digest for word in words]))
    received = torch.empty(world * 20, dtype=torch.uint8)
    channel.all_to_all(received, gathered[: world * 20].clone())
    done(received)
    # Sums of small whole numbers are exact in any order.
    whole = torch.randint(-8, 8, (37,), generator=generator).float()
    channel.all_reduce_mean(whole)
    done(whole)
    selection = torch.full((11,), rank, dtype=torch.uint8)
    channel.broadcast(selection, 2)
    done(selection)
    largest = torch.randn(5, dtype=torch.float64, generator=generator)
    channel.all_reduce_max(largest)
    done(largest)
    channel.reset()
    sent.append(channel.sent_bytes)
    return out, sent


def _collectives_by_gloo(rank: int, world: int) -> tuple[list[np.ndarray], list[int]]:
    assert dist.group.WORLD is not None
    return _collectives(Channel(dist.group.WORLD), rank)


def test_every_collective_gives_what_gloo_gives_and_counts_what_it_counts() -> None:
    theirs = run(WORLD, _collectives_by_gloo)
    ranks = Ranks(WORLD)
    channels = ranks.channels()
    ours = ranks.run(lambda rank: _collectives(channels[rank], rank))
    ranks.close()
    for (a, a_bytes), (b, b_bytes) in zip(ours, theirs, strict=True):
        assert a_bytes == b_bytes
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_rank_that_fails_leaves_nobody_waiting_and_its_error_is_what_is_raised() -> None:
    ranks = Ranks(3)
    channels = ranks.channels()

    def work(rank: int) -> int:
        if rank == 1:
            raise ValueError("out of paper")
        channels[rank].all_reduce_max(torch.zeros(1))
        return rank

    with pytest.raises(ValueError, match="out of paper"):
        ranks.run(work)
    assert ranks.run(lambda rank: _maximum(channels[rank], rank)) == [2.0, 2.0, 2.0]
    ranks.close()


def test_ranks_in_different_collectives_raise_on_all_of_them() -> None:
    ranks = Ranks(2)
    channels = ranks.channels()
    raised = []

    def work(rank: int) -> None:
        try:
            channels[rank].all_reduce_max(torch.zeros(1 + rank))
        except (RuntimeError, threading.BrokenBarrierError):
            raised.append(rank)
            raise

    with pytest.raises(RuntimeError, match="collectives differ"):
        ranks.run(work)
    ranks.close()
    assert sorted(raised) == [0, 1]


def _maximum(channel: LocalChannel, rank: int) -> float:
    values = torch.tensor([float(rank)])
    channel.all_reduce_max(values)
    return float(values)
