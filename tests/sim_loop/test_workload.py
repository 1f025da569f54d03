"""Traffic of an iteration, against the byte formulas and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim_loop.made import BUCKETS, ELEMENTS, made
from xtune.policies.compress.wire import plan_wire_bytes
from xtune.policies.controller import Controller
from xtune.policies.presets import preset
from xtune.sim.calibration import Calibration, LayerShape
from xtune.sim.workload import Workload, apart_by_ranks, cut_into_buckets


def workload(name: str, **values: float) -> tuple[Workload, Controller]:
    policy = preset(name)
    work = Workload(made(**values), policy.compression)
    return work, Controller(policy, work.layers, work.world)


def test_dense_by_hand() -> None:
    work, controller = workload("static_dense")
    wire = work.under(controller.plan)
    # 2 * 7/8 of 2e8 bytes, and a header of 32 bytes to each of 7 ranks.
    assert wire.bucket_bytes == (350_000_000 + 7 * 32,) * BUCKETS
    assert wire.patterns == ("ring",)
    assert work.bf16_bytes == 4 * 350_000_000
    assert work.fp32_bytes == 2 * work.bf16_bytes


def test_four_bits_are_a_quarter_of_bf16_and_scales() -> None:
    work, controller = workload("joint", codec_s_per_element=1e-11)
    plan = replace(controller.plan, mode="quantise", bits=(4,) * len(work.layers))
    wire = work.under(plan)
    assert wire.patterns == ("all_to_all", "ring")
    # 4 + 16/256 bits of 16; block padding and headers are below a thousandth.
    assert wire.total_bytes / work.bf16_bytes == pytest.approx(4.0625 / 16, rel=1e-3)
    assert wire.total_bytes == plan_wire_bytes(
        work.elements, plan.bits, work.world, 256, dense_below=4096, buckets=work.buckets
    )
    assert wire.codec_s == (pytest.approx(ELEMENTS * 1e-11),) * BUCKETS


def test_dropping_sends_what_every_rank_kept() -> None:
    work, controller = workload("fixed_drop")
    wire = work.under(controller.plan)
    # Each of 7 other ranks' 35 % in bf16 and a bitmap of one bit an element, and headers.
    kept = 0.35 * ELEMENTS * 2 + ELEMENTS / 8
    assert wire.bucket_bytes == (pytest.approx(7 * (kept + 32), rel=1e-9),) * BUCKETS


def test_shared_selections_do_not_grow_with_the_ranks() -> None:
    work, controller = workload("joint")
    plan = replace(controller.plan, mode="shared", bits=(16,) * len(work.layers), keep_share=0.05)
    # Of 8 ranks: twice 7/8 of 5 % in bf16, and 7/8 of a bitmap of one bit an element, on average.
    sent = 7 / 8 * (2 * 0.05 * ELEMENTS * 2 + ELEMENTS / 8)
    assert work.under(plan).bucket_bytes == (pytest.approx(sent, rel=1e-4),) * BUCKETS
    other = replace(plan, keep_share=0.01)
    assert work.under(other).total_bytes < work.under(plan).total_bytes


@given(
    elements=st.lists(st.integers(1, 10_000), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
)
def test_every_layer_is_in_one_bucket_from_the_head_down(
    elements: list[int], sizes: list[int]
) -> None:
    layers = [LayerShape(name=str(i), elements=n, depth=0.0) for i, n in enumerate(elements)]
    buckets = cut_into_buckets(layers, sizes)
    flat = [i for bucket in buckets for i in bucket]
    assert flat == list(reversed(range(len(layers))))
    assert all(buckets) and len(buckets) <= len(sizes)


def test_equal_layers_fall_into_equal_buckets() -> None:
    layers = [LayerShape(name=str(i), elements=10, depth=0.0) for i in range(8)]
    assert cut_into_buckets(layers, [7, 7]) == [[7, 6, 5, 4], [3, 2, 1, 0]]
    assert cut_into_buckets(layers, [1, 3]) == [[7, 6], [5, 4, 3, 2, 1, 0]]


def test_experts_are_reduced_among_their_copies_alone() -> None:
    """Half of each bucket's elements have 2 copies: they travel 2 * 1/2 times, not 2 * 7/8."""
    calibration = made()
    layers = tuple(
        replace(layer, ranks=2 if i % 2 else 0) for i, layer in enumerate(calibration.layers)
    )
    spread = replace(calibration, layers=layers)
    assert spread.fingerprint != calibration.fingerprint
    assert Calibration.from_json(spread.to_json()) == spread
    for name in ("static_dense", "fixed_drop", "joint"):
        policy = preset(name)
        work = Workload(spread, policy.compression)
        controller = Controller(policy, work.layers, work.world)
        plan = controller.plan
        if name == "joint":
            plan = replace(plan, mode="quantise", bits=(4,) * len(layers))
        whole, few = (Workload(made(ranks=r), policy.compression).under(plan) for r in (8.0, 2.0))
        half = (whole.total_bytes + few.total_bytes) / 2
        assert work.under(plan).total_bytes == pytest.approx(half, rel=1e-4)
    assert work.bf16_bytes == 4 * (350_000_000 + 200_000_000) // 2
    shapes = [
        LayerShape(name=str(i), elements=1, depth=0.0, ranks=r) for i, r in enumerate([0, 4, 0])
    ]
    assert apart_by_ranks(shapes, [[2, 1], [0]]) == [[2], [1], [0]]
