"""What both experiments of the founding document share, as far as it says, and the rest assumed.

It names 1024 accelerators, a two-tier fat tree, a GPT and an MoE, bursts of other jobs, and
12.4 TFLOPS a card before and 19.8 after. It names no model, batch, card, rate or background.
A card that trains at 12.4 TFLOPS waits for its network most of the time, or is an old one, so
these are taken: the largest published model whose batch is small for 1024 cards (the one that
exposes most communication), and a card whose compute rate is published.
"""

from __future__ import annotations

from xtune.sim.models import Layout, Model, shapes
from xtune.sim.scenarios._base import (
    Card,
    Claim,
    Scenario,
    bursty,
    calibration_of,
    job,
    training,
)

CARD = Card(
    flops=39e12,
    flops_why="one V100 of a DGX-2H on a 1.2 B parameter GPT: Shoeybi et al., Megatron-LM, 2019",
    gbps=100.0,
    gbps_why="a 100 Gb/s port a card, as in systems of the V100's time",
    node_bytes_s=150e9,
    node_why="six NVLinks of 25 GB/s each way, V100 data sheet",
)
CARDS, TENSOR = 1024, 2
BACKGROUND = bursty(minutes_between=1.0, length_s=30.0, slowdown=2.0)
ACCURACY = (
    Claim(metric="iterations", change=0.032, text="iterations to the same accuracy +3.2 %"),
    Claim(metric="time", change=-0.35, text="total time -35 %"),
)


def make(name: str, title: str, model: Model, expert: int, claim: Claim) -> Scenario:
    """A scenario of one model.

    Args:
        name: Of the scenario.
        title: What it is, in a line.
        model: The model.
        expert: Ranks that share the experts.
        claim: What the document says of its throughput.
    """
    # A million tokens an iteration: the batch that both papers give for these models.
    layout = Layout(cards=CARDS, tensor=TENSOR, expert=expert, batch=512)
    tokens = float(model.sequence * layout.batch)
    return Scenario(
        name=name,
        title=title,
        calibration=calibration_of(
            name,
            shapes(model, layout),
            CARDS,
            CARD,
            job(model, layout, CARD),
            BACKGROUND,
            training(model.active_elements, tokens, layout.data),
        ),
        flops_per_card=layout.flops_per_card(model),
        claims=(claim, *ACCURACY),
    )
