"""The policy: every parameter of routing, compression, period, safety and bus, with its unit.

A policy is data (``policy.json``); :mod:`.presets` names some. Validation is strict: an unknown
field, a wrong type or a value out of range is refused, naming the field.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """Path choice, decided per unit of at most ``unit_bytes`` from readings in memory."""

    mode: str = "binary"  # static | binary | spray | power_of_two
    forecast: str = "holt"  # reading | ewma | slope | holt
    window_readings: int = 5  # N of the last-N slope; Holt needs two
    level_gain: float = 0.5  # alpha, 0..1
    slope_gain: float = 0.3  # beta, 0..1
    horizon_ns: int = 200_000  # founding document R2: 200 us
    enter_occupancy: float = 0.7  # a forecast at or above it is a warning
    exit_occupancy: float = 0.5  # back on the primary below it (hysteresis)
    cold_occupancy: float = 0.4  # founding document R3: an alternative must be under 40 %
    hold_ns: int = 20_000  # minimum time on a path after a move
    moves_per_ms: float = 10.0  # move budget of one flow
    strikes: int = 3  # founding document N4: timeouts in a row that blacklist a path
    readmit_answers: int = 5  # good probes in a row that re-admit it
    probe_interval_ns: int = 10_000
    decision_delay_ns: int = 10_000  # founding document R5: at most 10 us
    unit_bytes: int = 1_000_000
    lanes: int = 1  # 2: priority marking, gradient traffic in the upper lane


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One level of compression: bits near the input and at the head; 16 means bf16, not quantised."""

    name: str
    bits_input: int
    bits_head: int


DEFAULT_LADDER = (
    Rung(name="off", bits_input=16, bits_head=16),
    Rung(name="q8", bits_input=8, bits_head=8),
    Rung(name="q4_8", bits_input=4, bits_head=8),
    Rung(name="q4", bits_input=4, bits_head=4),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """What is sent in place of the gradient."""

    mode: str = "quantise"  # off | quantise | drop
    ladder: tuple[Rung, ...] = DEFAULT_LADDER  # least to most compression
    rung_by_level: tuple[int, int, int, int] = (1, 2, 2, 3)  # ladder index for congestion 0..3
    head_share: float = 0.35  # share of elements, from the head down, that get bits_head
    block: int = 256  # elements that share a scale
    warmup_iterations: int = 200  # bf16 before this iteration
    curvature_gain: float = 1.0  # 0: curvature is ignored
    curvature_limit: float = 1.0  # relative change of the gradient that holds a rung back
    error_feedback: bool = True
    residual_decay: float = 0.5  # beta: share of the residual carried into the next round
    dense_below_elements: int = 4096  # smaller tensors travel in bf16
    drop_keep_share: float = 0.35  # mode drop: share of elements kept, largest magnitude


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """The regulation period T."""

    iterations: int = 200  # founding document L3


@dataclass(frozen=True, kw_only=True, slots=True)
class Safety:
    """Safety retreat (founding document L4)."""

    iterations: int = 10  # in a row under the gate
    gate: float = 0.0  # least relative decrease of the smoothed loss per iteration
    smoothing: float = 0.2  # weight of the newest loss
    hold_periods: int = 2  # periods before the ratio may rise again
    reserve_step: float = 0.1  # bandwidth share that routing is asked to reserve more


@dataclass(frozen=True, kw_only=True, slots=True)
class Bus:
    """What routing and compression tell each other, and how it becomes a congestion level."""

    enter_slowdown: tuple[float, float, float] = (1.15, 1.5, 2.5)  # measured / modelled comm time
    exit_slowdown: tuple[float, float, float] = (1.05, 1.3, 2.0)
    smoothing: float = 0.3  # weight of the newest communication time
    bandwidth_margin: float = 0.9  # share of the estimate that compression may plan with


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A whole policy. ``provenance`` says where it is from and what it is expected to give."""

    name: str = "joint"
    routing: Routing = field(default_factory=Routing)
    compression: Compression = field(default_factory=Compression)
    period: Period = field(default_factory=Period)
    safety: Safety = field(default_factory=Safety)
    bus: Bus = field(default_factory=Bus)
    provenance: dict[str, object] = field(default_factory=dict)
