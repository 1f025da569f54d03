"""The numbers that decide what counts as congestion; all of them may be tuned."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from xtune.errors import UsageError

Levels = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRules:
    """Thresholds and lengths of ``rebuild``; the defaults are the contract's.

    A port rises to level k when any signal reaches its k-th ``enter`` threshold and falls below k
    when every known signal is under its k-th ``exit`` threshold; in between it stays as it was.

    Attributes:
        enter_wait: Share of time with data that could not be sent (or PFC pause), levels 1 to 3.
        exit_wait: Same, for falling.
        enter_marks: ECN marks and CNPs, as a share of full-size packets at the port's data rate.
        exit_marks: Same, for falling.
        enter_discards: Packets dropped per second.
        exit_discards: Same, for falling.
        report_level: Episodes are stretches at this level or above.
        min_length_s: Shorter stretches are not reported.
        min_samples: Nor are stretches of fewer congested intervals.
        max_gap_s: Stretches no further apart than this are one; unknown for longer ends one.
        busy_utilization: A port sending at this share of its data rate counts as saturated.
        sick_errors_per_s: A receiver with this many errors per second makes its link sick.
        context_s: How far around an episode a port is watched to tell a root from a port that is
            just as busy while nobody waits.
        alike: Stretches of ports that are not neighbours, or of one host's ports, belong together
            when they agree in time to this degree (shared time over the time of either).
        rival: Of several ports that may be the reason of a wait, those that agree with it in
            time to this share of the best one's degree are reasons too.
        explains: A port that agrees less is a reason if it alone accounts for this share of it.
        siblings_busy: Where this share of the ports that could have carried a saturated port's
            traffic is saturated too, the load is too much for all: overload, no collision.
    """

    enter_wait: Levels = (0.02, 0.15, 0.5)
    exit_wait: Levels = (0.01, 0.10, 0.35)
    enter_marks: Levels = (0.001, 0.01, 0.1)
    exit_marks: Levels = (0.0005, 0.005, 0.05)
    enter_discards: Levels = (1.0, 100.0, 10_000.0)
    exit_discards: Levels = (0.5, 50.0, 5_000.0)
    report_level: int = 2
    min_length_s: float = 2.0
    min_samples: int = 2
    max_gap_s: float = 10.0
    busy_utilization: float = 0.9
    sick_errors_per_s: float = 0.2
    context_s: float = 60.0
    alike: float = 0.7
    rival: float = 0.75
    explains: float = 0.2
    siblings_busy: float = 0.5

    def __post_init__(self) -> None:
        for signal in ("wait", "marks", "discards"):
            enter: Levels = getattr(self, f"enter_{signal}")
            leave: Levels = getattr(self, f"exit_{signal}")
            for name, values in ((f"enter_{signal}", enter), (f"exit_{signal}", leave)):
                if len(values) != 3 or not 0 < values[0] <= values[1] <= values[2]:
                    raise UsageError(f"{name} must be three rising positive numbers: {values}")
            if any(low > high for low, high in zip(leave, enter, strict=True)):
                raise UsageError(f"exit_{signal} must not be above enter_{signal}")
        for name, value in asdict(self).items():
            numbers = value if isinstance(value, tuple) else (value,)
            if not all(math.isfinite(number) for number in numbers):
                raise UsageError(f"{name} must be a finite number, not {value}")
        if self.report_level not in (1, 2, 3):
            raise UsageError(f"report_level must be 1, 2 or 3, not {self.report_level}")
        if self.min_samples < 1:
            raise UsageError(f"min_samples must be at least 1, not {self.min_samples}")
        for name in ("min_length_s", "max_gap_s", "context_s"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative")
        for name in ("busy_utilization", "alike", "rival", "explains", "siblings_busy"):
            if not 0 < getattr(self, name) <= 1:
                raise UsageError(f"{name} must be in (0, 1], not {getattr(self, name)}")

    def to_json(self) -> dict[str, Any]:
        """JSON object; part of what a derived partition is computed from."""
        return asdict(self)
