"""Rungs beyond plain quantisation in real training: bits by norms, shared elements, residuals."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from tests.compress.ranks import run
from tests.compress.training import (
    attached,
    optimizer,
    policy,
    same_everywhere,
    train,
    weights,
    wrapped,
)
from xtune.policies.compress import wire
from xtune.policies.compress.residual import WORKER
from xtune.policies.ladder import DEFAULT_LADDER, Rung

SHARED = (*DEFAULT_LADDER, Rung(name="s", bits_input=16, bits_head=16, keep_share=0.1))
VARIANTS: dict[str, dict[str, Any]] = {
    "norms": {"allocation": "norms", "rung_by_level": (2, 2, 2, 2)},
    "shared": {"ladder": SHARED, "rung_by_level": (4, 4, 4, 4), "residual_limit": 0.5},
    "seeded": {"ladder": SHARED, "rung_by_level": (4, 4, 4, 4), "selection": "seeded"},
    "bfloat16": {"residual_dtype": "bfloat16", "rung_by_level": (3, 3, 3, 3)},
    "reset": {"residual_reset_iterations": 5, "rung_by_level": (3, 3, 3, 3)},
}


def _variant(rank: int, world: int, name: str) -> dict[str, Any]:
    made = policy(compression=VARIANTS[name])
    model = wrapped()
    handle, steps = attached(model, made), optimizer(model)
    engine = handle._engine
    assert engine is not None
    out: dict[str, Any] = {"shrunk": {}, "modes": set(), "bits": set()}
    rungs = []
    for step in range(12):
        rungs += train(model, handle, steps, rank, step, step + 1)
        out["modes"].add(handle.metrics()["plan_mode"])
        out["bits"].add(engine.controller.plan.bits)
        out["shrunk"].update(engine.exchange.store.state_dict()["shrink"])
        if step == 3:
            out["kept at 4"] = sorted(engine.exchange.store.state_dict()[WORKER])
        if step == 4:
            out["kept at 5"] = sorted(engine.exchange.store.state_dict()[WORKER])
    saved = io.BytesIO()
    torch.save([model.module.state_dict(), steps.state_dict(), handle.state_dict()], saved)
    train(model, handle, steps, rank, 12, 18)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    again = wrapped(seed=5)
    again.module.load_state_dict(state[0])
    resumed, steps = attached(again, made), optimizer(again)
    steps.load_state_dict(state[1])
    resumed.load_state_dict(state[2])
    train(again, resumed, steps, rank, 12, 18)
    out["same"] = same_everywhere(weights(model))
    out["resumed"] = torch.equal(weights(model), weights(again))
    out["failed"] = handle.metrics()["failed_steps"]
    out["ratio"] = handle.metrics()["planned_ratio"]
    out["dtype"] = {v.dtype for v in engine.exchange.store.state_dict()[WORKER].values()}
    out["sizes"] = [p.numel() for p in model.parameters()]
    out["rungs"] = rungs
    return out


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_variants_train_in_step_and_resume_bit_for_bit(name: str) -> None:
    results = run(2, _variant, name)
    for result in results:
        assert result["same"]
        assert result["resumed"]
        assert result["failed"] == 0
        large = ["first.weight", "head.weight", "middle.weight"]
        assert result["kept at 4"] == large
        assert result["kept at 5"] == ([] if name == "reset" else large)
        if name == "norms":  # the first period has the rule's bits, then what was measured counts
            assert len(result["bits"]) >= 2
            assert result["bits"] == results[0]["bits"]
        if name in ("shared", "seeded"):
            assert result["modes"] == {"quantise", "shared"} or result["modes"] == {"shared"}
            sent = wire.shared_plan_bytes(
                result["sizes"], 0.1, 2, dense_below=1024, seeded=name == "seeded"
            )
            dense = wire.dense_bytes(sum(result["sizes"]), 2, 2)
            assert result["ratio"] == pytest.approx(1 - sent / dense)
        # A tenth of the elements a step leaves a residual several gradients large.
        assert bool(result["shrunk"]) == (name == "shared")
        kind = torch.bfloat16 if name == "bfloat16" else torch.float32
        assert result["dtype"] == {kind}
