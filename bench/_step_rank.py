"""One of two ranks that train in turn with dense gradients and with ours: ``python -m`` it.

It says that it is ready, reads its task as one line of JSON once the network is there, and answers
with what was measured as one line of JSON.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench._cables import in_turn, joined
from xtune.policies.attach import attach
from xtune.policies.handle import Handle
from xtune.policies.ladder import Rung
from xtune.policies.spec import Compression, Period, Policy

WIDTH, LAYERS, BATCH = 1024, 8, 8  # 8.4 million parameters, 33.6 MB of fp32 gradients
BUCKET_MB = 8.0
HEAD_BITS = {"q4": 4, "q4_8": 8}  # of the rungs that are measured


def policy(rung: str) -> Policy:
    """The default ladder's rung of that name, always."""
    compression = Compression(
        warmup_iterations=0,
        ladder=(
            Rung(name="off", bits_input=16, bits_head=16),
            Rung(name=rung, bits_input=4, bits_head=HEAD_BITS[rung]),
        ),
        rung_by_level=(1, 1, 1, 1),
        curvature_gain=0.0,
        least_gain=0.0,  # compress where it does not pay as well
    )
    return Policy(name="bench", compression=compression, period=Period(iterations=10))


def bf16_hook(world: int, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The plain way to halve the bytes."""
    buffer = bucket.buffer()
    sent = dist.all_reduce(buffer.to(torch.bfloat16).div_(world), async_op=True).get_future()
    copied: torch.futures.Future[torch.Tensor] = sent.then(
        lambda done: buffer.copy_(done.value()[0])
    )
    return copied


# DDP compares the annotations themselves, not their names.
bf16_hook.__annotations__ = {
    "bucket": getattr(dist, "GradBucket"),  # noqa: B009 - the type checker does not know it
    "return": torch.futures.Future[torch.Tensor],
}


def model(method: str) -> tuple[Any, Handle | None]:
    """The same model each time, its gradients reduced as `bf16`, as fp32 or by a rung of ours."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    wrapped = DistributedDataParallel(
        nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
    )
    if method in HEAD_BITS:
        return wrapped, attach(wrapped, policy=policy(method), environ={})
    if method == "bf16":
        wrapped.register_comm_hook(dist.get_world_size(), bf16_hook)
    return wrapped, None


def sent_bytes(device: str) -> int:
    """Bytes a network device has sent, from the kernel."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            return int(counters.split()[8])
    raise OSError(f"no device {device} in /proc/net/dev")


class Training:
    """A model under one method, and what its steps took."""

    def __init__(self, method: str, device: str) -> None:
        self.model, self.handle = model(method)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.device = device
        self.seconds: list[float] = []
        self.sent: list[float] = []

    def steps(self, count: int) -> None:
        """Train: forward, backward, reduce, update."""
        inputs = torch.randn(BATCH, WIDTH)
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(inputs).square().mean()
            loss.backward()
            self.optimizer.step()
            if self.handle is not None:
                self.handle.step(loss)

    def measure(self, count: int) -> None:
        """Seconds and bytes sent of a step, both ranks starting at once."""
        dist.barrier()
        sent, started = sent_bytes(self.device), time.perf_counter()
        self.steps(count)
        self.seconds.append((time.perf_counter() - started) / count)
        dist.barrier()
        self.sent.append((sent_bytes(self.device) - sent) / count)


def main() -> None:
    """Measure the methods in turn."""
    with joined("device") as task:
        trainings = {method: Training(method, task["device"]) for method in task["methods"]}
        in_turn(trainings.values(), task)
        result = {
            "seconds": {method: each.seconds for method, each in trainings.items()},
            "sent": {method: each.sent for method, each in trainings.items()},
        }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
