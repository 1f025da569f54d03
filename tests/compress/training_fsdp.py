"""A small model under ``fully_shard``, for the ranks of the tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from tests.compress.training import WIDTH, batches, policy
from xtune.policies.attach import attach
from xtune.policies.handle import Handle
from xtune.policies.spec import Policy

ODD = 2 * WIDTH + 3  # rows that no number of ranks divides


class Net(nn.Module):
    """Layers large enough to be quantised, of sizes that need padding, and biases that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, ODD)
        self.middle = nn.Linear(ODD, ODD)
        self.head = nn.Linear(ODD, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return out


def nodes(world: int) -> DeviceMesh:
    """The ranks as nodes of two: (node, rank of the node)."""
    return DeviceMesh("cpu", torch.arange(world).view(-1, 2), mesh_dim_names=("node", "place"))


def sharded(seed: int = 0, *, mesh: DeviceMesh | None = None, **fsdp: Any) -> Any:
    """The same model on every rank: one layer by itself, the others with the root."""
    torch.manual_seed(seed)
    net = fsdp.pop("net", Net)()
    mesh = mesh or DeviceMesh("cpu", list(range(dist.get_world_size())))
    fully_shard(net.middle, mesh=mesh, **fsdp)
    return fully_shard(net, mesh=mesh, **fsdp)


def attached(model: Any, made: Policy | None = None, **options: Any) -> Handle:
    """The handle of the test's policy; see the same for DDP."""
    options = {"environ": {}, "link_gbps": 1e-9, **options}
    return attach(model, policy=made or policy(), **options)


def train(
    model: Any,
    handle: Handle | None,
    steps: torch.optim.Optimizer,
    rank: int,
    start: int,
    stop: int,
) -> list[Tensor]:
    """Iterations ``start`` to ``stop``; this rank's shards of the gradients of each, flat."""
    found = []
    for x in batches(rank, start, stop):
        steps.zero_grad()
        loss = ((model(x) - x) ** 2).mean()
        loss.backward()
        found.append(gradients(model))
        steps.step()
        if handle is not None:
            handle.step(loss)
    return found


def gradients(model: Any) -> Tensor:
    """This rank's shards of the gradients, flat; in model order."""
    return torch.cat(
        [p.grad.to_local().flatten() for p in model.parameters() if p.grad is not None]
    )


def whole(model: Any) -> Tensor:
    """All parameters, flat, on every rank."""
    return torch.cat([p.detach().full_tensor().flatten() for p in model.parameters()])
