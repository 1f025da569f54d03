"""One communication phase on the fabric: flows in, completion times and congestion out.

``run_phase`` is rung A of the simulator. It is exact in bytes and deterministic from its
arguments. It lies where its physics ends: no DCQCN or ECN rate control, no shared-buffer limit,
no NIC or PCIe stalls; within one step a port serves what lay in its queue at the step's start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xtune.policies.spec import Routing
from xtune.sim.fabric import Backpressure, Fabric
from xtune.sim.flows import Flows, join_flows

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

DEFAULT_LIMIT_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PhaseResult:
    """What happened in a phase. Times count from its start; flows are in the order given.

    With background flows, they follow the foreground ones in every per-flow array.

    Attributes:
        finished: Every foreground flow was delivered before the limit.
        phase_ns: Completion of the last foreground flow; NaN if not finished.
        completion_ns: Last byte at the receiver, float64; NaN if not delivered.
        released_ns: Release of each flow, float64; NaN if never released.
        background: Which flows the phase did not wait for, bool.
        sent_bytes: Bytes that left each source, int64.
        delivered_bytes: Bytes that reached each destination, int64.
        in_fabric_bytes: Bytes in queues at the end; sent = delivered + in_fabric, exactly.
        dropped_bytes: 0: the fabric is lossless.
        moves: Path changes within each flow, int64.
        reorder_bytes: Most bytes a receiver held back for order, of each flow, int64.
        pauses: Pauses of each directed port (see ``fabric``), lanes together, int64.
        paused_ns: Time each port stood paused, lanes together, int64.
        occupancy_p50: Median queue of each uplink, then each downlink, as a share of
            ``buffer_bytes``, read at the probe interval; float64, NaN without a reading.
        occupancy_p99: The same for the 99th percentile. 1.0 stands for 1.0 and above.
        steps: Steps taken.
    """

    finished: bool
    phase_ns: float
    completion_ns: F64
    released_ns: F64
    background: NDArray[np.bool_]
    sent_bytes: I64
    delivered_bytes: I64
    in_fabric_bytes: int
    dropped_bytes: int
    moves: I64
    reorder_bytes: I64
    pauses: I64
    paused_ns: I64
    occupancy_p50: F64
    occupancy_p99: F64
    steps: int


def run_phase(
    fabric: Fabric,
    flows: Flows,
    *,
    routing: Routing | None = None,
    background: Flows | None = None,
    dt_ns: int = 1000,
    seed: int = 0,
    pfc: Backpressure | None = None,
    limit_ns: int = DEFAULT_LIMIT_NS,
) -> PhaseResult:
    """Run the flows until every foreground flow is delivered.

    Args:
        fabric: The fabric.
        flows: Foreground flows (those marked ``background`` are not waited for).
        routing: Path choice; None means static ECMP. ``unit_bytes`` is the unit of a decision
            in modes ``binary``, ``power_of_two`` and ``flowlet``; ``spray`` decides for each
            packet. With two ``lanes``, each flow travels in its own; with one, all share it.
            Waiting for others (``yield_ns``), marks and blacklists are not modelled.
        background: More flows, not waited for. Background stays on its primary spine: other
            jobs do not run this engine.
        dt_ns: Step. 1000 is enough for flows of 1 MB and more, 500 for smaller ones.
        seed: Draws spines that are not given, and random choices.
        pfc: Flow control; None means PFC at the default thresholds.
        limit_ns: Stop here and report what is delivered so far.

    Returns:
        The result, in plain numpy.

    Raises:
        UsageError: flows, routing or times that do not fit the fabric; flows that wait for each
            other in a circle.
    """
    from xtune.sim._state import State  # loads numba, and compiles on first use

    state = State(
        fabric,
        flows if background is None else join_flows(flows, background),
        routing=routing or Routing(mode="static"),
        dt_ns=dt_ns,
        seed=seed,
        pfc=pfc or Backpressure(),
        limit_ns=limit_ns,
    )
    state.run()
    return PhaseResult(**state.figures())
