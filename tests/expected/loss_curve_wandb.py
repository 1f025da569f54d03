"""A transaction log whose run logged nothing."""

from __future__ import annotations

from tests.expected._expected import Expected

EXPECTED = {
    "run-g9dvvkua.wandb": Expected(kind="loss_wandb", how="grep -c _step: 0"),
}
