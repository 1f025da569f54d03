"""The stepped kernel: FIFO fragments on a lossless leaf-spine, compiled by numba.

One call of ``advance`` runs whole steps until the phase ends. In a step each directed port sends
what its rate allows from the head of its queue, the tiers nearest the receivers first, so that a
fragment makes one hop a step. All byte counts are integers: what was sent is delivered or in a
queue, exactly. Fragments are nodes of linked lists in one pool: a whole fragment moves by
re-linking, only a split takes a new node, and no queue can overflow.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from functools import cache

import numba
import numpy as np

from xtune.policies import _core
from xtune.sim import _buffers, _choices, _events, _extras, _layout, _rate, _routes, _window
from xtune.sim._buffers import (
    admit,
    begin_step,
    draw_marks,
    join_round,
    note_sent,
    pause_above,
    probe_more,
    receive,
    resume_below,
    split_note,
)
from xtune.sim._choices import draw, in_order, probe, start_unit
from xtune.sim._events import complete, go, hear, send_signal, stop, through
from xtune.sim._layout import (
    ACTIVE,
    BYTES,
    CREDIT,
    DELIVERED,
    DONE,
    DST,
    DST_LEAF,
    DT,
    EXTRA,
    FLOW,
    FREE,
    FRESH,
    GO_STEPS,
    GROW,
    HOSTS,
    KIND,
    LANES,
    LAST,
    LATE,
    LEAVES,
    LEFT,
    LIMIT,
    LIMIT_STEP,
    LIVE,
    MAX_RATE,
    MODE,
    NEXT,
    NIL,
    NODE_SIZE,
    ON_WHEEL,
    PACKET,
    PATH,
    PFC,
    PORTS,
    RELEASED_AT,
    RING,
    ROW,
    SIZE,
    SLOT_AT,
    SLOT_MASK,
    SPINE_AT,
    SPINES,
    SRC,
    SRC_LEAF,
    STAMP,
    STATIC,
    STEP,
    STOP_STEPS,
    STUCK,
    SWITCH,
    TAG,
    TICK,
    TICK_MASK,
    TICKS,
    TO_SEND,
    TURN,
    UNIT_LEFT,
    WAITING_START,
    XOFF,
    XON,
)
from xtune.sim._rate import allowance
from xtune.sim._routes import links_left, next_port, previous_port


@numba.njit
def _activate(cfg, ends, flow_u, flow_f, active, counts, f):  # type: ignore[no-untyped-def]
    """Let a released flow send."""
    join_round(cfg, ends, flow_u, active, counts, f)
    flow_f[f, RELEASED_AT] = cfg[STEP] * cfg[DT]


def _compile(stamp: int, by_table: bool, extras: bool) -> Callable[..., int]:
    """Compile ``advance``; closure variables are constants to it and part of numba's cache key.

    Args:
        stamp: Changes with the sources.
        by_table: Ports follow from a table of routes, not from leaf and spine.
        extras: There are shared buffers, marks, senders' rates or faults.
    """
    u8, u16, u32, i64, f64 = numba.uint8, numba.uint16, numba.uint32, numba.int64, numba.float64
    signature = i64(
        i64[::1], f64[::1], numba.uint64[::1], i64[::1],  # cfg real rng rate
        u32[::1], u32[::1], i64[::1], i64[::1],  # head tail queued resident
        u8[::1], i64[::1], i64[::1],  # paused pauses stopped
        u8[::1], i64[:, :, ::1],  # asked signals
        u32[::1], u16[:, ::1],  # nodes ends
        u32[:, ::1], i64[:, ::1], f64[:, ::1],  # flow_u flow_i flow_f
        i64[::1], u32[::1], u32[::1], i64[::1],  # after_at after starts start_step
        u32[::1], u32[::1], i64[::1],  # wheel active counts
        f64[:, ::1], f64[:, ::1], f64[:, ::1], i64[::1],  # links pending window times
        i64[:, :, ::1], i64[:, ::1],  # segments hist
        u32[:, ::1], i64[:, ::1], f64[::1],  # paths pairs budgets
        f64[::1], u32[:, ::1], i64[::1],  # ended route first
        _extras.numba_type(),
    )  # fmt: skip

    def advance(  # type: ignore[no-untyped-def]
        cfg, real, rng, rate, head, tail, queued, resident, paused, pauses, stopped,
        asked, signals, nodes, ends,
        flow_u, flow_i, flow_f, after_at, after, starts, start_step, wheel, active, counts,
        links, pending, window, times, segments, hist, paths, pairs, budgets, ended,
        route, first, ex,
    ):  # fmt: skip
        cfg[STAMP] = stamp
        hosts, leaves, spines = cfg[HOSTS], cfg[LEAVES], cfg[SPINES]
        ports, lanes, dt, mode = cfg[PORTS], cfg[LANES], cfg[DT], cfg[MODE]
        first_up, first_down, first_out = hosts, hosts + leaves * spines, ports - hosts
        stages = len(first) - 3  # of ports between switches
        # Unsigned twins for port numbers in the hot loop: a signed index is tested for wrapping.
        up_0, down_0, out_0 = np.uintp(first_up), np.uintp(first_down), np.uintp(first_out)
        spines_u, leaves_u = np.uintp(spines), np.uintp(leaves)
        credit, pfc = cfg[KIND] == CREDIT, cfg[KIND] == PFC
        xoff, xon, packet = cfg[XOFF], cfg[XON], cfg[PACKET]
        fills = extras and ex.cfg[_extras.LOSSY] == 1
        # Splits take one node a queue; injections are bounded by flows that end, units that end
        # and packets that fit.
        margin = lanes * ports + lanes * hosts * (2 * (cfg[MAX_RATE] // packet) + 3)
        free, fresh, live = np.uint32(cfg[FREE]), np.uint32(cfg[FRESH]), cfg[LIVE]
        status = LIMIT
        while cfg[STEP] < cfg[LIMIT_STEP]:
            step = cfg[STEP]
            at = step % len(wheel)
            f = wheel[at]
            wheel[at] = NIL
            while f != NIL:
                following = flow_u[f, RING]
                _activate(cfg, ends, flow_u, flow_f, active, counts, f)
                cfg[ON_WHEEL] -= 1
                f = following
            while cfg[WAITING_START] < len(starts) and (start_step[cfg[WAITING_START]] <= step):
                _activate(cfg, ends, flow_u, flow_f, active, counts, starts[cfg[WAITING_START]])
                cfg[WAITING_START] += 1
            if pfc and cfg[STOP_STEPS] > 0:
                hear(cfg, paused, pauses, stopped, signals)
            if extras:
                begin_step(cfg, rate, ends, flow_u, flow_i, active, counts, ex)
            if len(nodes) // NODE_SIZE - live < margin + cfg[ACTIVE]:
                status = GROW
                break
            probe(cfg, real, queued, links, pending, window, times, hist)
            if extras:
                probe_more(cfg, links, ex)
            if live == 0 and cfg[ACTIVE] == 0:
                if cfg[ON_WHEEL] == 0 and cfg[WAITING_START] == len(starts):
                    status = STUCK
                    break
                cfg[STEP] += 1
                continue
            for tier in range(stages + 1):
                stage = stages + 1 - tier
                low, high = first[stage], first[stage + 1]
                shift = draw(rng, high - low) if extras and fills else 0
                for p in range(low, high):
                    if extras:  # who comes first to a full buffer changes
                        p = low + (p - low + shift) % (high - low)
                    port = np.uintp(p)
                    if lanes == 1 and head[port] == NIL:
                        continue
                    budget = rate[port]
                    clock = 0.0
                    for lane in range(lanes):
                        q = np.uintp(lane * ports + p)
                        node = head[q]
                        if node == NIL or paused[q] == 1:
                            continue
                        room = budget
                        if credit and tier > 0:
                            room = min(room, xoff - resident[q])
                        before, gone = room, 0
                        base, pace = np.uintp(lane * ports), 1.0 / rate[port]
                        while node != NIL and room > 0:
                            size = np.int64(nodes[node + BYTES])
                            moved = node
                            f = nodes[node + FLOW]
                            tag = nodes[node + TAG]
                            spine = np.uintp(tag >> SPINE_AT)
                            if size > room:
                                nodes[node + BYTES] = size - room
                                size = room
                                if free == NIL:
                                    moved = fresh
                                    fresh += np.uint32(NODE_SIZE)
                                else:
                                    moved = free
                                    free = nodes[free + NEXT]
                                live += 1
                                nodes[moved + FLOW] = f
                                nodes[moved + BYTES] = size
                                if extras:
                                    whole = size + np.int64(nodes[node + BYTES])
                                    split_note(ex, node, moved, size, whole)
                            else:
                                node = nodes[node + NEXT]
                            room -= size
                            if extras and ex.cfg[_extras.WINDOWED] == 1:
                                behind = queued[q] - (before - room)
                                draw_marks(cfg, ex, rng, behind, q, moved, size)
                            # When in the step its last byte leaves: after those before it, and
                            # not before it came.
                            came_in = np.float64(tag & TICK_MASK) * TICK
                            clock = max(clock + size * pace, came_in)
                            if by_table:
                                row = flow_u[f, ROW] + np.uint32(spine)
                                came = base + previous_port(route, row, stage, ends[f, SRC])
                            elif tier == 1:
                                came = base + up_0 + ends[f, SRC_LEAF] * spines_u + spine
                            elif tier == 2 or ends[f, SRC_LEAF] == ends[f, DST_LEAF]:
                                came = base + ends[f, SRC]
                            else:
                                came = base + down_0 + spine * leaves_u + ends[f, DST_LEAF]
                            left = resident[came] - size
                            resident[came] = left
                            until = xon
                            if extras and asked[came] == 1:
                                until = resume_below(cfg, ex, came)
                            if left < until and asked[came] == 1:
                                asked[came] = 0
                                if cfg[GO_STEPS] == 0 and paused[came] == 1:
                                    go(cfg, paused, stopped, came)
                                else:
                                    send_signal(cfg, signals, 1, came)
                            if tier == 0:
                                nodes[moved + NEXT] = free
                                free = moved
                                live -= 1
                                # Flows of two and of four hops keep steps that lie differently
                                # in time. The link has one time: bytes after bytes.
                                at_ns = (step + clock) * dt + flow_f[f, EXTRA]
                                if by_table:
                                    at_ns += flow_f[f, LATE]
                                at_ns = max(at_ns, ended[port] + size * pace * dt)
                                ended[port] = at_ns
                                if extras:
                                    slot = np.int64((tag >> SLOT_AT) & SLOT_MASK)
                                    size = receive(
                                        cfg, ex, queued, rate, ends, flow_u, flow_i, segments,
                                        p, f, moved, slot, size, at_ns,
                                    )  # fmt: skip
                                    if size == 0:
                                        continue
                                flow_i[f, DELIVERED] += size
                                if mode != STATIC:
                                    slot = np.int64((tag >> SLOT_AT) & SLOT_MASK)
                                    in_order(flow_i, segments, f, slot, size)
                                if flow_i[f, DELIVERED] == flow_i[f, SIZE]:
                                    complete(
                                        cfg, flow_u, flow_i, flow_f, after_at, after, wheel,
                                        f, at_ns,
                                    )  # fmt: skip
                            else:
                                if by_table:
                                    out = first_out + ends[f, DST]
                                    to = base + next_port(route, row, stage, out)
                                    if tier < stages // 2:
                                        at_ns = step + clock + links_left(route, row, stage)
                                        at_ns = at_ns * dt + flow_f[f, EXTRA]
                                        through(
                                            flow_f, ended, port, f, tier, at_ns, size * pace * dt
                                        )
                                elif tier == 1:
                                    to = base + out_0 + ends[f, DST]
                                else:
                                    to = base + down_0 + spine * leaves_u + ends[f, DST_LEAF]
                                if extras:
                                    slot = np.int64((tag >> SLOT_AT) & SLOT_MASK)
                                    whole = size
                                    size = admit(
                                        cfg, ex, rng, queued, segments, p, to, f, moved, slot,
                                        whole,
                                    )  # fmt: skip
                                    gone += whole - size
                                    if size == 0:
                                        nodes[moved + NEXT] = free
                                        free = moved
                                        live -= 1
                                        continue
                                    nodes[moved + BYTES] = size
                                ticks = np.uint32(min(clock * TICKS + 1.0, TICKS))
                                nodes[moved + TAG] = (tag & ~TICK_MASK) | ticks
                                queued[to] += size
                                nodes[moved + NEXT] = NIL
                                if head[to] == NIL:
                                    head[to] = moved
                                else:
                                    nodes[tail[to] + NEXT] = moved
                                tail[to] = moved
                        head[q] = node
                        done = before - room
                        budget -= done
                        queued[q] -= done
                        if extras:
                            ex.used[ex.owner[p]] -= done
                        if tier > 0:
                            resident[q] += done - gone
                            if (
                                pfc
                                and resident[q] > (pause_above(cfg, ex, q) if extras else xoff)
                                and asked[q] == 0
                            ):
                                asked[q] = 1
                                if cfg[STOP_STEPS] == 0:
                                    stop(cfg, paused, pauses, stopped, q)
                                else:
                                    send_signal(cfg, signals, 0, q)
            shift = draw(rng, hosts) if extras and fills else 0
            for host in range(hosts):
                if extras:
                    host = (host + shift) % hosts
                if lanes == 1 and counts[np.uintp(host)] == 0:
                    continue
                budget = rate[np.uintp(host)]
                clock, pace = 0.0, 1.0 / budget
                for lane in range(lanes):
                    a = np.uintp(host * lanes + lane)
                    q = np.uintp(lane * ports + host)
                    if counts[a] == 0 or paused[q] == 1:
                        continue
                    room = budget
                    if credit:
                        room = min(room, xoff - resident[q])
                    before, gone, waiting = room, 0, 0
                    share = max((room + counts[a] - 1) // counts[a], packet)
                    while room > 0 and counts[a] > 0:
                        last = active[a]
                        f = flow_u[last, RING]
                        may = room
                        if extras:
                            least = min(packet, flow_i[f, TO_SEND])
                            if flow_i[f, UNIT_LEFT] > 0:  # a packet that is begun is ended
                                least = min(least, flow_i[f, UNIT_LEFT])
                            may = allowance(ex, f, step * dt, dt, least)
                            if may == 0:
                                active[a] = f
                                waiting += 1
                                if waiting >= counts[a]:
                                    break
                                continue
                            waiting = 0
                        if flow_i[f, UNIT_LEFT] == 0 or mode == SWITCH:
                            start_unit(
                                cfg, real, rng, ends, flow_u, flow_i, links, segments, paths,
                                pairs, budgets, route, ex.down, f,
                            )  # fmt: skip
                        # A turn cut short by the end of a step goes on in the next one.
                        turn = flow_i[f, TURN]
                        if turn == 0 or counts[a] == 1:
                            turn = share
                        size = min(min(turn, room), min(flow_i[f, TO_SEND], flow_i[f, UNIT_LEFT]))
                        if extras:
                            size = min(size, may)
                        room -= size
                        clock = min(clock + size * pace, 1.0)
                        flow_i[f, TO_SEND] -= size
                        flow_i[f, UNIT_LEFT] -= size
                        flow_i[f, TURN] = turn - size if flow_i[f, UNIT_LEFT] > 0 else 0
                        if free == NIL:
                            moved = fresh
                            fresh += np.uint32(NODE_SIZE)
                        else:
                            moved = free
                            free = nodes[free + NEXT]
                        live += 1
                        spine = np.uintp(flow_u[f, PATH])
                        base = np.uintp(lane * ports)
                        tag = np.uint32(spine << SPINE_AT)
                        tag |= np.uint32(min(clock * TICKS + 1.0, TICKS))
                        if mode != STATIC:
                            slot = flow_i[f, LAST] % segments.shape[1]
                            segments[f, slot, 0] += size
                            tag |= np.uint32(slot) << SLOT_AT
                        nodes[moved + FLOW] = f
                        nodes[moved + BYTES] = size
                        nodes[moved + NEXT] = NIL
                        nodes[moved + TAG] = tag
                        if by_table:
                            row = flow_u[f, ROW] + np.uint32(spine)
                            to = base + next_port(route, row, 0, first_out + ends[f, DST])
                        elif ends[f, SRC_LEAF] == ends[f, DST_LEAF]:
                            to = base + out_0 + ends[f, DST]
                        else:
                            to = base + up_0 + ends[f, SRC_LEAF] * spines_u + spine
                        if extras:
                            slot = np.int64((tag >> SLOT_AT) & SLOT_MASK)
                            whole = size
                            note_sent(cfg, ex, flow_i, f, moved, whole, (step + clock) * dt)
                            size = admit(
                                cfg, ex, rng, queued, segments, host, to, f, moved, slot, whole
                            )
                            gone += whole - size
                            nodes[moved + BYTES] = size
                        if extras and size == 0:
                            nodes[moved + NEXT] = free
                            free = moved
                            live -= 1
                        else:
                            queued[to] += size
                            if head[to] == NIL:
                                head[to] = moved
                            else:
                                nodes[tail[to] + NEXT] = moved
                            tail[to] = moved
                        if flow_i[f, TO_SEND] > 0:
                            if flow_i[f, TURN] == 0:
                                active[a] = f
                            continue
                        counts[a] -= 1
                        cfg[ACTIVE] -= 1
                        if f == last:
                            active[a] = NIL
                        else:
                            flow_u[last, RING] = flow_u[f, RING]
                    done = before - room
                    budget -= done
                    resident[q] += done - gone
                    if (
                        pfc
                        and resident[q] > (pause_above(cfg, ex, q) if extras else xoff)
                        and asked[q] == 0
                    ):
                        asked[q] = 1
                        if cfg[STOP_STEPS] == 0:
                            stop(cfg, paused, pauses, stopped, q)
                        else:
                            send_signal(cfg, signals, 0, q)
            cfg[STEP] += 1
            if cfg[LEFT] == 0:
                status = DONE
                break
        cfg[FREE], cfg[FRESH], cfg[LIVE] = free, fresh, live
        return status

    compile_it: Callable[..., Callable[..., Callable[..., int]]] = numba.njit
    try:
        return compile_it(signature, cache=True, error_model="numpy")(advance)
    except RuntimeError:  # no folder for the cache can be written
        return compile_it(signature, error_model="numpy")(advance)


def _digest() -> int:
    """Number of the other files that are compiled: numba notices changes of this one alone."""
    compiled = (
        _core, _buffers, _choices, _events, _extras, _layout, _rate, _routes, _window,
    )  # fmt: skip
    return zlib.crc32("".join(inspect.getsource(m) for m in compiled).encode())


@cache
def stepper(*, by_table: bool, extras: bool) -> Callable[..., int]:
    """The compiled kernel.

    Args:
        by_table: The fabric's ports follow from a table of routes.
        extras: With shared buffers, marks, senders' rates and faults.
    """
    return _compile(_digest(), by_table, extras)
