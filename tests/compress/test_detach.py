"""What `attach` takes it gives back: threads, descriptors, process groups, whatever ended it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.compress import training_fsdp as fsdp
from tests.compress.ranks import Lines, join, leave_alone, outlive, run
from tests.compress.training import (
    attached,
    optimizer,
    policy,
    same_everywhere,
    train,
    weights,
    wrapped,
)
from xtune.policies import connections
from xtune.policies.spec import dumps

CYCLES = 20
ENDING = 2  # threads that have been waited for and that the system has not yet removed
OFF = {"XTUNE_POLICY": "off"}


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def more(before: tuple[int, int]) -> tuple[bool, bool]:
    """Whether there are more descriptors or threads than there were."""
    now = held()
    return now[0] > before[0], now[1] > before[1] + ENDING


def _cycles(rank: int, world: int) -> dict[str, Any]:
    lines, odd, models = Lines(), rank == 1, []
    options: list[dict[str, Any]] = [
        {},
        {"environ": OFF},
        {"environ": OFF if odd else {}},
        {"made": Path("/nonexistent/policy.json") if odd else policy()},
    ]
    out: dict[str, Any] = {"modes": set()}
    train(wrapped(), None, optimizer(wrapped()), rank, 0, 1)
    before = held()
    for cycle in range(CYCLES):
        case = cycle % len(options)
        model, twin = wrapped(), wrapped()
        handle = attached(model, **{"made": policy(period=1), **options[case]})
        out["modes"].add((case, handle.metrics()["mode"]))
        steps = optimizer(model)
        train(model, handle, steps, rank, 0, 3)
        out["took"] = held()[1] > before[1] + ENDING if case == 0 else out["took"]
        handle.detach()
        twin.module.load_state_dict(model.module.state_dict())
        for left in (model, twin):
            train(left, None, torch.optim.SGD(left.parameters(), lr=0.1), rank, 3, 5)
        out.setdefault("plain", []).append(torch.equal(weights(model), weights(twin)))
        models.append(model)  # with the hook that DDP cannot forget
    out["more"] = more(before)
    twice = wrapped()
    with twice.join():
        first = attached(twice)
        train(twice, first, optimizer(twice), rank, 0, 2)
        before = held()
        second = attached(twice)  # DDP has a hook
        out["second"] = (second.active, more(before))
        train(twice, first, optimizer(twice), rank, 2, 4)
        first.detach()
        train(twice, None, optimizer(twice), rank, 4, 5 + rank)
    out["same"] = same_everywhere(weights(twice))
    lines.take()
    return out


def test_cycles_of_attaching_leave_no_thread_and_no_descriptor() -> None:
    for result in run(2, _cycles):
        assert result["modes"] == {(0, "on"), (1, "off"), (2, "off"), (3, "off")}
        assert result["took"]
        assert result["plain"] == [True] * CYCLES
        assert result["more"] == (False, False)
        assert result["second"] == (False, (False, False))
        assert result["same"]


def _copies(rank: int, world: int) -> dict[str, Any]:
    """Copies of a sharded model, which are averaged over nodes after the end as well."""
    mesh = fsdp.nodes(world)
    model = fsdp.sharded(mesh=mesh["place"])
    counts, same = [], []
    for cycle in range(CYCLES // 2):
        environ = OFF if cycle % 3 == 2 else {}
        handle = fsdp.attached(model, policy(period=1), mesh=mesh, environ=environ)
        steps = optimizer(model)
        fsdp.train(model, handle, steps, rank, 0, 2)
        handle.detach()
        fsdp.train(model, None, steps, rank, 2, 4)
        same.append(same_everywhere(fsdp.whole(model)))
        counts.append(held())
    return {"same": same, "first": counts[0], "last": counts[-1]}


def test_nodes_stay_in_step_after_each_end_over_one_group_that_lasts() -> None:
    for result in run(4, _copies):
        assert result["same"] == [True] * (CYCLES // 2)
        assert result["last"][0] <= result["first"][0]
        assert result["last"][1] <= result["first"][1] + ENDING


def _survivor(rank: int, world: int) -> None:
    model = wrapped()
    before = held()
    handle, steps = attached(model), optimizer(model)
    train(model, handle, steps, rank, 0, 4)
    leave_alone(rank, lambda: train(model, handle, steps, rank, 4, 8))
    handle.detach()
    assert more(before) == (False, False)


def test_a_rank_that_outlives_another_can_detach() -> None:
    outlive(3, _survivor)


def _ended(rank: int, world: int, folder: str) -> list[bool]:
    """torch ends all groups before we do, and all begins anew in the same process."""
    out = []
    for turn in range(2):
        model = wrapped()
        handle = attached(model)
        train(model, handle, optimizer(model), rank, 0, 3)
        out.append(same_everywhere(weights(model)))
        dist.destroy_process_group()
        handle.detach()
        join(rank, world, f"{folder}/{turn}")
    return out


def test_torch_may_end_all_groups_first(tmp_path: Path) -> None:
    assert run(2, _ended, str(tmp_path)) == [[True, True]] * 2


def _groups(rank: int, world: int) -> bool:
    """Ranks that are in different numbers of groups, as in pipelines they are."""
    dist.new_group([0])
    model = wrapped()
    handle = attached(model)
    train(model, handle, optimizer(model), rank, 0, 3)
    return handle.metrics()["mode"] == "on" and same_everywhere(weights(model))


def test_ranks_may_be_in_different_numbers_of_groups() -> None:
    assert run(2, _groups) == [True, True]


def _pipe(rank: int, world: int) -> list[str]:
    """Policies from pipes, which hold nothing once they have been read."""
    modes = []
    for _ in range(2):
        end, start = os.pipe()
        os.write(start, dumps(policy()).encode())
        os.close(start)
        modes.append(attached(wrapped(), Path(f"/proc/self/fd/{end}")).metrics()["mode"])  # type: ignore[arg-type]
    return modes


def test_a_policy_is_read_once() -> None:
    assert run(2, _pipe) == [["on", "on"]] * 2


def _meshes(rank: int, world: int, case: str) -> tuple[list[str], int, bool]:
    lines, mesh = Lines(), fsdp.nodes(world)
    odd = rank == 1
    theirs = {"part": mesh["place"], "none": None, "unwanted": mesh}[case]
    right = None if case == "unwanted" else mesh
    said = []
    for given in (theirs if odd else right, right):
        sharding = None if case == "unwanted" else mesh["place"]
        model = fsdp.sharded(mesh=sharding)
        try:
            handle = fsdp.attached(model, mesh=given)
            said.append(handle.metrics()["off_reason"] or "on")
        except ValueError as error:
            said.append(str(error))
    fsdp.train(model, handle, optimizer(model), rank, 0, 2)
    return said, len(lines.take()), same_everywhere(fsdp.whole(model))


@pytest.mark.parametrize("case", ["part", "none", "unwanted"])
def test_a_wrong_mesh_on_one_rank_is_told_to_all_and_can_be_mended(case: str) -> None:
    """A mesh of one dimension, none among nodes, and one where nobody has nodes."""
    apart = "the ranks differ in mesh: their weights would drift apart"
    unfit = "mesh must be (node, rank of it), a model's shards in each row"
    for rank, (said, lines, same) in enumerate(run(4, _meshes, case)):
        expected = {
            "part": unfit if rank == 1 else apart,
            "none": apart,
            "unwanted": unfit if rank == 1 else "the ranks differ in mesh",
        }
        assert said == [expected[case], "on"]
        warned = rank == 0 and case == "unwanted"  # where no rank raised for it
        assert lines == warned
        assert same


def _older(rank: int, world: int) -> list[Any]:
    """A release of torch without what names a group as we want."""
    connections._c10d = SimpleNamespace()
    model = wrapped()
    handle = attached(model, policy(compression={"rung_by_level": (3, 3, 3, 3)}))
    train(model, handle, optimizer(model), rank, 0, 4)
    return [
        handle.metrics()["rung"],
        handle.metrics()["failed_steps"],
        same_everywhere(weights(model)),
    ]


def test_another_release_of_torch_names_the_groups() -> None:
    assert run(2, _older) == [[3, 0, True]] * 2


def _memory(rank: int, world: int) -> list[bool]:
    model = wrapped()
    handle = attached(model, policy(compression={"rung_by_level": (3, 3, 3, 3)}))
    train(model, handle, optimizer(model), rank, 0, 4)
    engine = handle._engine
    assert engine is not None
    kept = [bool(engine.exchange.store.state_dict()["worker"])]
    handle.detach()
    return [*kept, bool(engine.exchange.store.state_dict()["worker"])]


def test_residuals_go_though_the_hook_stays() -> None:
    assert run(2, _memory) == [[True, False]] * 2


def _twice(rank: int, world: int) -> list[Any]:
    lines = Lines()
    mesh = fsdp.nodes(world)
    model = fsdp.sharded(mesh=mesh["place"])
    first, steps = fsdp.attached(model, mesh=mesh), optimizer(model)
    fsdp.train(model, first, steps, rank, 0, 2)
    sent = first.metrics()["wire_bytes"]
    second = [fsdp.attached(model, mesh=mesh), fsdp.attached(model, mesh=mesh, environ=OFF)]
    fsdp.train(model, first, steps, rank, 2, 4)
    said = sum("detach() it first" in line for line in lines.take())
    works = first.metrics()["wire_bytes"] > sent > 0
    first.detach()
    third = fsdp.attached(model, mesh=mesh)
    fsdp.train(model, third, steps, rank, 4, 6)
    modes = [handle.metrics()["mode"] for handle in (*second, third)]
    return [modes, said, works, same_everywhere(fsdp.whole(model))]


def test_a_policy_at_work_is_not_replaced() -> None:
    for result in run(4, _twice):
        assert result == [["off", "off", "on"], 1, True, True]


def _again(rank: int, world: int) -> list[Any]:
    lines, model = Lines(), wrapped()
    steps, out = optimizer(model), []
    for start in (0, 4, 8):
        handle = attached(model, policy(compression={"rung_by_level": (3, 3, 3, 3)}))
        train(model, handle, steps, rank, start, start + 3)
        metrics = handle.metrics()
        out.append((metrics["mode"], metrics["rung"], metrics["wire_bytes"] > 0))
        twin = attached(model).metrics()["mode"]
        handle.detach()
        train(model, None, steps, rank, start + 3, start + 4)
        out.append((twin, None, handle.metrics()["wire_bytes"] == metrics["wire_bytes"]))
    said = sum("can only be called once" in line for line in lines.take())
    return [out, said, same_everywhere(weights(model))]


def test_a_model_that_was_detached_is_attached_again() -> None:
    for out, said, same in run(2, _again):
        assert out == [("on", 3, True), ("off", None, True)] * 3
        assert said == 3  # a policy at work is not replaced
        assert same
