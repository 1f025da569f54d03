"""Published models by other routes: counts that their owners give, and closed forms."""

from __future__ import annotations

import pytest

from xtune.errors import UsageError
from xtune.sim.models import (
    GPT3_175B,
    GPT3_XL,
    GPT_MOE_128,
    LLAMA_7B,
    MIXTRAL_8X7B,
    Layout,
    Model,
    buckets,
    expert_traffic,
    shapes,
    tensor_bytes,
)

DENSE = Layout(cards=1024, tensor=2, expert=1, batch=512)


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        (LLAMA_7B, 6_738_415_616),  # of its checkpoint
        (MIXTRAL_8X7B, 46_702_792_704),  # of its checkpoint
    ],
)
def test_elements_are_those_of_the_checkpoints(model: Model, elements: int) -> None:
    assert model.elements == elements


@pytest.mark.parametrize("model", [GPT3_XL, GPT3_175B])
def test_a_gpt_has_the_elements_of_the_closed_form(model: Model) -> None:
    """Narayanan et al. 2021, equation 2: 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh)."""
    h, depth = model.hidden, model.layers
    small = 13 / (12 * h) + (model.vocabulary + model.sequence) / (12 * depth * h)
    # The last norm is not in it.
    assert model.elements - 2 * h == pytest.approx(12 * depth * h * h * (1 + small), rel=1e-12)
    assert model.active_elements == model.elements


@pytest.mark.parametrize("model", [GPT3_XL, GPT3_175B])
def test_operations_are_those_of_the_closed_form(model: Model) -> None:
    """The same paper's 96 B s l h^2 (1 + s / 6h + V / 16lh), less a second forward pass."""
    h, depth, s, v = model.hidden, model.layers, model.sequence, model.vocabulary
    whole = 96 * s * depth * h * h * (1 + s / (6 * h) + v / (16 * depth * h))
    again = 24 * s * depth * h * h * (1 + s / (6 * h))
    assert model.flops_per_token * s == pytest.approx(whole - again, rel=1e-12)


def test_experts_are_held_by_all_and_used_by_few() -> None:
    assert GPT_MOE_128.elements == pytest.approx(52e9, rel=0.01)  # as published
    assert GPT_MOE_128.expert_blocks == 12
    # One of 128 experts a token: a dense model's, and the routers.
    routers = 12 * 2048 * 128
    assert GPT_MOE_128.active_elements == GPT3_XL.elements + routers
    assert GPT_MOE_128.flops_per_token == GPT3_XL.flops_per_token + 6 * routers
    assert MIXTRAL_8X7B.active_elements == pytest.approx(12.9e9, rel=0.01)  # as published


@pytest.mark.parametrize(("model", "expert"), [(GPT3_XL, 1), (GPT_MOE_128, 128)])
def test_cards_hold_the_model_between_them(model: Model, expert: int) -> None:
    layout = Layout(cards=1024, tensor=2, expert=expert, batch=512)
    layers = shapes(model, layout)
    held = sum(layer.elements * layout.tensor * (expert if layer.ranks else 1) for layer in layers)
    assert held == pytest.approx(model.elements, rel=1e-6)
    assert [layer.depth for layer in layers] == sorted(layer.depth for layer in layers)
    assert (layers[0].depth, layers[-1].depth) == (0.0, 1.0)
    # 512 ranks, 128 of them hold all experts between them: 4 copies.
    assert {layer.ranks for layer in layers} == ({0} if expert == 1 else {0, 4})


def test_buckets_hold_every_byte_and_are_full() -> None:
    layers = shapes(GPT3_XL, DENSE)
    sizes = buckets(layers, 25 << 20)
    assert sum(sizes) == 2 * sum(layer.elements for layer in layers)
    assert all(size >= 25 << 20 for size in sizes[:-1])
    largest = 2 * max(layer.elements for layer in layers)
    assert max(sizes) < (25 << 20) + largest


def test_traffic_beside_data_parallel_by_hand() -> None:
    # 2048 tokens of 2048 values of 2 bytes, four times in 24 blocks, 2 * 1/2 of each.
    assert tensor_bytes(GPT3_XL, DENSE) == 24 * 4 * 2048 * 2048 * 2
    assert expert_traffic(GPT3_XL, DENSE) == ()
    (beside,) = expert_traffic(GPT_MOE_128, Layout(cards=1024, tensor=2, expert=128, batch=512))
    assert beside.kind == "expert" and beside.per_step == 4 * 12
    assert beside.bytes_per_host == round(1024 * 2048 * 2 * 127 / 128)
    # A token goes to two experts: twice the bytes.
    (two,) = expert_traffic(MIXTRAL_8X7B, Layout(cards=64, tensor=1, expert=8, batch=64))
    assert two.bytes_per_host == 4096 * 4096 * 2 * 2 * 7 // 8


@pytest.mark.parametrize(
    "wrong", [{"tensor": 3}, {"batch": 500}, {"expert": 3}, {"cards": 0}, {"batch": 0}]
)
def test_what_does_not_fit(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        Layout(**{"cards": 1024, "tensor": 2, "expert": 1, "batch": 512, **wrong})
