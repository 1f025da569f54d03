"""What a user's model or loop may do that the engine must stand back from."""

from __future__ import annotations

import copy
import io
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.compress.ranks import Lines, run
from tests.compress.training import (
    attached,
    optimizer,
    policy,
    same_everywhere,
    train,
    weights,
    wrapped,
)


def _miscounted(rank: int, world: int, case: str) -> dict[str, Any]:
    lines = Lines()
    model = wrapped()
    handle, steps = attached(model), optimizer(model)
    if case == "loaded once":
        state = handle.state_dict()
        if rank == 0:
            handle.load_state_dict(state)
    elif case == "stepped by one":
        train(model, handle if rank == 0 else None, steps, rank, 0, 6)
    else:
        train(model, handle, steps, rank, 0, int(case))
        if rank == 1:
            handle.step(1.0)  # once too often; after 3 it regulates while the other reduces
    train(model, handle, steps, rank, 6, 14)
    return {
        "same": same_everywhere(weights(model)),
        "off": handle.metrics()["off_reason"],
        "plain": handle.metrics()["failed_steps"] == 0,
        "kept": handle.state_dict()["engine"]["residual"]["worker"],
        "lines": [line for line in lines.take() if "off from here on" in line],
    }


@pytest.mark.parametrize("case", ["2", "3", "stepped by one", "loaded once"])
def test_ranks_that_count_steps_differently_train_on_uncompressed(case: str) -> None:
    first, second = run(2, _miscounted, case)
    assert first["off"] == second["off"]
    assert "call handle.step() once an iteration on every rank" in first["off"]
    assert (first["same"], second["same"]) == (True, True)
    assert (first["plain"], second["plain"]) == (True, True)
    assert (first["kept"], second["kept"]) == ({}, {})  # for nothing is sent from it any more
    assert (len(first["lines"]), second["lines"]) == (1, [])


def _uneven(rank: int, world: int) -> dict[str, Any]:
    lines = Lines()
    model, twin = wrapped(), wrapped()
    handle = attached(model, policy(period=1))
    for made, ours in ((model, handle), (twin, None)):
        steps = optimizer(made)
        with made.join():
            train(made, ours, steps, rank, 0, 3 + 4 * rank)
    return {
        "plain": torch.equal(weights(model), weights(twin)),
        "off": handle.metrics()["off_reason"],
        "lines": lines.take(),
    }


def test_ranks_with_uneven_inputs_train_on_uncompressed() -> None:
    for rank, result in enumerate(run(2, _uneven)):
        assert result["plain"]
        assert "uneven inputs" in result["off"]
        assert len(result["lines"]) == (rank == 0)


