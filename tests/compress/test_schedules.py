"""What changes in mid-run changes on every rank alike; what ends on one ends on all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.compress.ranks import leave_alone, outlive, run
from tests.compress.test_exchange import SIZES, Rank, everyone
from tests.compress.test_hierarchy import node
from tests.compress.training import attached, optimizer, train, wrapped
from xtune.policies.compress.bucket import Bucket

SCHEDULES, STEPS = 2_000, 3
MODES = ("quantise", "quantise", "quantise", "shared", "bf16", "dense", "drop")


def _schedules(rank: int, world: int, levels: int) -> dict[str, Any]:
    """Small buckets under modes, bits and orders of layers drawn anew at every step."""
    ours = Rank(world, decay=0.9, node=node(rank) if levels == 2 else None)
    drawn, own = np.random.default_rng(7), np.random.default_rng((8, rank))
    results, failed, quantised = [], 0, 0
    for _ in range(SCHEDULES // levels):
        for _ in range(STEPS):
            mode = MODES[drawn.integers(len(MODES))]
            bits = tuple(int(b) for b in drawn.choice((2, 3, 4, 5, 6, 7, 8, 16), len(SIZES)))
            layers = tuple(int(i) for i in drawn.permutation(2) if drawn.random() < 0.8)
            count = sum(SIZES[i] for i in layers)
            values = torch.from_numpy(own.standard_normal(count).astype(np.float32))
            bucket = Bucket(index=0, layers=layers, buffer=values)
            done = ours.exchange.reduce(
                bucket,
                step=ours.step,
                mode=mode,
                bits=bits,
                loss=None,
                keep_share=float(drawn.choice((0.01, 0.05, 0.3))),
            )
            ours.step += 1
            failed += bool(done.failed)
            quantised += mode in ("quantise", "shared") and count > 0
            results.append(values.sum(dtype=torch.float64))
            results.append(values.abs().max().double() if count else torch.tensor(0.0).double())
    checks = everyone(torch.stack(results))
    return {
        "same": all(torch.equal(checks[0], other) for other in checks),
        "failed": failed,
        "many": quantised > SCHEDULES // levels,
        "off": ours.exchange.disabled,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("world", "levels"), [(2, 1), (4, 2)])
def test_random_schedules_stay_in_step(world: int, levels: int) -> None:
    for result in run(world, _schedules, levels):
        assert result == {"same": True, "failed": 0, "many": True, "off": None}


def _dies(rank: int, world: int) -> None:
    model = wrapped()
    handle, steps = attached(model), optimizer(model)
    train(model, handle, steps, rank, 0, 4)
    leave_alone(rank, lambda: train(model, handle, steps, rank, 4, 8))


def test_a_rank_that_dies_ends_the_others_with_an_error() -> None:
    outlive(3, _dies)
