"""Progress under compression, against formulas and against what was measured."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim_loop.made import made
from xtune.policies.plan import Plan
from xtune.policies.spec import Compression
from xtune.sim.measured import constants, load
from xtune.sim.response import EARLY, Response, assumed_response, dropped_power

ELEMENTS = (1000, 1000)


def plan(mode: str, *bits: int) -> Plan:
    return Plan(rung=1, mode=mode, bits=bits, level=0, ratio=0.5, ratio_cap=1.0, reserve=0.0)


def response(compression: Compression | None = None, **values: float) -> Response:
    return Response(made(**values), compression or Compression(), ELEMENTS)


@pytest.mark.parametrize("mode", ["dense", "bf16"])
def test_what_is_not_compressed_costs_nothing(mode: str) -> None:
    assert response().progress(plan(mode, 16, 16), 0) == 1.0


@pytest.mark.parametrize("keep", [0.01, 0.05, 0.35, 0.9])
def test_dropped_power_is_that_of_a_normal_sample(keep: float) -> None:
    power = np.sort(np.random.default_rng(3).standard_normal(400_000) ** 2)
    cut = round((1 - keep) * len(power))
    assert dropped_power(keep) == pytest.approx(power[:cut].sum() / power.sum(), abs=0.004)
    assert dropped_power(1.0) == 0.0


def test_penalties_by_hand() -> None:
    """Of what is carried nothing is lost, and the error is in the noise a second time."""
    values = {"penalty_lost": 0.5, "penalty_noise": 2.0, "penalty_drop": 1.5,
              "penalty_drop_residual": 0.6, "penalty_shared": 0.7}  # fmt: skip
    four = plan("quantise", 4, 4)
    for carried, per_power in ((0.0, 2.5), (0.5, 2.625), (1.0, 4.0)):
        compression = Compression(residual_decay=carried, residual_decay_head=carried)
        assert response(compression, **values).penalty(four) == pytest.approx(per_power)
    without = replace(Compression(), error_feedback=False)
    assert response(without, **values).penalty(four) == pytest.approx(2.5)
    head = Compression(residual_decay=0.0, residual_decay_head=1.0, head_share=0.3)
    assert response(head, **values).penalty(four) == pytest.approx((2.5 + 4.0) / 2)
    keep = Compression(mode="drop", drop_keep_share=0.05, error_feedback=False)
    lost = dropped_power(0.05) ** 2
    assert response(keep, **values).penalty(plan("drop", 16, 16)) == pytest.approx(1.5 * lost)
    fed = replace(keep, error_feedback=True)
    assert response(fed, **values).penalty(plan("drop", 16, 16)) == pytest.approx(0.6 * lost)
    shared = replace(plan("shared", 16, 16), keep_share=0.05)
    assert response(None, **values).penalty(shared) == pytest.approx(0.7 * lost)
    assert response(without, **values).penalty(shared) == pytest.approx(1.5 * lost)


def test_what_was_measured_is_what_is_assumed() -> None:
    found = constants(load(), dropped_power, EARLY)
    by_name = {p.name: p for p in assumed_response()}
    for name, constant in found.items():
        assert by_name[f"penalty_{name}"].value == pytest.approx(constant.value)
    assert "make convergence" in by_name["penalty_drop"].why
    assert all(p.assumed for p in by_name.values())


@pytest.mark.parametrize("method", ["q4_off", "q4_g1", "drop_equal", "drop_equal_residual"])
def test_the_response_gives_back_the_damage_it_was_measured_by(method: str) -> None:
    document = load()
    row, settings = document["methods"][method], document["provenance"]["settings"]
    fall, warm, steps = (
        document["full_precision"]["nats_per_e_fold"], settings["warm"], settings["steps"]
    )  # fmt: skip
    carried = row["gain"] or 1.0
    compression = Compression(
        error_feedback=row["gain"] is not None, residual_decay=carried,
        residual_decay_head=carried, drop_keep_share=row["keep_share"] or 0.1,
    )  # fmt: skip
    bits = row["bits_input"] or 16
    made_of = plan(row["kind"].removesuffix("_residual"), bits, row["bits_head"] or 16)
    r = response(compression)
    progress = sum(r.progress(made_of, step) for step in range(warm, warm + steps))
    nats = fall * math.log((warm + steps) / (warm + progress))
    spread = 0.004 if row["kind"] == "quantise" else 0.03  # one form for all: not each exactly
    assert nats == pytest.approx(row["nats_per_token_change"], abs=spread)


def test_eight_bits_are_256_times_finer_than_four() -> None:
    r = response()
    assert r.penalty(plan("quantise", 4, 4)) / r.penalty(plan("quantise", 8, 8)) == 256.0
    # Half of the elements at each: the mean of both.
    mixed = (r.penalty(plan("quantise", 4, 4)) + r.penalty(plan("quantise", 8, 8))) / 2
    assert r.penalty(plan("quantise", 4, 8)) == pytest.approx(mixed)


@given(
    step=st.integers(0, 10_000), bits=st.sampled_from([2, 4, 8]), block=st.sampled_from([64, 256])
)
def test_progress_is_a_share_that_grows_with_step_and_bits(
    step: int, bits: int, block: int
) -> None:
    r = response(Compression(block=block))
    now = r.progress(plan("quantise", bits, bits), step)
    assert 0.0 < now < 1.0
    assert r.progress(plan("quantise", bits, bits), step + 1) >= now
    assert r.progress(plan("quantise", 2 * bits, 2 * bits), step) > now
    coarser = response(Compression(block=4 * block))
    assert coarser.progress(plan("quantise", bits, bits), step) < now


def test_compression_hurts_more_at_the_start() -> None:
    r = response(early_penalty=10.0, early_iterations=200.0)
    late = r.penalty(plan("quantise", 4, 4))
    assert r.progress(plan("quantise", 4, 4), 0) == pytest.approx(1 / (1 + 11 * late))
    assert r.progress(plan("quantise", 4, 4), 10_000) == pytest.approx(1 / (1 + late))
