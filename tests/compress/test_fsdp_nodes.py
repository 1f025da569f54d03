"""Copies of a sharded model: averaged over the nodes by us, or over replicas by torch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.compress.ranks import Lines, run
from tests.compress.test_exchange import BrokenCodec, equal, kept
from tests.compress.test_fsdp_exchange import (
    BITS,
    BLOCK,
    CHUNK,
    DECAY,
    DENSE_BELOW,
    NAMES,
    ORDER,
    SHARDS,
    gradient,
)
from tests.compress.test_fsdp_training import MODULES, SIZES, residuals, shard
from tests.compress.test_hierarchy import node
from tests.compress.training import optimizer, planned_and_real, policy, same_everywhere
from tests.compress.training_fsdp import attached, gradients, nodes, sharded, train, whole
from xtune.policies.compress import wire
from xtune.policies.compress.bucket import Bucket, Reduced
from xtune.policies.compress.channel import Channel
from xtune.policies.compress.exchange import Exchange
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.residual import ResidualStore
from xtune.policies.compress.scatter import Shards, shard_table
from xtune.policies.compress.scatter_exchange import NodeScatter, ScatterExchange

WORLD, PLACES, NODES = 4, 2, 2


class Rank:
    """One rank of four, two a node."""

    def __init__(self, rank: int) -> None:
        self.lines = Lines()
        self.node = node(rank)
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self.store = ResidualStore(decay=DECAY, enabled=True, limit=5.0)
        table = LayerTable(
            names=NAMES, elements=SHARDS, world=WORLD, block=BLOCK, dense_below=DENSE_BELOW
        )
        part = shard_table(
            NAMES, SHARDS, spread=PLACES, world=NODES, block=BLOCK, dense_below=DENSE_BELOW
        )
        channel = Channel(group, per_node=PLACES)
        self.exchange = ScatterExchange(
            channel, self.node.inside, table, part, self.store, node=self.node
        )
        self.step = 0

    def scatter(self, values: Tensor, mode: str = "quantise") -> tuple[Tensor, Reduced]:
        """Reduce and scatter, and say how it went."""
        output = torch.full((CHUNK,), 1e-9)  # where a result will be, anything may lie
        op = dist.ReduceOp.AVG
        bucket = Shards(index=0, layers=ORDER, buffer=output, whole=values.clone(), op=op)
        self.step += 1
        word: dict[str, Any] = {"step": self.step, "loss": None, "measure": True}
        done = self.exchange.reduce(bucket, mode=mode, bits=BITS, **word)
        return output, done


def _node_mean(rank: int, seed: int) -> Tensor:
    """Of the chunks for this rank's place, over the ranks of its node."""
    here, place = divmod(rank, PLACES)
    chunks = [
        gradient(here * PLACES + other, PLACES, seed).view(PLACES, -1)[place]
        for other in range(PLACES)
    ]
    return (chunks[0] + chunks[1]) * 0.5


def _exact(rank: int, seed: int) -> Tensor:
    place = rank % PLACES
    chunks = [gradient(r, PLACES, seed).view(PLACES, -1)[place].double() for r in range(WORLD)]
    return torch.stack(chunks).mean(0)


def _near(got: Tensor, rank: int, seed: int) -> bool:
    return bool(torch.allclose(got.double(), _exact(rank, seed), rtol=1e-5, atol=1e-7))


