"""Lanes side by side: the same bits as one, agreement on what ends, time counted once."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compress.ranks import Lines, run
from tests.compress.training import (
    attached,
    optimizer,
    policy,
    same_everywhere,
    train,
    weights,
    wrapped,
)
from xtune.policies import ddp
from xtune.policies.compress.bucket import Reduced
from xtune.policies.compress.exchange import FAILURES_IN_ROW
from xtune.policies.compress.lanes import Lanes
from xtune.policies.hook import Iteration, covered_s

MADE = policy(compression={"rung_by_level": (3, 3, 3, 3), "allocation": "norms"})


def _lanes(rank: int, world: int, count: int) -> list[float]:
    ddp.ReplicatedModel.lanes = count
    model = wrapped()
    handle = attached(model, MADE)
    train(model, handle, optimizer(model), rank, 0, 12)
    assert same_everywhere(weights(model))
    assert handle.metrics()["failed_steps"] == 0
    threads = len(handle._engine.hook._lanes)  # type: ignore[union-attr]
    assert threads == count
    found: list[float] = weights(model).tolist()
    return found


def test_any_number_of_lanes_gives_the_same_bits() -> None:
    one, *others = (run(2, _lanes, count)[0] for count in (1, 2, 3))
    for other in others:
        assert other == one


def _ends(rank: int, world: int) -> dict[str, Any]:
    """An engine that fails in every bucket of one lane; the other lane is sound."""
    lines = Lines()
    model = wrapped()
    handle = attached(model, MADE)
    engine = handle._engine
    assert engine is not None
    assert isinstance(engine.exchange, Lanes)
    second = engine.exchange.exchanges[1]
    if rank == 1:
        second.broken = "test"
    steps = optimizer(model)
    failed, off = [], []
    for step in range(2 * FAILURES_IN_ROW):  # one bucket of three a step on the second lane
        before = handle.metrics()["failed_steps"]
        train(model, handle, steps, rank, step, step + 1)
        failed.append(handle.metrics()["failed_steps"] - before)
        off.append(handle.metrics()["off_reason"] is not None)
    return {
        "failed": failed,
        "off": off,
        "all": [e.disabled is not None for e in engine.exchange.exchanges],
        "same": same_everywhere(weights(model)),
        "lines": [line for line in lines.take() if "off from here on" in line],
    }


def test_what_ends_one_lane_ends_all_at_the_next_iteration() -> None:
    for rank, result in enumerate(run(2, _ends)):
        # DDP's first iteration has one bucket, on the first lane.
        assert result["failed"] == [0] + [1] * FAILURES_IN_ROW + [0] * (FAILURES_IN_ROW - 1)
        assert result["off"] == [False] * FAILURES_IN_ROW + [True] * FAILURES_IN_ROW
        assert result["all"] == [True, True]
        assert result["same"]
        assert len(result["lines"]) == (rank == 0)


def reduced(norm: float, spans: tuple[tuple[float, float], ...] = ()) -> Reduced:
    return Reduced(
        wire_bytes=1, dense_bytes_bf16=2, dense_bytes_fp32=4, spans=spans, wait_s=0.0, finite=True,
        failed=(), mean_loss=None, norm=norm,
    )  # fmt: skip


@given(norms=st.lists(st.floats(1e-100, 1e100), min_size=1, max_size=20), data=st.data())
def test_the_order_of_buckets_changes_nothing(norms: list[float], data: st.DataObject) -> None:
    first, second = Iteration(), Iteration()
    for norm in norms:
        first.add(reduced(norm))
    for norm in data.draw(st.permutations(norms)):
        second.add(reduced(norm))
    assert first.norm == second.norm
    assert first.wire_bytes == len(norms)
    assert math.isclose(first.norm or 0.0, math.hypot(*norms), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0.0),
        ([(1, 2), (3, 5)], 3.0),
        ([(1, 4), (2, 3)], 3.0),
        ([(2, 5), (1, 3)], 4.0),
        ([(1, 2), (2, 3)], 2.0),
    ],
)
def test_time_on_two_lanes_counts_once(spans: list[tuple[float, float]], expected: float) -> None:
    assert covered_s(spans) == expected
    done = Iteration()
    for span in spans:
        done.add(reduced(0.0, (span,)))
    assert done.transfer_s == expected
