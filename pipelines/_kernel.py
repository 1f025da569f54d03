"""The arithmetic of model ``link_levels`` and ``link_runs``, compiled, one pass over sorted rows.

For chunks that are large: the models say what is computed, and this gives the same to the last
bit (``tests/pipelines/test_kernel.py``), in a tenth of the time. Floats are null as NaN; counters
are -1 where they are unknown and -2 where the source lacks them; levels are -1 where unknown.
"""

from __future__ import annotations

import numba
import numpy as np

#: Counters of a sample, in the order in which the kernel takes them.
COUNTERS = (
    "tx_bytes", "rx_bytes", "wait_ticks", "discards", "pause_us", "tx_pause_us", "errors",
    "symbols", "marks", "cnps", "resent", "errors_present", "marks_present", "resent_present",
)  # fmt: skip
TX, RX, WAIT, DISCARDS, PAUSE, TX_PAUSE, ERRORS, SYMBOLS, MARKS, CNPS, RESENT = range(11)
ERRORS_PRESENT, MARKS_PRESENT, RESENT_PRESENT, AT = 11, 12, 13, 14
#: Figures of an interval, in the order in which it gives them.
FIGURES = (
    "interval_s", "tx_gbps", "rx_gbps", "utilization", "wait_fraction", "tx_pause_fraction",
    "ecn_rate", "cnp_rate", "discard_rate", "retransmit_rate", "error_rate", "symbol_error_rate",
)  # fmt: skip
#: Kinds of runs, and the whole numbers kept of each.
KINDS = ("wait", "busy", "received", "errors", "pauses", "stuck", "lost")
K_WAIT, K_BUSY, K_RECEIVED, K_ERRORS, K_PAUSES, K_STUCK, K_LOST = range(7)
RUN = (
    "kind", "link", "start_ns", "end_ns", "samples", "clear_before", "peak_level", "wait_ns",
    "wait_known_ns", "utilization_ns", "utilization_known_ns", "bytes", "bytes_known", "errors",
    "errors_known", "marks", "marks_known_ns", "discards", "discards_known_ns", "by_wait",
    "by_pause", "by_marks", "by_discards", "wait_from_ns", "marks_from_ns",
)  # fmt: skip
(
    KIND, LINK, START, END, SAMPLES, CLEAR, PEAK, WAIT_NS, WAIT_KNOWN, USED_NS, USED_KNOWN, BYTES,
    BYTES_KNOWN, FAILED, FAILED_KNOWN, MARKED, MARKED_KNOWN, DROPPED, DROPPED_KNOWN, BY_WAIT,
    BY_PAUSE, BY_MARKS, BY_DISCARDS, WAIT_FROM, MARKS_FROM,
) = range(25)  # fmt: skip
#: Where the state of a part stands: link, its next row, rows given, runs given, rows left out of
#: order, whether the last sample is of this chunk.
CURSOR = 6
_AT_LINK, _AT_ROW, _ROWS, _RUNS, _DISORDER, _HERE = range(CURSOR)
#: Most runs that one row can end: one of each kind of this link and of the next.
_ROOM = 16

_inline = numba.njit(error_model="numpy")


@_inline
def _rise(now, before, reset):  # type: ignore[no-untyped-def]
    if reset or now < 0 or before < 0 or now < before:
        return np.nan
    return float(now - before)


@_inline
def _fell(now, before):  # type: ignore[no-untyped-def]
    return now >= 0 and now < before


@_inline
def _came_back(now, before, earlier):  # type: ignore[no-untyped-def]
    return before >= 0 and before < earlier and now >= earlier


@_inline
def _reaches(signal, thresholds):  # type: ignore[no-untyped-def]
    if signal >= thresholds[2]:
        return 3
    if signal >= thresholds[1]:
        return 2
    if signal >= thresholds[0]:
        return 1
    return 0


@_inline
def _share(value, whole):  # type: ignore[no-untyped-def]
    share = value / whole
    return 1.0 if share > 1.0 else share


@_inline
def _larger(a, b):  # type: ignore[no-untyped-def]
    """The larger; null where both are."""
    if a != a or b > a:
        return b
    return a


