"""The exchange between real processes: bounds, identities, failures, bytes."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.compress.ranks import Lines, run
from xtune.policies.compress import wire
from xtune.policies.compress.bucket import Bucket, Reduced
from xtune.policies.compress.channel import Channel
from xtune.policies.compress.codec import NumbaCodec, TorchCodec, best_codec
from xtune.policies.compress.exchange import FAILURES_IN_ROW, Exchange
from xtune.policies.compress.header import OrderError
from xtune.policies.compress.hierarchy import Node
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.residual import OWNER, WORKER, ResidualStore
from xtune.policies.compress.two_phase import TwoPhase

SIZES = (5000, 300, 8192, 70_000, 4096)
BITS = (4, 4, 8, 4, 16)
ORDER = (4, 3, 2, 1, 0)
TOTAL = sum(SIZES)
BLOCK, DENSE_BELOW = 256, 1024


def gradient(rank: int, seed: int = 0) -> Tensor:
    """Any rank can make every rank's gradients: scales differ by layer."""
    random = np.random.default_rng((seed, rank))
    parts = [
        random.standard_normal(SIZES[i]).astype(np.float32) * np.float32(10.0 ** (-2 * i))
        for i in ORDER
    ]
    return torch.from_numpy(np.concatenate(parts))


class Rank:
    """One rank's exchange, and what a test asks of it."""

    def __init__(
        self, world: int, *, decay: float = 0.5, feedback: bool = True, node: Node | None = None
    ) -> None:
        self.lines = Lines()
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self.channel = Channel(group, per_node=node.inside.world if node else 1)
        table = LayerTable(
            names=tuple("abcde"), elements=SIZES, world=world, block=BLOCK, dense_below=DENSE_BELOW
        )
        self.store = ResidualStore(decay=decay, enabled=feedback)
        self.exchange = Exchange(self.channel, table, self.store, keep_share=0.35, node=node)
        self.step = 0

    @property
    def two_phase(self) -> TwoPhase:
        """What quantises, also between nodes only."""
        found = self.exchange.quantised
        inner = found if isinstance(found, TwoPhase) else getattr(found, "inner", None)
        assert isinstance(inner, TwoPhase)
        return inner

    def reduce(
        self, values: Tensor, mode: str = "quantise", bits: tuple[int, ...] = BITS, **word: Any
    ) -> tuple[Tensor, Reduced]:
        """Reduce one bucket and say how it went."""
        buffer = values.clone()
        bucket = Bucket(index=word.pop("index", 0), layers=ORDER, buffer=buffer)
        word = {"step": self.step, "loss": None, **word}
        self.step += 1
        return buffer, self.exchange.reduce(bucket, mode=mode, bits=bits, **word)


def everyone(values: Tensor) -> list[Tensor]:
    """The tensor of every rank."""
    out = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(out, values)
    return out


def same_everywhere(values: Tensor) -> bool:
    """Bit for bit."""
    first, *others = everyone(values.view(torch.uint8))
    return all(torch.equal(first, other) for other in others)


def exact(world: int, seed: int = 0) -> Tensor:
    """Mean in double precision."""
    return torch.stack([gradient(rank, seed).double() for rank in range(world)]).mean(0)


def plain(values: Tensor) -> Tensor:
    """What DDP does without a hook."""
    out = values * (1.0 / dist.get_world_size())
    dist.all_reduce(out)
    return out


def kept(store: ResidualStore) -> dict[tuple[str, str], Tensor]:
    """Copies of all residuals, and what is noted of them."""
    return {
        (kind, name): torch.as_tensor(residual)
        for kind, by_name in store.state_dict().items()
        for name, residual in by_name.items()
    }


