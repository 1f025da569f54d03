"""No study searches a field that the simulator is deaf to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim_loop.made import made
from xtune.policies.learned_ratio import WEIGHTS
from xtune.policies.presets import preset
from xtune.policies.spec import Policy, replace_fields
from xtune.sim import Calibration, simulate
from xtune.sim.cache import PhaseCache
from xtune.studies import all_studies

# Episodes deep and shallow, at the edge and between switches; noisy readings, gradients that
# change, a loss that rises now and then. Then hardly any of it.
ROUGH = made(
    episode_rate_per_h=600.0, episode_length_s=3.0, episode_slowdown=3.0,
    episode_slowdown_sigma=0.4, episode_edge_share=0.5, reading_noise=0.2, gradient_change=0.9,
    gradient_change_sigma=0.3, loss_noise=0.2,
)  # fmt: skip
CALM = made(episode_rate_per_h=60.0, episode_length_s=6.0, reading_noise=0.1)
QUICK = {"period.iterations": 5, "compression.warmup_iterations": 20}
# A rung for each level, and leave to use it.
LADDER = {
    "bus.bandwidth_margin": 0.3,
    "compression.curvature_gain": 0.0,
    "compression.rung_by_level": (1, 1, 2, 3),
}
#: Two values of each searched field, within what the studies try; and what lets it matter.
PAIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "period.iterations": (5, 100, {}),
    "routing.forecast": ("holt", "reading", {}),
    "routing.window_readings": (2, 32, {"routing.forecast": "slope"}),
    "routing.level_gain": (0.1, 0.9, {}),
    "routing.slope_gain": (0.0, 0.9, {}),
    "routing.horizon_ns": (1_000, 1_000_000, {}),
    "routing.enter_occupancy": (0.55, 0.95, {}),
    "routing.exit_occupancy": (0.05, 0.65, {}),
    "routing.cold_occupancy": (0.1, 0.65, {}),
    "routing.pairs": (1, 4, {}),
    "routing.hold_ns": (20_000, 1_000_000, {}),
    "routing.moves_per_ms": (0.5, 1000.0, {}),
    "bus.enter_slowdown[0]": (1.06, 1.4, {}),
    "bus.enter_slowdown[1]": (1.35, 2.0, LADDER),
    "bus.exit_slowdown[0]": (1.01, 1.14, {}),
    "bus.exit_slowdown[1]": (1.1, 1.45, LADDER),
    "bus.smoothing": (0.02, 1.0, {}),
    "bus.bandwidth_margin": (0.3, 1.0, {}),
    "compression.rung_by_level[0]": (0, 1, {}),
    "compression.rung_by_level[1]": (1, 2, LADDER),
    "compression.rung_by_level[2]": (2, 3, LADDER),
    "compression.rung_by_level[3]": (2, 3, LADDER),
    "compression.head_share": (0.0, 1.0, {}),
    "compression.block": (64, 1024, {}),
    "compression.warmup_iterations": (0, 100, {}),
    "compression.curvature_gain": (0.0, 5.0, {}),
    "compression.least_gain": (0.0, 0.1, {}),
    "compression.residual_decay": (0.0, 1.0, {}),
    "compression.residual_decay_head": (0.0, 1.0, {}),
    "safety.iterations": (5, 50, {}),
}
FIELD = "compression.learned_weights"
CACHE = PhaseCache(None)


def changed(policy: Policy, field: str, value: Any) -> Policy:
    """The policy with one field, or one entry of it, set."""
    path, bracket, place = field.partition("[")
    if not bracket:
        return replace_fields(policy, {path: value})
    section, _, name = path.partition(".")
    entries = list(getattr(getattr(policy, section), name))
    entries[int(place.rstrip("]"))] = value
    return replace_fields(policy, {path: entries})


def outcome(policy: Policy, calibration: Calibration) -> dict[str, float]:
    return simulate(policy, calibration, seed=1, iterations=600, cache=CACHE).metrics


def test_the_table_holds_every_searched_field() -> None:
    searched = {field for study in all_studies().values() for field in study.fields}
    assert {field for field in searched if not field.startswith(FIELD)} == set(PAIRS)


@pytest.mark.parametrize("field", PAIRS)
def test_a_searched_field_changes_the_outcome(field: str) -> None:
    one, other, beside = PAIRS[field]
    base = replace_fields(preset("joint"), {**QUICK, **beside})
    tried = [changed(base, field, value) for value in (one, other)]
    # Whether compression pays takes a hundred iterations at one level to judge.
    scenario = CALM if field == "compression.least_gain" else ROUGH
    assert outcome(tried[0], scenario) != outcome(tried[1], scenario)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(WEIGHTS))
def test_every_weight_of_the_learned_rule_changes_the_outcome(place: int) -> None:
    base = replace_fields(preset("learned_ratio"), QUICK)
    # Each unit leans on one input and is near its middle, so that every other one can tip it.
    tried = []
    for weight in (-5.0, 5.0):
        weights = [0.3 * (-1) ** i for i in range(WEIGHTS)]
        weights[-3:] = (1.0, -1.0, 1.0)
        weights[place] = weight
        tried.append(outcome(replace_fields(base, {FIELD: weights}), ROUGH))
    assert tried[0] != tried[1]
