"""A seed for every collector, by name."""

from __future__ import annotations

from tests.hostile import (
    seeds_fabric,
    seeds_nccl,
    seeds_tools,
    seeds_traces,
    seeds_training,
)
from tests.hostile.seed import Seed

_PARTS = (
    seeds_fabric.SEEDS,
    seeds_nccl.SEEDS,
    seeds_tools.SEEDS,
    seeds_traces.SEEDS,
    seeds_training.SEEDS,
)

SEEDS: dict[str, Seed] = {name: seed for part in _PARTS for name, seed in part.items()}
