"""A small model, its data and its training loop, for the ranks of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from xtune.policies.attach import attach
from xtune.policies.handle import Handle
from xtune.policies.spec import Compression, Period, Policy, Safety

WIDTH = 96
CAP_MB = 0.05  # several buckets


class Net(nn.Module):
    """Layers large enough to be quantised, biases that are not; one branch may stay unused."""

    def __init__(self, *, branch: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.middle = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.branch = nn.Linear(2 * WIDTH, 2 * WIDTH) if branch else None
        self.head = nn.Linear(2 * WIDTH, WIDTH)
        self.use_branch = True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.middle(torch.tanh(self.first(x))))
        if self.branch is not None and self.use_branch:
            x = x + torch.tanh(self.branch(x))
        out: Tensor = self.head(x)
        return out


def policy(**changes: Any) -> Policy:
    """Compression from the start, regulation every 4 iterations, by routing's level alone."""
    compression = {
        "warmup_iterations": 0,
        "rung_by_level": (1, 1, 2, 3),
        "curvature_gain": 0.0,
        "least_gain": 0.0,
        "dense_below_elements": 1024,
        **changes.pop("compression", {}),
    }
    return Policy(
        name="test",
        compression=Compression(**compression),
        period=Period(iterations=changes.pop("period", 4)),
        safety=Safety(**changes.pop("safety", {})),
    )


def wrapped(seed: int = 0, *, dtype: torch.dtype = torch.float32, **ddp: Any) -> Any:
    """The same model on every rank."""
    torch.manual_seed(seed)
    net = Net(branch=ddp.pop("branch", False)).to(dtype)
    return DistributedDataParallel(net, bucket_cap_mb=CAP_MB, **ddp)


def batches(rank: int, start: int, stop: int) -> Iterator[Tensor]:
    """Inputs of iterations ``start`` to ``stop``, different on each rank."""
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        yield torch.randn(8, WIDTH, generator=generator)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Adam, whose state must be resumed as well."""
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def train(
    model: Any,
    handle: Handle | None,
    steps: torch.optim.Optimizer,
    rank: int,
    start: int,
    stop: int,
) -> list[int]:
    """Iterations ``start`` to ``stop``; the rung in force in each."""
    rungs = []
    dtype = next(model.parameters()).dtype
    for inputs in batches(rank, start, stop):
        x = inputs.to(dtype)
        if handle is not None:
            rungs.append(handle.metrics()["rung"])
        steps.zero_grad()
        loss = ((model(x) - x) ** 2).mean()
        loss.backward()
        steps.step()
        if handle is not None:
            handle.step(loss)
    return rungs


def planned_and_real(handle: Handle, iterate: Callable[[], object]) -> tuple[float, float]:
    """Share of bytes saved in one iteration, in which nothing is regulated."""
    before = handle.metrics()
    iterate()
    after = handle.metrics()
    sent, dense = (after[name] - before[name] for name in ("wire_bytes", "dense_bytes_bf16"))
    return before["planned_ratio"], 1 - sent / dense


def weights(model: nn.Module) -> Tensor:
    """All parameters, flat."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def same_everywhere(values: Tensor) -> bool:
    """Bit for bit on all ranks."""
    flat = values.contiguous().view(torch.uint8)
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    return all(torch.equal(everyone[0], other) for other in everyone)


def attached(model: Any, made: Policy | None = None, **options: Any) -> Handle:
    """The handle of the test's policy, whatever the environment of the test run says.

    The network is declared so slow that no measured time on a busy machine looks congested.
    """
    options = {"environ": {}, "link_gbps": 1e-9, **options}
    return attach(model, policy=made or policy(), **options)
