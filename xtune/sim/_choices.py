"""Path choices inside the kernel: probes, forecasts, the choice of a unit, order on arrival.

The decision arithmetic is not written here: the functions of the engine (``policies/_core.py``)
are compiled as they are, so that the simulator and a training job decide alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from xtune.policies import _core
from xtune.sim._layout import (
    ASKED,
    BACKGROUND,
    BAND,
    BINARY,
    BINS,
    BUFFER,
    BY_FLOWS,
    CHOICES,
    COLD,
    COLDEST,
    DELAY_STEPS,
    DELIVERED,
    DST_LEAF,
    DT,
    ENTER,
    EWMA,
    EXIT,
    FIRST,
    FLOWLET,
    FORECAST,
    GAP,
    HELD,
    HOLD,
    HOLT,
    HORIZON,
    HOSTS,
    LANE,
    LANES,
    LAST,
    LEAVES,
    LEVEL,
    LEVEL_GAIN,
    MAX_RATE,
    MODE,
    MOST_BANDS,
    MOVED_AT,
    MOVES,
    MOVES_PER_MS,
    NIL,
    PACKET,
    PAIRS,
    PATH,
    PEAK,
    PLACED,
    PORTS,
    PREFIX,
    PROBE_STEPS,
    READINGS,
    REFILLED_AT,
    RISE,
    ROUND,
    ROW,
    SIZE,
    SLOPE,
    SLOPE_GAIN,
    SPINES,
    SPRAY,
    SRC_LEAF,
    STATIC,
    STEP,
    SWITCH,
    TO_SEND,
    UNIT,
    UNIT_LEFT,
    UNITS,
    USED,
)

_holt: Callable[..., Any] = numba.njit(_core.holt_update)
_ewma: Callable[..., Any] = numba.njit(_core.ewma_update)
_window_slope: Callable[..., Any] = numba.njit(_core.window_slope)
_peak: Callable[..., Any] = numba.njit(_core.forecast_peak)
_choose: Callable[..., Any] = numba.njit(_core.choose_binary)
_refill: Callable[..., Any] = numba.njit(_core.budget_refill)
MOVE_BURST = _core.MOVE_BURST
MOST_CANDIDATES = 8  # as the engine's router: alternatives of one pair that are looked at


@numba.njit
def draw(rng, below):  # type: ignore[no-untyped-def]
    """SplitMix64 (Steele, Lea, Flood 2014), reduced to 0..below-1 by its upper 32 bits."""
    rng[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(((z >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32))


@numba.njit
def _advance_prefix(flow_i, segments, f):  # type: ignore[no-untyped-def]
    """Retire segments that are delivered whole; the last one may still grow."""
    width = segments.shape[1]
    while flow_i[f, FIRST] < flow_i[f, LAST] and segments[f, flow_i[f, FIRST] % width, 0] == 0:
        flow_i[f, FIRST] += 1
        flow_i[f, PREFIX] += segments[f, flow_i[f, FIRST] % width, 1]


@numba.njit
def in_order(flow_i, segments, f, slot, size):  # type: ignore[no-untyped-def]
    """Follow the contiguous prefix of a flow whose segments took different paths.

    Each segment is in order (one path, FIFO), so the prefix ends in the first segment that is
    not complete; what is delivered beyond it waits in the receiver's reorder buffer.
    """
    width = segments.shape[1]
    segments[f, slot, 0] -= size
    segments[f, slot, 1] += size
    if slot == flow_i[f, FIRST] % width:
        flow_i[f, PREFIX] += size
    _advance_prefix(flow_i, segments, f)
    held = flow_i[f, DELIVERED] - flow_i[f, PREFIX]
    flow_i[f, HELD] = max(flow_i[f, HELD], held)


@numba.njit
def _path_peak(cfg, links, route, ends, flow_u, f, path):  # type: ignore[no-untyped-def]
    """Forecast of a flow's path: the worst of its ports between switches."""
    at = np.int64(flow_u[f, LANE]) * (cfg[PORTS] - 2 * cfg[HOSTS])
    if route.shape[0] == 0:
        both, leaf = cfg[LEAVES] * cfg[SPINES], np.int64(ends[f, SRC_LEAF])
        up = links[at + leaf * cfg[SPINES] + path, PEAK]
        down = links[at + both + path * cfg[LEAVES] + ends[f, DST_LEAF], PEAK]
        return down if down > up else up
    worst = np.nan
    for column in range(route.shape[1]):
        port = route[flow_u[f, ROW] + path, column]
        if port != NIL:
            peak = links[at + np.int64(port) - cfg[HOSTS], PEAK]
            if worst != worst or peak > worst:
                worst = peak
    return worst