def _exchange(rank: int, world: int) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    ours = Rank(rank)
    between = Channel(node(rank).across.group)
    store = ResidualStore(decay=DECAY, enabled=True)
    table = LayerTable(
        names=NAMES, elements=SHARDS, world=NODES, block=BLOCK, dense_below=DENSE_BELOW // PLACES
    )
    all_reduce = Exchange(between, table, store, keep_share=1.0)
    same = []
    for seed in range(3):
        got, reduced = ours.scatter(gradient(rank, PLACES, seed))
        mean = _node_mean(rank, seed)
        bucket = Bucket(index=0, layers=ORDER, buffer=mean)
        all_reduce.reduce(bucket, step=seed, mode="quantise", bits=BITS, loss=None)
        same.append(torch.equal(got, mean) and not _near(got, rank, seed))
    out["as all-reduce of node means"] = same
    out["powers"] = sorted(reduced.powers)
    squares = sum(power.squares for power in reduced.powers.values())
    out["squares"] = math.isclose(squares, reduced.norm**2, rel_tol=1e-4)
    out["shrunk"] = ours.store.state_dict()["shrink"]
    out["residuals"] = equal(kept(ours.store), kept(store))
    sizes = {key: value.numel() for key, value in kept(ours.store).items()}
    out["sizes"] = sizes == {key: ours.exchange.residual_sizes()[key] for key in sizes}
    bits = [16 if SHARDS[i] < 512 else BITS[i] for i in ORDER]
    bases = wire.block_bases(SHARDS, world=NODES, block=BLOCK, dense_below=512)
    payload = wire.payload_bytes(
        [SHARDS[i] for i in ORDER], bits, [bases[i] for i in ORDER], world=NODES, block=BLOCK
    )
    # Headers go round all ranks instead of between nodes.
    headers = wire.control_bytes(WORLD) - wire.control_bytes(NODES)
    out["bytes"] = reduced.wire_bytes == wire.two_phase_bytes(payload, NODES) + headers
    out["baseline"] = reduced.dense_bytes_bf16 == wire.dense_bytes(CHUNK, NODES, 2)
    before = kept(ours.store)
    found = ours.exchange.quantised
    assert isinstance(found, NodeScatter)
    healthy = found.inner._codec
    for where in ("encode", "reduce"):
        if rank == 3:
            found.inner._codec = BrokenCodec(world=NODES, rank=found.rank, where=where)
        got, reduced = ours.scatter(gradient(rank, PLACES, 5))
        out[where] = (_near(got, rank, 5), bool(reduced.failed), equal(before, kept(ours.store)))
        found.inner._codec = healthy
    for mode in ("quantise", "dense"):
        values = gradient(rank, PLACES, 6)
        if rank == 2:
            values[3] = math.inf
        got, reduced = ours.scatter(values, mode)
        finite = bool(torch.isfinite(got).all())
        out[mode, "inf"] = (reduced.finite, finite, equal(before, kept(ours.store)))
    out["said"] = ours.lines.take()
    return out


def test_shards_are_summed_in_the_node_and_quantised_between_nodes() -> None:
    for rank, result in enumerate(run(WORLD, _exchange)):
        assert result["as all-reduce of node means"] == [True] * 3
        assert result["residuals"] and result["sizes"]
        assert (result["powers"], result["squares"], result["shrunk"]) == ([0, 1, 2, 3], True, {})
        assert result["bytes"] and result["baseline"]
        assert result["encode"] == result["reduce"] == (True, True, True)
        assert result["quantise", "inf"] == (False, False, True)
        # Without compression as without us: the value is in the first place's shard only.
        assert result["dense", "inf"] == (False, rank % PLACES == 1, True)
        assert len(result["said"]) == {0: 1, 3: 1}.get(rank, 0)


def _training(rank: int, world: int) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    lines = Lines()
    mesh = nodes(world)
    exact = sharded()
    train(exact, None, optimizer(exact), rank, 0, 3)
    dense = whole(exact)

    def case(name: str, **options: Any) -> Any:
        model = sharded(mesh=mesh["place"])
        handle, steps = attached(model, mesh=mesh, **options), optimizer(model)
        train(model, handle, steps, rank, 0, 3)
        error = float((whole(model) - dense).norm() / dense.norm())
        out[name] = (handle.metrics()["mode"], same_everywhere(whole(model)), error, lines.take())
        return model, handle, steps

    model, handle, steps = case("on")
    out["kept"] = {kind for kind, _ in residuals(handle)}
    out["measured"] = handle.metrics()["failed_steps"]
    handle.detach()
    train(model, None, steps, rank, 3, 5)
    out["detached"] = same_everywhere(whole(model))
    case("norms", made=policy(compression={"allocation": "norms"}, period=1))
    case("off", environ={"XTUNE_POLICY": "off"})
    case("shadow", environ={"XTUNE_POLICY": "shadow"})
    case("one off", environ={"XTUNE_POLICY": "off"} if rank == 2 else {})
    case("drop", made=policy(compression={"mode": "drop"}))
    try:
        attached(sharded(), mesh=mesh)  # sharded over all ranks, not those of a node
    except ValueError as error:
        out["wrong"] = str(error)
    return out


