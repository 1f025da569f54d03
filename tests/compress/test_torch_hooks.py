"""What torch's own communication hooks fail at, in the same setting here.

The failures on torch's side are those of the version named; another may have mended them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
    quantization_hooks,
)

from tests.compress.ranks import run
from tests.compress.training import (
    WIDTH,
    Net,
    attached,
    batches,
    optimizer,
    policy,
    same_everywhere,
    weights,
    wrapped,
)

FOUND_IN = "2.13"
KNOWN = pytest.mark.skipif(
    not torch.__version__.startswith(FOUND_IN), reason=f"torch's failures are those of {FOUND_IN}"
)
ALWAYS = {"rung_by_level": (3, 3, 3, 3)}


def one_bucket() -> Any:
    """The model in a single bucket, where PowerSGD works on gloo."""
    torch.manual_seed(0)
    return nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=100)


def _poisoned(rank: int, world: int, ours: bool) -> list[bool]:
    """Whether each iteration's gradients are finite; rank 1 has a NaN in the third."""
    model = one_bucket()
    handle = None
    if ours:
        handle = attached(model, policy(compression=ALWAYS))
    else:
        state = powerSGD_hook.PowerSGDState(
            process_group=dist.group.WORLD, matrix_approximation_rank=2, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    steps = optimizer(model)
    finite = []
    for number, inputs in enumerate(batches(rank, 0, 8)):
        steps.zero_grad()
        loss = ((model(inputs) - inputs) ** 2).mean()
        (loss * math.nan if number == 3 and rank == 1 else loss).backward()
        finite.append(all(bool(p.grad.isfinite().all()) for p in model.parameters()))
        if finite[-1]:  # as a gradient scaler does
            steps.step()
        if handle is not None:
            handle.step(loss)
    return finite


def test_one_bad_gradient_costs_one_step() -> None:
    for finite in run(2, _poisoned, True):
        assert finite == [True] * 3 + [False] + [True] * 4


@KNOWN
def test_one_bad_gradient_poisons_torchs_powersgd_for_ever() -> None:
    for finite in run(2, _poisoned, False):
        assert finite == [True] * 3 + [False] * 5


def _many_buckets(rank: int, world: int) -> dict[str, Any]:
    """Five buckets while the training loop has collectives of its own under way."""
    model = wrapped()
    handle, steps = attached(model, policy(compression=ALWAYS)), optimizer(model)
    other = torch.ones(1000)
    for inputs in batches(rank, 0, 12):
        steps.zero_grad()
        waiting = dist.all_reduce(other, async_op=True)
        loss = ((model(inputs) - inputs) ** 2).mean()
        loss.backward()
        waiting.wait()
        other /= world
        steps.step()
        handle.step(loss)
    metrics = handle.metrics()
    return {
        "same": same_everywhere(weights(model)),
        "failed": metrics["failed_steps"],
        "other": torch.equal(other, torch.ones(1000)),
    }


def test_several_buckets_beside_other_collectives() -> None:
    # PowerSGD aborts the process here: its collectives are launched from callbacks of futures.
    for result in run(4, _many_buckets):
        assert result == {"same": True, "failed": 0, "other": True}


def _error(hook: Callable[..., Any], state: Any) -> str:
    """What a backward pass under one of torch's hooks raises."""
    model = one_bucket()
    try:
        model.register_comm_hook(state, hook)
        for _ in range(4):
            model(torch.ones(2, WIDTH)).sum().backward()
    except Exception as error:
        return type(error).__name__
    return ""


def _refusals(rank: int, world: int) -> dict[str, str]:
    group = dist.group.WORLD
    assert group is not None
    batched = powerSGD_hook.PowerSGDState(process_group=group, start_powerSGD_iter=2)
    return {
        "batched": _error(powerSGD_hook.batched_powerSGD_hook, batched),
        "pertensor": _error(quantization_hooks.quantization_pertensor_hook, group),
        "perchannel": _error(quantization_hooks.quantization_perchannel_hook, group),
        "bf16": _error(default_hooks.bf16_compress_hook, group),
    }


@KNOWN
def test_torchs_other_hooks_raise_on_gloo() -> None:
    for raised in run(2, _refusals):
        assert all(raised.values()), raised


def _convolutions(layout: torch.memory_format, **ddp: Any) -> Any:
    torch.manual_seed(0)
    net: Any = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 36, 10),
    )
    return nn.parallel.DistributedDataParallel(net.to(memory_format=layout), **ddp)


def _forms(rank: int, world: int) -> dict[str, Any]:
    """Tensors of any rank and layout, where the hooks above give up."""
    model = _convolutions(torch.channels_last, bucket_cap_mb=0.05)
    handle = attached(model, policy(compression={"rung_by_level": (1, 1, 1, 1)}))
    twin = _convolutions(torch.contiguous_format)
    out: dict[str, Any] = {"near": []}
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        inputs = torch.randn(4, 3, 6, 6)
        for each in (model, twin):
            each.zero_grad()
            each(inputs.to(memory_format=torch.channels_last)).square().mean().backward()
        handle.step(1.0)
        for mine, exact in zip(model.parameters(), twin.parameters(), strict=True):
            gap = (mine.grad - exact.grad).abs().max() / exact.grad.abs().max()
            out["near"].append(float(gap))
    strides = [p.grad.stride() for p in model.parameters() if p.dim() == 4]
    out["strides"] = strides == [p.stride() for p in model.parameters() if p.dim() == 4]
    out["same"] = same_everywhere(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return out


def test_convolutions_channels_last() -> None:
    for result in run(2, _forms):
        # 8 bits: half a step of 1/127 of the largest, twice; bf16: 2^-8.
        assert max(result["near"]) < 2 * 0.5 / 127 * 1.02 + 2.0**-8
        assert result["strides"]
        assert result["same"]
