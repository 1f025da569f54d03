"""Constants of the response from a measurement made by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xtune.sim.measured import Early, constants, penalty_of, relative_error
from xtune.sim.response import dropped_power

WARM, STEPS, FALL = 200, 1000, 0.5
SEEDS = [0, 1, 2]


def damage(penalty: float) -> float:
    """Perplexity change of a branch that makes 1 / (1 + penalty) of its iterations."""
    progress = WARM + STEPS / (1 + penalty)
    return math.expm1(FALL * math.log((WARM + STEPS) / progress))


def row(kind: str, penalty: float, **more: Any) -> dict[str, Any]:
    noise = (1.0, 0.9, 1.1)
    return {
        "kind": kind, "seeds": SEEDS, "perplexity_changes": [damage(penalty * n) for n in noise],
        "bits_input": None, "bits_head": None, "mean_bits": None, "block": None, "gain": None,
        "keep_share": None, **more,
    }  # fmt: skip


def bits(near: int, head: int, mean: float, block: int = 256) -> dict[str, Any]:
    return {"bits_input": near, "bits_head": head, "mean_bits": mean, "block": block}


def document(**methods: dict[str, Any]) -> dict[str, Any]:
    return {
        "provenance": {"settings": {"warm": WARM, "steps": STEPS}},
        "full_precision": {"nats_per_e_fold": FALL},
        "methods": {"fp32": row("dense", 0.0), **methods},
    }


@pytest.mark.parametrize("penalty", [0.0, 0.01, 0.3, 2.0])
def test_a_penalty_is_what_makes_its_damage(penalty: float) -> None:
    nats = math.log1p(damage(penalty))
    assert penalty_of(nats, fall=FALL, warm=WARM, steps=STEPS) == pytest.approx(penalty, abs=1e-9)
    assert penalty_of(10.0, fall=FALL, warm=WARM, steps=STEPS) == math.inf


@pytest.mark.parametrize("late", [1e-4, 0.02, 0.7, 4.0])
def test_the_early_surcharge_is_taken_out(late: float) -> None:
    early = Early(penalty=8.0, iterations=150.0)
    progress = sum(1 / (1 + late * early.factor(step)) for step in range(WARM, WARM + STEPS))
    nats = FALL * math.log((WARM + STEPS) / (WARM + progress))
    found = penalty_of(nats, fall=FALL, warm=WARM, steps=STEPS, early=early)
    assert found == pytest.approx(late, rel=1e-8)
    assert penalty_of(nats, fall=FALL, warm=WARM, steps=STEPS) > 1.2 * late


def test_what_was_won_is_a_penalty_below_zero() -> None:
    early = Early(penalty=8.0, iterations=150.0)
    assert -1e-3 < penalty_of(-1e-4, fall=FALL, warm=WARM, steps=STEPS, early=early) < 0


def test_error_powers_by_hand() -> None:
    assert relative_error(4, 4, 4.0, 256) == 1.0
    assert relative_error(8, 8, 8.0, 256) == 1 / 256
    assert relative_error(4, 8, 6.0, 256) == pytest.approx((1 + 1 / 256) / 2)
    assert relative_error(4, 4, 4.0, 64) == pytest.approx(0.75)  # ln 64 / ln 256


def test_constants_are_those_the_damage_was_made_with() -> None:
    bias, noise, drop = 0.004, 0.012, 0.8
    lost = dropped_power(0.1) ** 2
    found = constants(
        document(
            a=row("quantise", bias + noise, **bits(4, 4, 4.0)),
            b=row("quantise", bias / 4 + noise * 5 / 4, gain=0.5, **bits(4, 4, 4.0)),
            c=row("quantise", 0.75 * 2 * noise, gain=1.0, **bits(4, 4, 4.0, 64)),
            d=row("quantise", 9.0, gain=0.5, **bits(2, 2, 2.0)),  # too coarse for the form
            e=row("drop", drop * lost, keep_share=0.1),
            f=row("drop_residual", 0.4 * drop * lost, keep_share=0.1),
            g=row("shared", 0.5 * drop * lost, keep_share=0.1),
        ),
        dropped_power,
    )
    expected = {"lost": bias, "noise": noise, "drop": drop, "drop_residual": 0.4 * drop,
                "shared": 0.5 * drop}  # fmt: skip
    half = 4.302653 * np.std([1.0, 0.9, 1.1], ddof=1) / math.sqrt(3)
    assert set(found) == set(expected)
    for name, value in expected.items():
        constant = found[name]
        assert constant.seeds == 3
        assert constant.value == pytest.approx(value, rel=1e-6)
        assert constant.low == pytest.approx(value * (1 - half), rel=1e-5)
        assert constant.high == pytest.approx(value * (1 + half), rel=1e-5)


def test_what_was_not_measured_is_not_there() -> None:
    assert constants(document(e=row("drop", 0.1, keep_share=0.1)), dropped_power).keys() == {
        "drop"
    }
