"""Shared selections between real processes, against the same sums made in one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.compress.ranks import run
from tests.compress.test_exchange import (
    BITS,
    DENSE_BELOW,
    ORDER,
    SIZES,
    TOTAL,
    Rank,
    equal,
    everyone,
    gradient,
    kept,
    plain,
    same_everywhere,
)
from tests.compress.test_hierarchy import node
from xtune.policies.compress import select, wire
from xtune.policies.compress.residual import WORKER

KEEP = 0.05
LARGE = [SIZES[i] for i in ORDER if SIZES[i] >= DENSE_BELOW]
SMALL = [SIZES[i] for i in ORDER if SIZES[i] < DENSE_BELOW]
STEPS = 4


def whole(rank: int, step: int) -> Tensor:
    """Small whole numbers: sums of four ranks' are exact in bf16, those of few steps as well."""
    random = np.random.default_rng((step, rank))
    return torch.from_numpy(random.integers(-9, 10, TOTAL).astype(np.float32))


def added(values: Iterable[Tensor]) -> Tensor:
    """Their sum."""
    return torch.stack(list(values)).sum(0)


def parts(values: Tensor) -> dict[int, Tensor]:
    """Views of a bucket's layers."""
    out, offset = {}, 0
    for i in ORDER:
        out[i] = values[offset : offset + SIZES[i]]
        offset += SIZES[i]
    return out


def chosen(acc: list[dict[int, Tensor]], layer: int, leader: int, step: int, seeded: bool) -> Any:
    """Places by sorting."""
    count = wire.kept_elements(SIZES[layer], KEEP)
    if seeded:
        return torch.from_numpy(select.drawn(SIZES[layer], count, step=step, layer=layer))
    return acc[leader][layer].abs().argsort(descending=True, stable=True)[:count]


