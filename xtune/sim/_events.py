"""What happens at a moment inside the kernel: completions, and signals of backpressure."""

from __future__ import annotations

import numba
import numpy as np

from xtune.sim._layout import (
    BACKGROUND,
    BEFORE,
    DONE_AT,
    DT,
    GO_STEPS,
    GOES,
    GOES_SEEN,
    LATE,
    LEFT,
    ON_WHEEL,
    RELEASE,
    RING,
    START,
    STEP,
    STOP_STEPS,
    STOPS,
    STOPS_SEEN,
)


@numba.njit
def stop(cfg, paused, pauses, stopped, q):  # type: ignore[no-untyped-def]
    """A port's lane stands still from now on."""
    paused[q] = 1
    pauses[q] += 1
    stopped[q] -= cfg[STEP]


@numba.njit
def go(cfg, paused, stopped, q):  # type: ignore[no-untyped-def]
    """It sends again."""
    paused[q] = 0
    stopped[q] += cfg[STEP]


@numba.njit
def send_signal(cfg, signals, kind, q):  # type: ignore[no-untyped-def]
    """A switch tells a port to stop (``kind`` 0) or to go (1); it will hear of it."""
    sent, steps = (STOPS, cfg[STOP_STEPS]) if kind == 0 else (GOES, cfg[GO_STEPS])
    row = signals[kind, cfg[sent] % signals.shape[1]]
    row[0], row[1] = cfg[STEP] + steps, q
    cfg[sent] += 1


@numba.njit
def hear(cfg, paused, pauses, stopped, signals):  # type: ignore[no-untyped-def]
    """Signals that reach their ports before this step. A port hears them in their order."""
    room = signals.shape[1]
    while cfg[STOPS_SEEN] < cfg[STOPS]:
        due, q = signals[0, cfg[STOPS_SEEN] % room]
        if due >= cfg[STEP]:
            break
        cfg[STOPS_SEEN] += 1
        stop(cfg, paused, pauses, stopped, q)
    while cfg[GOES_SEEN] < cfg[GOES]:
        due, q = signals[1, cfg[GOES_SEEN] % room]
        if due > cfg[STEP] or paused[q] == 0:  # what stops it is still under way
            break
        cfg[GOES_SEEN] += 1
        go(cfg, paused, stopped, q)


@numba.njit
def through(flow_f, ended, port, f, tier, at_ns, line_ns):  # type: ignore[no-untyped-def]
    """Bytes leave a port on the way down, where flows of fewer and of more links meet.

    As at a receiver the link has one time; what a flow's clock is behind it, the flow keeps.
    ``at_ns``: when by its clock it would be complete with these bytes; ``line_ns``: their time.
    """
    late = flow_f[f, LATE + tier]
    end = max(at_ns + late, ended[port] + line_ns)
    ended[port] = end
    flow_f[f, LATE + tier - 1] = end - at_ns


@numba.njit
def complete(cfg, flow_u, flow_i, flow_f, after_at, after, wheel, f, at_ns):  # type: ignore[no-untyped-def]
    """Note the completion; put successors whose last predecessor this was on the wheel."""
    flow_f[f, DONE_AT] = at_ns
    if flow_u[f, BACKGROUND] == 0:
        cfg[LEFT] -= 1
    for k in range(after_at[f], after_at[f + 1]):
        s = after[k]
        flow_u[s, BEFORE] -= 1
        if flow_u[s, BEFORE] == 0:
            due_ns = max(at_ns + flow_i[s, RELEASE], np.float64(flow_i[s, START]))
            due = max(np.int64(np.ceil(due_ns / cfg[DT])), cfg[STEP] + 1)
            slot = due % len(wheel)
            flow_u[s, RING] = wheel[slot]
            wheel[slot] = s
            cfg[ON_WHEEL] += 1
