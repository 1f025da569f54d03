"""FSDP2 models in real training: what a loop may do, agreement, resume, a rank that dies."""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.compress.ranks import Lines, leave_alone, outlive, run
from tests.compress.test_exchange import equal
from tests.compress.training import WIDTH, batches, optimizer, policy
from tests.compress.training_fsdp import (
    ODD,
    Net,
    attached,
    gradients,
    sharded,
    train,
    whole,
)
from xtune.policies.compress import wire
from xtune.policies.fsdp import layers_of
from xtune.policies.handle import Handle

MODULES = (
    ("first.weight", "first.bias", "head.weight", "head.bias"),
    ("middle.weight", "middle.bias"),
)
SIZES = {
    "first.weight": (ODD, WIDTH), "first.bias": (ODD, 1), "middle.weight": (ODD, ODD),
    "middle.bias": (ODD, 1), "head.weight": (WIDTH, ODD), "head.bias": (WIDTH, 1),
}  # fmt: skip


def shard(name: str, world: int) -> int:
    """Elements of a parameter's shard: its rows, padded."""
    rows, columns = SIZES[name]
    return -(-rows // world) * columns


def iteration_bytes(handle: Handle, world: int, modules: Any = MODULES) -> int:
    """Bytes of one iteration under the plan in force, by formula."""
    engine = handle._engine
    assert engine is not None
    bits = dict(zip(engine.table.names, engine.controller.plan.bits, strict=True))
    total = 0
    for names in modules:
        shards = [shard(name, world) for name in names]
        widths = [
            16 if size < 1024 / world else bits[name]
            for name, size in zip(names, shards, strict=True)
        ]
        total += wire.scatter_bytes(shards, widths, world, 256)
    return total


def residuals(handle: Handle) -> dict[tuple[str, str], Tensor]:
    """Of this rank, by kind and name."""
    found = handle.state_dict()["engine"]["residual"]
    return {(kind, k): v for kind in ("worker", "owner") for k, v in found[kind].items()}


def _close(rank: int, world: int) -> dict[str, Any]:
    made = policy(compression={"rung_by_level": (1, 1, 1, 1)})  # 8 bits
    dense = sharded()
    exact = train(dense, None, optimizer(dense), rank, 0, 1)[0]
    runs = []
    for _ in range(2):
        model = sharded()
        handle = attached(model, made)
        runs.append(train(model, handle, optimizer(model), rank, 0, 4))
    one = copy.deepcopy(Net())  # this rank's own gradients, of which all others' are like
    one.load_state_dict({k: v.full_tensor() for k, v in sharded().state_dict().items()})
    x = next(batches(rank, 0, 1))
    ((one(x) - x) ** 2).mean().backward()
    largest = torch.stack([p.grad.abs().max() for p in one.parameters() if p.grad is not None])
    dist.all_reduce(largest)
    bound, offset, within = largest / world / 127 / 2 * (1 + 2.0**-7), 0, []
    error = (runs[0][0] - exact).abs()
    for place, p in enumerate(dense.parameters()):
        count = p.to_local().numel()
        small = shard(list(SIZES)[place], world) < 1024 / world
        limit = bound[place] if not small else largest[place] / world * 2.0**-8
        within.append(bool((error[offset : offset + count] <= limit * 1.001).all()))
        offset += count
    metrics = handle.metrics()
    return {
        "again": all(torch.equal(a, b) for a, b in zip(*runs, strict=True)),
        "within": all(within) and float(error.max()) > 0,
        "bytes": metrics["wire_bytes"] - 4 * iteration_bytes(handle, world),
        "side": wire.side_bytes(len(handle._engine.controller.report()), world),  # type: ignore[union-attr]
        "dense": metrics["dense_bytes_bf16"] / 4 / (world - 1),
        "planned": metrics["planned_ratio"],
        "ratio": 1 - 4 * iteration_bytes(handle, world) / metrics["dense_bytes_bf16"],
        "failed": metrics["failed_steps"],
        "kept": {name for _, name in residuals(handle)},
    }


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_are_near_to_those_of_fsdp_and_the_same_on_every_run(world: int) -> None:
    for rank in run(world, _close):
        assert rank["again"]
        assert rank["within"]
        assert rank["bytes"] == rank["side"]  # T = 4: one regulation
        assert rank["dense"] == 2 * sum(shard(name, world) for name in SIZES)
        assert rank["planned"] == pytest.approx(rank["ratio"], abs=0.005)  # a header a module
        assert rank["failed"] == 0
        assert rank["kept"] == {"first.weight", "middle.weight", "head.weight"}


def _resume(rank: int, world: int) -> dict[str, Any]:
    made = policy(compression={"rung_by_level": (3, 3, 3, 3)})
    model = sharded()
    handle, steps = attached(model, made), optimizer(model)
    train(model, handle, steps, rank, 0, 6)
    weights = [p.to_local().clone() for p in model.parameters()]
    saved, file = copy.deepcopy(steps.state_dict()), io.BytesIO()
    torch.save(handle.state_dict(), file)
    train(model, handle, steps, rank, 6, 12)
    again = sharded(seed=5)
    with torch.no_grad():
        for p, value in zip(again.parameters(), weights, strict=True):
            p.to_local().copy_(value)
    resumed, steps = attached(again, made), optimizer(again)
    steps.load_state_dict(saved)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed.load_state_dict(state)
    train(again, resumed, steps, rank, 6, 12)
    out: dict[str, Any] = {
        "same": torch.equal(whole(model), whole(again)),
        "residuals": equal(residuals(handle), residuals(resumed)),
        "bytes": handle.metrics()["wire_bytes"] == resumed.metrics()["wire_bytes"],
    }
    lines = Lines()
    state["engine"]["residual"]["worker"]["first.weight"] = torch.zeros(7)
    fresh = attached(sharded(), made)
    fresh.load_state_dict(state)  # sizes of another number of ranks
    out["other"] = (len(residuals(fresh)), fresh.metrics()["steps"], len(lines.take()))
    return out


def test_resuming_equals_continuing_bit_for_bit() -> None:
    for rank in run(2, _resume):
        assert rank == {"same": True, "residuals": True, "bytes": True, "other": (0, 6, 1)}


def _leave(rank: int, world: int) -> bytes:
    model = sharded()
    handle = attached(model)
    train(model, handle, optimizer(model), rank, 0, 5)
    file = io.BytesIO()
    torch.save(handle.state_dict(), file)
    return file.getvalue()


def _arrive(rank: int, world: int, states: list[bytes]) -> dict[str, Any]:
    lines = Lines()
    model = sharded()
    handle = attached(model)
    handle.load_state_dict(torch.load(io.BytesIO(states[rank % len(states)])))
    train(model, handle, optimizer(model), rank, 5, 6)
    metrics = handle.metrics()
    return {"steps": metrics["steps"], "failed": metrics["failed_steps"], "said": lines.take()}


def test_with_another_number_of_ranks_regulation_goes_on() -> None:
    states = run(2, _leave)
    for rank, result in enumerate(run(4, _arrive, states)):
        assert (result["steps"], result["failed"]) == (6, 0)
        assert ["residuals are dropped" in line for line in result["said"]] == [True] * (rank == 0)


class Branched(Net):
    """With layers that an iteration may leave out; one is as large as another."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.two = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.three = nn.Linear(2 * WIDTH, 3 * WIDTH, bias=False)
        self.use = (True, True, True)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if self.use[0]:
            out = out + self.one(x)[:, :WIDTH]
        if self.use[1]:
            out = out + self.two(torch.cat([x, x], dim=1))
        if self.use[2]:
            out = out + self.three(torch.cat([x, x], dim=1))[:, :WIDTH]
        return out


def _unused(rank: int, world: int) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    lines = Lines()
    for zeros in (False, True):
        model, twin = sharded(net=Branched), sharded(net=Branched)
        for part in (model, twin):
            part.set_reduce_scatter_unused_params(zeros)
        handle = attached(model)
        steps, plain = optimizer(model), optimizer(twin)
        for use in ((True, True, True), (True, True, False), (True, False, False)):
            before = residuals(handle)
            x = next(batches(rank, 0, 1))
            found = []
            for part, taken in ((model, steps), (twin, plain)):
                part.use = use
                taken.zero_grad()
                ((part(x) - x) ** 2).mean().backward()
                found.append(gradients(part))
            after = residuals(handle)
            held = [
                name
                for name in ("one", "two", "three")
                if ("worker", f"{name}.weight") in before
                and torch.equal(
                    before["worker", f"{name}.weight"], after["worker", f"{name}.weight"]
                )
            ]
            error = float((found[0] - found[1]).norm() / found[1].norm())
            handle.step()
            out[zeros, use] = (held, 0 < error < 0.05, found[0].shape == found[1].shape)
        out[zeros, "failed"] = handle.metrics()["failed_steps"]
        out[zeros, "said"] = lines.take()
    return out


def test_parameters_without_a_gradient_keep_their_residual() -> None:
    for rank, result in enumerate(run(2, _unused)):
        for zeros in (False, True):
            assert result[zeros, (True, True, True)] == ([], True, True)
            assert result[zeros, (True, True, False)] == (["three"], True, True)
            assert result[zeros, "failed"] == 0
        # "one" and "two" have one size: which of both a call holds cannot be told.
        assert result[True, (True, False, False)] == (["two", "three"], True, True)
        assert result[False, (True, False, False)][0] == ["one", "two", "three"]
        assert [len(result[zeros, "said"]) for zeros in (False, True)] == [rank == 0, 0]
        assert rank or "set_reduce_scatter_unused_params" in result[False, "said"][0]


def _loops(rank: int, world: int) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    exact, ours = sharded(), sharded()
    handle = attached(ours)
    found = []
    for model in (exact, ours):
        for last, x in ((False, 0), (False, 1), (True, 2)):
            model.set_requires_gradient_sync(last)
            (model(next(batches(rank, x, x + 1))) ** 2).mean().backward()
        found.append(gradients(model))
    out["accumulated"] = float((found[1] - found[0]).norm() / found[0].norm())
    handle.step()
    out["once"] = handle.metrics()["wire_bytes"] == iteration_bytes(handle, world)
    norms = [float(nn.utils.clip_grad_norm_(model.parameters(), 0.01).full_tensor())  # type: ignore[attr-defined]
             for model in (exact, ours)]  # fmt: skip
    out["norms"] = abs(norms[1] / norms[0] - 1)
    out["clipped"] = float(gradients(ours).square().sum())
    for param, reduce in ((torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16),
                          (None, torch.float16)):  # fmt: skip
        mixed = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
        results = []
        for used in (False, True):
            model = sharded(mp_policy=mixed)
            taken = attached(model) if used else None
            results.append(train(model, taken, optimizer(model), rank, 0, 2)[0])
        error = float((results[1] - results[0]).norm() / results[0].norm())
        assert taken is not None
        out[str(reduce), str(param)] = (0 < error < 0.05, taken.metrics()["failed_steps"])
    model = sharded()
    handle = attached(model)
    (model(next(batches(rank, 0, 1))) ** 2).mean().backward()
    handle.step()
    before = residuals(handle)
    bad = next(batches(rank, 1, 2))
    if rank == 1:
        bad[0, 0] = torch.nan
    for p in model.parameters():
        p.grad = None
    (model(bad) ** 2).mean().backward()
    out["nan"] = bool(torch.isnan(gradients(model)).all())
    handle.step()
    out["untouched"] = equal(before, residuals(handle))
    out["counted"] = handle.metrics()["nonfinite_steps"]
    twin = sharded()
    handle.detach()
    for p in model.parameters():
        p.grad = None
    for part in (model, twin):
        (part(next(batches(rank, 2, 3))) ** 2).mean().backward()
    out["detached"] = torch.equal(gradients(model), gradients(twin))
    return out


def test_what_a_training_loop_may_do() -> None:
    for rank in run(2, _loops):
        assert 0 < rank.pop("accumulated") < 0.02
        assert rank.pop("norms") < 0.02
        assert rank.pop("clipped") < 1e-4  # this rank's part of 0.01^2
        assert rank.pop("once")
        assert rank.pop("nan") and rank.pop("untouched") and rank.pop("detached")
        assert rank.pop("counted") == 1
        assert set(rank.values()) == {(True, 0)}


class Scale:
    """A gradient scaler whose factor a test sets; a power of two changes no rounding."""

    def __init__(self) -> None:
        self.value = 1.0

    def get_scale(self) -> float:
        """The factor in force."""
        return self.value


def _scaled(rank: int, world: int) -> bool:
    found = []
    for factors in ((1.0, 1.0, 1.0), (1.0, 1024.0, 64.0)):
        scale, model = Scale(), sharded()
        handle = attached(model, scaler=scale)
        for factor, x in zip(factors, batches(rank, 0, 3), strict=True):
            scale.value = factor
            for p in model.parameters():
                p.grad = None
            ((model(x) ** 2).mean() * factor).backward()
            handle.step()
        found.append(gradients(model) / factor)
    return torch.equal(*found)


def test_residuals_follow_a_gradient_scaler() -> None:
    assert run(2, _scaled) == [True, True]


def _agreement(rank: int, world: int) -> dict[str, Any]:
    lines = Lines()
    out: dict[str, Any] = {}
    odd = rank == 1

    def case(name: str, **options: Any) -> None:
        model, twin = sharded(), sharded()
        handle = attached(model, **options)
        got = train(model, handle, optimizer(model), rank, 0, 3)
        plain = train(twin, None, optimizer(twin), rank, 0, 3)
        same = all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
        out[name] = (handle.metrics()["mode"], same, lines.take())

    case("on")
    case("shadow", environ={"XTUNE_POLICY": "shadow"})
    case("off", environ={"XTUNE_POLICY": "off"})
    case("one off", environ={"XTUNE_POLICY": "off"} if odd else {})
    case("drop", made=policy(compression={"mode": "drop"}))
    for name, wrong in (("type", nn.Linear(2, 2)), ("mesh", sharded())):
        try:
            mesh = dist.device_mesh.DeviceMesh("cpu", [[0], [1]])
            attached(wrong, mesh=mesh)
        except (TypeError, ValueError) as error:
            out[name] = type(error).__name__
    return out


def test_any_difference_turns_every_rank_off_with_one_line() -> None:
    for rank, result in enumerate(run(2, _agreement)):
        assert result["on"] == ("on", False, [])
        assert result["shadow"] == ("shadow", True, [])
        assert result["off"] == ("off", True, [])
        said = ["xtune: off on every rank: rank 1 and rank 0 differ in mode (XTUNE_POLICY)"]
        assert result["one off"] == ("off", True, said if rank == 0 else [])
        assert result["drop"][:2] == ("off", True)
        assert any("no drop" in line for line in result["drop"][2])
        assert (result["type"], result["mesh"]) == ("TypeError", "ValueError")


def _dies(rank: int, world: int) -> None:
    model = sharded()
    handle, steps = attached(model), optimizer(model)
    train(model, handle, steps, rank, 0, 3)
    leave_alone(rank, lambda: train(model, handle, steps, rank, 3, 6))


def test_a_rank_that_dies_ends_the_others_with_an_error() -> None:
    outlive(3, _dies)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.data())
def test_which_parameters_a_call_holds_is_found_or_said_to_be_unknown(
    sizes: list[int], data: st.DataObject
) -> None:
    elements = data.draw(st.integers(1, sum(sizes) + 1))
    every = [
        chosen
        for count in range(1, len(sizes) + 1)
        for chosen in itertools.combinations(range(len(sizes)), count)
        if sum(sizes[i] for i in chosen) == elements
    ]
    expected = () if not every else every[0] if len(every) == 1 else None
    assert layers_of(dict(enumerate(sizes)), elements) == expected
