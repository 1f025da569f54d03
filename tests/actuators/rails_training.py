"""One rank that trains over rails, one of `rails.Ranks`: ``RANK STORE TIMEOUT_S``."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.compress.ranks import Lines
from tests.compress.training import attached, policy
from xtune.policies.actuators.rails import Rail

WIDTH, LAYERS = 512, 4  # a million parameters: 4 MB of gradients
PERIOD = 2
LIMIT_S = 120


class Training:
    """A model, from the same weights each time, and its loop."""

    def __init__(self, rank: int, rails: list[str], rung: int, timeout_s: float) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        self.model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1.0)
        self.handle = attached(
            self.model,
            policy(period=PERIOD, compression={"rung_by_level": (rung,) * 4}),
            rails=[Rail(interface=name) for name in rails],
            rail_timeout_s=timeout_s,
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs = torch.Generator().manual_seed(rank)

    def step(self) -> None:
        """One iteration."""
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, WIDTH, generator=self.inputs)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.handle.step(loss)

    def digest(self) -> str:
        """Of the weights' bits."""
        flat = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def answer(training: Training, steps: int, lines: Lines) -> dict[str, Any]:
    """Train on, and tell how it went."""
    for _ in range(steps):
        training.step()
    metrics = training.handle.metrics()
    return {"digest": training.digest(), "said": lines.take(), **metrics}


def main() -> None:
    """Join over the control network, then do what each line says."""
    rank, store, timeout_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    torch.set_num_threads(1)
    logging.getLogger().addHandler(logging.NullHandler())
    os.environ["GLOO_SOCKET_IFNAME"] = "control"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2,
        timeout=timedelta(seconds=LIMIT_S),
    )  # fmt: skip
    lines = Lines()
    training: Training | None = None
    for line in sys.stdin:
        told = json.loads(line)
        if told["do"] == "attach":
            if training is not None:
                training.handle.detach()
            training = Training(rank, told["rails"], told["rung"], timeout_s)
            print(json.dumps({}), flush=True)
        else:
            assert training is not None
            print(json.dumps(answer(training, told["steps"], lines)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
