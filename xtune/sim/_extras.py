"""Where the figures of shared buffers, marks, senders' rates and faults lie.

A phase without any of these gets arrays of one element, which the kernel then never touches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

NONE = -1  # no flow, no step
# cfg: int64.
(
    LOSSY, POOLED, GO_BACK_N, TIMEOUT_STEPS, MARKING, KMIN, KMAX, CNP_NS, ALPHA_NS,
    INCREASE_NS, COUNTER, RECOVERY, NEXT_CHANGE, STRIKES, READMIT, WINDOWED, MOST_QUEUED,
    ACK_BYTES, QA_SHIFT, CFG_SIZE,
) = range(20)  # fmt: skip
# real: float64.
(
    SHARE, PMAX, GAIN, ADDITIVE, HYPER, LEAST, MARK_LOW, MARK_HIGH, MARK_TOP, TARGET_NS, CLEAR_NS,
    FAIR, PROPORTION, STEADY, FAST_SHARE, CUT, LEAST_LEFT, AVERAGE, REAL_SIZE,
) = range(19)  # fmt: skip
# flow: int64 columns. SENT counts all bytes that left; OWED those to be sent again, ahead of new
# ones. LOST waits for its notice, LATER for the one after it. Where nothing is lost but receivers
# refuse bytes: what the first and the last refusal under way say was taken, and one; TOLD when the
# last is heard. Links of lists: NOTICE, TIMER.
(
    SENT, RESENT, OWED, FURTHEST, DROPPED, DISCARDED, LOST, LATER, TOLD, HEARD_AT, ARMED, BACK,
    NOTICE, TIMER, CNP_DUE, CNP_SENT, ALPHA_AT, RISE_AT, TIME_STAGE, BYTE_STAGE, COUNTED, SEEN_AT,
    FLOW_SIZE,
) = range(23)  # fmt: skip
# pace: float64 columns of a flow; rates in bytes per ns.
RATE, TARGET, ALPHA, TOKENS, LINE, PACE_SIZE = range(6)
# window: float64 columns of a flow under NSCC; bytes, ns. FLIGHT is sent and not acknowledged;
# UNTOLD came and is not acknowledged; WAY and RTT are those without queues.
(
    CWND, MOST, FLIGHT, UNTOLD, WAY, RTT, MEAN_DELAY, INCREASE, COME, ACHIEVED, ADAPT_AT, CLEAR,
    FAST, CUT_AT, ADJUSTED_AT, IGNORED, TO_IGNORE, LOSS_SEEN, ACK_STEPS, SEEN_STEP, WINDOW_SIZE,
) = range(21)  # fmt: skip
# acks: float64, by flow, step in which they come, and kind; then columns.
PLAIN, MARKED_ONES, TRIMMED = range(3)
ACKS, ACKED, DELAYS, ACK_SIZE = range(4)
# queue: int64 columns of a port's lane. PART of a packet; CAME is what came in the step
# CAME_AT; READ_* as of the last reading.
(
    PACKETS, PART, MARKED, MARKED_BYTES, DROPS, CAME, CAME_AT, READ_PACKETS, READ_MARKED,
    QUEUE_SIZE,
) = range(10)  # fmt: skip
# health: int64 columns of a port between switches.
LOSSES, ANSWERS, OUT, HEALTH_SIZE = range(4)
# notes: int64 columns of a fragment. OFFSET of its first byte in its flow; MARKS on its packets;
# SENT_AT when its last byte left its host, ns; ASKS for its acknowledgement at once.
OFFSET, MARKS, SENT_AT, ASKS, NOTE_SIZE = range(5)
# changes: int64 columns.
CHANGE_STEP, CHANGE_PORT, CHANGE_RATE = range(3)


class Extras(NamedTuple):
    """The arrays, as the kernel takes them.

    Attributes:
        cfg: Parameters and what outlives a call.
        real: Parameters.
        pool: Bytes of each switch that its queues share; one more element stands for all hosts.
        used: Bytes in them.
        owner: Switch in which each port's queue lies.
        far: Switch to which each port leads.
        down: Ports whose link is down.
        queue: Counts of each port's lane.
        flow: State of each flow.
        pace: Rates of each flow.
        window: Windows of each flow.
        acks: Acknowledgements on their way to each flow's sender.
        notes: What a fragment carries beside its bytes; as many rows as nodes.
        notices: Wheel of flows whose sender is about to hear of a loss.
        timers: Wheel of flows whose sender waits for an acknowledgement.
        changes: When ports change their rate.
        health: Strikes of each port between switches.
        kept: Last forecast of each such port's lane whose probe was answered.
        shares: Share of packets with a mark by reading and lane of a port; NaN: probe lost.
        lost: Probes lost by reading and port.
    """

    cfg: I64
    real: F64
    pool: I64
    used: I64
    owner: I64
    far: I64
    down: NDArray[np.uint8]
    queue: I64
    flow: I64
    pace: F64
    window: F64
    acks: F64
    notes: I64
    notices: I64
    timers: I64
    changes: I64
    health: I64
    kept: F64
    shares: F64
    lost: NDArray[np.uint8]


def numba_type() -> numba.types.Type:
    """The type of ``Extras`` for a compiled signature."""
    i64, f64, u8 = numba.int64, numba.float64, numba.uint8
    line, table = i64[::1], i64[:, ::1]
    kinds = {
        "cfg": line, "real": f64[::1], "pool": line, "used": line, "owner": line, "far": line,
        "down": u8[::1], "queue": table, "flow": table, "pace": f64[:, ::1],
        "window": f64[:, ::1], "acks": f64[:, :, :, ::1], "notes": table,
        "notices": line, "timers": line, "changes": table, "health": table, "kept": f64[::1],
        "shares": f64[:, ::1], "lost": u8[:, ::1],
    }  # fmt: skip
    named: Callable[..., numba.types.Type] = numba.types.NamedTuple
    return named([kinds[name] for name in Extras._fields], Extras)
