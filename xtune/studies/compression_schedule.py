"""How much to compress at which level, from when on, and what becomes of the residual."""

from __future__ import annotations

from xtune.studies._base import Dimension, Study

# Left out, since no run of the simulator reacts to them: compression.allocation and
# compression.error_budget (it knows no norms of layers), compression.residual_limit (it keeps no
# residual). compression.curvature_limit only scales curvature_gain.
SCHEDULE = {
    "compression.head_share": Dimension(low=0.0, high=1.0),
    "compression.block": Dimension(choices=(64, 128, 256, 512, 1024)),
    "compression.warmup_iterations": Dimension(low=0, high=1000),
    "compression.curvature_gain": Dimension(low=0.0, high=5.0),
    "compression.least_gain": Dimension(low=0.0, high=0.1),
    "compression.residual_decay": Dimension(low=0.0, high=1.0),
    "compression.residual_decay_head": Dimension(low=0.0, high=1.0),
    "bus.bandwidth_margin": Dimension(low=0.3, high=1.0),
    "safety.iterations": Dimension(low=5, high=50),
}

STUDY = Study(
    name="compression_schedule",
    title="compression by congestion level, over the course of training",
    base="fine_ladder",
    # A ladder is no field to search; a fine one, and which of its rungs each level asks for, is.
    space={
        "compression.rung_by_level[0]": Dimension(low=0, high=5),
        "compression.rung_by_level[1]": Dimension(low=1, high=6),
        "compression.rung_by_level[2]": Dimension(low=2, high=7),
        "compression.rung_by_level[3]": Dimension(low=3, high=7),
    }
    | SCHEDULE,
    sampler="tpe",
    trials=120,
    start=({},),
    claims={
        "C1": "the ratio follows iteration, curvature of the loss and congestion level",
        "C2": "under high congestion 70 % of the gradient and more are not sent",
        "C3": "4 bits near the input, 8 or more at the head",
        "L4": "ten iterations without progress after a rise of the ratio take it back",
    },
)
