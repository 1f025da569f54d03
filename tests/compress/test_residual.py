"""The store alone: types, shares that shrink and recover, state."""

from __future__ import annotations

import pytest
import torch

from xtune.policies.compress.residual import OWNER, STEP_DOWN, WORKER, ResidualStore
from xtune.policies.compress.workspace import Workspace


def put(store: ResidualStore, values: torch.Tensor, name: str = "w") -> None:
    fresh = store.fresh(values.numel())
    fresh.copy_(values)
    store.stage(WORKER, name, fresh)
    store.commit()


def test_bfloat16_keeps_half_the_bytes_and_the_nearest_value() -> None:
    store = ResidualStore(decay=1.0, enabled=True, dtype=torch.bfloat16)
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    put(store, values)
    got = store.get(WORKER, "w")
    assert got is not None
    assert got.dtype == torch.float32
    assert torch.equal(got, values.to(torch.bfloat16).float())
    assert store.state_dict()[WORKER]["w"].nbytes == 2000
    again = ResidualStore(decay=1.0, enabled=True, dtype=torch.bfloat16)
    again.load_state_dict(store.state_dict(), {(WORKER, "w"): 1000})
    loaded = again.get(WORKER, "w")
    assert loaded is not None
    assert torch.equal(loaded, got)


def test_buffers_are_used_again_whatever_is_kept() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        store = ResidualStore(decay=1.0, enabled=True, dtype=dtype)
        seen = set()
        for _ in range(6):
            fresh = store.fresh(64)
            seen.add(fresh.data_ptr())
            fresh.zero_()
            store.stage(WORKER, "w", fresh)
            store.stage(OWNER, "w", store.fresh(32).zero_())
            store.commit()
        assert len(seen) <= 2


def test_a_residual_that_outgrows_its_gradient_is_carried_less_until_it_does_not() -> None:
    store = ResidualStore(decay=0.5, enabled=True, limit=2.0)
    put(store, torch.full((4,), 5.0))  # norm 10
    store.watch("w", 5.0)
    assert store.gain("w") == 0.5  # at the limit
    store.watch("w", 4.9)
    assert store.gain("w") == 0.5 * STEP_DOWN
    store.watch("w", 4.9)
    assert store.gain("w") == 0.5 * STEP_DOWN**2
    assert store.gain("other") == 0.5
    again = ResidualStore(decay=0.5, enabled=True, limit=2.0)
    again.load_state_dict(store.state_dict(), {(WORKER, "w"): 4})
    assert again.gain("w") == store.gain("w")
    for nothing in (0.0, float("nan"), float("inf")):
        store.watch("w", nothing)
    store.watch("w", 6.0)
    assert store.gain("w") == 0.5 * STEP_DOWN
    store.watch("w", 6.0)
    assert store.gain("w") == 0.5
    store.watch("unknown", 1.0)
    assert store.gain("unknown") == 0.5


def test_shares_by_layer() -> None:
    store = ResidualStore(decay={"a": 0.25, "b": 1.0}, enabled=True)
    assert (store.gain("a"), store.gain("b")) == (0.25, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_residuals_stay_on_their_device_and_are_saved_off_it(dtype: torch.dtype) -> None:
    meta = torch.device("meta")  # one without memory or values
    store = ResidualStore(decay=1.0, enabled=True, dtype=dtype, device=meta)
    for _ in range(2):
        put(store, torch.ones(8, device=meta))
    got = store.get(WORKER, "w")
    assert got is not None
    assert (got.device, got.dtype) == (meta, torch.float32)
    assert store.fresh(8).device == store.branch().fresh(8).device == meta

    saved = ResidualStore(decay=1.0, enabled=True, dtype=dtype)
    put(saved, torch.ones(8))
    store.load_state_dict(saved.state_dict(), {(WORKER, "w"): 8})
    got = store.get(WORKER, "w")
    assert got is not None
    assert got.device == meta
    assert saved.state_dict()[WORKER]["w"].device.type == "cpu"


def test_lanes_share_residuals_and_no_buffer() -> None:
    store = ResidualStore(decay=1.0, enabled=True)
    other = store.branch()
    put(store, torch.ones(8))
    assert other.get(WORKER, "w") is store.get(WORKER, "w")
    free = torch.empty(8)
    store.recycle(free)
    assert other.fresh(8).data_ptr() != free.data_ptr()
    assert store.fresh(8).data_ptr() == free.data_ptr()


def test_a_skipped_step_gives_back_what_was_kept_before_it() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        store = ResidualStore(decay=1.0, enabled=True, dtype=dtype)
        other = store.branch()
        put(store, torch.ones(4), "a")
        store.end(finite=True)
        put(store, torch.full((4,), 2.0), "a")
        put(other, torch.full((4,), 3.0), "b")  # there was none before
        put(store, torch.full((4,), 5.0), "a")  # a second pass of the same iteration
        store.stage(WORKER, "c", None)
        store.commit()
        store.set_loss_scale(2.0)
        store.end(finite=False)
        kept = store.state_dict()[WORKER]
        assert {name: value.tolist() for name, value in kept.items()} == {"a": [1.0] * 4}
        put(store, torch.full((4,), 7.0), "a")
        store.end(finite=True)
        store.end(finite=False)  # nothing is left to give back
        assert store.state_dict()[WORKER]["a"].tolist() == [3.5] * 4


def test_branches_stage_and_widen_apart() -> None:
    store = ResidualStore(decay=1.0, enabled=True, dtype=torch.bfloat16)
    other = store.branch()
    put(store, torch.ones(4), "a")
    put(store, torch.full((4,), 2.0), "b")
    mine, theirs = store.get(WORKER, "a"), other.get(WORKER, "b")
    assert mine is not None and theirs is not None
    assert (mine.tolist(), theirs.tolist()) == ([1.0] * 4, [2.0] * 4)
    store.stage(WORKER, "a", store.fresh(4).fill_(3.0))
    other.stage(WORKER, "b", other.fresh(4).fill_(4.0))
    other.discard()
    store.commit()
    kept = store.state_dict()[WORKER]
    assert (kept["a"].tolist(), kept["b"].tolist()) == ([3.0] * 4, [2.0] * 4)


def test_a_workspace_gives_back_what_one_bucket_needed() -> None:
    space = Workspace()
    space.renew()
    space.get("shares", 1000, torch.uint8)
    for _ in range(2 * Workspace.PATIENCE):
        space.renew()
        first = space.get("shares", 100, torch.uint8)
        assert first.data_ptr() == space.get("shares", 100, torch.uint8).data_ptr()
    assert space._buffers["shares", torch.uint8].numel() == 100
