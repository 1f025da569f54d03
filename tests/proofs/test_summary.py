"""Figures from runs, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.proofs.small import settings
from xtune.proofs.course import Settings
from xtune.proofs.methods import methods
from xtune.proofs.summary import Interval, extra_iterations, response, savings, summarise


def test_the_interval_of_three_values() -> None:
    found = Interval.of([1.0, 2.0, 3.0])
    assert (found.mean, found.sd) == (2.0, 1.0)
    # Student's t for two degrees of freedom and 2.5 % on each side is 4.30265 (any table).
    assert found.high == pytest.approx(2 + 4.30265 / math.sqrt(3), abs=1e-5)
    assert found.low == pytest.approx(2 - 4.30265 / math.sqrt(3), abs=1e-5)


def test_one_value_has_no_spread_that_could_be_known() -> None:
    assert Interval.of([0.5]).to_json() == {"mean": 0.5, "sd": None, "low": None, "high": None}


def test_extra_iterations_are_counted_to_the_loss_at_95_percent() -> None:
    falling = [100.0 - i for i in range(100)]
    # The average moves from 100 down; a curve that stands still for 20 iterations first meets
    # each of its values at most 20 iterations later, and once the start is forgotten just so.
    late = [100.0] * 20 + falling
    assert extra_iterations(falling, falling) == 0.0
    assert extra_iterations(late, falling) == pytest.approx(20 / 95, abs=0.5 / 95)
    assert extra_iterations([100.0] * 100, falling) == math.inf


def test_the_moving_average_weighs_the_newest_loss_by_a_twentieth() -> None:
    # 20 losses of 1 then 0: after k zeros the average is 0.95^k; 0.95^19 > 0.37 > 0.95^20.
    baseline = [1.0] + [0.0] * 19 + [0.0]  # at 95 % of 21, iteration 20, it is 0.95^19
    slower = [1.0] * 6 + [0.0] * 30
    assert extra_iterations(slower, baseline) == pytest.approx(25 / 20 - 1)


def test_savings_count_the_warm_start_as_the_baseline_sends_it() -> None:
    made = settings(steps=100, warm=100)
    run = {"bytes": [1500, 1000], "dense_bytes_bf16": 100, "dense_bytes_fp32": 200}
    found = savings([run], made)
    assert found["saved_vs_bf16"] == pytest.approx(0.75)
    assert found["saved_vs_fp32"] == pytest.approx(0.875)
    assert found["saved_vs_bf16_with_warm_start"] == pytest.approx(0.375)
    assert found["saved_vs_fp32_with_warm_start"] == pytest.approx(0.4375)


def _run(held_out: list[float], sent: int) -> dict[str, Any]:
    return {
        "held_out": held_out, "train": [3.0, 2.0], "bytes": [sent, sent],
        "error_power": [0.01, 0.03], "keep_share": None, "about": {},
        "dense_bytes_bf16": 10, "dense_bytes_fp32": 20, "parameters": 1, "buckets": 1,
    }  # fmt: skip


def _made() -> tuple[dict[str, dict[int, dict[str, Any]]], Settings]:
    runs = {
        "fp32": {0: _run([4.0, 3.0, 2.0], 20), 1: _run([4.0, 3.2, 2.2], 20)},
        "q4_g1": {
            0: _run([4.0, 3.1, 2.0 + math.log(1.01)], 3),
            1: _run([4.0, 3.4, 2.2 + math.log(1.03)], 3),
            2: _run([4.0, 9.0, 9.0], 3),  # without a partner
        },
    }
    return runs, settings(steps=4, warm=2, every=2)


def test_differences_are_paired_by_seed() -> None:
    runs, made = _made()
    row = summarise(methods()["q4_g1"], runs, made, bytes_per_token=2.0)
    assert row["seeds"] == [0, 1]
    assert row["perplexity_changes"] == pytest.approx([0.01, 0.03])
    assert row["perplexity_change"]["mean"] == pytest.approx(0.02)
    assert row["perplexity_change"]["sd"] == pytest.approx(0.01 * math.sqrt(2))
    both = (math.log(1.01) + math.log(1.03)) / 2
    assert row["nats_per_token_change"] == pytest.approx(both)
    assert row["nats_per_byte_change"] == pytest.approx(both / 2)
    assert row["damage_by_phase"] == pytest.approx([0.15, both])
    assert row["error_power"] == pytest.approx(0.02)
    assert row["error_power_by_phase"] == pytest.approx([0.01, 0.03])
    assert row["extra_iterations"] == 0.0


def test_bits_are_averaged_over_elements() -> None:
    runs, made = _made()
    row = summarise(methods()["q4_g1"], runs, made, bytes_per_token=2.0)
    # Of 64 x 64 weights and more all are planned at 4 bits; three norms of 64 go as bf16.
    total = 2 * 128 * 64 + 4 * 64 * 64 + 3 * 64 * 96 + 3 * 64
    assert row["mean_bits"] == pytest.approx((4 * (total - 192) + 16 * 192) / total)


def test_the_response_names_the_phases_and_full_precisions_slope() -> None:
    runs, made = _made()
    table = {"q4_g1": summarise(methods()["q4_g1"], runs, made, bytes_per_token=2.0)}
    document = response(table, runs, made, {"command": "x"})
    assert document["phases"] == [2, 4]
    # From (3.0 + 3.2) / 2 after 2 + 2 iterations to (2.0 + 2.2) / 2 after 2 + 4.
    assert document["full_precision"]["nats_per_e_fold"] == pytest.approx(1 / math.log(6 / 4))
