"""Bugs that other tools had with loss curves, and what is right."""

from __future__ import annotations

import math
from pathlib import Path

from tests.bugs.lakes import collected
from tests.hostile.seeds_training import event, history, tensorboard, wandb


def test_every_step_of_a_run_is_read_and_nan_stays_nan(tmp_path: Path) -> None:
    """Case 17. wandb #1783, #5219, #5994, #8252, #12067."""
    # More steps than the 500 that a sampled history has.
    losses = {step: math.nan if step % 7 == 3 else 3.0 - step / 1000 for step in range(1300)}
    log = wandb([history(step, loss=loss) for step, loss in losses.items()])
    found = collected(tmp_path, {"run.wandb": log})
    assert [row["step"] for row in found.steps] == list(range(1300))
    for row in found.steps:
        wanted = losses[row["step"]]
        assert math.isnan(row["loss"]) if math.isnan(wanted) else row["loss"] == wanted


def test_after_a_resume_the_newer_steps_count(tmp_path: Path) -> None:
    """Case 18. tensorboard #3570, #5958, tensorboardX #185."""
    passes = [(0.0, (1, 2, 3, 4)), (10.0, (3, 4, 5)), (20.0, (4, 5, 6))]
    events = [event(step, loss=step + more) for more, steps in passes for step in steps]
    found = collected(tmp_path, {"events.out.tfevents.1": tensorboard(events)})
    kept = {row["step"]: row["loss"] for row in found.steps}
    assert kept == {1: 1, 2: 2, 3: 13, 4: 24, 5: 25, 6: 26}
    assert len(found.steps) == 6 and sum(found.file().notes.values()) >= 4
