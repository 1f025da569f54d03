"""The founding document's dense experiment: a GPT on 1024 cards."""

from __future__ import annotations

from xtune.sim.models import GPT3_XL
from xtune.sim.scenarios import _founding
from xtune.sim.scenarios._base import Claim, Scenario


def make() -> Scenario:
    """The scenario."""
    # Not its rounded +60 %: 12.4 to 19.8.
    claim = Claim(
        metric="throughput", change=19.8 / 12.4 - 1.0, text="12.4 to 19.8 TFLOPS a card, +60 %"
    )
    return _founding.make(
        "founding-dense", "a dense GPT of 1.3 B parameters on 1024 cards", GPT3_XL, 1, claim
    )
