"""The routing parameters of a policy, each with its unit and range."""

from __future__ import annotations

from dataclasses import dataclass

from ._fields import PolicyError, check_below, check_section, parameter


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """Path choice, decided per unit of at most ``unit_bytes`` from readings in memory."""

    mode: str = parameter(
        "binary",
        "1",
        "how a path is chosen; the others than binary are baselines. switch_adaptive leaves it "
        "to the switches: a policy can only ask for it, and its router keeps to one path a flow",
        choices=("static", "binary", "spray", "power_of_two", "flowlet", "switch_adaptive"),
    )
    forecast: str = parameter(
        "holt",
        "1",
        "what a link's next occupancy is taken from",
        choices=("reading", "ewma", "slope", "holt"),
    )
    window_readings: int = parameter(
        5, "readings", "N of the last-N slope; Holt needs no window", low=2, high=256
    )
    level_gain: float = parameter(
        0.5, "1", "weight of the newest reading (alpha of Holt and EWMA)", low=0, high=1
    )
    slope_gain: float = parameter(
        0.3, "1", "weight of the newest slope (beta of Holt)", low=0, high=1
    )
    horizon_ns: int = parameter(  # founding document R2: 200 us
        200_000, "ns", "how far ahead a threshold crossing is a warning", low=0, high=10**9
    )
    enter_occupancy: float = parameter(
        0.7, "1", "a forecast occupancy at or above it is a warning", low=0, high=1
    )
    exit_occupancy: float = parameter(
        0.5, "1", "back on the primary path below it (hysteresis)", low=0, high=1
    )
    cold_occupancy: float = parameter(  # founding document R3: under 40 %
        0.4, "1", "an alternative path must be below it", low=0, high=1
    )
    order: str = parameter(  # founding document R3: edge first, though longer
        "edge_first",
        "1",
        "which cold alternative is taken: the longest, or the coldest",
        choices=("edge_first", "coldest"),
    )
    pairs: int = parameter(
        4, "pairs", "(primary, alternative) pairs over which a flow's units spread", low=1, high=64
    )
    mark_low_occupancy: float = parameter(
        0.25, "1", "occupancy at which switches begin to mark packets (ECN)", low=0, high=1
    )
    mark_high_occupancy: float = parameter(
        1.0, "1", "occupancy at which they mark mark_top_share, all above it", low=0, high=1
    )
    mark_top_share: float = parameter(
        0.05, "1", "share of packets marked at mark_high_occupancy", low=1e-6, high=1
    )
    hold_ns: int = parameter(20_000, "ns", "least time on a path after a move", low=0, high=10**10)
    yield_ns: int = parameter(
        0,
        "ns",
        "a warned flow that did not come last lets others move first for one to three times this",
        low=0,
        high=10**10,
    )
    moves_per_ms: float = parameter(
        10.0, "moves/ms", "move budget of one flow on one pair", low=0, high=10**6
    )
    strikes: int = parameter(  # founding document N4: three in a row
        3, "probes", "timeouts in a row that blacklist a path", low=1, high=1000
    )
    readmit_answers: int = parameter(
        5, "probes", "answers in a row that re-admit a blacklisted path", low=1, high=1000
    )
    blacklist_forget_ns: int = parameter(
        10_000_000_000,
        "ns",
        "a blacklisted link of which no probe tells for so long counts as unknown",
        low=100,
        high=10**13,
    )
    flowlet_gap_ns: int = parameter(
        50_000,
        "ns",
        "modes flowlet, switch_adaptive: a path is kept for units closer than it",
        low=0,
        high=10**12,
    )
    switch_load: str = parameter(
        "queue",
        "1",
        "mode switch_adaptive: what a leaf compares of its own ports, bytes or flows",
        choices=("queue", "flows"),
    )
    probe_interval_ns: int = parameter(
        10_000, "ns", "time between two readings of a link", low=100, high=10**10
    )
    stale_ns: int = parameter(
        1_000_000, "ns", "a reading older than this is unknown", low=100, high=10**12
    )
    sick_error_rate: float = parameter(
        1e-3, "1", "a link with this packet error rate or more counts as full", low=0, high=1
    )
    decision_delay_ns: int = parameter(  # founding document R5: at most 10 us
        10_000, "ns", "from reading to action, as the simulator charges it", low=0, high=10**9
    )
    unit_bytes: int = parameter(
        1_000_000,
        "bytes",
        "largest piece of a message that is routed as one",
        low=1024,
        high=2**40,
    )
    lanes: int = parameter(
        1, "lanes", "2: priority marking, gradient traffic in the upper lane", low=1, high=2
    )

    def __post_init__(self) -> None:
        check_section("routing", self)
        check_below(self, "routing", "exit_occupancy", "enter_occupancy")
        if self.cold_occupancy > self.enter_occupancy:
            raise PolicyError(
                f"routing.cold_occupancy: {self.cold_occupancy} is above "
                f"routing.enter_occupancy {self.enter_occupancy}"
            )
        check_below(self, "routing", "mark_low_occupancy", "mark_high_occupancy")
        check_below(self, "routing", "probe_interval_ns", "stale_ns")