def expected(world: int, seeded: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Means of some steps and each rank's residual after them, all ranks in one process."""
    rest = [torch.zeros(TOTAL) for _ in range(world)]
    means = []
    for step in range(STEPS):
        acc = [parts(whole(r, step) + rest[r]) for r in range(world)]
        mean = torch.zeros(TOTAL)
        for i, target in parts(mean).items():
            if SIZES[i] < DENSE_BELOW:
                target.copy_(added(parts(whole(r, step))[i] for r in range(world)) / world)
                for r in range(world):
                    acc[r][i].zero_()
                continue
            places = chosen(acc, i, step % world, step, seeded)
            for r in range(world):
                target[places] += acc[r][i][places] / world
                acc[r][i][places] = 0
        means.append(mean.to(torch.bfloat16).float())
        rest = [torch.cat([acc[r][i] for i in ORDER]) for r in range(world)]
    return means, rest


def residual(ours: Rank) -> Tensor:
    """This rank's, over the bucket."""
    out = torch.zeros(TOTAL)
    for i, target in parts(out).items():
        found = ours.store.get(WORKER, "abcde"[i])
        if found is not None:
            target.copy_(found[: SIZES[i]])
    return out


def _sums(rank: int, world: int, seeded: bool) -> dict[str, Any]:
    ours = Rank(world)
    ours.exchange.shared._seeded = seeded  # type: ignore[union-attr]
    means, rests = expected(world, seeded)
    out: dict[str, Any] = {"mean": [], "bytes": set(), "same": True}
    total = torch.zeros(TOTAL, dtype=torch.float64)
    for step in range(STEPS):
        got, reduced = ours.reduce(whole(rank, step), "shared", keep_share=KEEP)
        out["mean"].append(torch.equal(got, means[step]))
        out["bytes"].add(reduced.wire_bytes)
        out["same"] &= same_everywhere(got)
        total += got.double() * world
    out["residual"] = torch.equal(residual(ours), rests[rank])
    gradients = added(whole(r, s).double() for r in range(world) for s in range(STEPS))
    left = torch.stack(everyone(residual(ours).double())).sum(0)
    out["conserved"] = torch.equal(total + left, gradients)
    return out


@pytest.mark.parametrize(("world", "seeded"), [(2, False), (4, False), (2, True)])
def test_the_sum_of_what_is_selected_and_nothing_is_lost(world: int, seeded: bool) -> None:
    for result in run(world, _sums, seeded):
        assert result["mean"] == [True] * STEPS
        assert result["same"]
        assert result["residual"]
        assert result["conserved"]  # sent and kept are the gradients, to the last bit
        assert result["bytes"] == {
            wire.shared_bucket_bytes(LARGE, SMALL, KEEP, world, seeded=seeded)
        }


def _trouble(rank: int, world: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for bad in (math.nan, math.inf):  # on a rank that selects and on one that does not
        ours = Rank(world)
        ours.reduce(gradient(rank), "shared", keep_share=KEEP)
        before = kept(ours.store)
        for culprit in (0, 1):
            values = gradient(rank, 1)
            if rank == culprit:
                values[4000] = bad
            got, reduced = ours.reduce(values, "shared", keep_share=KEEP)
            out[f"{bad} {culprit}"] = (
                bool(torch.isnan(got).all()),
                reduced.finite,
                equal(before, kept(ours.store)),
            )
    # Another share on one rank, then an engine that fails while it selects.
    ours = Rank(world)
    share = KEEP if rank else 2 * KEEP
    got, reduced = ours.reduce(gradient(rank), "shared", keep_share=share)
    out["share"] = (reduced.failed, torch.equal(got, plain(gradient(rank))))
    for where in ("prepare", "_chosen", "_gather", "_keep_rest"):
        if rank == 1:

            def broken(*args: Any) -> Any:
                raise MemoryError("no room")

            setattr(ours.exchange.shared, where, broken)
        got, reduced = ours.reduce(gradient(rank), "shared", keep_share=KEEP)
        out[where] = (reduced.failed, torch.equal(got, plain(gradient(rank))), kept(ours.store))
        if rank == 1:
            delattr(ours.exchange.shared, where)
    # A residual goes along when the mode changes, and waits where a layer is not used.
    ours = Rank(world, decay=1.0)
    ours.reduce(whole(rank, 0), "shared", keep_share=KEEP)
    rest = residual(ours)
    ours.reduce(torch.zeros(TOTAL), "shared", keep_share=KEEP)
    out["waits"] = torch.equal(rest, residual(ours))
    got, _ = ours.reduce(whole(rank, 1), "bf16", bits=(16,) * 5)
    sums = [r.double() for r in everyone(rest + whole(rank, 1))]
    near = (got.double() - added(sums) / world).abs()
    out["drains"] = bool((near <= added(x.abs() for x in sums) / world * 2.0**-7).all())
    out["drained"] = kept(ours.store) == {}
    return out


def test_trouble_costs_one_bucket_and_no_residual() -> None:
    for result in run(2, _trouble):
        for bad in ("nan", "inf"):
            assert result[f"{bad} 0"] == result[f"{bad} 1"] == (True, False, True)
        assert result["share"] == ((1,), True)
        for where in ("prepare", "_chosen", "_gather", "_keep_rest"):
            failed, exact, left = result[where]
            assert failed == (1,), where
            assert exact, where
            assert left == {}, where
        assert result["waits"]
        assert result["drains"]
        assert result["drained"]


def _nodes(rank: int, world: int) -> dict[str, Any]:
    ours = Rank(world, node=node(rank))
    total, same = torch.zeros(TOTAL, dtype=torch.float64), True
    for step in range(STEPS):
        got, _ = ours.reduce(whole(rank, step), "shared", keep_share=KEEP)
        same &= same_everywhere(got)
        total += got.double() * 2  # nodes; means of a node are exact in halves
    gradients = added(whole(r, s).double() / 2 for r in range(world) for s in range(STEPS))
    # What each rank keeps is of its own part of a layer.
    left, place, offset = torch.zeros(TOTAL, dtype=torch.float64), rank % 2, 0
    for i in ORDER:
        share = -(-SIZES[i] // 2)
        low, high = place * share, min((place + 1) * share, SIZES[i])
        found = ours.store.get(WORKER, "abcde"[i])
        if found is not None:
            left[offset + low : offset + high] = found[: high - low].double()
        offset += SIZES[i]
    left = torch.stack(everyone(left)).sum(0)
    return {
        "same": same,
        "conserved": torch.equal(total + left, gradients),
        "sent": bool(total.any()),
    }


def test_between_nodes_nothing_is_lost_either() -> None:
    for result in run(4, _nodes):
        assert result == {"same": True, "conserved": True, "sent": True}


def test_bytes_against_the_table_of_costs() -> None:
    # 1e9 elements, 5 % kept, 64 ranks: values 2 * 63/64 * 0.1 GB, a bitmap of 1/8 byte each.
    sent = wire.shared_bucket_bytes([10**9], [], 0.05, 64, seeded=False)
    assert sent == pytest.approx(63 / 64 * (0.2e9 + 0.125e9), rel=1e-4)
    drawn = wire.shared_bucket_bytes([10**9], [], 0.05, 64, seeded=True)
    assert drawn == pytest.approx(63 / 64 * 0.2e9, rel=1e-4)
    assert BITS[4] == 16
