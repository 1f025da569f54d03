"""What holds for an iteration and not for a bucket: skipped steps, failures beside it."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.compress.ranks import Lines, run
from tests.compress.training import (
    attached,
    batches,
    optimizer,
    policy,
    same_everywhere,
    train,
    weights,
    wrapped,
)
from xtune.policies.attach import attach
from xtune.policies.bus import Bus
from xtune.policies.ladder import DEFAULT_LADDER, Rung

ALWAYS = {"rung_by_level": (3, 3, 3, 3)}
HALVES = (DEFAULT_LADDER[0], Rung(name="bf16", bits_input=16, bits_head=16))
LADDER = (*DEFAULT_LADDER, Rung(name="s", bits_input=16, bits_head=16, keep_share=0.1))


def _kept(handle: Any) -> dict[str, Any]:
    residual = handle.state_dict()["engine"]["residual"]
    return {f"{kind} {n}": v for kind in ("worker", "owner") for n, v in residual[kind].items()}


def _skipped(rank: int, world: int, shared: bool) -> dict[str, Any]:
    """A NaN in the last layer's bucket alone, which is the first to be reduced."""
    how = {"ladder": LADDER, "rung_by_level": (4,) * 4} if shared else ALWAYS
    model = wrapped()
    handle, steps = attached(model, policy(compression=how)), optimizer(model)
    train(model, handle, steps, rank, 0, 6)
    before = _kept(handle)
    (inputs,) = batches(rank, 6, 7)
    out = {}
    for bad in (math.nan, 1.0):
        steps.zero_grad()
        loss = model(inputs)
        loss[0, 0] *= bad if rank == 1 else 1.0
        hooks = []
        if math.isnan(bad) and rank == 1:
            hooks.append(
                model.module.head.weight.register_hook(lambda g: g * math.nan)  # no other layer
            )
            loss = model(inputs)
        loss.square().mean().backward()
        for hook in hooks:
            hook.remove()
        handle.step(1.0)
        after = _kept(handle)
        same = before.keys() == after.keys() and all(
            torch.equal(before[name], after[name]) for name in before
        )
        out[str(bad)] = (same, bool(model.module.first.weight.grad.isfinite().all()))
    return out | {"steps": handle.metrics()["nonfinite_steps"], "kept": len(before)}


@pytest.mark.parametrize("shared", [False, True])
def test_a_skipped_step_leaves_all_residuals_as_they_were(shared: bool) -> None:
    for result in run(2, _skipped, shared):
        assert result["kept"] == (3 if shared else 6)
        assert result["nan"] == (True, True)  # though the first layer's bucket was sound
        assert result["1.0"][0] is False
        assert result["steps"] == 1


def _leaving(rank: int, world: int, shared: bool) -> dict[str, Any]:
    """The same gradients in each iteration: compressed in 6, then left as they are."""
    how = {"ladder": LADDER, "rung_by_level": (4,) * 4} if shared else ALWAYS
    model = wrapped()
    # A selection's residual has a share of its own, and keeps it when it is sent.
    whole = {} if shared else {"residual_decay": 1.0, "residual_decay_head": 1.0}
    handle = attached(model, policy(compression=how | whole))
    (inputs,) = batches(rank, 0, 1)
    with model.no_sync():
        model(inputs).square().mean().backward()
    exact = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(exact.mul_(1 / world))
    total, out = torch.zeros_like(exact, dtype=torch.float64), dict[str, Any]()
    for step in range(8):
        if step == 6:
            engine = handle._engine
            assert engine is not None
            engine.controller._wanted = 0
            handle._begin(engine, 6)
        if step in (6, 7):
            out[f"kept before {step}"] = len(_kept(handle))
        model.zero_grad()
        model(inputs).square().mean().backward()
        handle.step(1.0)
        reduced = torch.cat([p.grad.flatten() for p in model.parameters()])
        total += reduced
        out[str(step)] = float((total / (step + 1) - exact).norm() / exact.norm())
    return out | {"same": torch.equal(reduced, exact)}


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_is_lost_where_compression_ends(shared: bool) -> None:
    for result in run(2, _leaving, shared):
        assert result["kept before 6"] == (3 if shared else 6)
        assert result["kept before 7"] == 0
        assert result["same"]  # as DDP does it, bit for bit
        assert result["5"] > 0.01  # compressed, with the residual missing
        # What was missing after 6 iterations went along in one, in bf16, rounded by the workers
        # and by the owner: by half of 2^-8 each at most.
        sent = 1 + 6 * result["5"]
        assert result["6"] < 2 * 2**-9 * sent / 7


def _late(rank: int, world: int) -> list[Any]:
    """The iteration after compression is skipped for a NaN; the one after it is not."""
    model = wrapped()
    handle, steps = attached(model, policy(compression=ALWAYS, period=50)), optimizer(model)
    train(model, handle, steps, rank, 0, 6)
    engine = handle._engine
    assert engine is not None
    engine.controller._wanted = 0
    handle._begin(engine, 6)
    out: list[Any] = []
    for inputs in batches(rank, 6, 9):
        steps.zero_grad()
        bad = math.nan if rank == 1 and not out else 1.0
        (model(inputs).square().mean() * bad).backward()
        handle.step(1.0)
        out.append((engine.hook.plan.mode, len(_kept(handle))))
    return out


def test_residuals_wait_for_an_iteration_that_counts() -> None:
    for result in run(2, _late):
        assert result == [("bf16", 6), ("dense", 0), ("dense", 0)]


