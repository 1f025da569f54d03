"""A seed for every collector, by name."""

from __future__ import annotations

from tests.hostile import seeds_fabric, seeds_nccl, seeds_training
from tests.hostile.seed import Seed

SEEDS: dict[str, Seed] = {**seeds_fabric.SEEDS, **seeds_nccl.SEEDS, **seeds_training.SEEDS}