@_inline
def _close(open_runs, open_floats, kind, runs, run_floats, count):  # type: ignore[no-untyped-def]
    """End the run of one kind, if one is open; the number of runs given."""
    if open_runs[kind, SAMPLES] == 0:
        return count
    runs[count] = open_runs[kind]
    run_floats[count] = open_floats[kind]
    open_runs[kind, SAMPLES] = 0
    return count + 1


@_inline
def _extend(  # type: ignore[no-untyped-def]
    open_runs, open_floats, kind, link, joins, clear, start, end, span_s, level, wait, used, gbps,
    error_rate, ecn_rate, discard_rate, held, runs, run_floats, count,
):  # fmt: skip
    """Add an interval to the run of a kind, or to a new one; the number of runs given."""
    run, floats = open_runs[kind], open_floats[kind]
    span = end - start
    if run[SAMPLES] > 0 and not joins:
        count = _close(open_runs, open_floats, kind, runs, run_floats, count)
    if run[SAMPLES] == 0:
        run[:] = 0
        run[KIND], run[LINK], run[START], run[CLEAR] = kind, link, start, clear
        run[PEAK] = run[WAIT_FROM] = run[MARKS_FROM] = -1
        floats[0], floats[1] = span_s, np.nan
    run[END] = end
    run[SAMPLES] += 1
    run[PEAK] = max(run[PEAK], level)
    floats[1] = _larger(floats[1], used)
    if wait == wait:
        run[WAIT_NS] += np.int64(np.rint(wait * span))
        run[WAIT_KNOWN] += span
    if used == used:
        run[USED_NS] += np.int64(np.rint(used * span))
        run[USED_KNOWN] += span
    if gbps == gbps:
        run[BYTES] += np.int64(np.rint(gbps * span_s * 1e9 / 8))
        run[BYTES_KNOWN] += span
    if error_rate == error_rate:
        run[FAILED] += np.int64(np.rint(error_rate * span_s))
        run[FAILED_KNOWN] += span
    if ecn_rate == ecn_rate:
        run[MARKED] += np.int64(np.rint(ecn_rate * span_s))
        run[MARKED_KNOWN] += span
    if discard_rate == discard_rate:
        run[DROPPED] += np.int64(np.rint(discard_rate * span_s))
        run[DROPPED_KNOWN] += span
    run[BY_WAIT] += held & 1
    run[BY_PAUSE] += (held >> 1) & 1
    run[BY_MARKS] += (held >> 2) & 1
    run[BY_DISCARDS] += (held >> 3) & 1
    if run[WAIT_FROM] < 0 and held & 3:
        run[WAIT_FROM] = start
    if run[MARKS_FROM] < 0 and held & 4:
        run[MARKS_FROM] = start
    return count


