"""The stepped kernel: FIFO fragments on a lossless leaf-spine, compiled by numba.

One call of ``advance`` runs whole steps until the phase ends. In a step each directed port sends
what its rate allows from the head of its queue, the tiers nearest the receivers first, so that a
fragment makes one hop a step. All byte counts are integers: what was sent is delivered or in a
queue, exactly. Fragments are nodes of linked lists in one pool: a whole fragment moves by
re-linking, only a split takes a new node, and no queue can overflow.

The decision arithmetic is not written here: the functions of the engine (``policies/_core.py``)
are compiled as they are.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from xtune.policies import _core

# What a call of ``advance`` ends with.
DONE, LIMIT, GROW, STUCK = 0, 1, 2, 3
STATIC, BINARY, SPRAY, POWER_OF_TWO = 0, 1, 2, 3
READING, EWMA, SLOPE, HOLT = 0, 1, 2, 3
NO_BACKPRESSURE, PFC, CREDIT = 0, 1, 2

NIL = np.uint32(0xFFFFFFFF)

# cfg: int64 parameters, then the state that outlives a call.
(
    HOSTS, LEAVES, SPINES, LANES, PORTS, DT, LIMIT_STEP, KIND, XOFF, XON, BUFFER, PACKET, MODE,
    FORECAST, WINDOW, HORIZON, HOLD, UNIT, PROBE_STEPS, DELAY_STEPS, MAX_RATE, SEGMENTS,
    STEP, FREE, FRESH, LIVE, ACTIVE, LEFT, WAITING_START, ON_WHEEL, READINGS, SAMPLES, STAMP,
    CFG_SIZE,
) = range(34)  # fmt: skip
# real: float64 parameters.
LEVEL_GAIN, SLOPE_GAIN, ENTER, EXIT, COLD, MOVES_PER_MS, REAL_SIZE = range(7)
# A fragment: four uint32. The tag holds the spine (upper half) and the segment slot (lower).
FLOW, BYTES, NEXT, TAG, NODE_SIZE = range(5)
# flow_u: uint32 columns, one cache line a flow.
SRC, DST, SRC_LEAF, DST_LEAF, PRIMARY, ALTERNATIVE, PATH, RING, LANE, BACKGROUND, BEFORE = range(
    11
)
FLOW_U = 16
# flow_i: int64 columns.
(
    SIZE, TO_SEND, DELIVERED, UNIT_LEFT, MOVED_AT, MOVES, HELD, PREFIX, FIRST, LAST, START,
    RELEASE,
) = range(12)  # fmt: skip
FLOW_I = 16
# flow_f: float64 columns.
DONE_AT, RELEASED_AT, BUDGET, EXTRA, FLOW_F = range(5)
# links: float64 columns.
LEVEL, RISE, PEAK, LINK_SIZE = range(4)
BINS = 64  # of an occupancy histogram; one more holds what is above the buffer

_holt: Callable[..., Any] = numba.njit(_core.holt_update)
_ewma: Callable[..., Any] = numba.njit(_core.ewma_update)
_window_slope: Callable[..., Any] = numba.njit(_core.window_slope)
_peak: Callable[..., Any] = numba.njit(_core.forecast_peak)
_choose: Callable[..., Any] = numba.njit(_core.choose_binary)
_refill: Callable[..., Any] = numba.njit(_core.budget_refill)
MOVE_BURST = _core.MOVE_BURST


@numba.njit
def _random(rng, below):  # type: ignore[no-untyped-def]
    """SplitMix64 (Steele, Lea, Flood 2014), reduced to 0..below-1 by its upper 32 bits."""
    rng[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(((z >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32))


@numba.njit
def _take(cfg, nodes):  # type: ignore[no-untyped-def]
    """A free node: the one freed last, else a fresh one."""
    cfg[LIVE] += 1
    node = np.uint32(cfg[FREE])
    if node == NIL:
        node = np.uint32(cfg[FRESH])
        cfg[FRESH] += NODE_SIZE
    else:
        cfg[FREE] = nodes[node + NEXT]
    return node


@numba.njit
def _give(cfg, nodes, node):  # type: ignore[no-untyped-def]
    nodes[node + NEXT] = np.uint32(cfg[FREE])
    cfg[FREE] = node
    cfg[LIVE] -= 1


@numba.njit
def _push(nodes, head, tail, queue, node):  # type: ignore[no-untyped-def]
    nodes[node + NEXT] = NIL
    if head[queue] == NIL:
        head[queue] = node
    else:
        nodes[tail[queue] + NEXT] = node
    tail[queue] = node


@numba.njit
def _arrive(cfg, resident, paused, pauses, stopped, queue, size):  # type: ignore[no-untyped-def]
    """Bytes that came through ``queue`` are resident downstream; stop it above Xoff."""
    resident[queue] += size
    if cfg[KIND] == PFC and resident[queue] > cfg[XOFF] and paused[queue] == 0:
        paused[queue] = 1
        pauses[queue] += 1
        stopped[queue] -= cfg[STEP]


@numba.njit
def _leave(cfg, resident, paused, stopped, queue, size):  # type: ignore[no-untyped-def]
    resident[queue] -= size
    if paused[queue] == 1 and resident[queue] < cfg[XON]:
        paused[queue] = 0
        stopped[queue] += cfg[STEP]


@numba.njit
def _activate(cfg, flow_u, flow_f, active, counts, f):  # type: ignore[no-untyped-def]
    """Append a released flow to the round of its host and lane."""
    a = flow_u[f, SRC] * cfg[LANES] + flow_u[f, LANE]
    last = active[a]
    if last == NIL:
        flow_u[f, RING] = f
    else:
        flow_u[f, RING] = flow_u[last, RING]
        flow_u[last, RING] = f
    active[a] = f
    counts[a] += 1
    cfg[ACTIVE] += 1
    flow_f[f, RELEASED_AT] = cfg[STEP] * cfg[DT]


@numba.njit
def _complete(cfg, flow_u, flow_i, flow_f, after_at, after, wheel, f, at_ns):  # type: ignore[no-untyped-def]
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


@numba.njit
def _in_order(flow_i, segments, f, slot, size):  # type: ignore[no-untyped-def]
    """Follow the contiguous prefix of a flow whose segments took different paths.

    Each segment is in order (one path, FIFO), so the prefix ends in the first segment that is
    not complete; what is delivered beyond it waits in the receiver's reorder buffer.
    """
    width = segments.shape[1]
    segments[f, slot, 0] -= size
    segments[f, slot, 1] += size
    if slot == flow_i[f, FIRST] % width:
        flow_i[f, PREFIX] += size
    while flow_i[f, FIRST] < flow_i[f, LAST] and segments[f, flow_i[f, FIRST] % width, 0] == 0:
        flow_i[f, FIRST] += 1
        flow_i[f, PREFIX] += segments[f, flow_i[f, FIRST] % width, 1]
    held = flow_i[f, DELIVERED] - flow_i[f, PREFIX]
    flow_i[f, HELD] = max(flow_i[f, HELD], held)


@numba.njit
def _path_peak(cfg, links, lane, leaf, spine, to_leaf):  # type: ignore[no-untyped-def]
    """Forecast of a path: the worse of its uplink and its downlink."""
    both = cfg[LEAVES] * cfg[SPINES]
    up = links[lane * 2 * both + leaf * cfg[SPINES] + spine, PEAK]
    down = links[lane * 2 * both + both + spine * cfg[LEAVES] + to_leaf, PEAK]
    return down if down > up else up


@numba.njit
def _start_unit(cfg, real, rng, flow_u, flow_i, flow_f, links, segments, f):  # type: ignore[no-untyped-def]
    """The path of a flow's next unit, decided as it is enqueued."""
    flow_i[f, UNIT_LEFT] = cfg[UNIT]
    mode = cfg[MODE]
    lane, leaf, to_leaf = flow_u[f, LANE], flow_u[f, SRC_LEAF], flow_u[f, DST_LEAF]
    if mode == STATIC or leaf == to_leaf:
        return
    if flow_i[f, LAST] - flow_i[f, FIRST] + 1 >= segments.shape[1]:
        return  # the receiver's reorder window is full: no new path now
    old = np.int64(flow_u[f, PATH])
    new = old
    if mode == BINARY:
        now = cfg[STEP] * cfg[DT]
        first = np.int64(flow_u[f, PRIMARY])
        second = np.int64(flow_u[f, ALTERNATIVE])
        since = now - flow_i[f, MOVED_AT]
        if _choose(
            _path_peak(cfg, links, lane, leaf, first, to_leaf),
            _path_peak(cfg, links, lane, leaf, second, to_leaf),
            old != first,
            real[ENTER],
            real[EXIT],
            real[COLD],
            since,
            cfg[HOLD],
            _refill(flow_f[f, BUDGET], since, real[MOVES_PER_MS], MOVE_BURST),
        ):
            new = second
        else:
            new = first
        if new != old:
            saved = _refill(flow_f[f, BUDGET], since, real[MOVES_PER_MS], MOVE_BURST)
            flow_f[f, BUDGET] = saved - 1.0
            flow_i[f, MOVED_AT] = now
    elif mode == SPRAY:
        new = _random(rng, cfg[SPINES])
    else:
        new = _random(rng, cfg[SPINES])
        other = _random(rng, cfg[SPINES])
        if _path_peak(cfg, links, lane, leaf, other, to_leaf) < _path_peak(
            cfg, links, lane, leaf, new, to_leaf
        ):
            new = other
    if new != old:
        flow_u[f, PATH] = new
        if flow_i[f, TO_SEND] < flow_i[f, SIZE]:
            width = segments.shape[1]
            flow_i[f, MOVES] += 1
            flow_i[f, LAST] += 1
            slot = flow_i[f, LAST] % width
            segments[f, slot, 0] = 0
            segments[f, slot, 1] = 0
            if segments[f, (flow_i[f, LAST] - 1) % width, 0] == 0:
                while (
                    flow_i[f, FIRST] < flow_i[f, LAST]
                    and segments[f, flow_i[f, FIRST] % width, 0] == 0
                ):
                    flow_i[f, FIRST] += 1
                    flow_i[f, PREFIX] += segments[f, flow_i[f, FIRST] % width, 1]