def test_nodes_stay_in_step_whether_the_policy_is_on_or_off() -> None:
    for rank, result in enumerate(run(WORLD, _training)):
        assert result["kept"] == {"worker", "owner"}
        assert result["measured"] == 0
        assert result["detached"]
        assert "a model's shards in each row" in result["wrong"]
        for name, mode in (("on", "on"), ("norms", "on"), ("off", "off"), ("shadow", "shadow"),
                           ("one off", "off"), ("drop", "off")):  # fmt: skip
            found, same, error, said = result[name]
            assert (found, same) == (mode, True), name
            assert (1e-5 < error < 0.01) if mode == "on" else (error < 1e-6), name
            assert len(said) == {"one off": rank == 0, "drop": 1 + (rank == 0)}.get(name, 0)


def _planned(rank: int, world: int) -> list[tuple[float, float]]:
    """Of both forms, and of bf16 gradients, which is what torch then sums over replicas."""
    out = []
    mesh = nodes(world)
    narrow = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    for shards, over in ((mesh["place"], mesh), (mesh, None)):
        model = sharded(mesh=shards, mp_policy=narrow)
        handle, steps = attached(model, mesh=over), optimizer(model)
        train(model, handle, steps, rank, 0, 4)
        again = partial(train, model, handle, steps, rank, 4, 5)
        out.append(planned_and_real(handle, again))
    return out


def test_what_is_planned_is_what_shards_and_modules_send() -> None:
    for result in run(WORLD, _planned):
        for planned, real in result:
            assert 0.1 < planned < 0.6
            assert planned == pytest.approx(real, abs=0.02)  # headers


def _replicas(rank: int, world: int) -> dict[str, Any]:
    lines = Lines()
    exact = sharded()
    plain = train(exact, None, optimizer(exact), rank, 0, 3)
    assert plain
    model = sharded(mesh=nodes(world))
    handle, steps = attached(model), optimizer(model)
    train(model, handle, steps, rank, 0, 3)
    metrics = handle.metrics()
    engine = handle._engine
    assert engine is not None
    bits = dict(zip(engine.table.names, engine.controller.plan.bits, strict=True))
    sent = 0
    for names in MODULES:
        shards = [shard(name, PLACES) for name in names]
        widths = [16 if shard(name, PLACES) < 512 else bits[name] for name in names]
        sent += wire.scatter_bytes(shards, widths, PLACES, BLOCK) - 32  # headers go to all
        sent += wire.control_bytes(world) + wire.dense_bytes(sum(shards), NODES, 4)
    count = sum(shard(name, PLACES) for name in SIZES)
    error = (whole(model) - whole(exact)).norm() / whole(exact).norm()
    out = {
        "same": same_everywhere(whole(model)),
        "error": float(error),
        "bytes": metrics["wire_bytes"] == 3 * sent,
        "baseline": metrics["dense_bytes_fp32"] == 3 * (4 * count + 4 * count),
        "said": lines.take(),
    }
    before = residuals(handle)
    x = torch.full((8, 96), math.nan if rank == 3 else 1.0)
    for p in model.parameters():
        p.grad = None
    model(x).mean().backward()
    out["nan"] = bool(torch.isnan(gradients(model)).all())
    out["held"] = equal(before, residuals(handle))
    return out


def test_torch_sums_over_replicas_of_what_was_quantised() -> None:
    for rank, result in enumerate(run(WORLD, _replicas)):
        assert result["same"]
        assert 1e-5 < result["error"] < 0.01
        assert result["bytes"] and result["baseline"]
        assert result["nan"] and result["held"]  # also on the replica without the bad value
        assert [("replicas stays uncompressed" in line) for line in result["said"]] == (
            [True] if rank == 0 else []
        )
