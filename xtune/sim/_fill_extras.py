"""The arrays of shared buffers, marks, rates and faults: filled from a phase's arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.sim import _extras as x
from xtune.sim import _layout as k
from xtune.sim.congestion import Dcqcn, Fault, Nscc, SharedBuffer, rate_changes
from xtune.sim.fabric import PACKET_BYTES, Backpressure

if TYPE_CHECKING:
    from xtune.sim._state import State

I64 = NDArray[np.int64]
# Modes whose paths are connections of their own: bytes of two of them have no order to lose.
_TIMEOUT_NS = 1_000_000  # where nothing is lost; no notice should be missed
LEAST_STEPS = 4  # of a round trip, below which rounding holds a lone sender with a window back
_OF_THEIR_OWN = ("binary", "flowlet", "power_of_two", "switch_adaptive")


def unused() -> x.Extras:
    """Arrays that the kernel never touches."""
    line, table = np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
    return x.Extras(
        cfg=line, real=np.zeros(1), pool=line, used=line, owner=line, far=line,
        down=np.zeros(1, dtype=np.uint8), queue=table, flow=table, pace=np.zeros((1, 1)),
        window=np.zeros((1, 1)),
        acks=np.zeros((1, 1, 1, 1)), notes=table, notices=line, timers=line, changes=table,
        health=table, kept=np.zeros(1),
        shares=np.zeros((1, 1)), lost=np.zeros((1, 1), dtype=np.uint8),
    )  # fmt: skip


def fill_extras(
    state: State,
    *,
    pfc: Backpressure,
    shared_buffer: SharedBuffer | None,
    rate_control: Dcqcn | Nscc | None,
    faults: Sequence[Fault],
    in_order: bool,
) -> x.Extras:
    """The arrays for a phase whose other arrays are filled.

    Args:
        state: The phase.
        pfc: Flow control.
        shared_buffer: Of every switch.
        rate_control: Marks and senders' rates.
        faults: Of ports.
        in_order: Receivers take bytes in order alone, of fabrics that lose nothing too.

    Raises:
        UsageError: what does not fit together.
    """
    _check(state, pfc, shared_buffer, in_order)
    if isinstance(rate_control, Nscc):
        _check_windows(state, shared_buffer, pfc, in_order)
    fabric, n = state.fabric, len(state.flows)
    owner, far = _switches(state)
    between = fabric.ports - 2 * fabric.hosts
    lanes, rows = int(state.cfg[k.LANES]), len(state.pending)
    cfg = _parameters(state, pfc, shared_buffer, rate_control)
    if in_order and not cfg[x.LOSSY]:
        cfg[x.GO_BACK_N], cfg[x.TIMEOUT_STEPS] = 1, math.ceil(_TIMEOUT_NS / state.dt_ns)
    flow = np.zeros((n, x.FLOW_SIZE), dtype=np.int64)
    way_ns = state.links_on_path * fabric.link_latency_ns
    flow[:, x.BACK] = np.maximum(1, np.ceil(way_ns / state.dt_ns))
    for column in (x.NOTICE, x.TIMER, x.CNP_DUE, x.ALPHA_AT):
        flow[:, column] = x.NONE
    flow[:, x.CNP_SENT] = -cfg[x.CNP_NS]
    back = int(flow[:, x.BACK].max())
    waits = _longest_wait(state, pfc, far) if in_order and not cfg[x.LOSSY] else 0
    window = _windows(state, rate_control)
    slots = max(int(window[:, x.ACK_STEPS].max()), 2 * back) + 2
    pace = np.zeros((n, x.PACE_SIZE))
    line = fabric.payload_rates()[state.flows.src]
    pace[:, x.RATE] = pace[:, x.TARGET] = pace[:, x.LINE] = line
    pace[:, x.ALPHA] = 1.0  # as the first notice finds it
    return x.Extras(
        cfg=cfg,
        real=_gains(state, shared_buffer, rate_control),
        pool=_pools(state, pfc, shared_buffer, far, int(owner.max()) + 1),
        used=np.zeros(int(owner.max()) + 1, dtype=np.int64),
        owner=owner,
        far=far,
        down=np.zeros(fabric.ports, dtype=np.uint8),
        queue=np.zeros((lanes * fabric.ports, x.QUEUE_SIZE), dtype=np.int64),
        flow=flow,
        pace=pace,
        window=window,
        acks=np.zeros((len(window), slots, 3, x.ACK_SIZE)),
        notes=np.zeros((len(state.nodes) // k.NODE_SIZE, x.NOTE_SIZE), dtype=np.int64),
        notices=np.full(2 * back + 2 + waits, x.NONE, dtype=np.int64),
        timers=np.full(int(cfg[x.TIMEOUT_STEPS]) + back + 2, x.NONE, dtype=np.int64),
        changes=rate_changes(faults, state.rate, state.dt_ns),
        health=np.zeros((between, x.HEALTH_SIZE), dtype=np.int64),
        kept=np.full(lanes * between, np.nan),
        shares=np.full((rows, lanes * between), np.nan),
        lost=np.zeros((rows, between), dtype=np.uint8),
    )


def _longest_wait(state: State, pfc: Backpressure, far: I64) -> int:
    """Steps that full queues of a way back between switches hold a refusal, at most."""
    most = int(np.bincount(far).max()) * pfc.xoff_bytes  # by a switch's inputs, all of one port
    return math.ceil(3 * most / int(state.rate[state.rate > 0].min()))


def _check(state: State, pfc: Backpressure, shared: SharedBuffer | None, in_order: bool) -> None:
    if in_order and (state.routing.mode in _OF_THEIR_OWN[:-1] or pfc.kind == "none"):
        raise UsageError(
            f"in_order is for one connection over a lossless fabric, not {state.routing.mode!r} "
            f"with {pfc.kind!r}",
            "static, spray or switch_adaptive with pfc or credit; SharedBuffer.recovery else",
        )
    if shared is None:
        return
    if shared.queue_bytes is not None and pfc.kind != "none":
        raise UsageError(
            f"queue_bytes is for switches that drop, not with {pfc.kind!r}", "pfc='none', or None"
        )
    if shared.headroom_bytes is not None and pfc.kind != "pfc":
        raise UsageError(f"headroom_bytes is for pauses, not for {pfc.kind!r}", "pfc, or None")
    if pfc.kind == "credit":
        raise UsageError("credits reserve buffers, they share none", "give pfc or none")
    if (
        pfc.kind == "none"
        and shared.recovery == "go_back_n"
        and state.routing.mode in _OF_THEIR_OWN
    ):
        raise UsageError(
            f"go_back_n needs bytes in order, mode {state.routing.mode!r} sends by several paths",
            "take recovery='selective'",
        )


def _check_windows(
    state: State, shared: SharedBuffer | None, pfc: Backpressure, in_order: bool
) -> None:
    goes_back = shared is not None and pfc.kind == "none" and shared.recovery == "go_back_n"
    if in_order or goes_back:
        raise UsageError(
            "NSCC's senders send again what was lost, no more",
            "SharedBuffer(recovery='selective'), without in_order",
        )
    wire_ns = 2 * int(state.links_on_path.max()) * state.fabric.link_latency_ns
    if wire_ns < LEAST_STEPS * state.dt_ns:
        raise UsageError(
            f"steps of {state.dt_ns} ns are too long for windows over {wire_ns} ns there and back",
            f"{wire_ns // LEAST_STEPS} ns or less",
        )


def _parameters(
    state: State, pfc: Backpressure, shared: SharedBuffer | None, rates: Dcqcn | Nscc | None
) -> I64:
    cfg = np.zeros(x.CFG_SIZE, dtype=np.int64)
    cfg[x.STRIKES], cfg[x.READMIT] = state.routing.strikes, state.routing.readmit_answers
    if shared is not None:
        cfg[x.POOLED], cfg[x.LOSSY] = 1, pfc.kind == "none"
        cfg[x.GO_BACK_N] = cfg[x.LOSSY] and shared.recovery == "go_back_n"
        cfg[x.TIMEOUT_STEPS] = math.ceil(shared.timeout_ns / state.dt_ns)
        cfg[x.MOST_QUEUED] = shared.queue_bytes or shared.bytes_per_switch
    if rates is not None:
        cfg[x.MARKING] = 1
        cfg[x.KMIN], cfg[x.KMAX] = rates.kmin_bytes, rates.kmax_bytes
    if isinstance(rates, Nscc):
        cfg[x.WINDOWED] = 1
        cfg[x.ACK_BYTES], cfg[x.QA_SHIFT] = rates.ack_bytes, rates.adapt_shift
    if isinstance(rates, Dcqcn):
        cfg[x.CNP_NS], cfg[x.ALPHA_NS] = rates.cnp_interval_ns, rates.alpha_timer_ns
        cfg[x.INCREASE_NS], cfg[x.COUNTER] = rates.increase_timer_ns, rates.byte_counter
        cfg[x.RECOVERY] = rates.fast_recovery
    return cfg


def _gains(
    state: State, shared: SharedBuffer | None, rates: Dcqcn | Nscc | None
) -> NDArray[np.float64]:
    real, routing = np.zeros(x.REAL_SIZE), state.routing
    real[x.MARK_LOW], real[x.MARK_HIGH] = routing.mark_low_occupancy, routing.mark_high_occupancy
    real[x.MARK_TOP] = routing.mark_top_share
    real[x.SHARE] = shared.alpha if shared is not None else 0.0
    if isinstance(rates, Nscc):
        real[x.PMAX], real[x.AVERAGE], real[x.LEAST] = 1.0, rates.average, PACKET_BYTES
        real[x.TARGET_NS], real[x.CLEAR_NS] = rates.target_ns, rates.clear_ns
        real[x.CUT], real[x.LEAST_LEFT] = rates.cut, rates.least_left
        # Of the specification, for 12 us at 100 Gb/s: packets, and a target of the same 12 us.
        real[x.FAIR] = 5.0 * PACKET_BYTES * rates.scale
        real[x.PROPORTION] = 4.0 * PACKET_BYTES * rates.scale / 12_000
        real[x.STEADY] = 0.15 * PACKET_BYTES * rates.scale
        real[x.FAST_SHARE] = 0.25 * rates.scale
    if isinstance(rates, Dcqcn):
        payload = PACKET_BYTES / (PACKET_BYTES + state.fabric.header_bytes)
        real[x.PMAX], real[x.GAIN] = rates.pmax, rates.gain
        real[x.ADDITIVE] = rates.additive_gbps / 8 * payload  # bytes per ns
        real[x.HYPER] = rates.hyper_gbps / 8 * payload
        real[x.LEAST] = rates.least_gbps / 8 * payload
    return real


def _windows(state: State, rates: Dcqcn | Nscc | None) -> NDArray[np.float64]:
    """The windows of senders that have sent nothing; without them a row that is never touched."""
    if not isinstance(rates, Nscc):
        return np.zeros((1, x.WINDOW_SIZE))
    fabric, links = state.fabric, state.links_on_path
    window = np.zeros((len(state.flows), x.WINDOW_SIZE))
    line = fabric.payload_rates()[state.flows.src]
    window[:, x.WAY] = state.flow_f[:, k.EXTRA] + (links - 1) * state.dt_ns
    back = links * fabric.link_latency_ns  # an acknowledgement passes what is queued
    window[:, x.RTT] = window[:, x.WAY] + PACKET_BYTES / line + back
    window[:, x.MOST] = window[:, x.CWND] = rates.window_rtts * window[:, x.RTT] * line
    if window[:, x.MOST].min() < PACKET_BYTES:
        raise UsageError(
            f"a window of {window[:, x.MOST].min():.0f} B holds no packet", "larger window_rtts"
        )
    # The way there takes a step a link but the first; the rest of the round trip is the way back.
    window[:, x.ACK_STEPS] = np.maximum(1, np.rint(window[:, x.RTT] / state.dt_ns) - (links - 1))
    window[:, x.SEEN_STEP] = -1.0
    return window


def _pools(
    state: State, pfc: Backpressure, shared: SharedBuffer | None, far: I64, count: int
) -> I64:
    """Bytes of each switch that its queues share: what headroom leaves."""
    if shared is None:
        return np.zeros(count, dtype=np.int64)
    pool = np.full(count, shared.bytes_per_switch, dtype=np.int64)
    if pfc.kind == "pfc":
        told_ns = pfc.signal_ns if pfc.signal_ns is not None else state.fabric.link_latency_ns
        under_way = (told_ns + state.fabric.link_latency_ns) / state.dt_ns
        headroom = under_way * state.rate + state.rate
        each = np.ceil(headroom).astype(np.int64) + 2 * PACKET_BYTES
        if shared.headroom_bytes is not None:
            each[:] = shared.headroom_bytes
        np.subtract.at(pool, far, each * int(state.cfg[k.LANES]))
        if pool[:-1].min() < 1:
            needed = shared.bytes_per_switch - int(pool[:-1].min())
            raise UsageError(
                f"{shared.bytes_per_switch} B a switch do not hold {needed} B of headroom",
                "a larger shared buffer, or less headroom_bytes",
            )
    return pool


def _switches(state: State) -> tuple[I64, I64]:
    """The switch that holds each port's queue, and the one it leads to.

    Hosts count as one switch more, the last.
    """
    ends = state.fabric.port_ends()
    ends = np.where(ends < 0, ends.max() + 1, ends)
    return np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])