@numba.njit
def _binary(  # type: ignore[no-untyped-def]
    cfg, real, ends, flow_u, flow_i, links, paths, pairs, budgets, route, f
):
    """Path of a unit by the binary choice, as ``Router`` of the engine makes it.

    Units go round the flow's pairs; within its pair a unit takes the primary, or a cold
    alternative while the primary is warned.
    """
    now = cfg[STEP] * cfg[DT]
    k = flow_i[f, UNITS] % cfg[PAIRS]
    flow_i[f, UNITS] += 1
    row = f * cfg[PAIRS] + k
    used, other = pairs[row, USED], np.nan
    on_alternative = used >= 0
    primary = _path_peak(cfg, links, route, ends, flow_u, f, paths[f, k])
    if on_alternative:
        other = _path_peak(cfg, links, route, ends, flow_u, f, paths[f, used])
    elif not primary >= real[ENTER]:
        return paths[f, k]
    since = now - pairs[row, MOVED_AT]
    waited = now - pairs[row, REFILLED_AT]
    budgets[row] = _refill(budgets[row], waited, real[MOVES_PER_MS], MOVE_BURST)
    pairs[row, REFILLED_AT] = now
    if not on_alternative and since >= cfg[HOLD] and budgets[row] >= 1.0:
        left, least = MOST_CANDIDATES, real[COLD]
        for j in range(paths.shape[1]):
            if j == k or left == 0:
                continue
            left -= 1
            worth = _path_peak(cfg, links, route, ends, flow_u, f, paths[f, j])
            if worth < least:
                used, other, least = j, worth, worth
                if cfg[COLDEST] == 0:
                    break
    use = _choose(
        primary, other, on_alternative, real[ENTER], real[EXIT], real[COLD],
        since, cfg[HOLD], budgets[row],
    )  # fmt: skip
    if use != on_alternative:
        pairs[row, USED] = used if use else -1
        pairs[row, MOVED_AT] = now
        budgets[row] = max(0.0, budgets[row] - 1.0)
        flow_i[f, MOVES] += 1
    return paths[f, used] if use else paths[f, k]


@numba.njit
def _next_entropy(rng, flow_i, paths, f):  # type: ignore[no-untyped-def]
    """The path of a packet's entropy value: all values in turn, each round from another one."""
    at = flow_i[f, UNITS] % paths.shape[1]
    if at == 0:
        flow_i[f, ROUND] = draw(rng, paths.shape[1])
    flow_i[f, UNITS] += 1
    return np.int64(paths[f, (at + flow_i[f, ROUND]) % paths.shape[1]])


@numba.njit
def _emptier(cfg, rng, ends, flow_u, links, route, f):  # type: ignore[no-untyped-def]
    """The emptier of two random paths (Mitzenmacher 2001)."""
    count = np.int64(flow_u[f, CHOICES])
    one = draw(rng, count)
    if count == 1:
        return one
    two = (one + 1 + draw(rng, count - 1)) % count
    first = _path_peak(cfg, links, route, ends, flow_u, f, one)
    return two if _path_peak(cfg, links, route, ends, flow_u, f, two) < first else one


@numba.njit
def _flowlet(cfg, ends, flow_u, flow_i, links, paths, route, f):  # type: ignore[no-untyped-def]
    """After a gap the least loaded path of a flow, as ``Router`` of the engine takes it."""
    now, path = cfg[STEP] * cfg[DT], flow_u[f, PATH]
    gap = now - flow_i[f, ASKED]
    begun = flow_i[f, UNITS] > 0
    flow_i[f, ASKED] = now
    flow_i[f, UNITS] += 1
    if begun and gap < cfg[GAP]:
        return path
    least = _path_peak(cfg, links, route, ends, flow_u, f, path)
    for j in range(paths.shape[1]):
        worth = _path_peak(cfg, links, route, ends, flow_u, f, paths[f, j])
        if worth < least:
            path, least = paths[f, j], worth
    return path


