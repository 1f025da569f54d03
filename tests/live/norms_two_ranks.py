"""What each of two ranks does to log the norms of a replicated or a sharded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from xtune.policies.layer_norms import LayerNorms


def log(rank: int, world: int, kind: str, folder: str) -> dict[str, Any]:
    """Train one step and log it; what the norms are of the whole gradients."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    norms = LayerNorms(model, Path(folder) / "norms.jsonl")
    torch.manual_seed(rank)
    model(torch.randn(5, 3)).square().sum().backward()
    norms.step()
    norms.close()
    whole = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        full = gradient.full_tensor() if kind == "fsdp" else gradient
        whole[name.removeprefix("module.")] = float(full.double().square().sum().sqrt())
    return {"whole": whole, "error": norms.error}
