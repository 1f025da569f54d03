"""The handle in real training: agreement, modes, regulation, resume, whatever a loop may do."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
from xtune.policies.compress import wire
from xtune.policies.handle import Handle
from xtune.policies.hook import LossMail
from xtune.policies.presets import preset

NOTHING: dict[str, Any] = {"worker": {}, "owner": {}, "shrink": {}, "share": {}}


def _agreement(rank: int, world: int) -> dict[str, Any]:
    lines = Lines()
    out: dict[str, Any] = {}
    odd = rank == world - 1

    def case(name: str, **options: Any) -> None:
        model = wrapped()
        twin = wrapped()
        handle = attached(model, **options)
        train(model, handle, optimizer(model), rank, 0, 3)
        train(twin, None, optimizer(twin), rank, 0, 3)
        out[name] = {
            "mode": handle.metrics()["mode"],
            "as plain": torch.equal(weights(model), weights(twin)),
            "lines": lines.take(),
            "state": handle.state_dict()["step"],
        }

    case("on")
    case("all off", environ={"XTUNE_POLICY": "off"})
    case("one off", environ={"XTUNE_POLICY": "off"} if odd else {})
    case("one shadow", environ={"XTUNE_POLICY": "shadow"} if odd else {})
    case("shadow", environ={"XTUNE_POLICY": "shadow"})
    case("unknown mode", environ={"XTUNE_POLICY": "maybe"} if odd else {})
    case("other policy", made=policy(period=5) if odd else policy())
    case("bad policy", made=Path("/nonexistent/policy.json") if odd else policy())
    case("static dense", made=preset("static_dense"))
    return out


def test_any_difference_turns_every_rank_off_with_one_line() -> None:
    results = run(2, _agreement)
    for rank, result in enumerate(results):
        modes = {name: case["mode"] for name, case in result.items()}
        assert modes == {
            "on": "on",
            "all off": "off",
            "one off": "off",
            "one shadow": "off",
            "shadow": "shadow",
            "unknown mode": "off",
            "other policy": "off",
            "bad policy": "off",
            "static dense": "on",
        }
        assert not result.pop("on")["as plain"]
        for name, case in result.items():
            assert case["as plain"], name
            assert case["state"] == (3 if case["mode"] != "off" else 0), name
        for name in ("all off", "shadow", "static dense"):
            assert result[name]["lines"] == []
        off = [result[name]["lines"] for name in ("one off", "one shadow", "other policy")]
        what = ("mode (XTUNE_POLICY)", "mode (XTUNE_POLICY)", "policy")
        for said, word in zip(off, what, strict=True):
            expected = [f"xtune: off on every rank: rank 1 and rank 0 differ in {word}"]
            assert said == (expected if rank == 0 else [])
        said = result["unknown mode"]["lines"]
        assert len(said) == 1
        assert ("rank 1 cannot start" in said[0]) and (rank == 0 or "'maybe'" in said[0])
        assert len(result["bad policy"]["lines"]) == 1


def _regulation(rank: int, world: int, folder: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    bus = Bus()
    model = wrapped()
    environ = {"XTUNE_DECISIONS": f"{folder}/decisions.jsonl"}
    handle = attached(model, environ=environ, bus=bus, job="j")
    steps = optimizer(model)
    rungs = train(model, handle, steps, rank, 0, 6)
    for start, stop in ((6, 10), (10, 14)):
        if rank == 1:  # only one rank's router sees congestion
            bus.push_routing(level=3)
        rungs += train(model, handle, steps, rank, start, stop)
    out["rungs"] = rungs
    out["same"] = same_everywhere(weights(model))
    out["level"] = handle.signal()["level"]
    metrics = handle.metrics()
    out["bytes"] = metrics["wire_bytes"]
    # By formula: two first iterations uncompressed, then the rung of each; plus two numbers' sets.
    sizes = [p.numel() for p in model.parameters()]
    engine = handle._engine
    assert engine is not None
    reports = len(engine.controller.report())
    rebuilt = [[5, 4], [3, 2], [1, 0]]  # DDP's second layout: gradients in order of arrival
    total = 0
    for step, rung in enumerate(rungs):
        plan = engine.controller._rungs[rung]
        if step < 2:  # uncompressed
            buckets = [list(range(len(sizes)))] if step == 0 else rebuilt
            total += sum(
                wire.dense_bucket_bytes(sum(sizes[i] for i in bucket), 4, world)
                for bucket in buckets
            )
            continue
        total += wire.plan_wire_bytes(sizes, plan.bits, world, dense_below=1024, buckets=rebuilt)
    out["formula"] = total + 3 * wire.side_bytes(reports, world)
    out["dense"] = metrics["dense_bytes_bf16"] == sum(
        wire.dense_bytes(sum(sizes[i] for i in bucket), world, 2)
        for step in range(14)
        for bucket in ([list(range(len(sizes)))] if step == 0 else rebuilt)
    )
    out["steps"] = metrics["steps"]
    handle.detach()
    train(model, handle, steps, rank, 14, 16)
    out["detached"] = same_everywhere(weights(model))
    return out


def test_bits_change_at_a_period_boundary_on_all_ranks_alike(tmp_path: Path) -> None:
    for rank, result in enumerate(run(2, _regulation, str(tmp_path))):
        # T = 4: the level seen in iteration 6 is agreed after 7, one rung a period.
        assert result["rungs"] == [1] * 8 + [2] * 4 + [3] * 2
        assert result["same"]
        assert result["level"] == 3
        assert result["bytes"] == result["formula"]
        assert result["dense"]
        assert result["steps"] == 14
        assert result["detached"]
        lines = (tmp_path / f"decisions.jsonl.rank{rank}").read_text().splitlines()
        bits = [json.loads(line) for line in lines if '"kind":"bits"' in line]
        assert [record["step"] for record in bits] == [8, 12]
        assert {record["job"] for record in bits} == {"j"}


def _resume(rank: int, world: int) -> dict[str, Any]:
    lines = Lines()
    out: dict[str, Any] = {}
    made = policy(compression={"rung_by_level": (3, 3, 3, 3)})
    model = wrapped()
    handle, steps = attached(model, made), optimizer(model)
    train(model, handle, steps, rank, 0, 9)
    saved = io.BytesIO()
    torch.save(
        {
            "model": model.module.state_dict(),
            "optimizer": steps.state_dict(),
            "policy": handle.state_dict(),
        },
        saved,
    )
    train(model, handle, steps, rank, 9, 18)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    again = wrapped(seed=5)  # its first iteration has DDP's first layout of buckets again
    again.module.load_state_dict(state["model"])
    resumed, steps = attached(again, made), optimizer(again)
    steps.load_state_dict(state["optimizer"])
    resumed.load_state_dict(state["policy"])
    train(again, resumed, steps, rank, 9, 18)
    out["same"] = torch.equal(weights(model), weights(again))
    ours, theirs = handle.state_dict()["engine"], resumed.state_dict()["engine"]
    out["residuals"] = [
        kind
        for kind in ("worker", "owner")
        for name, value in ours["residual"][kind].items()
        if torch.equal(value, theirs["residual"][kind][name])
    ]
    # Times differ between two runs of the same training; all that decides does not.
    out["controller"] = [
        name
        for name, value in ours["controller"].items()
        if name not in ("slowdown", "sums", "counts", "regulator", "wire_bytes")
        and value != theirs["controller"][name]
    ]
    out["steps"] = resumed.metrics()["steps"]
    # One rank has lost its file, another has one of another policy.
    odd = attached(wrapped(), made)
    odd.load_state_dict({} if rank == 0 else state["policy"])
    out["lost"] = (odd.metrics()["steps"], odd.state_dict()["engine"]["residual"], lines.take())
    odd = attached(wrapped(), policy(period=7))
    odd.load_state_dict(state["policy"])
    out["other"] = (odd.metrics()["steps"], len(lines.take()))
    return out


def test_resuming_continues_bit_for_bit() -> None:
    for rank, result in enumerate(run(2, _resume)):
        assert result["same"]
        assert sorted(result["residuals"]) == ["owner"] * 3 + ["worker"] * 3
        assert result["controller"] == []
        assert result["steps"] == 18
        steps, residual, said = result["lost"]
        assert steps == 9
        assert residual == NOTHING
        assert len(said) == (rank == 0)
        assert result["other"] == (9, 1)


def _saves(rank: int, world: int, folder: str) -> None:
    made = policy(compression={"rung_by_level": (1, 1, 3, 3)})
    bus = Bus()
    model = wrapped()
    handle, steps = attached(model, made, bus=bus), optimizer(model)
    for step in range(9):
        bus.push_routing(level=2)
        train(model, handle, steps, rank, step, step + 1)
    torch.save([model.module.state_dict(), handle.state_dict()], f"{folder}/{rank}")


def _resumes(rank: int, world: int, folder: str, old: int) -> dict[str, Any]:
    lines = Lines()
    weights_, state = torch.load(f"{folder}/{rank % old}", weights_only=True)
    made = policy(compression={"rung_by_level": (1, 1, 3, 3)})
    model = wrapped()
    model.module.load_state_dict(weights_)
    handle, steps = attached(model, made), optimizer(model)
    handle.load_state_dict(state)
    out = {
        "plan": (handle.metrics()["rung"], handle.metrics()["steps"], handle.signal()["level"]),
        "residual": handle.state_dict()["engine"]["residual"],
        "lines": lines.take(),
    }
    rungs = train(model, handle, steps, rank, 9, 11)
    return out | {"rungs": rungs, "same": same_everywhere(weights(model))}


@pytest.mark.parametrize(("old", "new"), [(3, 2), (2, 3)])
def test_other_ranks_keep_the_regulation_and_drop_residuals(
    tmp_path: Path, old: int, new: int
) -> None:
    run(old, _saves, str(tmp_path))
    for rank, result in enumerate(run(new, _resumes, str(tmp_path), old)):
        assert result["plan"] == (3, 9, 2)
        assert result["residual"] == NOTHING
        said = f"xtune: saved with {old} ranks, resumed with {new}: regulation goes on, residuals"
        assert [line[: len(said)] for line in result["lines"]] == ([said] if rank == 0 else [])
        assert result["rungs"] == [3, 3]
        assert result["same"]


def _loops(rank: int, world: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    made = policy(compression={"rung_by_level": (3, 3, 3, 3)})
    for kind in (torch.bfloat16, torch.float16):
        model = wrapped(dtype=kind)
        handle = attached(model, made)
        train(model, handle, torch.optim.SGD(model.parameters(), lr=0.01), rank, 0, 4)
        out[str(kind)] = same_everywhere(weights(model)) and handle.metrics()["failed_steps"] == 0
    # Accumulation: one reduction for two backward passes.
    model = wrapped()
    handle, steps = attached(model, made), optimizer(model)
    for step in range(4):
        first, second = batches(rank, 2 * step, 2 * step + 2)
        with model.no_sync():
            model(first).square().mean().backward()
        loss = model(second).square().mean()
        loss.backward()
        steps.step()
        steps.zero_grad()
        handle.step(loss)
    out["no_sync"] = same_everywhere(weights(model)), handle.metrics()["steps"]
    out["no_sync bytes"] = handle.metrics()["dense_bytes_fp32"] == 4 * 4 * 74208
    # A branch that no rank uses for a while: its residual waits.
    model = wrapped(branch=True, find_unused_parameters=True)
    handle, steps = attached(model, made), optimizer(model)
    train(model, handle, steps, rank, 0, 4)
    before = _residual(handle, "branch.weight")
    model.module.use_branch = False
    train(model, handle, steps, rank, 4, 6)
    out["held"] = torch.equal(before, _residual(handle, "branch.weight"))
    model.module.use_branch = rank == 0  # used on one rank only
    train(model, handle, steps, rank, 6, 8)
    after = _residual(handle, "branch.weight")
    out["moves"] = torch.equal(before, after) == (rank != 0)
    out["unused"] = same_everywhere(weights(model)), handle.metrics()["failed_steps"]
    # A model in which not everything is trained, gradients as views, sparse gradients.
    model = wrapped(gradient_as_bucket_view=True)
    handle = attached(model, made)
    train(model, handle, optimizer(model), rank, 0, 4)
    out["views"] = same_everywhere(weights(model)), handle.metrics()["failed_steps"]
    # The baseline that drops gradients.
    model = wrapped()
    handle = attached(model, preset("fixed_drop"))
    train(model, handle, optimizer(model), rank, 0, 4)
    drops = sum(wire.drop_wire_bytes(size, 0.35, world) for size in (18528, 37056, 18624))
    dense = [sum(wire.dense_bucket_bytes(size, 4, world) for size in sizes)
             for sizes in ((74208,), (18528, 37056, 18624))]  # fmt: skip
    out["drop"] = same_everywhere(weights(model)), handle.metrics()["wire_bytes"]
    out["drop formula"] = sum(dense) + 2 * drops
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(50, 64, sparse=True), nn.Linear(64, 64))
    net[1].bias.requires_grad_(False)
    sparse = nn.parallel.DistributedDataParallel(net)
    handle = attached(sparse, made)
    steps = torch.optim.SGD(sparse.parameters(), lr=0.1)
    for step in range(4):
        steps.zero_grad()
        loss = sparse(torch.tensor([rank, 7, step])).square().mean()
        loss.backward()
        steps.step()
        handle.step(loss)
    out["sparse"] = same_everywhere(weights(sparse)), handle.metrics()["failed_steps"]
    return out


def _residual(handle: Any, name: str) -> Tensor:
    out: Tensor = handle.state_dict()["engine"]["residual"]["worker"][name]
    return out


def test_whatever_a_training_loop_may_do() -> None:
    for result in run(2, _loops):
        assert result["torch.bfloat16"]
        assert result["torch.float16"]
        assert result["no_sync"] == (True, 4)
        assert result["no_sync bytes"]
        assert result["held"]
        assert result["moves"]
        assert result["unused"] == (True, 0)
        assert result["views"] == (True, 0)
        assert result["sparse"] == (True, 0)
        assert result["drop"] == (True, result["drop formula"])


def _trouble(rank: int, world: int, folder: str) -> dict[str, Any]:
    lines = Lines()
    out: dict[str, Any] = {}
    made = policy(compression={"rung_by_level": (3, 3, 3, 3)})
    # A gradient scaler: one rank overflows, all skip, and go on with the same scale.
    model = wrapped()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    handle, steps = attached(model, made, scaler=scaler), optimizer(model)
    scales = []
    for step, inputs in enumerate(batches(rank, 0, 9)):
        steps.zero_grad()
        loss = model(inputs).square().mean()
        before = weights(model)
        scaled = scaler.scale(loss)
        (scaled * math.inf if step == 5 and rank == 1 else scaled).backward()
        scaler.step(steps)
        scaler.update()
        handle.step(loss)
        scales.append(scaler.get_scale())
        if step == 5:
            out["skipped"] = torch.equal(before, weights(model))
    out["scales"] = scales
    out["scaled"] = same_everywhere(weights(model)), bool(weights(model).isfinite().all())
    out["nonfinite"] = handle.metrics()["nonfinite_steps"]
    # Loss that never falls again after a rise: the retreat, from headers, on all ranks at once.
    bus = Bus()
    environ = {"XTUNE_DECISIONS": f"{folder}/retreat"}
    model = wrapped()
    safe = policy(safety={"iterations": 3, "gate": 0.01, "watch_iterations": 20, "smoothing": 1.0})
    handle, steps = attached(model, safe, bus=bus, environ=environ), optimizer(model)
    for step, inputs in enumerate(batches(rank, 0, 14)):
        bus.push_routing(level=2)
        steps.zero_grad()
        model(inputs).square().mean().backward()
        handle.step(10.0 - step + rank if step < 8 else 2.0 + rank)
    out["rungs"] = handle.metrics()["rung"], handle.metrics()["retreats"]
    # A controller that fails on one rank, in the middle of training.
    lines.take()
    model = wrapped()
    handle, steps = attached(model, made), optimizer(model)
    engine = handle._engine
    assert engine is not None
    train(model, handle, steps, rank, 0, 3)
    if rank == 1:
        engine.controller._slowdown = None  # type: ignore[assignment]
    train(model, handle, steps, rank, 3, 9)
    out["broken"] = same_everywhere(weights(model)), engine.exchange.disabled, lines.take()
    return out


def test_trouble_stops_neither_training_nor_agreement(tmp_path: Path) -> None:
    for rank, result in enumerate(run(2, _trouble, str(tmp_path))):
        assert result["skipped"]
        assert result["scales"] == [1024.0, 1024.0, 2048.0, 2048.0, 2048.0, 1024.0, 1024.0, 1024.0,
                                    2048.0]  # fmt: skip
        assert result["scaled"] == (True, True)
        assert result["nonfinite"] == 1
        assert result["rungs"] == (1, 1)
        record = [
            json.loads(line)
            for line in (tmp_path / f"retreat.rank{rank}").read_text().splitlines()
            if '"kind":"retreat"' in line
        ]
        # The rise is in force from 4 on. From 9 on the loss stands still; the third such loss,
        # that of 11, is known during 12, and the plan of 13 is the lower one.
        assert [entry["step"] for entry in record] == [12]
        same, disabled, said = result["broken"]
        assert same
        assert disabled is not None
        assert any("off from here on" in line for line in said) == (rank == 0)


@pytest.mark.parametrize(
    "loss", ["0.3 or so", {}, [], 10**400, torch.tensor(1j), torch.tensor([1, 2]),
             torch.empty((), device="meta"), torch.ones(1).to_sparse()],
)  # fmt: skip
def test_a_loss_that_is_no_number_is_unknown(loss: Any) -> None:
    mail = LossMail()
    mail.put(1.0)
    mail.put(loss)
    assert mail.read() in (None, 1.0 if isinstance(loss, Tensor) and loss.is_sparse else None)


def test_any_state_is_taken_while_off() -> None:
    handle = Handle(Bus(), None)
    for state in (None, {}, {"step": "x"}, {"step": 5}):
        handle.load_state_dict(state)  # type: ignore[arg-type]
    assert handle.state_dict()["step"] == 5


def test_only_a_wrapped_model_can_be_attached() -> None:
    with pytest.raises(TypeError, match="DistributedDataParallel, not Linear"):
        attach(nn.Linear(1, 1))  # type: ignore[arg-type]


def _alone(rank: int, world: int) -> list[Any]:
    model = wrapped()
    handle = attached(model)
    train(model, handle, optimizer(model), rank, 0, 2)
    return [handle.active, handle.metrics()["ratio_vs_bf16"], handle.signal()["level"]]


def test_a_single_rank_has_nothing_to_send() -> None:
    assert run(1, _alone) == [[False, None, None]]
