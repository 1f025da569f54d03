"""What training loops do around the backward pass: static graphs, clipping, accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compress.ranks import run
from tests.compress.training import (
    attached,
    batches,
    optimizer,
    policy,
    same_everywhere,
    train,
    weights,
    wrapped,
)
from xtune.policies.compress.residual import WORKER

MADE = policy(compression={"rung_by_level": (3, 3, 3, 3)})


def _static(rank: int, world: int) -> dict[str, Any]:
    """A graph that never changes, beside one that DDP looks through at each iteration."""
    out: dict[str, Any] = {}
    models = {}
    forms: dict[str, Any] = {
        "static": {"static_graph": True},
        "plain": {},
        "static, accumulated": {"static_graph": True},
        "searched": {"find_unused_parameters": True},
    }
    for name, options in forms.items():
        model = models[name] = wrapped(**options)
        handle, steps = attached(model, MADE), optimizer(model)
        if "accumulated" not in name:
            train(model, handle, steps, rank, 0, 8)
        else:
            for step in range(4):
                for part, inputs in enumerate(batches(rank, 2 * step, 2 * step + 2)):
                    if part == 0 and step > 0:  # DDP learns the graph in the first pass
                        with model.no_sync():
                            model(inputs).square().mean().backward()
                    else:
                        model(inputs).square().mean().backward()
                steps.step()
                steps.zero_grad()
                handle.step(1.0)
        out[name] = (same_everywhere(weights(model)), handle.metrics()["failed_steps"])
    # Buckets differ in layout, so 16-bit parts may be split otherwise; quantised bits are alike.
    out["alike"] = torch.equal(
        weights(models["static"]), weights(models["plain"])
    ) and torch.equal(weights(models["searched"]), weights(models["plain"]))
    return out


def test_static_graphs_and_unused_parameters_change_nothing() -> None:
    for result in run(2, _static):
        assert result.pop("alike")
        assert set(result.values()) == {(True, 0)}


def _clipping(rank: int, world: int) -> dict[str, Any]:
    """Norms are clipped after the reduction: residuals are of gradients as they were."""
    out: dict[str, Any] = {"norms": []}
    clipped, free = wrapped(), wrapped()
    handles = attached(clipped, MADE), attached(free, MADE)
    kept: list[dict[str, Tensor]] = []
    for model, handle in zip((clipped, free), handles, strict=True):
        for inputs in batches(rank, 0, 4):
            model.zero_grad()
            loss = (model(inputs) - inputs).square().mean()
            loss.backward()
            if model is clipped:
                limit = 0.01
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
                out["norms"].append(float(norm))
            handle.step(loss)
        kept.append(handle.state_dict()["engine"]["residual"][WORKER])
    out["residuals"] = all(torch.equal(kept[0][name], kept[1][name]) for name in kept[1])
    grads = torch.cat([p.grad.flatten() for p in clipped.parameters()])
    out["same"], out["norm"] = same_everywhere(grads), float(grads.norm())
    return out


def test_clipping_is_alike_on_all_ranks_and_leaves_residuals_alone() -> None:
    results = run(2, _clipping)
    assert results[0]["norms"] == results[1]["norms"]
    assert min(results[0]["norms"]) > 0.01
    for result in results:
        assert result["same"]
        assert result["residuals"]
        assert result["norm"] == pytest.approx(0.01, rel=1e-4)


def _scaled(rank: int, world: int) -> bool:
    """Powers of two as loss scales change no bit of what is learnt, residuals included."""
    learnt = []
    for scales in ((1.0,) * 8, (1.0, 4.0, 4.0, 64.0, 2.0, 2.0, 1024.0, 0.5)):

        class Scaler:
            """The part of a gradient scaler that is asked."""

            scale = 1.0

            def get_scale(self) -> float:
                return self.scale

        scaler = Scaler()
        model = wrapped()
        handle, steps = attached(model, MADE, scaler=scaler), optimizer(model)
        for inputs, scale in zip(batches(rank, 0, 8), scales, strict=True):
            steps.zero_grad()
            scaler.scale = scale
            loss = (model(inputs) - inputs).square().mean()
            (loss * scale).backward()
            for p in model.parameters():
                p.grad /= scale
            steps.step()
            handle.step(loss)
        learnt.append(weights(model))
    return torch.equal(*learnt)


def test_a_change_of_the_loss_scale_changes_no_bit() -> None:
    assert run(2, _scaled) == [True, True]
