"""The founding document's sparse experiment: a mixture of experts on 1024 cards."""

from __future__ import annotations

from xtune.sim.models import GPT_MOE_128
from xtune.sim.scenarios import _founding
from xtune.sim.scenarios._base import Claim, Scenario


def make() -> Scenario:
    """The scenario."""
    claim = Claim(metric="throughput", change=0.76, text="throughput +76 %")
    return _founding.make(
        "founding-moe", "a GPT with 128 experts, 52 B parameters, on 1024 cards", GPT_MOE_128, 128,
        claim,
    )  # fmt: skip
