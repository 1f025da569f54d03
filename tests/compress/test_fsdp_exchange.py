"""The compressed reduce-scatter between real processes: the reference, identities, failures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.compress.ranks import Lines, run
from tests.compress.test_exchange import equal, everyone, kept
from xtune.policies.compress import scatter, wire
from xtune.policies.compress.bucket import Reduced
from xtune.policies.compress.channel import Channel
from xtune.policies.compress.chunk_codec import NumbaChunks
from xtune.policies.compress.header import OrderError
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.quantise import dequantise, quantise
from xtune.policies.compress.residual import WORKER, ResidualStore
from xtune.policies.compress.scatter import Scatter, Shards, shard_table
from xtune.policies.compress.scatter_exchange import ScatterExchange

NAMES = ("a", "b", "c", "d")
SHARDS = (5000, 300, 8192, 100)
BITS = (4, 6, 8, 4)
ORDER = (3, 2, 0, 1)
BLOCK, DENSE_BELOW, DECAY = 256, 1024, 0.5
CHUNK = sum(SHARDS)


class Rank:
    """One rank's exchange, and what a test asks of it."""

    def __init__(
        self,
        world: int,
        *,
        decay: float = DECAY,
        feedback: bool = True,
        residuals: torch.dtype = torch.float32,
    ) -> None:
        self.lines = Lines()
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        channel = Channel(group)
        whole = LayerTable(
            names=NAMES, elements=tuple(size * world for size in SHARDS), world=world, block=BLOCK,
            dense_below=DENSE_BELOW,
        )  # fmt: skip
        part = shard_table(
            NAMES, SHARDS, spread=world, world=1, block=BLOCK, dense_below=DENSE_BELOW
        )
        self.store = ResidualStore(decay=decay, enabled=feedback, dtype=residuals)
        self.exchange = ScatterExchange(channel, channel, whole, part, self.store)
        self.step = 0

    def scatter(
        self,
        values: Tensor,
        mode: str = "quantise",
        bits: tuple[int, ...] = BITS,
        op: Any = dist.ReduceOp.AVG,
        **word: Any,
    ) -> tuple[Tensor, Reduced]:
        """Reduce and scatter, and say how it went."""
        output = torch.full((values.numel() // dist.get_world_size(),), -7.0, dtype=values.dtype)
        layers = word.pop("layers", ORDER)
        bucket = Shards(
            index=word.pop("index", 0), layers=layers, buffer=output, whole=values.clone(), op=op
        )
        word = {"step": self.step, "loss": None, **word}
        self.step += 1
        return output, self.exchange.reduce(bucket, mode=mode, bits=bits, **word)


def gradient(rank: int, world: int, seed: int, kind: torch.dtype = torch.float32) -> Tensor:
    """Any rank can make every rank's gradients; one layer of one destination is all zero."""
    random = np.random.default_rng((seed, rank))
    values = torch.from_numpy(random.standard_normal(world * CHUNK).astype(np.float32))
    values *= torch.logspace(0, -3, CHUNK).repeat(world)
    values *= 300.0**rank  # so that it matters in which order they are summed
    if seed == 1:
        values[SHARDS[3] : SHARDS[3] + SHARDS[2]] = 0  # "c" for rank 0
    return values.to(kind)


def is_small(size: int, world: int) -> bool:
    """Whether a shard travels as bf16, from the rule."""
    return size <= BLOCK / 2 or size < DENSE_BELOW / world


def parts(chunk: Tensor) -> Iterator[tuple[int, Tensor]]:
    """A chunk's layers, each with its stretch."""
    offset = 0
    for layer in ORDER:
        yield layer, chunk[offset : offset + SHARDS[layer]]
        offset += SHARDS[layer]


class Reference:
    """All ranks in one process, in plain torch, without layouts or messages."""

    def __init__(self, world: int, kept: torch.dtype) -> None:
        self.world = world
        self.kept = kept
        self.residuals: dict[tuple[int, int, int], Tensor] = {}

    def sent(self, key: tuple[int, int, int], values: Tensor, bits: int) -> Tensor:
        """What arrives of one chunk; the key is sender, destination, layer."""
        size = values.numel()
        rows = torch.zeros(-(-size // BLOCK) * BLOCK)
        rows[:size] = values.float()
        if key in self.residuals and values.any():
            rows += DECAY * self.residuals[key]
        if bits == 16 or is_small(size, self.world):
            if key in self.residuals and values.any():
                self.residuals[key] = torch.zeros_like(rows)
            return rows[:size].to(torch.bfloat16).float()
        if not values.any():
            self.residuals.setdefault(key, torch.zeros_like(rows))
            return rows[:size]
        codes, scales, rest = quantise(rows.view(-1, BLOCK), bits)
        self.residuals[key] = rest.flatten().to(self.kept).float()
        return dequantise(codes, scales, bits).flatten()[:size]

    def step(self, values: list[Tensor], bits: tuple[int, ...], factor: float) -> list[Tensor]:
        """Every rank's output, given every rank's gradients."""
        outputs = []
        for destination in range(self.world):
            total = torch.zeros(CHUNK)
            for rank in range(self.world):
                chunk = values[rank].view(self.world, -1)[destination]
                got = [
                    self.sent((rank, destination, i), part, bits[i]) for i, part in parts(chunk)
                ]
                total += torch.cat(got)
            outputs.append((total * factor).to(values[0].dtype))
        return outputs


def _matches(rank: int, world: int, kind: torch.dtype, residuals: torch.dtype) -> dict[str, Any]:
    scatter._CONVERTED = CHUNK  # of narrow gradients one destination at a time
    ours, reference = Rank(world, residuals=residuals), Reference(world, residuals)
    mean, total, part = dist.ReduceOp.AVG, dist.ReduceOp.SUM, dist.ReduceOp.PREMUL_SUM(0.125)
    same = []
    for seed, bits, op, factor in (
        (0, BITS, mean, 1.0 / world),
        (1, BITS, total, 1.0),  # a chunk without a gradient: its residual waits
        (1, (16,) * 4, part, 0.125),  # all others' go along
        (2, BITS, mean, 1.0 / world),
    ):
        values = [gradient(r, world, seed, kind) for r in range(world)]
        got, reduced = ours.scatter(values[rank], bits=bits, op=op, loss=float(rank))
        same.append(torch.equal(got, reference.step(values, bits, factor)[rank]))
    expected = {
        (WORKER, NAMES[layer]): torch.cat(
            [reference.residuals[rank, dest, layer] for dest in range(world)]
        )
        for sender, dest, layer in reference.residuals
        if (sender, dest) == (rank, 0)
    }
    shards = [SHARDS[i] for i in ORDER]
    widths = [16 if is_small(SHARDS[i], world) else BITS[i] for i in ORDER]
    sizes = {key: value.numel() for key, value in kept(ours.store).items()}
    return {
        "same": same,
        "residuals": equal(kept(ours.store), expected),
        "sizes": sizes == {key: ours.exchange.residual_sizes()[key] for key in sizes},
        "elements": sum(sizes.values()),
        "loss": reduced.mean_loss,
        "norm": math.isclose(reduced.norm, float(got.double().norm()), rel_tol=1e-5),
        "bytes": reduced.wire_bytes == wire.scatter_bytes(shards, widths, world, BLOCK),
        "planned": reduced.wire_bytes
        == wire.scatter_plan_bytes(
            SHARDS, BITS, world, BLOCK, dense_below=DENSE_BELOW, calls=[ORDER]
        ),
        "dense": (reduced.dense_bytes_bf16, reduced.dense_bytes_fp32),
    }


@pytest.mark.parametrize(
    ("world", "kind", "residuals"),
    [
        (2, torch.float32, torch.float32),
        (4, torch.float32, torch.bfloat16),
        (2, torch.bfloat16, torch.float32),
    ],
)
def test_output_is_what_plain_torch_computes_bit_for_bit(
    world: int, kind: torch.dtype, residuals: torch.dtype
) -> None:
    padded = 20 * BLOCK + 32 * BLOCK + (2 * BLOCK if world == 4 else 0)  # "b" is small for two
    for rank in run(world, _matches, kind, residuals):
        assert rank["same"] == [True] * 4
        assert rank["residuals"]
        assert rank["sizes"]
        assert rank["elements"] == world * padded  # as many as the model has, padding aside
        assert rank["loss"] == (world - 1) / 2
        assert rank["norm"]
        assert rank["bytes"]
        assert rank["planned"]
        sent = (world - 1) * CHUNK  # (N-1)/N of N chunks
        assert rank["dense"] == (2 * sent, 4 * sent)


def test_a_shard_travels_as_bf16_where_that_is_shorter() -> None:
    table = shard_table(
        ("a", "b"), (128, 130), spread=64, world=1, block=BLOCK, dense_below=DENSE_BELOW
    )
    layout = table.layout((0, 1), (8, 8))
    assert [part.name for part in layout.dense] == ["a"]  # 256 bytes instead of 256 + 2
    assert [place.name for place in layout.places] == ["b"]  # 256 + 2 bytes instead of 260
    assert layout.payload == 256 + 258


def _conserves(rank: int, world: int) -> dict[str, Any]:
    """Whole numbers, which no sum rounds: the identity holds without any tolerance."""
    ours = Rank(world, decay=1.0)
    random = np.random.default_rng(rank)
    given, got = torch.zeros(world * CHUNK).double(), torch.zeros(CHUNK).double()
    for _ in range(6):
        values = torch.from_numpy(random.integers(-60, 61, world * CHUNK).astype(np.float32))
        given += values
        output, _ = ours.scatter(values)
        got += output.double() * world
    waiting = torch.zeros(world, CHUNK).double()
    for destination in range(world):
        for layer, stretch in parts(waiting[destination]):
            residual = ours.store.get(WORKER, NAMES[layer])
            if residual is not None:
                stretch += residual.view(world, -1)[destination, : SHARDS[layer]]
    all_given, all_waiting = sum(everyone(given)), sum(everyone(waiting.flatten()))
    expected = torch.as_tensor(all_given - all_waiting).view(world, -1)[rank]
    return {"exact": torch.equal(got, expected), "waiting": float(waiting.abs().max())}


@pytest.mark.parametrize("world", [2, 4])
def test_what_was_sent_and_what_waits_are_all_that_was_given(world: int) -> None:
    for rank in run(world, _conserves):
        assert rank["exact"]
        assert rank["waiting"] > 0


def plain(values: Tensor) -> Tensor:
    """What FSDP does by itself."""
    output = torch.empty(values.numel() // dist.get_world_size(), dtype=values.dtype)
    dist.reduce_scatter_tensor(output, values.clone(), op=dist.ReduceOp.AVG)
    return output


class BrokenChunks(NumbaChunks):
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__(block=BLOCK)
        self.where = where

    def encode(self, *args: Any) -> list[int]:
        if self.where == "encode":
            raise MemoryError("no room to encode")
        return super().encode(*args)

    def sum(self, *args: Any) -> None:
        if self.where == "decode":
            raise MemoryError("no room to decode")
        super().sum(*args)


def _failures(rank: int, world: int) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for where in ("encode", "decode"):
        ours, twin = Rank(world), Rank(world)
        for part in (ours, twin):
            part.scatter(gradient(rank, world, 0))
        before = kept(ours.store)
        found = ours.exchange.quantised
        assert isinstance(found, Scatter)
        healthy = found._codec
        if rank == 1:
            found._codec = BrokenChunks(where)
        for seed in (1, 2):
            got, reduced = ours.scatter(gradient(rank, world, seed))
            if where == "decode":
                expected, _ = twin.scatter(gradient(rank, world, seed))
            else:
                expected = plain(gradient(rank, world, seed))
            out[where, seed] = (reduced.failed, torch.equal(got, expected))
        out[where, "kept"] = equal(before, kept(ours.store))
        out[where, "lines"] = ours.lines.take()
        found._codec = healthy
        got, _ = ours.scatter(gradient(rank, world, 3))
        expected, _ = twin.scatter(gradient(rank, world, 3))
        out[where, "goes on"] = torch.equal(got, expected)
    ours = Rank(world)
    other = tuple(8 if bits == 4 else bits for bits in BITS)
    values = gradient(rank, world, 0)
    got, reduced = ours.scatter(values, bits=other if rank == 1 else BITS)
    out["other bits"] = (reduced.failed, torch.equal(got, plain(values)))
    got, reduced = ours.scatter(values, layers=ORDER[1:] if rank == 0 else ORDER)
    out["other layers"] = (reduced.failed, torch.equal(got, plain(values)))
    got, reduced = ours.scatter(values, "dense")
    out["dense"] = (reduced.failed, torch.equal(got, plain(values)), reduced.wire_bytes)
    got, reduced = ours.scatter(values, step=9 + rank)
    out["other step"] = (reduced.failed, torch.equal(got, plain(values)), ours.exchange.disabled)
    try:
        ours.scatter(values, index=rank)
    except OrderError as error:
        out["order"] = str(error)
    return out


def test_a_failing_rank_makes_all_ranks_redo_the_call_uncompressed() -> None:
    world = 3
    for rank, result in enumerate(run(world, _failures)):
        assert result["encode", 1] == result["encode", 2] == ((1,), True)
        assert result["encode", "kept"]
        assert result["encode", "goes on"]
        told = [line for line in result["encode", "lines"] if "uncompressed" in line]
        why = [line for line in result["encode", "lines"] if "no room to encode" in line]
        assert (len(told), len(why)) == (rank == 0, rank == 1)  # once, though two calls failed
        assert result["decode", 1] == result["decode", 2] == ((), True)  # by the reference
        assert result["decode", "goes on"]
        assert result["other bits"] == ((1,), True)
        assert result["other layers"][1] and result["other layers"][0]
        # Gloo sums all chunks on all ranks, by a ring, and keeps one.
        assert result["dense"] == ((), True, (world - 1) * (32 + 2 * 4 * CHUNK))
        assert result["other step"][:2] == ((), True)
        assert "step 10" in result["other step"][2]
        assert "diverged" in result["order"]


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Equal, a NaN being equal to itself."""
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def _not_finite(rank: int, world: int) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for mode, bits in (("quantise", BITS), ("bf16", (16,) * 4), ("dense", BITS)):
        for place, bad in ((5, math.nan), (CHUNK + 9000, math.inf)):  # a small and a large layer
            ours, twin = Rank(world), Rank(world)
            for part in (ours, twin):
                part.scatter(gradient(rank, world, 0))
            before = kept(ours.store)
            values = gradient(rank, world, 2)
            if rank == 1:
                values[place] = bad
            got, reduced = ours.scatter(values, mode, bits)
            untouched = equal(before, kept(ours.store))
            after, _ = ours.scatter(gradient(rank, world, 3))
            expected, _ = twin.scatter(gradient(rank, world, 3))
            out[mode, place] = {
                "finite": reduced.finite,
                "nan": bool(torch.isnan(got).all()),
                "plain": same_bits(got, plain(values)),
                "kept": untouched,
                "after": torch.equal(after, expected),
            }
    return out


def test_one_bad_value_is_seen_by_all_ranks_and_leaves_residuals_alone() -> None:
    for result in run(2, _not_finite):
        for (mode, _), case in result.items():
            assert not case["finite"]
            assert (case["nan"], case["plain"]) == (mode != "dense", mode == "dense")
            assert case["kept"]
            assert case["after"]


def _without_feedback(rank: int, world: int) -> tuple[int, int, bool]:
    ours = Rank(world, feedback=False)
    ours.scatter(gradient(rank, world, 0))
    without = len(kept(ours.store))
    fed = Rank(world)
    fed.scatter(gradient(rank, world, 0))
    waits = kept(fed.store)[WORKER, "c"].view(world, -1)
    assert bool((waits != 0).any(dim=1).all())
    fed.scatter(gradient(rank, world, 1), "bf16", (16,) * 4)
    waits[1:] = 0
    failures = ours.exchange.failures + fed.exchange.failures
    return without, failures, equal(kept(fed.store), {(WORKER, "c"): waits.flatten()})


def test_residuals_are_kept_only_where_something_waits() -> None:
    for result in run(2, _without_feedback):
        # At 16 bits they went along, but for that of "c" for rank 0, which has no gradient.
        assert result == (0, 0, True)


def _schedules(rank: int, world: int) -> tuple[int, bool, str | None]:
    """Modes, bits, layers and their order drawn anew at every step; now and then a bad value."""
    ours, failed, conserved = Rank(world, decay=1.0), 0, True
    drawn, own = np.random.default_rng(7), np.random.default_rng((8, rank))
    for _ in range(600):
        mode = ("quantise", "quantise", "bf16", "dense")[drawn.integers(4)]
        bits = tuple(int(b) for b in drawn.choice((2, 3, 4, 5, 6, 7, 8, 16), 4))
        layers = tuple(int(i) for i in drawn.permutation(4) if drawn.random() < 0.8) or (1,)
        count = world * sum(SHARDS[i] for i in layers)
        values = torch.from_numpy(own.standard_normal(count).astype(np.float32))
        spoilt = drawn.random() < 0.1
        if spoilt and rank == drawn.integers(world):
            values[0] = math.nan
        got, done = ours.scatter(values, mode, bits, layers=layers)
        failed += bool(done.failed)
        exact = sum(everyone(values.double()))
        mean = torch.as_tensor(exact).view(world, -1)[rank] / world
        near = bool(((got.double() - mean).abs() < 20).all())  # residuals stay bounded: 2 bits
        conserved = conserved and done.finite == (not spoilt) and (near or spoilt)
    return failed, conserved, ours.exchange.disabled


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_random_schedules_stay_in_step(world: int) -> None:
    assert run(world, _schedules) == [(0, True, None)] * world
