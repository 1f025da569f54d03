"""Traffic beside data parallel that compute waits for: of tensor, pipeline, expert parallel.

It takes the fabric with the job's routing and meets the same background, but is never compressed.
Where it is in flight, gradient buckets that overlap with compute wait for it (a host sends one
thing at a time), so all of it adds to an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

from xtune.sim.calibration import Calibration

# Parallelism and the pattern of its traffic in :meth:`xtune.sim.network.Network.flows`.
PATTERNS = {"tensor": "ring", "pipeline": "pipeline", "expert": "all_to_all"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """Equal transfers of one kind in every iteration.

    Attributes:
        kind: ``tensor``, ``pipeline`` or ``expert``.
        bytes_per_host: What each host sends in one transfer.
        per_step: Transfers that follow each other in an iteration.
    """

    kind: str
    bytes_per_host: int
    per_step: float

    @property
    def pattern(self) -> str:
        """Pattern of the flows."""
        return PATTERNS[self.kind]


def optional(calibration: Calibration, name: str, default: float) -> float:
    """A parameter that calibrations from telemetry need not have."""
    parameter = calibration.parameters.get(name)
    return default if parameter is None else parameter.value


def traffic_beside(calibration: Calibration) -> tuple[Beside, ...]:
    """What ``<kind>_bytes`` and ``<kind>_per_step`` of a calibration say; nothing by default."""
    found = (
        Beside(
            kind=kind,
            bytes_per_host=round(optional(calibration, f"{kind}_bytes", 0.0)),
            per_step=optional(calibration, f"{kind}_per_step", 0.0),
        )
        for kind in PATTERNS
    )
    return tuple(b for b in found if b.bytes_per_host > 0 and b.per_step > 0)