def equal(left: dict[tuple[str, str], Tensor], right: dict[tuple[str, str], Tensor]) -> bool:
    """Same residuals, bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def _bound(values: Tensor, bits: tuple[int, ...]) -> Tensor:
    """Half a scale of its block for each element, from the definition: absmax / qmax, rounded up.

    In bf16 half a unit in the last place: 2^-9 of the magnitude.
    """
    out = torch.empty(TOTAL, dtype=torch.float64)
    offset = 0
    for i in ORDER:
        part = values[offset : offset + SIZES[i]].double().abs()
        if bits[i] == 16 or SIZES[i] < DENSE_BELOW:
            half = part * 2.0**-8
        else:
            padded = torch.zeros(wire.blocks(SIZES[i], BLOCK) * BLOCK, dtype=torch.float64)
            padded[: SIZES[i]] = part
            absmax = padded.view(-1, BLOCK).amax(1) / (2 ** (bits[i] - 1) - 1)
            half = (absmax * (1 + 2.0**-7) / 2).repeat_interleave(BLOCK)[: SIZES[i]]
        out[offset : offset + SIZES[i]] = half
        offset += SIZES[i]
    return out


def _accuracy(rank: int, world: int) -> dict[str, Any]:
    ours = Rank(world)
    mine, reduced = ours.reduce(gradient(rank), loss=1.0 + rank)
    bound = torch.stack([_bound(gradient(r), BITS) for r in range(world)]).mean(0)
    bound += _bound(mine, BITS) * 1.01
    error = (mine.double() - exact(world)).abs()
    out: dict[str, Any] = {
        "within": bool((error <= bound).all()),
        "same": same_everywhere(mine),
        "bytes": reduced.wire_bytes,
        "formula": wire.plan_wire_bytes(
            SIZES, BITS, world, BLOCK, dense_below=DENSE_BELOW, buckets=[ORDER]
        ),
        "loss": reduced.mean_loss,
        "norm": math.isclose(reduced.norm, float(mine.double().norm()), rel_tol=1e-5),
        "residuals": sorted(kept(ours.store)),
    }
    # Error feedback: what all ranks kept, worker and owner, is exactly what the mean has lost.
    worker = torch.zeros(TOTAL, dtype=torch.float64)
    offset = 0
    for i in ORDER:
        residual = ours.store.get(WORKER, "abcde"[i])
        if residual is not None:
            worker[offset : offset + SIZES[i]] = residual[: SIZES[i]]
        offset += SIZES[i]
    lost = torch.stack(everyone(worker)).mean(0)
    owned = torch.zeros(TOTAL, dtype=torch.float64)
    offset = 0
    table = ours.two_phase.table
    for i in ORDER:
        residual = ours.store.get(OWNER, "abcde"[i])
        if residual is not None:
            spread = torch.zeros(wire.blocks(SIZES[i], BLOCK) * BLOCK, dtype=torch.float64)
            first = (rank - table.bases[i]) % world
            spread.view(-1, BLOCK)[first::world] = residual.view(-1, BLOCK).double()
            owned[offset : offset + SIZES[i]] = spread[: SIZES[i]]
        offset += SIZES[i]
    lost += torch.stack(everyone(owned)).sum(0)
    quantised = torch.cat([torch.full((SIZES[i],), BITS[i] < 16 and i != 1) for i in ORDER])
    gap = (mine.double() + lost - exact(world)).abs()[quantised]
    size = torch.stack([gradient(r).double().abs() for r in range(world)]).sum(0)[quantised]
    out["balance"] = bool((gap <= size * 2.0**-22).all())  # rounding of the fp32 sum and mean
    again, _ = ours.reduce(torch.zeros(TOTAL))
    out["held"] = float(again.abs().max())
    bf16, reduced = ours.reduce(gradient(rank, 1), mode="bf16", bits=(16,) * 5)
    out["bf16_bytes"] = reduced.wire_bytes
    out["drained"] = sorted(kept(ours.store))
    # Half of what all ranks had kept went along, owners' part as well.
    gap = (bf16.double() - exact(world, 1) - 0.5 * lost).abs()[quantised]
    sizes = torch.stack([gradient(r, 1).double().abs() for r in range(world)]).sum(0)
    bound = (sizes + lost.abs())[quantised] * 2.0**-7
    out["sent along"] = bool((gap <= bound).all())
    out["owners count"] = bool(((0.5 * owned.abs())[quantised] > 2 * bound).any())
    dense, reduced = ours.reduce(gradient(rank, 2), mode="dense")
    out["dense"] = torch.equal(dense, plain(gradient(rank, 2)))
    out["dense_bytes"] = reduced.wire_bytes
    fresh = Rank(world)
    bf16, _ = fresh.reduce(gradient(rank, 1), mode="bf16", bits=(16,) * 5)
    total = torch.zeros(TOTAL)
    for r in range(world):
        total += gradient(r, 1).to(torch.bfloat16)
    expected = (total * (1.0 / world)).to(torch.bfloat16).float()
    out["bf16"] = torch.equal(bf16, expected)
    return out


@pytest.mark.parametrize("world", [2, 3])
def test_mean_is_within_the_rounding_bound_and_residuals_hold_the_rest(world: int) -> None:
    for rank in run(world, _accuracy):
        assert rank["within"]
        assert rank["same"]
        assert rank["bytes"] == rank["formula"]
        assert rank["loss"] == (1 + world) / 2
        assert rank["norm"]
        assert rank["residuals"] == [
            *((OWNER, name) for name in "acd"),
            *((WORKER, name) for name in "acd"),
        ]
        assert rank["balance"]
        assert rank["held"] == 0.0  # an all-zero gradient sends nothing
        assert rank["drained"] == []
        assert rank["sent along"]
        assert rank["owners count"]
        share = -(-TOTAL // world) * 2
        assert rank["bf16_bytes"] == 2 * (world - 1) * (32 + share)
        assert rank["dense"]
        assert rank["dense_bytes"] == (world - 1) * 32 + -(-2 * (world - 1) * 4 * TOTAL // world)
        assert rank["bf16"]


class BrokenCodec(NumbaCodec):
    """Fails where it is told to."""

    def __init__(self, *, world: int, rank: int, where: str) -> None:
        super().__init__(world=world, rank=rank, block=BLOCK)
        self.where = where

    def encode(self, *args: Any) -> int | None:
        if self.where == "encode":
            raise MemoryError("no room to encode")
        return super().encode(*args)

    def reduce(self, *args: Any) -> int:
        if self.where == "reduce":
            raise MemoryError("no room to sum")
        return super().reduce(*args)

    def decode(self, *args: Any) -> None:
        if self.where == "decode":
            raise MemoryError("no room to decode")
        super().decode(*args)


def _failures(rank: int, world: int) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for where in ("encode", "reduce", "decode"):
        ours, twin = Rank(world), Rank(world)
        for part in (ours, twin):
            part.reduce(gradient(rank))
        before = kept(ours.store)
        healthy = ours.two_phase._codec
        if rank == 1:
            ours.two_phase._codec = BrokenCodec(world=world, rank=rank, where=where)
        got, reduced = ours.reduce(gradient(rank, 1))
        out[where, "failed"] = reduced.failed
        out[where, "exact"] = torch.equal(got, plain(gradient(rank, 1)))
        out[where, "kept"] = equal(before, kept(ours.store))
        ours.reduce(gradient(rank, 2))
        out[where, "lines"] = ours.lines.take()
        if where != "decode":
            ours.two_phase._codec = healthy
            got, reduced = ours.reduce(gradient(rank, 3))
            expected, _ = twin.reduce(gradient(rank, 3))
            out[where, "goes on"] = torch.equal(got, expected) and reduced.failed == ()
        else:
            expected, _ = twin.reduce(gradient(rank, 1))
            out[where, "same bits"] = torch.equal(got, expected)
    # Different bits on one rank; then a rank that is broken for good.
    ours = Rank(world)
    other = tuple(8 if bits == 4 else bits for bits in BITS)
    got, reduced = ours.reduce(gradient(rank), bits=other if rank == world - 1 else BITS)
    out["other bits"] = (reduced.failed, torch.equal(got, plain(gradient(rank))))
    got, reduced = ours.reduce(gradient(rank), mode="dense" if rank == 0 else "quantise")
    out["other mode"] = (reduced.failed, torch.equal(got, plain(gradient(rank))))
    got, reduced = ours.reduce(gradient(rank))
    out["after"] = reduced.failed
    if rank == 0:
        ours.exchange.broken = "test"
    for _ in range(FAILURES_IN_ROW):
        got, reduced = ours.reduce(gradient(rank))
    out["disabled"] = ours.exchange.disabled
    got, reduced = ours.reduce(gradient(rank))
    out["off"] = (reduced.failed, torch.equal(got, plain(gradient(rank))))
    return out


def test_a_failing_rank_makes_all_ranks_redo_the_bucket_uncompressed() -> None:
    world = 3
    for rank, result in enumerate(run(world, _failures)):
        for where in ("encode", "reduce"):
            assert result[where, "failed"] == (1,)
            assert result[where, "exact"]
            assert result[where, "kept"]
            assert result[where, "goes on"]
            told = [line for line in result[where, "lines"] if "uncompressed" in line]
            why = [line for line in result[where, "lines"] if "MemoryError" in line]
            assert len(told) == (rank == 0)  # once, though two buckets failed
            assert len(why) == (rank == 1)
        assert result["decode", "failed"] == ()
        assert result["decode", "same bits"]  # decoded by the reference instead
        assert result["other bits"] == ((2,), True)
        assert result["other mode"] == ((1, 2), True)
        assert result["after"] == ()
        assert "in a row" in result["disabled"]
        assert result["off"] == ((), True)


def _not_finite(rank: int, world: int) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for mode, bits in (("quantise", BITS), ("bf16", (16,) * 5), ("drop", BITS), ("dense", BITS)):
        for bad in (math.nan, math.inf):
            ours, twin = Rank(world), Rank(world)
            for part in (ours, twin):
                part.reduce(gradient(rank))
            before = kept(ours.store)
            values = gradient(rank, 1)
            if rank == 1:
                values[4000] = bad
            got, reduced = ours.reduce(values, mode, bits)
            key = (mode, str(bad))
            out[key] = [
                not bool(torch.isfinite(got[4000])),
                mode == "dense" or bool(torch.isnan(got).all()),
                reduced.finite,
                equal(before, kept(ours.store)),
            ]
            if mode == "quantise":
                got, reduced = ours.reduce(gradient(rank, 2))
                expected, _ = twin.reduce(gradient(rank, 2))
                out[key].append(torch.equal(got, expected))
    # Finite summands whose sum in a lower type is not: only the owner can see it.
    ours = Rank(world)
    got, reduced = ours.reduce(torch.full((TOTAL,), 1.69e38))
    out["sum"] = [reduced.finite, bool(torch.isfinite(got).all()), same_everywhere(got)]
    return out


def test_a_value_that_is_not_finite_makes_every_rank_skip_and_residuals_stay_clean() -> None:
    for result in run(2, _not_finite):
        assert result.pop("sum")[2]
        for key, (bad, everything, finite, clean, *goes_on) in result.items():
            assert bad, key
            assert everything, key
            assert not finite, key
            assert clean, key
            assert all(goes_on), key


def _out_of_step(rank: int, world: int) -> list[Any]:
    ours = Rank(world)
    got, reduced = ours.reduce(gradient(rank), step=3 + (rank == 1))
    out: list[Any] = [ours.exchange.disabled, got.tolist(), reduced.failed, kept(ours.store)]
    try:
        Rank(world).reduce(gradient(rank), index=int(rank == 0))
    except OrderError as error:
        out.append(str(error))
    return out


def test_ranks_at_different_steps_go_on_uncompressed_and_in_different_buckets_raise() -> None:
    first, second = run(2, _out_of_step)
    assert first == second
    why, got, redone, residuals, other = first
    assert "step 4, bucket 0" in why
    assert "step 3, bucket 0" in why
    assert torch.equal(torch.tensor(got), (gradient(0) / 2) + (gradient(1) / 2))
    assert (redone, residuals) == ((), {})
    assert "bucket 1" in other


def test_a_bucket_that_its_layers_do_not_fill_is_redone_uncompressed() -> None:
    for got, failed, said in run(2, _overfull):
        assert failed == (0, 1)
        assert got
        assert any(f"{TOTAL + 8} values where its layers have {TOTAL}" in line for line in said)


def _overfull(rank: int, world: int) -> tuple[bool, tuple[int, ...], list[str]]:
    lines = Lines()
    more = [torch.cat([gradient(r), torch.full((8,), float(r + 1))]) for r in range(world)]
    got, reduced = Rank(world).reduce(more[rank].clone())
    return torch.equal(got, more[0] / 2 + more[1] / 2), reduced.failed, lines.take()


def test_a_numba_that_compiles_nothing_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(best_codec(world=2, rank=0, block=256), NumbaCodec)
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert isinstance(best_codec(world=2, rank=0, block=256), TorchCodec)


@pytest.mark.parametrize("scale", [0.0, math.inf, math.nan, -1.0])
def test_a_loss_scale_that_is_none_leaves_residuals_alone(scale: float) -> None:
    store = ResidualStore(decay=1.0, enabled=True)
    store.stage("worker", "w", torch.ones(4))
    store.commit()
    store.set_loss_scale(scale)
    store.set_loss_scale(2.0)
    residual = store.get("worker", "w")
    assert residual is not None
    assert torch.equal(residual, torch.full((4,), 2.0))


def _huge(rank: int, world: int) -> list[Any]:
    reduced = [
        Rank(world).reduce(gradient(rank) * 1e22, mode)[1] for mode in ("dense", "quantise")
    ]
    return [(r.finite, r.norm) for r in reduced]


def test_gradients_whose_squares_overflow_are_finite() -> None:
    for result in run(2, _huge):
        for finite, norm in result:
            assert finite
            assert 1e19 < norm < math.inf  # in fp32 their sum is infinite


def _dropping(rank: int, world: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for share in (0.35, 0.01):
        ours = Rank(world)
        ours.exchange.drop._keep_share = share
        got, reduced = ours.reduce(gradient(rank), mode="drop")
        total = torch.zeros(TOTAL, dtype=torch.float64)
        for r in range(world):
            values = gradient(r)
            order = values.abs().argsort(descending=True)[: wire.kept_elements(TOTAL, share)]
            total[order] += values[order].to(torch.bfloat16).double()
        out[str(share)] = (
            bool((got.double() - total / world).abs().max() <= 1e-6),
            same_everywhere(got),
            reduced.wire_bytes == wire.drop_wire_bytes(TOTAL, share, world),
            kept(ours.store) == {},
        )
    return out


def test_dropping_keeps_the_largest_and_loses_the_rest() -> None:
    for result in run(2, _dropping):
        assert result == {"0.35": (True,) * 4, "0.01": (True,) * 4}


def _codecs_and_types(rank: int, world: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for kind in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        ours, twin = Rank(world), Rank(world)
        if rank == 0:  # ranks with and without numba understand each other
            twin.two_phase._codec = TorchCodec(world=world, rank=rank, block=BLOCK)
        values = gradient(rank).to(kind)
        for _ in range(3):
            got, reduced = ours.reduce(values)
            other, _ = twin.reduce(values)
        dense, _ = ours.reduce(values, mode="dense")
        out[str(kind)] = (torch.equal(got, other), same_everywhere(got), got.dtype == kind,
                          torch.equal(dense, plain(values)), reduced.wire_bytes)  # fmt: skip
    return out


def test_types_of_gradients_and_ranks_without_numba() -> None:
    sent = wire.plan_wire_bytes(SIZES, BITS, 2, BLOCK, dense_below=DENSE_BELOW, buckets=[ORDER])
    for result in run(2, _codecs_and_types):
        for kind in ("float32", "bfloat16", "float16"):
            assert result[f"torch.{kind}"] == (True, True, True, True, sent)
        # Double precision is not compressed.
        assert result["torch.float64"] == (True, True, True, True, 32 + 8 * TOTAL)