@_inline
def _skim(  # type: ignore[no-untyped-def]
    first, stop, p, times, rates, ticks, counters, leave, busy, link, out, figures, found_levels,
    found_times, found_links,
):  # fmt: skip
    """Take rows of one link for as long as nothing happens in them, which is most of the time.

    What they give is what :func:`advance` gives for a row in which no counter fell, every signal
    is clear and no run goes on. The state of the link is left to the caller.

    Returns:
        How many rows were taken, from ``first`` and before ``stop``. ``p`` is the sample before
        them, until which the level is known.
    """
    start, err_has = p[AT], p[ERRORS_PRESENT]
    tx_p, rx_p, wait_p, drop_p = p[TX], p[RX], p[WAIT], p[DISCARDS]
    sym_p, err_p = p[SYMBOLS], p[ERRORS]
    if wait_p < 0 or drop_p < 0:
        return 0
    for i in range(first, stop):
        end, tx_n, rx_n, wait_n = times[i], counters[TX][i], counters[RX][i], counters[WAIT][i]
        drop_n, sym_n, err_n = counters[DISCARDS][i], counters[SYMBOLS][i], counters[ERRORS][i]
        rise = (
            (end > start) & (tx_n >= tx_p) & (rx_n >= rx_p) & (wait_n >= wait_p)
            & (drop_n >= drop_p) & (sym_n >= sym_p) & (err_n >= err_p)
            & (counters[ERRORS_PRESENT][i] == err_has)
        )  # fmt: skip
        if not rise:
            return i - first
        span_s = (end - start) / 1e9
        capacity = rates[i] * span_s
        tx, rx = _rise(tx_n, tx_p, False), _rise(rx_n, rx_p, False)
        used, received = tx / capacity, rx / capacity
        wait = _rise(wait_n, wait_p, False) * ticks[i] / capacity
        discard = _rise(drop_n, drop_p, False) / span_s
        error = _rise(err_n, err_p, False) / span_s
        if not (wait < leave[0, 0] and discard < leave[2, 0]) or (
            (used >= busy) | (received >= busy) | (used > 1) | (received > 1) | (error > 0)
        ):
            return i - first
        figures[0, out], figures[1, out] = span_s, tx * 8 / 1e9 / span_s
        figures[2, out], figures[3, out] = rx * 8 / 1e9 / span_s, used
        figures[4, out], figures[8, out], figures[10, out] = wait, discard, error
        figures[11, out] = _rise(sym_n, sym_p, False) / span_s
        found_levels[out], found_times[out], found_links[out] = 0, end, link
        out += 1
        start, tx_p, rx_p, wait_p, drop_p = end, tx_n, rx_n, wait_n, drop_n
        sym_p, err_p = sym_n, err_n
    return stop - first


