"""Four processes as two nodes of two ranks: exact sums inside, quantised between."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from tests.compress.ranks import Lines, run
from tests.compress.test_exchange import (
    BITS,
    BLOCK,
    ORDER,
    SIZES,
    BrokenCodec,
    Rank,
    everyone,
    gradient,
    same_everywhere,
)
from tests.compress.training import (
    attached,
    optimizer,
    planned_and_real,
    train,
    weights,
    wrapped,
)
from xtune.policies.compress import wire
from xtune.policies.compress.channel import Channel
from xtune.policies.compress.hierarchy import Node, part_table
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.residual import OWNER, WORKER

NODES, PLACES = 2, 2


def node(rank: int) -> Node:
    """Ranks 0 and 1 are the first node."""
    rows = tuple(tuple(range(n * PLACES, (n + 1) * PLACES)) for n in range(NODES))
    inside = [dist.new_group(list(row), backend="gloo") for row in rows]
    across = [dist.new_group([row[p] for row in rows], backend="gloo") for p in range(PLACES)]
    here, place = divmod(rank, PLACES)
    groups = inside[here], across[place]
    assert all(isinstance(group, dist.ProcessGroup) for group in groups)
    return Node(inside=Channel(groups[0]), across=Channel(groups[1]), ranks=rows)


def exact(world: int, seed: int = 0) -> Tensor:
    return torch.stack([gradient(r, seed).double() for r in range(world)]).mean(0)


def spread(ours: Rank, place: int) -> tuple[Tensor, Tensor]:
    """What this rank keeps of worker and owner residuals, as parts of the whole bucket."""
    table = ours.two_phase.table
    worker, owner = (torch.zeros(sum(SIZES), dtype=torch.float64) for _ in range(2))
    offset = 0
    for i in ORDER:
        share, size = table.elements[i], SIZES[i]
        low, high = place * share, min((place + 1) * share, size)
        kept = ours.store.get(WORKER, "abcde"[i])
        if kept is not None and high > low:
            worker[offset + low : offset + high] = kept[: high - low].double()
        kept = ours.store.get(OWNER, "abcde"[i])
        if kept is not None:
            count = wire.blocks(share, BLOCK)
            whole = torch.zeros(count * BLOCK, dtype=torch.float64).view(count, BLOCK)
            first = (ours.two_phase.rank - table.bases[i]) % table.world
            whole[first :: table.world] = kept.double().view(-1, BLOCK)
            if high > low:
                owner[offset + low : offset + high] = whole.flatten()[: high - low]
        offset += size
    return worker, owner


def _conserves(rank: int, world: int) -> dict[str, Any]:
    ours = Rank(world, decay=1.0, node=node(rank))
    total, sent = torch.zeros(sum(SIZES), dtype=torch.float64), torch.zeros(sum(SIZES)).double()
    same, near = True, True
    for seed in range(3):
        got, reduced = ours.reduce(gradient(rank, seed))
        same &= same_everywhere(got)
        total += exact(world, seed)
        sent += got.double()
        near &= reduced.finite and math.isclose(reduced.norm, float(got.norm()), rel_tol=1e-5)
    worker, owner = spread(ours, rank % PLACES)
    # Workers' residuals are of the node's mean, owners' of the mean of all.
    kept = torch.stack(everyone(worker)).sum(0) / NODES + torch.stack(everyone(owner)).sum(0)
    dense = torch.cat([torch.full((SIZES[i],), BITS[i] == 16 or SIZES[i] < 1024) for i in ORDER])
    gap = (total - sent - kept).abs()[~dense]
    size = torch.stack([gradient(r, s).double().abs() for r in range(world) for s in range(3)])
    bound = size.sum(0)[~dense] * 2.0**-22
    return {
        "same": same,
        "near": near,
        "conserved": bool((gap <= bound + 1e-12).all()),
        "rounded": float((total - sent).abs()[~dense].max()) > 1e-3,
        "memory": all(
            ours.store.get(WORKER, n).numel() <= -(-s // PLACES) + BLOCK  # type: ignore[union-attr]
            for n, s in (("d", SIZES[3]), ("c", SIZES[2]))
        ),
    }


def test_all_ranks_agree_and_nothing_is_lost() -> None:
    for result in run(4, _conserves):
        assert result == dict.fromkeys(("same", "near", "conserved", "rounded", "memory"), True)


def _one_node_is_exact(rank: int, world: int) -> float:
    """Ranks of a node that alone has gradients are summed without rounding between them."""
    ours = Rank(world, feedback=False, node=node(rank))
    bits = (8,) * len(SIZES)
    got, _ = ours.reduce(gradient(rank % PLACES), bits=bits)
    mean = torch.stack([gradient(r).double() for r in range(PLACES)]).mean(0)
    # Rounded twice at 8 bits, whatever the number of ranks: half a step of 1/127 each, of a block.
    step = torch.cat([gradient(0)[o : o + n].abs().max().expand(n) for o, n in _layers()]) / 127
    return float(((got.double() - mean).abs() / step.double()).max())


def _layers() -> list[tuple[int, int]]:
    offsets = np.cumsum([0] + [SIZES[i] for i in ORDER])
    return [(int(o), SIZES[i]) for o, i in zip(offsets, ORDER, strict=False)]


def test_nodes_with_the_same_gradients_lose_two_roundings_only() -> None:
    assert all(gap < 2.0 for gap in run(4, _one_node_is_exact))


def _bytes(rank: int, world: int) -> dict[str, int]:
    ours = Rank(world, node=node(rank))
    _, reduced = ours.reduce(gradient(rank))
    _, dense = ours.reduce(gradient(rank), mode="dense")
    return {
        "wire": reduced.wire_bytes,
        "bf16": reduced.dense_bytes_bf16,
        "dense": dense.wire_bytes,
    }


def test_bytes_are_those_that_leave_the_node() -> None:
    table = LayerTable(
        names=tuple("abcde"), elements=SIZES, world=4, block=BLOCK, dense_below=1024
    )
    part = part_table(table, places=PLACES, nodes=NODES)
    payload = part.layout(ORDER, tuple(BITS[i] for i in ORDER)).payload
    headers = wire.control_bytes(4)
    whole = sum(SIZES)
    for found in run(4, _bytes):
        two_phases = wire.two_phase_bytes(payload, NODES) - wire.control_bytes(NODES)
        assert found["wire"] == headers + two_phases
        assert found["bf16"] == wire.ring_bytes(whole // PLACES * 2, NODES)
        assert found["dense"] == headers + wire.ring_bytes(whole * 4 // PLACES, NODES)
        assert 1 - found["wire"] / found["bf16"] > 0.5


def _trouble(rank: int, world: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    ours = Rank(world, node=node(rank))
    ours.reduce(gradient(rank))
    before = {key: value.clone() for key, value in ours.store._kept.items()}
    bad = gradient(rank, 1)
    if rank == 3:
        bad[70_000] = math.nan
    got, reduced = ours.reduce(bad)
    out["nan everywhere"] = bool(torch.isnan(got).all()) and not reduced.finite
    huge = gradient(rank, 1)
    huge[5] = 3e38  # finite on each rank, infinite in the node's sum
    got, reduced = ours.reduce(huge)
    out["overflow"] = not reduced.finite and bool(torch.isnan(got).all())
    for where in ("encode", "reduce"):
        healthy = ours.two_phase._codec
        if rank == 1:
            ours.two_phase._codec = BrokenCodec(world=NODES, rank=0, where=where)
        got, reduced = ours.reduce(gradient(rank, 2))
        ours.two_phase._codec = healthy
        out[f"{where} fails"] = reduced.failed
        out[f"{where} redone"] = bool(
            torch.allclose(got.double(), exact(world, 2), rtol=1e-5, atol=1e-6)
        )
    after = ours.store._kept
    out["kept"] = before.keys() == after.keys() and all(
        torch.equal(before[key], after[key]) for key in before
    )
    got, reduced = ours.reduce(gradient(rank, 3))
    out["goes on"] = reduced.failed == () and same_everywhere(got)
    return out


def test_trouble_on_one_rank_is_the_same_trouble_on_all() -> None:
    column = (1, 3)  # ranks at the place of the one that failed, on both nodes
    for result in run(4, _trouble):
        assert result == {
            "nan everywhere": True, "overflow": True, "encode fails": column,
            "encode redone": True, "reduce fails": column, "reduce redone": True, "kept": True,
            "goes on": True,
        }  # fmt: skip


def _types(rank: int, world: int) -> dict[str, bool]:
    out = {}
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        ours = Rank(world, node=node(rank))
        got, _ = ours.reduce(gradient(rank).to(kind))
        near = torch.nn.functional.cosine_similarity(got.double(), exact(world), dim=0)
        out[str(kind)] = bool(near > 0.98) and same_everywhere(got) and got.dtype == kind
    return out


def test_narrow_types() -> None:
    for result in run(4, _types):
        assert all(result.values()), result


@pytest.mark.parametrize("places", [1, 2, 3, 8])
def test_a_part_has_room_for_every_element(places: int) -> None:
    table = LayerTable(names=("a", "b"), elements=(1000, 7), world=4, block=16, dense_below=64)
    part = part_table(table, places=places, nodes=4)
    assert all(
        p * places >= n > (p - 1) * places for p, n in zip(part.elements, (1000, 7), strict=True)
    )


MESH = [[0, 1], [2, 3]]


def _training(rank: int, world: int) -> dict[str, Any]:
    mesh = DeviceMesh("cpu", MESH)
    model, twin, plain = wrapped(), wrapped(), wrapped()
    handle, other = attached(model, mesh=mesh), attached(twin, mesh=mesh)
    optimizers = [optimizer(part) for part in (model, twin, plain)]
    train(model, handle, optimizers[0], rank, 0, 12)
    train(plain, None, optimizers[2], rank, 0, 12)
    saved = handle.state_dict()
    twin.load_state_dict(model.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    other.load_state_dict(saved)
    train(model, handle, optimizers[0], rank, 12, 20)
    train(twin, other, optimizers[1], rank, 12, 20)
    metrics, resumed = handle.metrics(), torch.equal(weights(model), weights(twin))
    planned = planned_and_real(handle, lambda: train(model, handle, optimizers[0], rank, 20, 21))
    flat = attached(wrapped())
    lines = Lines()
    flat.load_state_dict(saved)
    return {
        "same": same_everywhere(weights(model)),
        "resumed": resumed,
        "near": float((weights(model) - weights(plain)).norm() / weights(plain).norm()),
        "ratio": metrics["ratio_vs_bf16"],
        "planned": planned,
        "refused": any("saved state is not used" in line for line in lines.take()),
    }


def test_training_over_two_nodes_agrees_resumes_and_counts() -> None:
    for result in run(4, _training):
        assert result["same"] and result["resumed"] and result["refused"]
        assert result["near"] < 0.2
        assert 0.3 < result["ratio"] < 0.75
        assert result["planned"][0] == pytest.approx(result["planned"][1], abs=0.02)  # headers


def _meshes(rank: int, world: int) -> dict[str, Any]:
    lines = Lines()
    mesh = DeviceMesh("cpu", MESH)
    odd = attached(wrapped(), mesh=mesh if rank else None)
    out: dict[str, Any] = {"off": odd.metrics()["mode"], "lines": lines.take()}
    one = attached(wrapped(), mesh=DeviceMesh("cpu", [[0], [1], [2], [3]]))
    out["one level"] = one.metrics()["mode"]
    for wrong in ([0, 1, 2, 3], [[[0, 1], [2, 3]]]):
        with pytest.raises(ValueError, match="two dimensions"):
            attached(wrapped(), mesh=DeviceMesh("cpu", wrong))
    return out


def test_a_mesh_must_fit_and_be_the_same_on_every_rank() -> None:
    for rank, result in enumerate(run(4, _meshes)):
        said = ["xtune: off on every rank: the ranks differ in mesh"] if rank == 0 else []
        assert result == {"off": "off", "lines": said, "one level": "on"}
