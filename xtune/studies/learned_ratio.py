"""A small network for the ratio, trained on the simulator without gradients."""

from __future__ import annotations

from xtune.policies.learned_ratio import WEIGHTS
from xtune.studies._base import BASELINES, Dimension, Study

STUDY = Study(
    name="learned_ratio",
    title="a learned rule for the ratio",
    base="learned_ratio",
    space={
        f"compression.learned_weights[{i}]": Dimension(low=-5.0, high=5.0) for i in range(WEIGHTS)
    },
    sampler="cmaes",
    trials=240,
    batch=12,
    start=({},),
    # The hand-written rule is a baseline like any other.
    baselines=(*BASELINES, "joint"),
    ablations=("routing_only", "compression_only"),
    claims={"F2": "future work: the ratio by a learned policy, in place of the hand-written rule"},
)
