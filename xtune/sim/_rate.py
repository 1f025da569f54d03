"""Senders' rates inside the kernel: DCQCN (Zhu et al., SIGCOMM 2015, section 5).

Timers are looked at when a flow's turn to send comes, which is once a step while it can send.
"""

from __future__ import annotations

import numba
import numpy as np

from xtune.sim import _window
from xtune.sim._extras import (
    ADDITIVE,
    ALPHA,
    ALPHA_AT,
    ALPHA_NS,
    BYTE_STAGE,
    CNP_DUE,
    CNP_NS,
    CNP_SENT,
    COUNTED,
    COUNTER,
    FLIGHT,
    GAIN,
    HYPER,
    INCREASE_NS,
    LEAST,
    LINE,
    MARKING,
    NONE,
    RATE,
    RECOVERY,
    RISE_AT,
    SEEN_AT,
    TARGET,
    TIME_STAGE,
    TOKENS,
    WINDOWED,
)

ANY = 2**62  # bytes: no limit


@numba.njit
def take_mark(ex, f, now_ns, back_ns):  # type: ignore[no-untyped-def]
    """A marked packet reached the receiver: it tells the sender, not too often."""
    if now_ns - ex.flow[f, CNP_SENT] >= ex.cfg[CNP_NS]:
        ex.flow[f, CNP_SENT] = now_ns
        if ex.flow[f, CNP_DUE] == NONE:
            ex.flow[f, CNP_DUE] = now_ns + back_ns


@numba.njit
def _cut(ex, f, at_ns):  # type: ignore[no-untyped-def]
    """The sender hears of a mark."""
    pace, flow, gain = ex.pace, ex.flow, ex.real[GAIN]
    if flow[f, ALPHA_AT] == NONE:
        flow[f, SEEN_AT] = at_ns
    pace[f, TARGET] = pace[f, RATE]
    pace[f, RATE] = max(pace[f, RATE] * (1.0 - pace[f, ALPHA] / 2.0), ex.real[LEAST])
    pace[f, ALPHA] = (1.0 - gain) * pace[f, ALPHA] + gain
    flow[f, ALPHA_AT] = flow[f, RISE_AT] = at_ns
    flow[f, TIME_STAGE] = flow[f, BYTE_STAGE] = flow[f, COUNTED] = 0


@numba.njit
def _rise(ex, f):  # type: ignore[no-untyped-def]
    """One stage up: back to the target, then beyond it slowly, then faster.

    The stages are those before this one: ``fast_recovery`` of them return to the target.
    """
    pace, stages = ex.pace, ex.cfg[RECOVERY]
    by_time, by_bytes = ex.flow[f, TIME_STAGE], ex.flow[f, BYTE_STAGE]
    if min(by_time, by_bytes) > stages:
        pace[f, TARGET] += (min(by_time, by_bytes) - stages) * ex.real[HYPER]
    elif max(by_time, by_bytes) >= stages:
        pace[f, TARGET] += ex.real[ADDITIVE]
    pace[f, TARGET] = min(pace[f, TARGET], pace[f, LINE])
    pace[f, RATE] = (pace[f, TARGET] + pace[f, RATE]) / 2.0


@numba.njit
def allowance(ex, f, now_ns, dt_ns, least):  # type: ignore[no-untyped-def]
    """Bytes that the flow's rate lets go now; 0 while they make no packet (``least``)."""
    if ex.cfg[MARKING] == 0:
        return ANY
    if ex.cfg[WINDOWED] == 1:
        return _window.room(ex, f, now_ns // dt_ns, dt_ns, least)
    flow, pace = ex.flow, ex.pace
    if flow[f, CNP_DUE] != NONE and flow[f, CNP_DUE] <= now_ns:
        flow[f, CNP_DUE] = NONE
        _cut(ex, f, now_ns)
    if flow[f, ALPHA_AT] == NONE:
        return ANY  # no mark yet
    while now_ns - flow[f, ALPHA_AT] >= ex.cfg[ALPHA_NS]:
        flow[f, ALPHA_AT] += ex.cfg[ALPHA_NS]
        pace[f, ALPHA] *= 1.0 - ex.real[GAIN]
    while now_ns - flow[f, RISE_AT] >= ex.cfg[INCREASE_NS]:
        flow[f, RISE_AT] += ex.cfg[INCREASE_NS]
        _rise(ex, f)
        flow[f, TIME_STAGE] += 1
    waited = now_ns - flow[f, SEEN_AT]
    flow[f, SEEN_AT] = now_ns
    # What could not go for want of the port is not saved up, but for a step's and a packet's.
    most = pace[f, RATE] * dt_ns + 2.0 * least
    pace[f, TOKENS] = min(pace[f, TOKENS] + pace[f, RATE] * waited, most)
    return np.int64(pace[f, TOKENS]) if pace[f, TOKENS] >= least else 0


@numba.njit
def spend(ex, f, size):  # type: ignore[no-untyped-def]
    """Count what the flow sent."""
    if ex.cfg[WINDOWED] == 1:
        ex.window[f, FLIGHT] += size
    if ex.cfg[MARKING] == 0 or ex.flow[f, ALPHA_AT] == NONE:
        return
    ex.pace[f, TOKENS] -= size
    ex.flow[f, COUNTED] += size
    while ex.flow[f, COUNTED] >= ex.cfg[COUNTER]:
        ex.flow[f, COUNTED] -= ex.cfg[COUNTER]
        _rise(ex, f)
        ex.flow[f, BYTE_STAGE] += 1
