from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import Layer, Policy, preset, replace_fields
from xtune.policies.ladder import DEFAULT_LADDER, Rung
from xtune.policies.plan import Plan, ladder_plans, layer_bits
from xtune.policies.spec import Compression

BIG = 1_000_000


def stack(*elements: int) -> list[Layer]:
    last = max(1, len(elements) - 1)
    return [Layer(name=f"layer{i}", elements=n, depth=i / last) for i, n in enumerate(elements)]


def test_head_bits_go_to_the_share_counted_from_the_head() -> None:
    compression = Compression(head_share=0.35)
    assert layer_bits(stack(*[BIG] * 10), 4, 8, compression) == (4,) * 6 + (8,) * 4
    # From the head: middles at 5 %, 15 %, 25 %, 35 % of the elements are within 35 %.


def test_depth_counts_and_not_the_order_of_the_layers() -> None:
    layers = stack(*[BIG] * 10)
    bits = layer_bits(layers[::-1], 4, 8, Compression())
    assert bits == layer_bits(layers, 4, 8, Compression())[::-1]


def test_the_deepest_layer_gets_head_bits_though_it_is_huge() -> None:
    layers = stack(BIG, 9 * BIG)
    assert layer_bits(layers, 4, 8, Compression(head_share=0.1)) == (4, 8)
    assert layer_bits(layers, 4, 8, Compression(head_share=0.0)) == (4, 4)


def test_small_tensors_stay_at_sixteen_bits() -> None:
    assert layer_bits(stack(BIG, 4095, 4096, BIG), 4, 4, Compression()) == (4, 16, 4, 4)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, BIG), min_size=1, max_size=12),
    share=st.floats(0, 1),
    more=st.floats(0, 1),
)
def test_a_larger_head_share_never_takes_bits_away(
    sizes: list[int], share: float, more: float
) -> None:
    low, high = sorted((share, more))
    layers = stack(*sizes)
    few = layer_bits(layers, 4, 8, Compression(head_share=low))
    many = layer_bits(layers, 4, 8, Compression(head_share=high))
    assert all(a <= b for a, b in zip(few, many, strict=True))


def test_ratios_are_those_of_bits_and_scales() -> None:
    # b + 16/256 bits an element against 16; headers and padding cost the rest.
    rungs = ladder_plans(Policy(), stack(*[10 * BIG] * 20), 8)
    assert [rung.mode for rung in rungs] == ["dense", "quantise", "quantise", "quantise"]
    mixed = 0.35 * 8 + 0.65 * 4
    expected = [1 - (bits + 16 / 256) / 16 for bits in (8, mixed, 4)]
    assert rungs[0].ratio == 0.0
    assert [rung.ratio for rung in rungs[1:]] == pytest.approx(expected, abs=1e-3)


def test_one_rank_is_reckoned_as_two() -> None:
    layers = stack(*[BIG] * 4)
    assert ladder_plans(Policy(), layers, 1) == ladder_plans(Policy(), layers, 2)


def test_dropping_by_all_gather_costs_more_than_it_saves_beyond_a_few_ranks() -> None:
    # Values in bf16 and a bitmap, N - 1 times: k + 1/16 against 2 (N - 1) / N, k = 0.35.
    for world in (2, 4, 8):
        drop = ladder_plans(preset("fixed_drop"), stack(*[BIG] * 4), world)[1]
        assert drop.mode == "drop"
        expected = 1 - (world - 1) * (0.35 + 1 / 16) / (2 * (world - 1) / world)
        assert drop.ratio == pytest.approx(expected, abs=1e-3)


def test_off_has_one_rung() -> None:
    (only,) = ladder_plans(preset("static_dense"), stack(BIG, BIG), 8)
    assert (only.mode, only.bits, only.ratio) == ("dense", (16, 16), 0.0)


def test_a_ladder_that_small_tensors_leave_at_sixteen_bits_is_bf16() -> None:
    rungs = ladder_plans(Policy(), stack(100, 200), 8)
    assert [rung.mode for rung in rungs] == ["dense", "bf16", "bf16", "bf16"]


def test_sixteen_bits_after_the_first_rung_are_bf16() -> None:
    ladder = (*DEFAULT_LADDER[:1], Rung(name="half", bits_input=16, bits_head=16))
    compression = Compression(ladder=ladder, rung_by_level=(0, 0, 1, 1))
    rungs = ladder_plans(Policy(compression=compression), stack(BIG, BIG), 8)
    assert [rung.mode for rung in rungs] == ["dense", "bf16"]
    assert rungs[1].ratio == pytest.approx(0.0, abs=1e-3)


def test_the_digest_tells_all_that_ranks_must_agree_on() -> None:
    plan = Plan(
        rung=1, mode="quantise", bits=(4, 8), level=1, ratio=0.6, ratio_cap=0.7, reserve=0.1
    )
    assert plan.digest() == replace(plan).digest()
    assert 0 <= plan.digest() < 2**32
    for other in (
        replace(plan, rung=2),
        replace(plan, mode="drop"),
        replace(plan, bits=(8, 4)),
        replace(plan, level=2),
        replace(plan, reserve=0.2),
    ):
        assert other.digest() != plan.digest()


def test_the_first_rung_of_a_long_ladder_is_off_whatever_the_study_does() -> None:
    policy = replace_fields(Policy(), {"compression.head_share": 1.0})
    rungs = ladder_plans(policy, stack(*[BIG] * 3), 4)
    assert rungs[0].bits == (16, 16, 16)
    assert rungs[2].bits == (8, 8, 8)
