"""The routing half's voice on the congestion bus: the engine's own router, fed from a phase."""

from __future__ import annotations

from xtune.policies.bus import Bus
from xtune.policies.router import Router
from xtune.policies.spec import Policy

# A router has seen thousands of readings since the last regulation; after eight, at the default
# gains, less than half a percent of an older level is left.
READINGS = 8
ENDS = ("job", "job")
PATH = "path in use"


class RoutingSide:
    """Tells the bus what the job's paths look like, as a router beside the job would.

    One path stands for all: the best path of the worst pair of leaves, which is what routing
    leaves to the slowest flow.

    Args:
        policy: The policy.
        bus: The controller's.
        gbps: Rate of a link.
    """

    def __init__(self, policy: Policy, bus: Bus, gbps: float) -> None:
        self._interval_ns = policy.routing.probe_interval_ns
        self._router = Router({ENDS: [[PATH]]}, policy, bus, link_gbps=gbps)

    def tell(self, occupancy: float, at_s: float) -> None:
        """Readings of one phase, then a snapshot on the bus.

        Args:
            occupancy: Median queue of that path over the phase, 0..1.
            at_s: When the phase ended.
        """
        at_ns = round(at_s * 1e9)
        for _ in range(READINGS):
            at_ns += self._interval_ns
            self._router.observe(PATH, occupancy=occupancy, error_rate=0.0, at_ns=at_ns)
            self._router.choose((*ENDS, 0), at_ns=at_ns)
        self._router.publish(at_ns)
