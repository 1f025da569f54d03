"""The other methods do what their papers and torch say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.compress.ranks import run
from xtune.policies.compress.wire import drop_wire_bytes, kept_elements, ring_bytes
from xtune.proofs.methods import largest_share, methods
from xtune.proofs.peers import Bf16Side, DropResidualSide, PowerSide
from xtune.proofs.ranks import Ranks, layers_of

RANK = 2
WARM, STEPS = 2, 6
SIZES = (40, 56, 24, 48)


class _Net(nn.Module):
    """Matrices of different shapes, so that torch batches none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(SIZES))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = torch.tanh(part(x))
        return x


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    out: Tensor = model(torch.randn(16, SIZES[0], generator=generator))
    return out.square().sum()


def _gradients(model: nn.Module) -> list[np.ndarray]:
    return [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]


def _torch_power(rank: int, world: int) -> tuple[list[Any], list[Any], list[str]]:
    """Local and reduced gradients of each step under torch's hook, and its bucket's order."""
    torch.manual_seed(1)
    plain, net = _Net(), _Net()
    net.load_state_dict(plain.state_dict())
    model = DistributedDataParallel(net, bucket_cap_mb=100)
    assert dist.group.WORLD is not None
    state = PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=RANK, start_powerSGD_iter=WARM
    )
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    order: list[str] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        order[:] = [names[id(parameter)] for parameter in bucket.parameters()]
        assert bucket.is_last() and bucket.index() == 0
        return powerSGD_hook(state, bucket)

    model.register_comm_hook(state, hook)
    local, reduced = [], []
    for step in range(WARM + STEPS):
        for one in (plain, model):
            one.zero_grad()
            _loss(one, rank, step).backward()  # type: ignore[no-untyped-call]
        local.append(_gradients(plain))
        reduced.append(_gradients(net))
    return local, reduced, order


def test_power_sgd_is_torchs() -> None:
    results = run(2, _torch_power)
    order = results[0][2]
    names = [name for name, _ in _Net().named_parameters()]
    shapes = [tuple(p.shape) for p in _Net().parameters()]
    bucket = tuple(names.index(name) for name in order)
    ranks = Ranks(2)
    sides = [PowerSide(channel, shapes, [bucket], RANK) for channel in ranks.channels()]
    # Torch's first factors: from a seed that NumPy's generator 0 draws, in the bucket's order.
    seed = np.random.RandomState(0).randint(1_000_000_000)
    for side in sides:
        generator = torch.Generator().manual_seed(seed)
        for place, factor in side.factors.items():
            side.factors[place] = torch.randn(factor.shape, generator=generator)
        assert len(side.factors) == 3  # the matrices, not the biases
    for step in range(WARM, WARM + STEPS):
        flat = [
            torch.cat([torch.from_numpy(local[step][i]).flatten() for i in bucket])
            for local, _, _ in results
        ]
        sent = ranks.run(lambda r, flat=flat: sides[r].reduce(0, [flat[r]], None))  # type: ignore[misc]
        torchs = np.concatenate([results[0][1][step][i].ravel() for i in bucket])
        np.testing.assert_allclose(flat[0].numpy(), torchs, rtol=1e-4, atol=1e-5)
        factors = 4 * RANK * sum(a + b for a, b in pairwise(SIZES))
        assert sent[0] == ring_bytes(4 * sum(SIZES[1:]), 2) + ring_bytes(factors, 2)
    ranks.close()


def test_dropping_with_residual_loses_nothing() -> None:
    elements = [600, 5000, 300]
    layers = layers_of(["a", "b", "c"], elements)
    buckets = [(2, 1), (0,)]
    ranks = Ranks(3)
    sides = [
        DropResidualSide(methods()["drop_equal_residual"], channel, layers, buckets, 0.1)
        for channel in ranks.channels()
    ]
    generator = torch.Generator().manual_seed(0)
    sizes = [5300, 600]
    given_sum = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    got_sum = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    for step in range(5):
        buffers = [[torch.randn(n, generator=generator) for n in sizes] for _ in range(3)]
        for rank in range(3):
            for total, buffer in zip(given_sum, buffers[rank], strict=True):
                total += buffer.double()
        sent = ranks.run(lambda r, b=buffers, s=step: sides[r].reduce(s, b[r], None))  # type: ignore[misc]
        assert set(sent) == {sum(drop_wire_bytes(n, 0.1, 3) for n in sizes)}
        for total, buffer in zip(got_sum, buffers[0], strict=True):
            total += 3 * buffer.double()
            # The union of what three ranks kept.
            assert (
                kept_elements(buffer.numel(), 0.1)
                <= int((buffer != 0).sum())
                <= 0.3 * (buffer.numel() + 10)
            )
    ranks.close()
    for index in range(2):
        kept = sum(side.residuals[index].double() for side in sides)
        torch.testing.assert_close(got_sum[index] + kept, given_sum[index], rtol=0, atol=1e-5)


def test_bf16_is_the_mean_of_rounded_values() -> None:
    ranks = Ranks(2)
    sides = [Bf16Side(channel) for channel in ranks.channels()]
    # 1 + 2^-9 rounds to 1 in bf16, 3 is exact; halved and added that is 2.
    buffers = [[torch.tensor([1 + 2.0**-9, 4.0])], [torch.tensor([3.0, 6.0])]]
    sent = ranks.run(lambda r: sides[r].reduce(0, buffers[r], None))
    ranks.close()
    assert buffers[0][0].tolist() == buffers[1][0].tolist() == [2.0, 5.0]
    assert sent == [4, 4]  # two values of two bytes, 2 (N-1)/N = 1 times


@given(
    st.lists(st.integers(1000, 300_000), min_size=1, max_size=5),
    st.integers(2, 16),
    st.floats(0.2, 0.9),
)
def test_dropping_at_equal_bytes_is_the_most_that_fits(
    elements: list[int], world: int, part: float
) -> None:
    most = sum(drop_wire_bytes(count, 1.0, world) for count in elements)
    budget = int(part * most)

    def sent(keep: float) -> int:
        return sum(drop_wire_bytes(count, keep, world) for count in elements)

    keep = largest_share(sent, budget)
    assert sent(keep) <= budget
    # One value more in each bucket would not fit.
    more = keep + 1.5 / min(elements)
    assert sent(min(1.0, more)) > budget