class _Odd(nn.Module):
    """A complex layer, an empty one beside a large one, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(64, 64, dtype=torch.complex64))
        self.none = nn.Parameter(torch.empty(0))
        self.large = nn.Parameter(torch.randn(64, 64))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (x @ self.large).to(torch.complex64) @ self.turn
        return out.abs() * self.scale + self.none.sum()


def _odd(rank: int, world: int) -> list[Any]:
    out: list[Any] = []
    made = policy(compression={"rung_by_level": (3, 3, 3, 3)})
    for cap_mb in (25.0, 1e-5):
        gradients = []
        for hooked in (False, True):
            torch.manual_seed(0)
            model = nn.parallel.DistributedDataParallel(_Odd(), bucket_cap_mb=cap_mb)
            handle = attached(model, made) if hooked else None
            for step in range(4):
                model.zero_grad()
                generator = torch.Generator().manual_seed(10 * step + rank)
                model(torch.randn(4, 64, generator=generator)).square().mean().backward()
                if handle is not None:
                    handle.step()
            gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        for plain, ours in zip(*gradients, strict=True):
            out.append(same_everywhere(torch.view_as_real(ours + 0j).flatten()))
            # 4 bits with the residual of two iterations: some scales of the largest magnitude.
            out.append(plain.numel() == 0 or bool((plain - ours).abs().max() < plain.abs().max()))
        assert handle is not None
        out.append(handle.metrics()["failed_steps"] == 0)
    return out


def test_complex_empty_and_scalar_parameters_are_reduced() -> None:
    for result in run(2, _odd):
        assert result == [True] * 18


def _copied(rank: int, world: int) -> list[bool]:
    model = wrapped()
    handle = attached(model)
    train(model, handle, optimizer(model), rank, 0, 3)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    out = []
    for copied in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        twin = wrapped()
        twin.module.load_state_dict(model.module.state_dict())
        train(copied, None, optimizer(copied), rank, 3, 6)
        train(twin, None, optimizer(twin), rank, 3, 6)
        out.append(torch.equal(weights(copied), weights(twin)))
    out.append(handle.metrics()["steps"] == 3)
    return out


def test_a_copy_of_the_model_trains_without_the_engine() -> None:
    assert run(2, _copied) == [[True] * 3] * 2


def _patience(rank: int, world: int) -> list[Any]:
    model = nn.parallel.DistributedDataParallel(
        nn.Linear(8, 8), process_group=dist.new_group(timeout=timedelta(seconds=7))
    )
    handle = attached(model, policy(period=1))
    engine = handle._engine
    assert engine is not None
    group = engine.exchange.channel.group
    waits = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    lines = Lines()
    if rank == 0:  # one step too many at the end: the other rank has no more to say
        handle.step()
        handle.step()
    return [waits, len(lines.take()), handle.metrics()["off_reason"], handle.metrics()["steps"]]


def test_waits_as_long_as_the_model_does_and_survives_a_regulation_without_peers() -> None:
    first, second = run(2, _patience)
    assert first == [7.0, 2, "regulation failed on a rank", 2]
    assert second == [7.0, 0, None, 0]


def _useless(rank: int, world: int) -> dict[str, Any]:
    """Each iteration takes 10 ms by the clock, compressed or not."""
    lines = Lines()
    model = wrapped()
    made = policy(period=20, compression={"warmup_iterations": 40, "least_gain": 0.02})
    now = [0.0]
    handle = attached(model, made, clock=lambda: now[0], link_gbps=None)
    steps, rungs = optimizer(model), []
    for step in range(160):
        now[0] += 0.01
        rungs += train(model, handle, steps, rank, step, step + 1)
    return {
        "rungs": rungs,
        "said": [line for line in lines.take() if "saves no time" in line],
        "metric": handle.metrics()["saves_no_time"],
    }


def test_compression_that_saves_no_time_is_off_and_says_so() -> None:
    for rank, result in enumerate(run(2, _useless)):
        assert result["rungs"] == [0] * 40 + [1] * 100 + [0] * 20  # judged by 100 iterations
        assert len(result["said"]) == (rank == 0)
        assert result["metric"] is True


def _misfits(rank: int, world: int) -> list[Any]:
    """An argument that is none, on one rank: found before the others would wait for it."""
    out: list[Any] = []
    for options in ({"scaler": object()}, {"link_gbps": 0.0}, {"link_gbps": "fast"}):
        lines, model = Lines(), wrapped()
        handle = attached(model, **(options if rank == 1 else {}))
        train(model, handle, optimizer(model), rank, 0, 2)
        out.append((handle.metrics()["off_reason"], lines.take(), same_everywhere(weights(model))))
    try:
        attached(wrapped(), mesh=[[0, 1]] if rank == 1 else None)
    except ValueError as error:
        out.append(str(error))
    return out


def test_an_argument_that_is_none_turns_all_ranks_off_at_once() -> None:
    first, second = run(2, _misfits)
    said = [line for _, lines, _ in second[:3] for line in lines if "cannot start" in line]
    for text, line in zip(("object has no get_scale()", "0.0 is no rate", "'fast' is no rate"),
                          said, strict=True):  # fmt: skip
        assert text in line
    for reason, _, same in first[:3] + second[:3]:
        assert reason == "rank 1 cannot start"
        assert same
    assert second[3] == "mesh: list is no DeviceMesh"
    assert len(first) == 3
