"""When routing warns and returns, and when the bus calls it congestion."""

from __future__ import annotations

from xtune.studies._base import Dimension, Study

# Left out, since no run of the simulator reacts to them: routing.strikes and
# routing.readmit_answers (no probe is lost in it), routing.order (all its paths between two leaves
# are alike), routing.stale_ns, routing.yield_ns; of the bus the thresholds of level 2 (the policy
# compresses alike at levels 1 and 2) and of level 3 (the router's own level is there first).
# Left out too, since their price is not in it: routing.probe_interval_ns (probes are free there)
# and routing.unit_bytes (order is put right for free).
ROUTING = {
    "routing.forecast": Dimension(),
    "routing.window_readings": Dimension(low=2, high=32, log=True),
    "routing.level_gain": Dimension(low=0.05, high=1.0),
    "routing.slope_gain": Dimension(low=0.0, high=1.0),
    "routing.horizon_ns": Dimension(low=1_000, high=1_000_000, log=True),
    "routing.enter_occupancy": Dimension(low=0.4, high=0.95),
    "routing.exit_occupancy": Dimension(low=0.05, high=0.7),
    "routing.cold_occupancy": Dimension(low=0.1, high=0.7),
    "routing.pairs": Dimension(low=1, high=8),
    "routing.hold_ns": Dimension(low=1_000, high=1_000_000, log=True),
    "routing.moves_per_ms": Dimension(low=0.5, high=1000.0, log=True),
}
BUS = {
    "bus.enter_slowdown[0]": Dimension(low=1.06, high=1.4),
    "bus.exit_slowdown[0]": Dimension(low=1.01, high=1.2),
    "bus.smoothing": Dimension(low=0.02, high=1.0, log=True),
}

STUDY = Study(
    name="thresholds",
    title="thresholds of routing and of the congestion levels",
    base="joint",
    space=ROUTING | BUS,
    sampler="tpe",
    trials=120,
    start=({},),
    claims={
        "R2": "a queue that will cross its threshold within 200 us is a warning",
        "R3": "traffic goes to longer but cold links, under 40 % full",
    },
)
