"""Shared buffers, drops, retransmission and faults inside the kernel.

Bytes are accounted exactly: what a source sent, first and again, was delivered, is in a queue, was
dropped by a switch or was discarded by a receiver that takes it in order alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from xtune.policies import _core
from xtune.sim import _choices, _rate, _window
from xtune.sim import _extras as x
from xtune.sim import _layout as k

_marked_share: Callable[..., Any] = numba.njit(_core.marked_share)
_with_marks: Callable[..., Any] = numba.njit(_core.with_marks)
_strike: Callable[..., Any] = numba.njit(_core.strike_update)
_INF = float("inf")


@numba.njit
def join_round(cfg, ends, flow_u, active, counts, f):  # type: ignore[no-untyped-def]
    """Append a flow with bytes to send to the round of its host and lane."""
    a = ends[f, k.SRC] * cfg[k.LANES] + flow_u[f, k.LANE]
    last = active[a]
    if last == k.NIL:
        flow_u[f, k.RING] = f
    else:
        flow_u[f, k.RING] = flow_u[last, k.RING]
        flow_u[last, k.RING] = f
    active[a] = f
    counts[a] += 1
    cfg[k.ACTIVE] += 1


@numba.njit
def _await(cfg, ex, wheel, link, f, step):  # type: ignore[no-untyped-def]
    """Put a flow on a wheel."""
    slot = step % len(wheel)
    ex.flow[f, link] = wheel[slot]
    wheel[slot] = f
    cfg[k.ON_WHEEL] += 1


@numba.njit
def _send_again(cfg, ends, flow_u, flow_i, active, counts, f, size):  # type: ignore[no-untyped-def]
    """Give a sender bytes back."""
    idle = flow_i[f, k.TO_SEND] == 0
    flow_i[f, k.TO_SEND] += size
    if idle:
        join_round(cfg, ends, flow_u, active, counts, f)


@numba.njit
def _go_back(cfg, ends, flow_u, flow_i, active, counts, ex, f, taken):  # type: ignore[no-untyped-def]
    """Start again from the first byte that was not taken, as far as the sender knows."""
    back = flow_i[f, k.SIZE] - taken - flow_i[f, k.TO_SEND]
    if back > 0:  # else it has gone back that far already
        ex.flow[f, x.OWED] = ex.flow[f, x.FURTHEST] - taken
        _send_again(cfg, ends, flow_u, flow_i, active, counts, f, back)


@numba.njit
def _way_back_steps(cfg, queued, rate, ends, lane, f):  # type: ignore[no-untyped-def]
    """Steps that a refusal waits in the queues of one way back, as data does.

    Of a leaf-spine; of another fabric the port of the sender's leaf alone is known.
    """
    at, out = lane * cfg[k.PORTS], cfg[k.PORTS] - cfg[k.HOSTS] + np.int64(ends[f, k.SRC])
    steps = queued[at + out] // max(1, rate[out])
    spines, leaves = cfg[k.SPINES], cfg[k.LEAVES]
    near, there = np.int64(ends[f, k.DST_LEAF]), np.int64(ends[f, k.SRC_LEAF])
    if spines > 0 and near != there:
        spine = ((np.int64(f) * 2_654_435_761) >> 16) % spines  # its hash, drawn once
        up = cfg[k.HOSTS] + near * spines + spine
        down = cfg[k.HOSTS] + leaves * spines + spine * leaves + there
        steps += queued[at + up] // max(1, rate[up]) + queued[at + down] // max(1, rate[down])
    return steps


@numba.njit
def _tell_refused(cfg, ex, queued, rate, ends, flow_u, flow_i, f):  # type: ignore[no-untyped-def]
    """A receiver refuses bytes beyond a gap, and tells of all: it cannot know what made it."""
    flow, step = ex.flow, cfg[k.STEP]
    waits = _way_back_steps(cfg, queued, rate, ends, np.int64(flow_u[f, k.LANE]), f)
    due = step + min(flow[f, x.BACK] + waits, len(ex.notices) - 1)
    due = max(due, flow[f, x.TOLD])  # one way, first come
    flow[f, x.TOLD], flow[f, x.LATER] = due, flow_i[f, k.DELIVERED] + 1
    if flow[f, x.LOST] == 0:
        flow[f, x.LOST] = flow[f, x.LATER]
        _await(cfg, ex, ex.notices, x.NOTICE, f, due)


@numba.njit
def _hear_refused(cfg, ends, flow_u, flow_i, active, counts, ex, f):  # type: ignore[no-untyped-def]
    """The sender hears of refused bytes, and in each step until the last refusal is heard.

    What they say lies evenly between the one heard now and the last.
    """
    flow, step = ex.flow, cfg[k.STEP]
    _go_back(cfg, ends, flow_u, flow_i, active, counts, ex, f, flow[f, x.LOST] - 1)
    left = flow[f, x.TOLD] - step
    if left <= 0:
        flow[f, x.LOST] = 0
        return
    flow[f, x.LOST] += (flow[f, x.LATER] - flow[f, x.LOST]) // left
    _await(cfg, ex, ex.notices, x.NOTICE, f, step + 1)


@numba.njit
def begin_step(cfg, rate, ends, flow_u, flow_i, active, counts, ex):  # type: ignore[no-untyped-def]
    """What is due in this step: faults, notices of losses, timeouts."""
    step, flow = cfg[k.STEP], ex.flow
    while (
        ex.cfg[x.NEXT_CHANGE] < len(ex.changes)
        and ex.changes[ex.cfg[x.NEXT_CHANGE], x.CHANGE_STEP] <= step
    ):
        port, new = ex.changes[ex.cfg[x.NEXT_CHANGE], 1], ex.changes[ex.cfg[x.NEXT_CHANGE], 2]
        loses = ex.cfg[x.LOSSY] == 1 and port >= cfg[k.HOSTS]
        ex.down[port] = new == 0
        if new > 0 or not loses:
            rate[port] = new
        ex.cfg[x.NEXT_CHANGE] += 1
    slot = step % len(ex.notices)
    f, ex.notices[slot] = ex.notices[slot], x.NONE
    while f != x.NONE:
        following = flow[f, x.NOTICE]
        cfg[k.ON_WHEEL] -= 1
        if ex.cfg[x.WINDOWED] == 1:  # of each loss in its own step
            lost = _window.take_loss(ex, f, step, cfg[k.DT])
            flow[f, x.LOST] -= lost
            flow[f, x.OWED] += lost
            _send_again(cfg, ends, flow_u, flow_i, active, counts, f, lost)
            if flow[f, x.LOST] > 0:
                _await(cfg, ex, ex.notices, x.NOTICE, f, _window.next_loss(ex, f, step))
            f = following
            continue
        if ex.cfg[x.GO_BACK_N] == 1 and ex.cfg[x.LOSSY] == 0:
            _hear_refused(cfg, ends, flow_u, flow_i, active, counts, ex, f)
            f = following
            continue
        lost, flow[f, x.LOST] = flow[f, x.LOST], 0
        if ex.cfg[x.GO_BACK_N] == 1:
            taken = flow_i[f, k.DELIVERED]
            _go_back(cfg, ends, flow_u, flow_i, active, counts, ex, f, taken)
        else:
            flow[f, x.OWED] += lost
            _send_again(cfg, ends, flow_u, flow_i, active, counts, f, lost)
            if flow[f, x.LATER] > 0:
                flow[f, x.LOST], flow[f, x.LATER] = flow[f, x.LATER], 0
                _await(cfg, ex, ex.notices, x.NOTICE, f, step + 2 * flow[f, x.BACK])
        f = following
    slot = step % len(ex.timers)
    f, ex.timers[slot] = ex.timers[slot], x.NONE
    while f != x.NONE:
        following = flow[f, x.TIMER]
        cfg[k.ON_WHEEL] -= 1
        if flow_i[f, k.DELIVERED] < flow_i[f, k.SIZE]:
            if flow[f, x.HEARD_AT] + ex.cfg[x.TIMEOUT_STEPS] <= step:
                taken = flow_i[f, k.DELIVERED]
                _go_back(cfg, ends, flow_u, flow_i, active, counts, ex, f, taken)
                flow[f, x.HEARD_AT] = step
            due = flow[f, x.HEARD_AT] + ex.cfg[x.TIMEOUT_STEPS]
            _await(cfg, ex, ex.timers, x.TIMER, f, due)
        f = following


@numba.njit
def _lose(cfg, ex, segments, f, slot, size):  # type: ignore[no-untyped-def]
    """Bytes of a flow are dropped; a selective sender will hear of it."""
    flow = ex.flow
    flow[f, x.DROPPED] += size
    if cfg[k.MODE] != k.STATIC:
        segments[f, slot, 0] -= size  # they travel again with what is sent then
    if ex.cfg[x.GO_BACK_N] == 1:
        return
    if ex.cfg[x.WINDOWED] == 1:
        due = cfg[k.STEP] + 2 * flow[f, x.BACK]
        ex.acks[f, due % ex.acks.shape[1], x.TRIMMED, x.ACKED] += size
        if flow[f, x.LOST] == 0:
            _await(cfg, ex, ex.notices, x.NOTICE, f, due)
        flow[f, x.LOST] += size
    elif flow[f, x.LOST] > 0:
        flow[f, x.LATER] += size
    else:
        flow[f, x.LOST] = size
        _await(cfg, ex, ex.notices, x.NOTICE, f, cfg[k.STEP] + 2 * flow[f, x.BACK])


@numba.njit
def admit(cfg, ex, rng, queued, segments, source, to, f, node, slot, size):  # type: ignore[no-untyped-def]
    """Bytes of a fragment from port ``source`` that queue ``to`` takes; the rest is dropped.

    Whole packets are taken while the queue is below the dynamic threshold, of which each taken
    byte lowers what is free as well.
    """
    queue, port = ex.queue, to % cfg[k.PORTS]
    switch, kept = ex.owner[port], size
    if ex.cfg[x.LOSSY] == 1:
        share = ex.real[x.SHARE]
        free = ex.pool[switch] - ex.used[switch]
        room = np.int64((share * free - queued[to]) / (1.0 + share))
        room = min(room, ex.cfg[x.MOST_QUEUED] - queued[to])
        if ex.down[source] == 1:
            kept = 0
        elif room < size:
            kept = max(0, room // cfg[k.PACKET] * cfg[k.PACKET])
        if kept < size:
            queue[to, x.DROPS] += size - kept
            _lose(cfg, ex, segments, f, slot, size - kept)
    ex.used[switch] += kept
    if ex.cfg[x.MARKING] == 1 and ex.cfg[x.WINDOWED] == 0 and kept > 0:
        _mark(cfg, ex, rng, queued, to, node, kept)
    return kept


@numba.njit
def _mark(cfg, ex, rng, queued, to, node, size):  # type: ignore[no-untyped-def]
    """Mark the packets of a fragment by the queue that the last service left.

    What came in this step does not count: at its full rate a port serves it in the next one.
    """
    queue = ex.queue
    if queue[to, x.CAME_AT] != cfg[k.STEP]:
        queue[to, x.CAME_AT] = cfg[k.STEP]
        queue[to, x.CAME] = 0
    backlog = queued[to] - queue[to, x.CAME]
    queue[to, x.CAME] += size
    draw_marks(cfg, ex, rng, backlog, to, node, size)


@numba.njit
def draw_marks(cfg, ex, rng, backlog, to, node, size):  # type: ignore[no-untyped-def]
    """Mark the packets of a fragment at a port's lane by a queue."""
    queue, packet = ex.queue, cfg[k.PACKET]
    # A step's piece of a packet is none of its own: packets are counted over fragments.
    queue[to, x.PART] += size
    packets = queue[to, x.PART] // packet
    queue[to, x.PART] -= packets * packet
    queue[to, x.PACKETS] += packets
    share = _marked_share(
        float(backlog), float(ex.cfg[x.KMIN]), float(ex.cfg[x.KMAX]), ex.real[x.PMAX]
    )
    if share == 0.0:
        return
    marks, chance = 0, np.int64(share * 2.0**31)
    for _ in range(packets):
        marks += _choices.draw(rng, 2**31) < chance
    queue[to, x.MARKED] += marks
    queue[to, x.MARKED_BYTES] += marks * packet
    ex.notes[node // k.NODE_SIZE, x.MARKS] += marks


@numba.njit
def split_note(ex, node, front, size, whole):  # type: ignore[no-untyped-def]
    """The first ``size`` bytes of a fragment of ``whole`` become one of their own."""
    rest, new = ex.notes[node // k.NODE_SIZE], ex.notes[front // k.NODE_SIZE]
    new[x.OFFSET], new[x.SENT_AT] = rest[x.OFFSET], rest[x.SENT_AT]
    rest[x.OFFSET] += size
    new[x.MARKS] = rest[x.MARKS] * size // whole
    rest[x.MARKS] -= new[x.MARKS]
    new[x.ASKS] = 0  # its last byte does


@numba.njit
def receive(  # type: ignore[no-untyped-def]
    cfg, ex, queued, rate, ends, flow_u, flow_i, segments, port, f, node, slot, size, at_ns
):
    """Bytes of a fragment that the receiver takes."""
    flow, note = ex.flow, ex.notes[node // k.NODE_SIZE]
    if ex.cfg[x.LOSSY] == 1 and ex.down[port] == 1:
        ex.queue[port, x.DROPS] += size
        _lose(cfg, ex, segments, f, slot, size)
        return 0
    step, back = cfg[k.STEP], flow[f, x.BACK]
    if ex.cfg[x.WINDOWED] == 1:
        waited = at_ns - note[x.SENT_AT] - ex.window[f, x.WAY]
        marked, asked = note[x.MARKS] > 0, note[x.ASKS] == 1
        _window.take_ack(ex, f, step, cfg[k.DT], size, marked, asked, waited)
    elif note[x.MARKS] > 0:
        _rate.take_mark(ex, f, step * cfg[k.DT], back * cfg[k.DT])
    if ex.cfg[x.GO_BACK_N] == 0:
        return size
    beyond = note[x.OFFSET] - flow_i[f, k.DELIVERED]
    taken = max(0, beyond + size) if beyond <= 0 else 0
    flow[f, x.DISCARDED] += size - taken
    if cfg[k.MODE] != k.STATIC:
        segments[f, slot, 0] -= size - taken  # nothing of its path is under way any more
    if taken > 0:
        flow[f, x.HEARD_AT] = step + back
    if ex.cfg[x.LOSSY] == 0:
        if taken == 0 and beyond > 0:
            _tell_refused(cfg, ex, queued, rate, ends, flow_u, flow_i, f)
    elif taken > 0:
        flow[f, x.TOLD] = 0
    elif beyond > 0 and flow[f, x.TOLD] == 0:
        flow[f, x.TOLD] = max(1, step + 2 * back)
        if flow[f, x.LOST] == 0:
            flow[f, x.LOST] = size
            _await(cfg, ex, ex.notices, x.NOTICE, f, step + back)
    return taken


@numba.njit
def note_sent(cfg, ex, flow_i, f, node, size, at_ns):  # type: ignore[no-untyped-def]
    """Account a fragment that leaves its source; ``TO_SEND`` is already without it."""
    flow = ex.flow
    reached = flow_i[f, k.SIZE] - flow_i[f, k.TO_SEND]
    ex.notes[node // k.NODE_SIZE, x.OFFSET] = reached - size
    ex.notes[node // k.NODE_SIZE, x.MARKS] = 0
    ex.notes[node // k.NODE_SIZE, x.SENT_AT] = np.int64(at_ns)
    again = min(flow[f, x.OWED], size)
    flow[f, x.OWED] -= again
    flow[f, x.RESENT] += again
    flow[f, x.SENT] += size
    flow[f, x.FURTHEST] = max(flow[f, x.FURTHEST], reached)
    if ex.cfg[x.GO_BACK_N] == 1 and flow[f, x.ARMED] == 0:
        flow[f, x.ARMED] = 1
        flow[f, x.HEARD_AT] = cfg[k.STEP]
        _await(cfg, ex, ex.timers, x.TIMER, f, cfg[k.STEP] + ex.cfg[x.TIMEOUT_STEPS])
    _rate.spend(ex, f, size)
    if ex.cfg[x.WINDOWED] == 1:
        last = flow_i[f, k.TO_SEND] == 0
        full = ex.window[f, x.FLIGHT] + cfg[k.PACKET] >= ex.window[f, x.CWND]
        ex.notes[node // k.NODE_SIZE, x.ASKS] = last or full


@numba.njit
def pause_above(cfg, ex, q):  # type: ignore[no-untyped-def]
    """Bytes that came through a port's lane and lie in the switch it leads to, before a pause."""
    if ex.cfg[x.POOLED] == 0:
        return cfg[k.XOFF]
    switch = ex.far[q % cfg[k.PORTS]]
    # Headroom may lie beyond the pool. Who has nothing there is not paused: nothing would end it.
    return max(0, np.int64(ex.real[x.SHARE] * (ex.pool[switch] - ex.used[switch])))


@numba.njit
def resume_below(cfg, ex, q):  # type: ignore[no-untyped-def]
    """And where the pause ends: as far below as Xon is below Xoff."""
    return max(1, pause_above(cfg, ex, q) - (cfg[k.XOFF] - cfg[k.XON]))


@numba.njit
def probe_more(cfg, links, ex):  # type: ignore[no-untyped-def]
    """What probes tell beside queues: marks since the last reading, and ports that are down.

    As the engine takes them: marks raise a forecast, lost probes leave it as it was, and several
    in a row make a path worth nothing until as many answers.
    """
    step, every, first = cfg[k.STEP], cfg[k.PROBE_STEPS], cfg[k.HOSTS]
    both, ports = len(ex.health), cfg[k.PORTS]
    rows = len(ex.lost)
    if step % every == 0:
        row = (step // every) % rows
        for port in range(both):
            ex.lost[row, port] = ex.down[first + port]
            for lane in range(cfg[k.LANES]):
                count = ex.queue[lane * ports + first + port]
                packets = count[x.PACKETS] - count[x.READ_PACKETS]
                marked = count[x.MARKED] - count[x.READ_MARKED]
                ex.shares[row, lane * both + port] = marked / packets if packets else np.nan
                count[x.READ_PACKETS], count[x.READ_MARKED] = count[x.PACKETS], count[x.MARKED]
    seen = step - cfg[k.DELAY_STEPS]
    if seen < 0 or seen % every or cfg[k.MODE] == k.STATIC:
        return
    row = (seen // every) % rows
    for port in range(both):
        state = ex.health[port]
        strikes, answers, out = _strike(
            state[x.LOSSES], state[x.ANSWERS], state[x.OUT] == 1, ex.lost[row, port] == 1,
            ex.cfg[x.STRIKES], ex.cfg[x.READMIT],
        )  # fmt: skip
        state[x.LOSSES], state[x.ANSWERS], state[x.OUT] = strikes, answers, out
        for lane in range(cfg[k.LANES]):
            link = lane * both + port
            if ex.lost[row, port] == 0:
                ex.kept[link] = _with_marks(
                    links[link, k.PEAK], ex.shares[row, link],
                    ex.real[x.MARK_LOW], ex.real[x.MARK_HIGH], ex.real[x.MARK_TOP],
                )  # fmt: skip
            links[link, k.PEAK] = _INF if out else ex.kept[link]