@numba.njit
def _probe(cfg, real, queued, links, pending, window, times, hist):  # type: ignore[no-untyped-def]
    """Read every leaf-spine queue; older readings reach the deciders after their delay."""
    step, every = cfg[STEP], cfg[PROBE_STEPS]
    first = cfg[HOSTS]
    both = 2 * cfg[LEAVES] * cfg[SPINES]
    scale = 1.0 / cfg[BUFFER]
    if step % every == 0:
        row = (step // every) % pending.shape[0]
        cfg[SAMPLES] += 1
        for k in range(both):
            total = 0.0
            for lane in range(cfg[LANES]):
                # A lower lane waits for the upper one, not the other way round.
                total += queued[lane * cfg[PORTS] + first + k] * scale
                pending[row, lane * both + k] = min(total, 1.0)
            hist[k, min(np.int64(total * BINS), BINS)] += 1
    seen = step - cfg[DELAY_STEPS]
    if seen >= 0 and seen % every == 0 and cfg[MODE] != STATIC:
        row = (seen // every) % pending.shape[0]
        gap = every * cfg[DT] if seen > 0 else 0
        width = window.shape[1]
        slot = cfg[READINGS] % width
        cfg[READINGS] += 1
        count = min(cfg[READINGS], width)
        times[slot] = seen * cfg[DT]
        kind = cfg[FORECAST]
        for k in range(both * cfg[LANES]):
            reading = pending[row, k]
            level, rise = reading, 0.0
            if kind == HOLT:
                level, rise = _holt(
                    links[k, LEVEL], links[k, RISE], reading, gap,
                    real[LEVEL_GAIN], real[SLOPE_GAIN],
                )  # fmt: skip
            elif kind == EWMA:
                level = _ewma(links[k, LEVEL], reading, real[LEVEL_GAIN])
            elif kind == SLOPE:
                window[k, slot] = reading
                rise = _window_slope(window[k], times, count)
            links[k, LEVEL] = level
            links[k, RISE] = rise
            links[k, PEAK] = _peak(level, rise, cfg[HORIZON])


def _compile(stamp: int) -> Callable[..., int]:
    """Compile ``advance``; ``stamp`` is a closure variable, so it is part of numba's cache key."""
    u8, u32, i64, f64 = numba.uint8, numba.uint32, numba.int64, numba.float64
    signature = i64(
        i64[::1], f64[::1], numba.uint64[::1], i64[::1],  # cfg real rng rate
        u32[::1], u32[::1], i64[::1], i64[::1],  # head tail queued resident
        u8[::1], i64[::1], i64[::1],  # paused pauses stopped
        u32[::1], u32[:, ::1], i64[:, ::1], f64[:, ::1],  # nodes flow_u flow_i flow_f
        i64[::1], u32[::1], u32[::1], i64[::1],  # after_at after starts start_step
        u32[::1], u32[::1], i64[::1],  # wheel active counts
        f64[:, ::1], f64[:, ::1], f64[:, ::1], i64[::1],  # links pending window times
        i64[:, :, ::1], i64[:, ::1],  # segments hist
    )  # fmt: skip

    def advance(  # type: ignore[no-untyped-def]
        cfg, real, rng, rate, head, tail, queued, resident, paused, pauses, stopped, nodes,
        flow_u, flow_i, flow_f, after_at, after, starts, start_step, wheel, active, counts,
        links, pending, window, times, segments, hist,
    ):  # fmt: skip
        cfg[STAMP] = stamp
        hosts, leaves, spines = cfg[HOSTS], cfg[LEAVES], cfg[SPINES]
        ports, lanes, dt, mode = cfg[PORTS], cfg[LANES], cfg[DT], cfg[MODE]
        first_up, first_down = hosts, hosts + leaves * spines
        first_out = first_down + leaves * spines
        credit = cfg[KIND] == CREDIT
        while cfg[STEP] < cfg[LIMIT_STEP]:
            step = cfg[STEP]
            # Splits take one node a queue; injections are bounded by flows that end, units that
            # end and packets that fit.
            need = (
                lanes * ports
                + cfg[ACTIVE]
                + lanes * hosts * (2 * (cfg[MAX_RATE] // cfg[PACKET]) + 3)
            )
            room_left = len(nodes) // NODE_SIZE - cfg[LIVE]
            slot = step % len(wheel)
            f = wheel[slot]
            wheel[slot] = NIL
            while f != NIL:
                following = flow_u[f, RING]
                _activate(cfg, flow_u, flow_f, active, counts, f)
                cfg[ON_WHEEL] -= 1
                need += 1
                f = following
            while cfg[WAITING_START] < len(starts) and (start_step[cfg[WAITING_START]] <= step):
                _activate(cfg, flow_u, flow_f, active, counts, starts[cfg[WAITING_START]])
                cfg[WAITING_START] += 1
                need += 1
            if room_left < need:
                return GROW
            _probe(cfg, real, queued, links, pending, window, times, hist)
            if cfg[LIVE] == 0 and cfg[ACTIVE] == 0:
                if cfg[ON_WHEEL] == 0 and cfg[WAITING_START] == len(starts):
                    return STUCK
                cfg[STEP] += 1
                continue
            for tier in range(3):
                if tier == 0:
                    low, high = first_out, ports
                elif tier == 1:
                    low, high = first_down, first_out
                else:
                    low, high = first_up, first_down
                for p in range(low, high):
                    budget = rate[p]
                    for lane in range(lanes):
                        q = lane * ports + p
                        node = head[q]
                        if node == NIL or paused[q] == 1:
                            continue
                        room = budget
                        if credit and tier > 0:
                            room = min(room, cfg[XOFF] - resident[q])
                        while node != NIL and room > 0:
                            f = nodes[node + FLOW]
                            size = np.int64(nodes[node + BYTES])
                            tag = nodes[node + TAG]
                            following = nodes[node + NEXT]
                            moved = node
                            if size > room:
                                nodes[node + BYTES] = size - room
                                size = room
                                moved = _take(cfg, nodes)
                                nodes[moved + FLOW] = f
                                nodes[moved + BYTES] = size
                                nodes[moved + TAG] = tag
                            else:
                                head[q] = following
                                node = following
                            room -= size
                            budget -= size
                            queued[q] -= size
                            spine = np.int64(tag >> np.uint32(16))
                            came = np.int64(flow_u[f, SRC])
                            if tier == 0:
                                if flow_u[f, SRC_LEAF] != flow_u[f, DST_LEAF]:
                                    came = first_down + spine * leaves + flow_u[f, DST_LEAF]
                            elif tier == 1:
                                came = first_up + flow_u[f, SRC_LEAF] * spines + spine
                            _leave(cfg, resident, paused, stopped, lane * ports + came, size)
                            if tier == 0:
                                _give(cfg, nodes, moved)
                                flow_i[f, DELIVERED] += size
                                if mode != STATIC:
                                    _in_order(
                                        flow_i, segments, f,
                                        np.int64(tag & np.uint32(0xFFFF)), size,
                                    )  # fmt: skip
                                if flow_i[f, DELIVERED] == flow_i[f, SIZE]:
                                    part = (rate[p] - budget) / rate[p]
                                    at_ns = (step + part) * dt + flow_f[f, EXTRA]
                                    _complete(
                                        cfg, flow_u, flow_i, flow_f, after_at, after, wheel,
                                        f, at_ns,
                                    )  # fmt: skip
                            else:
                                if tier == 1:
                                    to = first_out + np.int64(flow_u[f, DST])
                                else:
                                    to = first_down + spine * leaves + flow_u[f, DST_LEAF]
                                to += lane * ports
                                _arrive(cfg, resident, paused, pauses, stopped, q, size)
                                queued[to] += size
                                _push(nodes, head, tail, to, moved)
            for host in range(hosts):
                budget = rate[host]
                for lane in range(lanes):
                    a = host * lanes + lane
                    if counts[a] == 0 or paused[lane * ports + host] == 1:
                        continue
                    q = lane * ports + host
                    room = budget
                    if credit:
                        room = min(room, cfg[XOFF] - resident[q])
                    share = max((room + counts[a] - 1) // counts[a], cfg[PACKET])
                    while room > 0 and counts[a] > 0:
                        last = active[a]
                        f = flow_u[last, RING]
                        if flow_i[f, UNIT_LEFT] == 0:
                            _start_unit(cfg, real, rng, flow_u, flow_i, flow_f, links, segments, f)
                        size = min(min(share, room), min(flow_i[f, TO_SEND], flow_i[f, UNIT_LEFT]))
                        room -= size
                        budget -= size
                        flow_i[f, TO_SEND] -= size
                        flow_i[f, UNIT_LEFT] -= size
                        spine = np.int64(flow_u[f, PATH])
                        tag = np.uint32(spine << 16)
                        if mode != STATIC:
                            slot = flow_i[f, LAST] % segments.shape[1]
                            segments[f, slot, 0] += size
                            tag |= np.uint32(slot)
                        if flow_u[f, SRC_LEAF] == flow_u[f, DST_LEAF]:
                            to = first_out + np.int64(flow_u[f, DST])
                        else:
                            to = first_up + flow_u[f, SRC_LEAF] * spines + spine
                        to += lane * ports
                        moved = _take(cfg, nodes)
                        nodes[moved + FLOW] = f
                        nodes[moved + BYTES] = size
                        nodes[moved + TAG] = tag
                        _arrive(cfg, resident, paused, pauses, stopped, q, size)
                        queued[to] += size
                        _push(nodes, head, tail, to, moved)
                        if flow_i[f, TO_SEND] > 0:
                            active[a] = f
                            continue
                        counts[a] -= 1
                        cfg[ACTIVE] -= 1
                        if f == last:
                            active[a] = NIL
                        else:
                            flow_u[last, RING] = flow_u[f, RING]
            cfg[STEP] += 1
            if cfg[LEFT] == 0:
                return DONE
        return LIMIT

    compiled: Callable[..., int] = numba.njit(signature, cache=True)(advance)
    return compiled


def _digest() -> int:
    """Number of the decision arithmetic: numba does not notice a change of another file."""
    return zlib.crc32(inspect.getsource(_core).encode())


advance = _compile(_digest())
