"""A training job that knows nothing of xtune: two gloo ranks, one exported policy.

    python train_two_ranks.py MODULE STEPS

Prints one JSON line: metrics of rank 0, loopback bytes, losses, and whether ranks agree.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


def loopback_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[8])
    raise SystemExit("no loopback interface")


def train(rank: int, meeting: str, module: str, steps: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    policy = importlib.import_module(module)
    net = torch.nn.Sequential(
        torch.nn.Embedding(512, 256),
        torch.nn.Linear(256, 1024),
        torch.nn.GELU(),
        torch.nn.Linear(1024, 256),
        torch.nn.Linear(256, 512),
    )
    model = DistributedDataParallel(net)
    handle = policy.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    dist.barrier()
    before = loopback_bytes()
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 512, (256,), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(tokens), (tokens * 5 + 1) % 512)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        handle.step(loss)
        losses.append(float(loss.detach()))
    dist.barrier()
    after = loopback_bytes()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    both = [torch.empty_like(flat) for _ in range(RANKS)]
    dist.all_gather(both, flat)
    if rank == 0:
        document: dict[str, Any] = {
            "metrics": handle.metrics(),
            "loopback_bytes": after - before,
            "losses": [losses[0], losses[-1]],
            "ranks_agree": bool(torch.equal(both[0], both[1])),
            "xtune_loaded": "xtune" in sys.modules,
            "file": policy.__file__,
        }
        print(json.dumps(document))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        words = (os.path.join(folder, "meeting"), sys.argv[1], int(sys.argv[2]))
        spawn = multiprocessing.get_context("spawn")
        ranks = [spawn.Process(target=train, args=(rank, *words)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(max(abs(process.exitcode or 0) for process in ranks))