@_inline
def _sample(row, times, counters, into):  # type: ignore[no-untyped-def]
    """Copy a row of an InfiniBand port."""
    into[TX], into[RX], into[WAIT] = counters[TX][row], counters[RX][row], counters[WAIT][row]
    into[DISCARDS], into[SYMBOLS] = counters[DISCARDS][row], counters[SYMBOLS][row]
    into[ERRORS], into[ERRORS_PRESENT] = counters[ERRORS][row], counters[ERRORS_PRESENT][row]
    into[PAUSE] = into[TX_PAUSE] = into[MARKS] = into[CNPS] = into[RESENT] = -2
    into[MARKS_PRESENT] = into[RESENT_PRESENT] = 0
    into[AT] = times[row]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def advance(  # type: ignore[no-untyped-def]
    cursor, roce, starts, times, rates, ticks, counters, enter, leave, numbers, last, earlier,
    samples, last_floats, earlier_floats, levels, known_ends, open_runs, open_floats, figures,
    found_levels, found_times, found_links, runs, run_floats,
):  # fmt: skip
    """Take a batch of rows of a part, sorted by (link, time).

    Args:
        cursor: State of the part; see ``CURSOR``.
        roce: Whether rows have any of the counters of RoCE and of pauses.
        starts: First row of each link within the part, and the number of all rows.
        times: Nanoseconds since the epoch.
        rates: Data rates, bytes/s.
        ticks: Byte times a tick of the wait counter.
        counters: One array a counter, in the order of ``COUNTERS``.
        enter: Thresholds by (signal: wait, marks, discards; level).
        leave: The same, for falling.
        numbers: max_gap_s, busy_utilization, report_level.
        last: Of each link, its last sample: ``COUNTERS`` and the time.
        earlier: Of each link, the sample before.
        samples: Of each link, how many of these two there are.
        last_floats: Of each link, data rate and tick of its last sample.
        earlier_floats: Of each link, those of the sample before.
        levels: Of each link, the level held.
        known_ends: Of each link, until when it is known; 0 never.
        open_runs: Runs that go on, by kind.
        open_floats: Their first interval and peak utilization.
        figures: Filled, as the following, with room for a batch: (``FIGURES``, row).
        found_levels: Levels.
        found_times: Ends of intervals.
        found_links: Links.
        runs: Filled: (run, ``RUN``).
        run_floats: First interval and peak utilization of each.

    Returns:
        Rows of the batch taken: fewer than there are where ``runs`` is full.
    """
    max_gap, busy, report = numbers[0], numbers[1], np.int64(numbers[2])
    max_gap_ns = max_gap * 1e9
    link, row, out, count = cursor[_AT_LINK], cursor[_AT_ROW], np.int64(0), np.int64(0)
    disorder, here = cursor[_DISORDER], cursor[_HERE]
    taken = np.int64(0)
    p, e = last[link].copy(), earlier[link].copy()
    have, held_level, known_end = samples[link], levels[link], known_ends[link]
    p_rate, p_tick = last_floats[link, 0], last_floats[link, 1]
    e_rate, e_tick = earlier_floats[link, 0], earlier_floats[link, 1]
    suspect = True  # whether a counter fell in the interval before
    while taken < times.shape[0]:
        if count + _ROOM > runs.shape[0]:
            break
        while row == starts[link + 1]:
            for kind in range(K_LOST):
                count = _close(open_runs, open_floats, kind, runs, run_floats, count)
            last[link], earlier[link] = p, e
            samples[link], levels[link], known_ends[link] = have, held_level, known_end
            last_floats[link, 0], last_floats[link, 1] = p_rate, p_tick
            earlier_floats[link, 0], earlier_floats[link, 1] = e_rate, e_tick
            link += 1
            here, suspect = 0, True
            p[:], e[:] = last[link], earlier[link]
            have, held_level, known_end = samples[link], levels[link], known_ends[link]
            p_rate, p_tick = last_floats[link, 0], last_floats[link, 1]
            e_rate, e_tick = earlier_floats[link, 0], earlier_floats[link, 1]
        if not (roce or suspect) and have > 0 and known_end > 0 and known_end == p[AT]:
            stop = min(times.shape[0], taken + starts[link + 1] - row)
            skimmed = _skim(
                taken, stop, p, times, rates, ticks, counters, leave, busy, link, out, figures,
                found_levels, found_times, found_links,
            )  # fmt: skip
            if skimmed > 0:
                taken, row, out = taken + skimmed, row + skimmed, out + skimmed
                if skimmed > 1:
                    _sample(taken - 2, times, counters, e)
                    e_rate, e_tick = rates[taken - 2], ticks[taken - 2]
                else:
                    e[:], e_rate, e_tick = p, p_rate, p_tick
                _sample(taken - 1, times, counters, p)
                p_rate, p_tick = rates[taken - 1], ticks[taken - 1]
                have, here, held_level, known_end = np.int64(2), np.int64(1), np.int64(0), p[AT]
                continue
        i = taken
        taken += 1
        row += 1
        end, rate, tick = times[i], rates[i], ticks[i]
        start = p[AT]
        tx_n, rx_n, wait_n = counters[TX][i], counters[RX][i], counters[WAIT][i]
        drop_n, sym_n, err_n = counters[DISCARDS][i], counters[SYMBOLS][i], counters[ERRORS][i]
        err_has = counters[ERRORS_PRESENT][i]
        mark_n = cnp_n = again_n = pause_n = tx_pause_n = np.int64(-2)
        mark_has = again_has = np.int64(0)
        if roce:
            mark_n, cnp_n, again_n = counters[MARKS][i], counters[CNPS][i], counters[RESENT][i]
            pause_n, tx_pause_n = counters[PAUSE][i], counters[TX_PAUSE][i]
            mark_has, again_has = counters[MARKS_PRESENT][i], counters[RESENT_PRESENT][i]
        fell_now = True
        if have > 0 and end > start:
            span_s = (end - start) / 1e9
            same_errors = err_has == p[ERRORS_PRESENT]
            port_reset = (
                _fell(tx_n, p[TX]) or _fell(rx_n, p[RX]) or _fell(wait_n, p[WAIT])
                or _fell(drop_n, p[DISCARDS]) or _fell(sym_n, p[SYMBOLS])
                or (same_errors and _fell(err_n, p[ERRORS]))
            )  # fmt: skip
            fell_now = port_reset
            if suspect and have > 1:
                port_reset = (
                    port_reset or _came_back(tx_n, p[TX], e[TX]) or _came_back(rx_n, p[RX], e[RX])
                    or _came_back(wait_n, p[WAIT], e[WAIT])
                    or _came_back(drop_n, p[DISCARDS], e[DISCARDS])
                    or _came_back(sym_n, p[SYMBOLS], e[SYMBOLS])
                    or (same_errors and p[ERRORS_PRESENT] == e[ERRORS_PRESENT]
                        and _came_back(err_n, p[ERRORS], e[ERRORS]))
                )  # fmt: skip
            paused = pausing = ecn = np.nan
            if roce:
                same_marks = mark_has == p[MARKS_PRESENT]
                same_resent = again_has == p[RESENT_PRESENT]
                roce_reset = (
                    _fell(cnp_n, p[CNPS]) or (same_marks and _fell(mark_n, p[MARKS]))
                    or (same_resent and _fell(again_n, p[RESENT]))
                )  # fmt: skip
                fell_now = (
                    fell_now or roce_reset or _fell(pause_n, p[PAUSE])
                    or _fell(tx_pause_n, p[TX_PAUSE])
                )  # fmt: skip
                pause_reset = tx_pause_reset = False
                if suspect and have > 1:
                    roce_reset = (
                        roce_reset or _came_back(cnp_n, p[CNPS], e[CNPS])
                        or (same_marks and p[MARKS_PRESENT] == e[MARKS_PRESENT]
                            and _came_back(mark_n, p[MARKS], e[MARKS]))
                        or (same_resent and p[RESENT_PRESENT] == e[RESENT_PRESENT]
                            and _came_back(again_n, p[RESENT], e[RESENT]))
                    )  # fmt: skip
                    pause_reset = _came_back(pause_n, p[PAUSE], e[PAUSE])
                    tx_pause_reset = _came_back(tx_pause_n, p[TX_PAUSE], e[TX_PAUSE])
                paused = _rise(pause_n, p[PAUSE], pause_reset) / 1e6
                pausing = _rise(tx_pause_n, p[TX_PAUSE], tx_pause_reset) / 1e6
                ecn = _rise(mark_n, p[MARKS], roce_reset or not same_marks) / span_s
                figures[6, out] = ecn
                figures[7, out] = _rise(cnp_n, p[CNPS], roce_reset) / span_s
                figures[9, out] = _rise(again_n, p[RESENT], roce_reset or not same_resent) / span_s
            capacity = rate * span_s
            tx = _rise(tx_n, p[TX], port_reset)
            rx = _rise(rx_n, p[RX], port_reset)
            waited = _rise(wait_n, p[WAIT], port_reset) * tick
            if tx > 2 * capacity:
                tx = np.nan
            if rx > 2 * capacity:
                rx = np.nan
            if waited > 2 * capacity:
                waited = np.nan
            if paused > 8 * span_s:
                paused = np.nan
            if pausing > 8 * span_s:
                pausing = np.nan
            used, received = _share(tx, capacity), _share(rx, capacity)
            waited_share = _share(waited, capacity)
            paused_share = _share(paused, span_s)
            tx_pause = _share(pausing, span_s)
            gbps, rx_gbps = tx * 8 / 1e9 / span_s, rx * 8 / 1e9 / span_s
            discard = _rise(drop_n, p[DISCARDS], port_reset) / span_s
            error = _rise(err_n, p[ERRORS], port_reset or not same_errors) / span_s
            mark_share = ecn / (rate / 4096)
            wait = _larger(waited_share, paused_share)
            up = wait_down = pause_down = mark_down = discard_down = down = np.int64(0)
            # Most intervals are clear by every signal.
            if not (wait < leave[0, 0] and discard < leave[2, 0]) or mark_share == mark_share:
                up = max(
                    _reaches(waited_share, enter[0]), _reaches(paused_share, enter[0]),
                    _reaches(mark_share, enter[1]), _reaches(discard, enter[2]),
                )  # fmt: skip
                wait_down = _reaches(waited_share, leave[0])
                pause_down = _reaches(paused_share, leave[0])
                mark_down = _reaches(mark_share, leave[1])
                discard_down = _reaches(discard, leave[2])
                down = max(max(wait_down, pause_down), max(mark_down, discard_down))
            level, clear, unbroken = np.int64(-1), np.int64(-1), False
            p_end = known_end
            if wait == wait or mark_share == mark_share or _reaches(discard, enter[2]) > 0:
                p_level = held_level if p_end > 0 else np.int64(-1)
                hole = False
                if p_end > 0 and start > p_end:
                    held_s = max(max_gap, 1.5 * span_s)
                    hole = start - p_end > np.int64(np.rint(held_s * 1e9))
                level = max(up, min(np.int64(0) if hole or p_end == 0 else p_level, down))
                if hole and p_level >= report:
                    count = _close(open_runs, open_floats, K_WAIT, runs, run_floats, count)
                    runs[count] = 0
                    runs[count, KIND], runs[count, LINK] = K_LOST, link
                    runs[count, START] = runs[count, END] = p_end
                    count += 1
                held_level, known_end = level, end
                clear = np.int64(-1) if p_end == 0 else np.int64(p_level < report)
                unbroken = clear == 0 and not hole
            stuck = wait_n == -1
            if (
                level >= report or used >= busy or received >= busy or error > 0
                or tx_pause >= enter[0, 0] or stuck
            ):  # fmt: skip
                held = (
                    (wait_down >= report) | (pause_down >= report) << 1
                    | (mark_down >= report) << 2 | (discard_down >= report) << 3
                )  # fmt: skip
                for kind in range(K_LOST):
                    joins = start - open_runs[kind, END] <= max_gap_ns
                    begins, peak, waited_by, used_by, sent = np.int64(-1), level, wait, used, gbps
                    if kind == K_WAIT:
                        hit, joins, begins = level >= report, unbroken, clear
                    elif kind == K_BUSY:
                        hit = used >= busy
                    elif kind == K_RECEIVED:
                        hit, peak = received >= busy, np.int64(-1)
                        waited_by, used_by, sent = np.nan, received, rx_gbps
                    elif kind == K_ERRORS:
                        hit = error > 0
                    elif kind == K_PAUSES:
                        hit, peak, waited_by = tx_pause >= enter[0, 0], np.int64(-1), tx_pause
                    else:
                        hit = stuck
                    if hit:
                        count = _extend(
                            open_runs, open_floats, kind, link, joins, begins, start, end, span_s,
                            peak, waited_by, used_by, sent, error, ecn, discard, held, runs,
                            run_floats, count,
                        )  # fmt: skip
            figures[0, out], figures[1, out], figures[2, out] = span_s, gbps, rx_gbps
            figures[3, out], figures[4, out], figures[5, out] = used, wait, tx_pause
            figures[8, out] = discard
            figures[10, out] = error
            figures[11, out] = _rise(sym_n, p[SYMBOLS], port_reset) / span_s
            found_levels[out], found_times[out], found_links[out] = level, end, link
            out += 1
        elif here:
            disorder += 1
        for c in range(AT + 1):  # a slice would be slower
            e[c] = p[c]
        p[TX], p[RX], p[WAIT], p[DISCARDS], p[PAUSE] = tx_n, rx_n, wait_n, drop_n, pause_n
        p[TX_PAUSE], p[ERRORS], p[SYMBOLS], p[MARKS] = tx_pause_n, err_n, sym_n, mark_n
        p[CNPS], p[RESENT], p[ERRORS_PRESENT] = cnp_n, again_n, err_has
        p[MARKS_PRESENT], p[RESENT_PRESENT], p[AT] = mark_has, again_has, end
        e_rate, e_tick, p_rate, p_tick = p_rate, p_tick, rate, tick
        suspect, have, here = fell_now, min(have + 1, 2), 1
    if row == starts[-1]:
        for kind in range(K_LOST):
            count = _close(open_runs, open_floats, kind, runs, run_floats, count)
    last[link], earlier[link] = p, e
    samples[link], levels[link], known_ends[link] = have, held_level, known_end
    last_floats[link, 0], last_floats[link, 1] = p_rate, p_tick
    earlier_floats[link, 0], earlier_floats[link, 1] = e_rate, e_tick
    cursor[_AT_LINK], cursor[_AT_ROW], cursor[_ROWS], cursor[_RUNS] = link, row, out, count
    cursor[_DISORDER], cursor[_HERE] = disorder, here
    return taken