@numba.njit
def _up_link(cfg, ends, flow_u, route, f, path, tier):  # type: ignore[no-untyped-def]
    """Row in ``links`` of a path's port up from a tier, 0 the leaf's; -1 if it turns below."""
    at = np.int64(flow_u[f, LANE]) * (cfg[PORTS] - 2 * cfg[HOSTS])
    if route.shape[0] == 0:
        return at + np.int64(ends[f, SRC_LEAF]) * cfg[SPINES] + path
    port = route[flow_u[f, ROW] + np.uint32(path), tier]
    return np.int64(-1) if port == NIL else at + np.int64(port) - cfg[HOSTS]


@numba.njit
def _load(cfg, links, down, link):  # type: ignore[no-untyped-def]
    """What a switch's port up holds; one that is down is the last to be taken."""
    if link < 0:
        return 0.0
    if len(down) > 1 and down[cfg[HOSTS] + link % (cfg[PORTS] - 2 * cfg[HOSTS])] == 1:
        return np.inf
    return links[link, PLACED if cfg[BY_FLOWS] == 1 else LEVEL]


@numba.njit
def _cut_off(cfg, ends, flow_u, links, route, down, f, path):  # type: ignore[no-untyped-def]
    """Whether a port up on a path is down."""
    for tier in range(max(1, route.shape[1] // 2)):
        there = _up_link(cfg, ends, flow_u, route, f, path, tier)
        if _load(cfg, links, down, there) == np.inf:
            return True
    return False


@numba.njit
def _more_load(  # type: ignore[no-untyped-def]
    cfg, ends, flow_u, links, route, down, f, one, other
):
    """By how much a path is more loaded where the ways up of two paths part; 0 if alike."""
    for tier in range(max(1, route.shape[1] // 2)):  # the other half of the stages leads down
        a = _up_link(cfg, ends, flow_u, route, f, one, tier)
        b = _up_link(cfg, ends, flow_u, route, f, other, tier)
        load, less = _load(cfg, links, down, a), _load(cfg, links, down, b)
        if load != less:
            return load - less
    return 0.0


@numba.njit
def _switch(  # type: ignore[no-untyped-def]
    cfg, rng, ends, flow_u, flow_i, links, route, down, f
):
    """The path that switches give a new flow, or one after a gap: by their least loaded uplinks.

    A switch knows its own ports, by bytes or by the flows it gave them so far, and nothing of
    what lies beyond. Of ports alike it takes any. After a gap a coin keeps half the flows where
    they are, so that those held up together do not all move; the others move only to a port with
    less. So does the switch of ``bench/reference`` (csg-htsim, ``fat_tree_switch.cpp``). Above
    the leaf the next switch up chooses likewise, by its ports as they are at the same moment.
    A switch takes none of its ports that are down while it has another, and gives a flow that is
    on one a new one at once.
    """
    now, path = cfg[STEP] * cfg[DT], np.int64(flow_u[f, PATH])
    # From packet to packet; what was sent last filled its step, at most.
    begun = flow_i[f, UNITS] > 0
    gap = now - flow_i[f, ASKED] - cfg[DT] + cfg[PACKET] * cfg[DT] // cfg[MAX_RATE]
    flow_i[f, ASKED] = now
    cut = begun and len(down) > 1 and _cut_off(cfg, ends, flow_u, links, route, down, f, path)
    if begun and not cut and (gap < cfg[GAP] or draw(rng, 2) == 0):
        return path
    flow_i[f, UNITS] += 1
    alike, best = 1, np.int64(0)
    for j in range(1, np.int64(flow_u[f, CHOICES])):
        more = _more_load(cfg, ends, flow_u, links, route, down, f, j, best)
        if more < 0.0:
            alike, best = 1, np.int64(j)
        elif more == 0.0:
            alike += 1
            if draw(rng, alike) == 0:
                best = np.int64(j)
    if cut and _cut_off(cfg, ends, flow_u, links, route, down, f, best):
        return path  # none of its ways is whole
    for tier in range(max(1, route.shape[1] // 2)):
        there = _up_link(cfg, ends, flow_u, route, f, best, tier)
        if there >= 0:
            links[there, PLACED] += 1
    stays = begun and _more_load(cfg, ends, flow_u, links, route, down, f, path, best) <= 0.0
    return path if stays else best


@numba.njit
def start_unit(  # type: ignore[no-untyped-def]
    cfg, real, rng, ends, flow_u, flow_i, links, segments, paths, pairs, budgets, route, down, f
):
    """The path of a flow's next unit, decided as it is enqueued."""
    flow_i[f, UNIT_LEFT] = cfg[UNIT]
    mode = cfg[MODE]
    if mode == STATIC or ends[f, SRC_LEAF] == ends[f, DST_LEAF]:
        return
    if flow_u[f, BACKGROUND] == 1 and mode != SWITCH:
        return  # other jobs do not run this engine: their paths stay
    if flow_i[f, LAST] - flow_i[f, FIRST] + 1 >= segments.shape[1]:
        return  # the receiver's reorder window is full: no new path now
    old = np.int64(flow_u[f, PATH])
    if mode == BINARY:
        new = np.int64(
            _binary(cfg, real, ends, flow_u, flow_i, links, paths, pairs, budgets, route, f)
        )
    elif mode == SPRAY:
        if paths.shape[1] > 0:
            new = _next_entropy(rng, flow_i, paths, f)
        else:
            new = draw(rng, np.int64(flow_u[f, CHOICES]))
    elif mode == FLOWLET:
        new = np.int64(_flowlet(cfg, ends, flow_u, flow_i, links, paths, route, f))
    elif mode == SWITCH:
        new = _switch(cfg, rng, ends, flow_u, flow_i, links, route, down, f)
    else:
        new = _emptier(cfg, rng, ends, flow_u, links, route, f)
    if new == old:
        return
    flow_u[f, PATH] = new
    if flow_i[f, TO_SEND] == flow_i[f, SIZE]:
        return
    if mode != BINARY:
        flow_i[f, MOVES] += 1
    flow_i[f, LAST] += 1
    slot = flow_i[f, LAST] % segments.shape[1]
    segments[f, slot, 0] = 0
    segments[f, slot, 1] = 0
    _advance_prefix(flow_i, segments, f)


@numba.njit
def _band_of(real, queue):  # type: ignore[no-untyped-def]
    """The band in which a switch sees a queue: how many bounds it has reached."""
    reached = 0.0
    for j in range(MOST_BANDS):
        if queue >= real[BAND + j]:
            reached += 1.0
    return reached


@numba.njit
def probe(cfg, real, queued, links, pending, window, times, hist):  # type: ignore[no-untyped-def]
    """Read every queue between switches; older readings reach the deciders after their delay."""
    step, every = cfg[STEP], cfg[PROBE_STEPS]
    first = cfg[HOSTS]
    both = cfg[PORTS] - 2 * first
    if step % every == 0:
        row = (step // every) % pending.shape[0]
        buffer = np.float64(cfg[BUFFER])
        for k in range(both):
            total = 0.0
            for lane in range(cfg[LANES]):
                # A lower lane waits for the upper one, not the other way round.
                total += queued[lane * cfg[PORTS] + first + k] / buffer
                pending[row, lane * both + k] = min(total, 1.0)
            hist[min(np.int64(total * BINS), BINS), k] += 1
    if cfg[MODE] == SWITCH:  # a switch sees its queues as they are
        for lane in range(cfg[LANES]):
            for k in range(both):
                load = np.float64(queued[lane * cfg[PORTS] + first + k])
                if real[BAND] < np.inf:
                    load = _band_of(real, load)
                links[lane * both + k, LEVEL] = load
        return
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
                level, rise, _ = _holt(  # intervals are all alike
                    links[k, LEVEL], links[k, RISE], float(gap), reading, gap,
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
