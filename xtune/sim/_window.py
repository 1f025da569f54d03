"""Senders' windows inside the kernel: NSCC of the Ultra Ethernet specification.

Acknowledgements are heard in the order of the steps in which they come, at the latest when a
flow's turn to send comes. Those that come to a sender in one step count as one of their mean
delay, marked and unmarked ones apart; the average delay moves as if they had come one by one.
"""

from __future__ import annotations

import numba
import numpy as np

from xtune.sim import _extras as x


@numba.njit
def take_ack(ex, f, step, dt_ns, size, marked, asked, delay_ns):  # type: ignore[no-untyped-def]
    """Bytes came to the receiver: it acknowledges some packets, what is marked or asks at once."""
    window = ex.window[f]
    window[x.UNTOLD] += size
    if marked or asked or window[x.UNTOLD] >= float(ex.cfg[x.ACK_BYTES]):
        _listen(ex, f, step - 1, dt_ns)
        _tell(ex, f, step, marked, delay_ns)


@numba.njit
def _tell(ex, f, step, marked, delay_ns):  # type: ignore[no-untyped-def]
    """Send an acknowledgement of what came."""
    window = ex.window[f]
    slot = (step + np.int64(window[x.ACK_STEPS])) % ex.acks.shape[1]
    ack = ex.acks[f, slot, x.MARKED_ONES if marked else x.PLAIN]
    ack[x.ACKS] += 1.0
    ack[x.ACKED] += window[x.UNTOLD]
    ack[x.DELAYS] += max(delay_ns, 0.0)
    window[x.UNTOLD] = 0.0


@numba.njit
def take_loss(ex, f, step, dt_ns):  # type: ignore[no-untyped-def]
    """The sender hears in this step of bytes that a switch trimmed; its window shrinks by them."""
    _listen(ex, f, step - 1, dt_ns)
    window, real, now_ns = ex.window[f], ex.real, step * dt_ns
    slot = step % ex.acks.shape[1]
    size, ex.acks[f, slot, x.TRIMMED, x.ACKED] = ex.acks[f, slot, x.TRIMMED, x.ACKED], 0.0
    window[x.FLIGHT] -= size
    window[x.IGNORED] += size
    _average(window, real, window[x.RTT], 1.0)
    window[x.LOSS_SEEN] = 1.0
    if not _adapt(ex, window, now_ns, True, 0.0):
        window[x.CWND] -= size
        _bound(ex, window)
    return np.int64(size)


@numba.njit
def next_loss(ex, f, step):  # type: ignore[no-untyped-def]
    """The next step in which the sender will hear of a loss."""
    slots, after = ex.acks.shape[1], step + 1
    while ex.acks[f, after % slots, x.TRIMMED, x.ACKED] == 0.0:
        after += 1
    return after


@numba.njit
def _bound(ex, window):  # type: ignore[no-untyped-def]
    window[x.CWND] = min(max(window[x.CWND], ex.real[x.LEAST]), window[x.MOST])


@numba.njit
def _average(window, real, delay, acks):  # type: ignore[no-untyped-def]
    """Move the average delay towards that of some acknowledgements."""
    weight = 1.0 - (1.0 - real[x.AVERAGE]) ** acks
    window[x.MEAN_DELAY] += weight * (delay - window[x.MEAN_DELAY])


@numba.njit
def _adapt(ex, window, now_ns, marked, delay):  # type: ignore[no-untyped-def]
    """Quick adapt: after loss or a long delay the window becomes what came through in a round."""
    done = marked and window[x.IGNORED] < window[x.TO_IGNORE]
    if not done and now_ns > window[x.ADAPT_AT]:
        bad = window[x.LOSS_SEEN] == 1.0 or delay > 4.0 * ex.real[x.TARGET_NS]
        few = window[x.ACHIEVED] < window[x.MOST] / 2.0 ** ex.cfg[x.QA_SHIFT]
        if window[x.ADAPT_AT] > 0.0 and bad and few:
            window[x.CWND] = window[x.ACHIEVED]
            _bound(ex, window)
            window[x.TO_IGNORE], window[x.IGNORED] = window[x.FLIGHT], 0.0
            window[x.LOSS_SEEN] = 0.0
            done = True
        window[x.ACHIEVED] = 0.0
        window[x.ADAPT_AT] = now_ns + window[x.RTT] + ex.real[x.TARGET_NS]
    if done:
        window[x.INCREASE] = window[x.COME] = 0.0
    return done


