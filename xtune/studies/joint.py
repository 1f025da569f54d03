"""Everything at once: routing, compression, period and bus, for several ends."""

from __future__ import annotations

from xtune.studies._base import Dimension, Objective, Study
from xtune.studies.compression_schedule import SCHEDULE
from xtune.studies.thresholds import BUS, ROUTING

STUDY = Study(
    name="joint",
    title="routing, compression and period together",
    base="joint",
    space={
        "period.iterations": Dimension(low=5, high=1000, log=True),
        # With rungs of their own, levels 1 and 2 are two.
        "bus.enter_slowdown[1]": Dimension(low=1.35, high=2.0),
        "bus.exit_slowdown[1]": Dimension(low=1.1, high=1.5),
        "compression.rung_by_level[0]": Dimension(low=0, high=3),
        "compression.rung_by_level[1]": Dimension(low=1, high=3),
        "compression.rung_by_level[2]": Dimension(low=2, high=3),
        "compression.rung_by_level[3]": Dimension(low=2, high=3),
    }
    | SCHEDULE
    | ROUTING
    | BUS,
    sampler="tpe",
    objectives=(
        Objective(metric="time_to_target_s"),
        Objective(metric="perplexity_penalty"),
        Objective(metric="jitter_s"),
        Objective(metric="control_changes"),
    ),
    trials=200,
    finalists=8,  # the best of each end, and four more
    start=(
        {},
        {
            "period.iterations": 25,
            "compression.rung_by_level[0]": 2,
            "compression.rung_by_level[1]": 3,
            "compression.rung_by_level[2]": 3,
        },
    ),
    claims={"E3": "iterations to the same accuracy +3.2 %, total time -35 %"},
)