def _scaler(rank: int, world: int) -> dict[str, Any]:
    lines = Lines()

    class Broken:
        """A gradient scaler that fails on one rank."""

        calls = 0

        def get_scale(self) -> float:
            self.calls += 1
            if rank == 1 and self.calls > 4:
                raise OSError("no scale")
            return 1.0

    model = wrapped()
    handle = attached(model, policy(compression=ALWAYS), scaler=Broken())
    train(model, handle, optimizer(model), rank, 0, 12)
    said = lines.take()
    return {"same": same_everywhere(weights(model)), "off": handle.metrics()["off_reason"],
            "why": any("no scale" in line for line in said)}  # fmt: skip


def test_a_scaler_that_fails_ends_compression_and_not_training() -> None:
    for rank, result in enumerate(run(2, _scaler)):
        assert result["same"]
        assert result["off"] is not None
        assert result["why"] == (rank == 1)


def _mesh(rank: int, world: int) -> list[Any]:
    lines = Lines()
    model = wrapped()
    good = DeviceMesh("cpu", torch.arange(4).view(2, 2))
    bad = DeviceMesh("cpu", torch.arange(4))
    try:
        handle = attach(model, policy=policy(), environ={}, mesh=bad if rank == 3 else good)
    except ValueError as error:
        return ["raised", str(error)]
    train(model, None, optimizer(model), rank, 0, 1) if rank == 9 else None
    return [handle.metrics()["mode"], lines.take()]


def test_a_mesh_that_is_none_is_an_error_there_and_off_elsewhere() -> None:
    results = run(4, _mesh)
    assert results[3][0] == "raised"
    for rank, result in enumerate(results[:3]):
        assert result[0] == "off"
        assert result[1] == (["xtune: off on every rank: the ranks differ in mesh"] * (rank == 0))


def _lines(rank: int, world: int) -> dict[str, Any]:
    lines = Lines()
    out: dict[str, Any] = {}
    model = wrapped(dtype=torch.float64)
    handle = attached(model, policy(compression=ALWAYS))
    train(model, handle, optimizer(model), rank, 0, 4)
    out["double"] = lines.take()
    wide = policy(compression={"rung_by_level": (1, 1, 1, 1), "block": 65536})
    model = wrapped()
    handle = attached(model, wide)
    out["wide"] = (lines.take(), handle.metrics()["plan_mode"])
    train(model, handle, optimizer(model), rank, 0, 4)
    out["ratio"] = handle.metrics()["planned_ratio"]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(50, 64, sparse=True), nn.Linear(64, 64))
    sparse = nn.parallel.DistributedDataParallel(net)
    halves = {"ladder": HALVES, "rung_by_level": (1, 1, 1, 1)}
    handle = attached(sparse, policy(compression=halves))
    for step in range(3):
        sparse.zero_grad()
        sparse(torch.tensor([rank, 7, step])).square().mean().backward()
        handle.step(1.0)
    out["sparse"] = handle.metrics()["ratio_vs_fp32"]
    empty = nn.Linear(64, 64)
    empty.none = nn.Parameter(torch.empty(0))
    made = policy(compression={"ladder": LADDER, "rung_by_level": (4,) * 4,
                               "dense_below_elements": 0})  # fmt: skip
    model = nn.parallel.DistributedDataParallel(empty, find_unused_parameters=True)
    handle = attached(model, made)
    for _ in range(4):
        model(torch.ones(2, 64)).sum().backward()
        handle.step(1.0)
    out["empty"] = handle.metrics()["failed_steps"]
    return out


def test_what_is_left_out_is_said_and_not_counted_as_saved() -> None:
    for rank, result in enumerate(run(2, _lines)):
        assert len(result["double"]) == (rank == 0)
        assert all("6 parameters in float64" in line for line in result["double"])
        said, mode = result["wide"]
        assert len(said) == (rank == 0)
        # 65,536 codes of a byte for a layer of 36,864 elements, and all of them of one rank.
        assert all("rung q8, q4_8 would send no less than bf16" in line for line in said)
        assert mode == "bf16"
        assert result["ratio"] == pytest.approx(0, abs=0.02)
        assert 0 < result["sparse"] < 0.2  # a linear layer in bf16 in one of three iterations
        assert result["empty"] == 0


def _ended(rank: int, world: int) -> dict[str, Any]:
    """Compression ends in mid-run; then such a state, and one that differs, are resumed."""
    bus, model = Bus(), wrapped()
    handle, steps = attached(model, policy(compression=ALWAYS), bus=bus), optimizer(model)
    train(model, handle, steps, rank, 0, 5)
    sound = handle.state_dict()
    engine = handle._engine
    assert engine is not None
    engine.exchange.disable("test")
    train(model, handle, steps, rank, 5, 6)
    out: dict[str, Any] = {
        "told": (handle.signal()["ratio"], bus.compression.ratio, handle.metrics()["plan_mode"],
                 handle.metrics()["planned_ratio"]),
    }  # fmt: skip
    ended = handle.state_dict()
    for name, state in (("same", ended), ("apart", ended if rank else sound)):
        saved = io.BytesIO()
        torch.save(state, saved)
        saved.seek(0)
        model = wrapped()
        again = attached(model, policy(compression=ALWAYS))
        again.load_state_dict(torch.load(saved, weights_only=True))
        metrics = again.metrics()
        out[name] = (metrics["off_reason"], metrics["wire_bytes"] > 0)
    return out


def test_an_end_is_told_and_resumed_only_where_all_ranks_have_it() -> None:
    for result in run(2, _ended):
        assert result["told"] == (0.0, 0.0, "dense", 0.0)
        assert result["same"] == ("test", True)
        assert result["apart"] == (None, False)
