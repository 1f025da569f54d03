"""What each of two ranks does to log the norms of a replicated or a sharded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from xtune.policies.layer_norms import LayerNorms


def log(rank: int, world: int, kind: str, folder: str) -> dict[str, Any]:
    """Train one step and log it; what the norms are of the gradients, whole but under FSDP1."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    if kind == "fsdp":
        model = fully_shard(model)
    elif kind == "fsdp1":
        cpu = torch.device("cpu")
        model = FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)
    elif kind == "stages":  # each rank another part of the model, replicated in its own group
        groups = [dist.new_group([one]) for one in range(world)]
        model = nn.ModuleDict({f"stage{rank}": model})
        model.forward = model[f"stage{rank}"].forward
        model = DistributedDataParallel(model, process_group=groups[rank])
    else:
        model = DistributedDataParallel(model)
    if kind == "compiled":
        model = torch.compile(model, backend="eager")
    norms = LayerNorms(model, Path(folder) / "norms.jsonl")
    torch.manual_seed(rank)
    model(torch.randn(5, 3)).square().sum().backward()
    norms.step()
    norms.close()
    whole = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        full = gradient.full_tensor() if kind == "fsdp" else gradient
        if gradient is None:  # another rank has it
            continue
        for wrapper in ("_orig_mod.", "module.", "_fsdp_wrapped_module."):
            name = name.removeprefix(wrapper)
        whole[name] = float(full.double().square().sum().sqrt())
    return {"whole": whole, "error": norms.error}
