"""One communication phase on the fabric: flows in, completion times and congestion out.

``run_phase`` is rung A of the simulator. It is exact in bytes and deterministic from its
arguments. Shared buffers with drops, marks with DCQCN, and faults of links are off unless given.
It lies where its physics ends: no NIC or PCIe stalls; within one step a port serves what lay in
its queue at the step's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xtune.policies.spec import Routing
from xtune.sim.congestion import Dcqcn, Fault, Nscc, SharedBuffer
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
        sent_bytes: Bytes that left each source, those sent again too, int64.
        delivered_bytes: Bytes that reached each destination, int64.
        in_fabric_bytes: Bytes in queues at the end; sent = delivered + in_fabric + dropped +
            discarded, exactly.
        dropped_bytes: Bytes that switches dropped; 0 without a shared buffer.
        discarded_bytes: Bytes that came to receivers out of order, or twice, and were not taken.
        retransmitted_bytes: What of each flow's ``sent_bytes`` was sent again, int64.
        port_dropped_bytes: What was dropped on the way into each port's queue, int64.
        marked_bytes: Bytes of packets that each port marked, int64.
        moves: Path changes within each flow, int64.
        reorder_bytes: Most bytes a receiver held back for order, of each flow, int64.
        pauses: Pauses of each directed port (``fabric.port_name``), lanes together, int64.
        paused_ns: Time each port stood paused, lanes together, int64.
        occupancy_p50: Median queue of each port between switches (entry i is port
            ``fabric.hosts + i``), as a share of ``buffer_bytes``, read at the probe interval;
            float64, NaN without a reading.
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
    discarded_bytes: int
    retransmitted_bytes: I64
    port_dropped_bytes: I64
    marked_bytes: I64
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
    shared_buffer: SharedBuffer | None = None,
    rate_control: Dcqcn | Nscc | None = None,
    faults: Sequence[Fault] = (),
    entropies: int = 0,
    in_order: bool = False,
    queue_bands: Sequence[int] = (),
) -> PhaseResult:
    """Run the flows until every foreground flow is delivered.

    Args:
        fabric: The fabric.
        flows: Foreground flows (those marked ``background`` are not waited for).
        routing: Path choice; None means static ECMP. ``unit_bytes`` is the unit of a decision
            in modes ``binary``, ``power_of_two`` and ``flowlet``; ``spray`` decides for each
            packet; in mode ``switch_adaptive`` the leaves decide, for all jobs, with no delay.
            With two ``lanes``, each flow travels in its own; with one, all share it.
            Waiting for others (``yield_ns``), marks and blacklists are not modelled.
        background: More flows, not waited for. Background stays on its primary spine: other
            jobs do not run this engine.
        dt_ns: Step. 1000 is enough for flows of 1 MB and more, 500 for smaller ones.
        seed: Draws spines that are not given, and random choices.
        pfc: Flow control; None means PFC at the default thresholds.
        limit_ns: Stop here and report what is delivered so far.
        shared_buffer: One pool a switch; None means that each queue is as long as it gets.
        rate_control: Marks in the switches and DCQCN or NSCC at the senders; None means line rate.
        faults: Ports that are down or slow for a time.
        entropies: Values that the packets of a flow carry in turn in mode ``spray``, each hashed
            to a path of its own; 0 means that each packet takes any path. No other mode has any.
        in_order: Receivers take bytes in order alone, as RoCE adapters do, and have all from a
            gap on sent again: what a new path of ``switch_adaptive`` or of ``spray`` brings too
            early (in mode ``static`` nothing is). For a fabric that loses nothing; else
            ``SharedBuffer.recovery`` says so.
        queue_bands: Bounds, bytes, of the bands in which ``switch_adaptive`` by queue sees a
            queue, at most three; () means to the byte. Nothing else sees queues in bands.

    Returns:
        The result, in plain numpy.

    Raises:
        UsageError: flows, routing or times that do not fit the fabric; an option that the mode
            or the flow control does not have; flows that wait for each other in a circle.
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
        shared_buffer=shared_buffer,
        rate_control=rate_control,
        faults=faults,
        entropies=entropies,
        in_order=in_order,
        queue_bands=queue_bands,
    )
    state.run()
    return PhaseResult(**state.figures())
