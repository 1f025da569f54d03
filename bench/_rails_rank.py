"""One of two ranks that train in turn over one rail and over two: ``python -m`` it.

It speaks as `_step_rank` does.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench._cables import in_turn, joined
from bench._step_rank import BATCH, BUCKET_MB, LAYERS, WIDTH, policy
from xtune.policies.actuators.rails import Rail
from xtune.policies.attach import attach
from xtune.policies.spec import Compression, Period, Policy


def dense() -> Policy:
    """Nothing is compressed."""
    compression = Compression(rung_by_level=(0, 0, 0, 0), warmup_iterations=0)
    return Policy(name="bench", compression=compression, period=Period(iterations=10))


class Training:
    """A model over some rails, and what its steps took."""

    def __init__(self, rung: str, rails: list[str]) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        self.model = DistributedDataParallel(
            nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
        self.handle = attach(
            self.model,
            policy=dense() if rung == "dense" else policy(rung),
            rails=[Rail(interface=name) for name in rails],
            environ={},
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.seconds: list[float] = []

    def steps(self, count: int) -> None:
        """Train: forward, backward, reduce, update."""
        inputs = torch.randn(BATCH, WIDTH)
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(inputs).square().mean()
            loss.backward()
            self.optimizer.step()
            self.handle.step(loss)

    def measure(self, count: int) -> None:
        """Seconds of a step, both ranks starting at once."""
        dist.barrier()
        started = time.perf_counter()
        self.steps(count)
        self.seconds.append((time.perf_counter() - started) / count)

    def told(self) -> dict[str, Any]:
        """Times, and what went over each rail."""
        metrics = self.handle.metrics()
        names = ("rail_shares", "rail_bytes", "rails_alive", "plan_mode", "wire_bytes")
        return {"seconds": self.seconds, **{name: metrics.get(name) for name in names}}


def main() -> None:
    """Measure rungs and rails in turn."""
    with joined("control") as task:
        trainings = {
            f"{rung} {len(rails)}": Training(rung, rails)
            for rung in task["rungs"]
            for rails in task["rails"]
        }
        in_turn(trainings.values(), task)
        result = {name: training.told() for name, training in trainings.items()}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