@numba.njit
def _grow(ex, window, size, delay):  # type: ignore[no-untyped-def]
    """Unmarked bytes: fast after a window without queues, in proportion below the target."""
    real = ex.real
    if delay >= real[x.TARGET_NS]:
        window[x.INCREASE] += real[x.FAIR] * size
        return
    if delay < real[x.CLEAR_NS]:
        window[x.CLEAR] += size
        if window[x.CLEAR] > window[x.CWND] or window[x.FAST] == 1.0:
            window[x.CWND] += real[x.FAST_SHARE] * size
            window[x.FAST] = 1.0
            return
    else:
        window[x.CLEAR] = 0.0
    window[x.FAST] = 0.0
    window[x.INCREASE] += real[x.PROPORTION] * size * (real[x.TARGET_NS] - delay)


@numba.njit
def _shrink(ex, window, now_ns, delay):  # type: ignore[no-untyped-def]
    """Marked bytes that waited too long: a cut by the average delay, once a round trip."""
    if delay < ex.real[x.TARGET_NS]:
        return
    window[x.FAST] = window[x.CLEAR] = 0.0
    mean = window[x.MEAN_DELAY]
    beyond = mean - ex.real[x.TARGET_NS]
    if beyond > 0.0 and now_ns - window[x.CUT_AT] > window[x.RTT]:
        window[x.CWND] *= max(1.0 - ex.real[x.CUT] * beyond / mean, ex.real[x.LEAST_LEFT])
        window[x.CUT_AT] = now_ns


@numba.njit
def hear(ex, f, now_ns, ack, marked):  # type: ignore[no-untyped-def]
    """Acknowledgements of one kind reach their sender."""
    window, real = ex.window[f], ex.real
    size, delay = ack[x.ACKED], ack[x.DELAYS] / ack[x.ACKS]
    window[x.FLIGHT] -= size
    window[x.ACHIEVED] += size
    window[x.COME] += size
    window[x.IGNORED] += size
    clean = not marked and delay > real[x.TARGET_NS]  # a queue that is about to go
    _average(window, real, 0.25 * window[x.RTT] if clean else delay, ack[x.ACKS])
    if _adapt(ex, window, now_ns, marked, delay):
        return
    if marked:
        _shrink(ex, window, now_ns, delay)
    else:
        _grow(ex, window, size, delay)
    _bound(ex, window)
    waited = now_ns - window[x.ADJUSTED_AT]
    if window[x.COME] > 8.0 * real[x.LEAST] or waited > window[x.RTT]:
        window[x.CWND] += window[x.INCREASE] / window[x.CWND]
        if waited >= window[x.RTT]:
            window[x.CWND] += real[x.STEADY]
            window[x.ADJUSTED_AT] = now_ns
        window[x.INCREASE] = window[x.COME] = 0.0
        _bound(ex, window)


@numba.njit
def _listen(ex, f, step, dt_ns):  # type: ignore[no-untyped-def]
    """Hear what came to a sender up to a step, each in its own.

    A sender whose port stands still, or that waits for others of its host, has no turn for longer
    than the ring of steps is long. So this comes before anything is added to the ring, too: what
    lies in it is due within one round of it.
    """
    window, slots = ex.window[f], ex.acks.shape[1]
    seen = np.int64(window[x.SEEN_STEP])
    for at in range(seen + 1, min(step, seen + slots) + 1):
        for kind in (x.PLAIN, x.MARKED_ONES):
            ack = ex.acks[f, at % slots, kind]
            if ack[x.ACKS] > 0.0:
                hear(ex, f, at * dt_ns, ack, kind == x.MARKED_ONES)
                ack[:] = 0.0
    window[x.SEEN_STEP] = step


@numba.njit
def room(ex, f, step, dt_ns, least):  # type: ignore[no-untyped-def]
    """Bytes that the flow's window lets go now; 0 while no packet (``least``) fits."""
    _listen(ex, f, step, dt_ns)
    window = ex.window[f]
    left = np.int64(window[x.CWND] - window[x.FLIGHT])
    if left < least and window[x.UNTOLD] > 0.0 and window[x.UNTOLD] >= window[x.FLIGHT]:
        _tell(ex, f, step, False, 0.0)  # the sender asks: nothing else will come
    return left if left >= least else 0
