"""What makes switches overflow and senders slow down: shared buffers, marks, faults of links.

All of it is off unless it is given to ``run_phase``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.sim.fabric import PACKET_BYTES

RECOVERIES = ("go_back_n", "selective")


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedBuffer:
    """One pool of packet memory in every switch, shared by its ports with a dynamic threshold.

    A queue (of one port and lane) may hold at most ``alpha`` times what is free of its switch's
    pool (Choudhury and Hahne 1998): ``k`` overloaded queues hold ``alpha B / (1 + k alpha)`` each.

    Without backpressure, what comes beyond is dropped, by whole packets, and sent again:
    ``go_back_n`` as RoCE NICs do (the receiver takes bytes in order alone, and tells of the first
    gap once; a lost retransmission waits for the timeout; the sender goes back to what the
    receiver has by then, so up to what comes in one way back is not sent twice), or
    ``selective`` (only what was lost, told as if the switch had sent on the headers). With PFC the
    threshold is that of an input: it pauses the port that leads there, and its headroom holds
    what is under way, so nothing is lost.

    Attributes:
        bytes_per_switch: The pool.
        alpha: Share of what is free that one queue may hold.
        recovery: ``go_back_n`` or ``selective``; under PFC nothing is lost, and it has no effect.
        timeout_ns: Without an acknowledgement for so long, a ``go_back_n`` sender starts again.
            No effect with ``selective`` or under PFC. The default is assumed: adapters are set
            to anything from 0.1 ms to seconds.
        queue_bytes: No queue holds more, whatever is free (not under PFC, which pauses inputs);
            None: the threshold alone counts.
        headroom_bytes: Of each port and lane that leads into a switch, under PFC, apart from the
            pool; None: what its link carries in two propagation times and a step, two packets.
    """

    bytes_per_switch: int
    alpha: float = 1.0
    recovery: str = "go_back_n"
    timeout_ns: int = 500_000
    queue_bytes: int | None = None
    headroom_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: one that makes no buffer.
        """
        if self.bytes_per_switch < 1 or not 0.0 < self.alpha < float("inf"):
            raise UsageError(
                f"a shared buffer of {self.bytes_per_switch} B with alpha {self.alpha} holds none",
                "both must be positive",
            )
        if self.recovery not in RECOVERIES:
            raise UsageError(f"recovery {self.recovery!r} is unknown", " or ".join(RECOVERIES))
        if self.timeout_ns < 1 or (self.headroom_bytes is not None and self.headroom_bytes < 0):
            raise UsageError("a timeout or headroom is not positive", "see SharedBuffer")
        if self.queue_bytes is not None and self.queue_bytes < PACKET_BYTES:
            raise UsageError(
                f"a queue of {self.queue_bytes} B holds no packet", f"{PACKET_BYTES} or more"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Dcqcn:
    """ECN marks in the switches and DCQCN at the senders (Zhu et al., SIGCOMM 2015).

    A port marks by RED's curve: none below ``kmin_bytes``, ``pmax`` of the packets at
    ``kmax_bytes``, all above. The receiver of a mark tells its sender, at most once in
    ``cnp_interval_ns`` and flow. The defaults are the paper's, for 40 Gb/s; ``for_link`` scales
    them.

    Attributes:
        kmin_bytes: Queue at which marking begins.
        kmax_bytes: Queue at which the share reaches ``pmax``.
        pmax: That share.
        cnp_interval_ns: Least time between two notices to one sender.
        gain: Weight ``g`` of the newest notice in a flow's congestion estimate alpha.
        alpha_timer_ns: Without a notice for so long, alpha falls by its share ``g``.
        increase_timer_ns: Time after which the rate rises by one stage.
        byte_counter: Bytes after which it does.
        fast_recovery: Stages of both that only return to the target rate (F).
        additive_gbps: Rise of the target rate in a stage after them (R_AI).
        hyper_gbps: The same once both counts are past them (R_HAI), times stages since.
        least_gbps: No flow is slowed below it; assumed, the paper names none.
    """

    kmin_bytes: int = 5_000
    kmax_bytes: int = 200_000
    pmax: float = 0.01
    cnp_interval_ns: int = 50_000
    gain: float = 1 / 256
    alpha_timer_ns: int = 55_000
    increase_timer_ns: int = 55_000
    byte_counter: int = 10_000_000
    fast_recovery: int = 5
    additive_gbps: float = 0.04
    hyper_gbps: float = 0.4
    least_gbps: float = 0.01

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: one that cannot be.
        """
        if not 0 <= self.kmin_bytes < self.kmax_bytes or not 0.0 < self.pmax <= 1.0:
            raise UsageError(
                f"marking from {self.kmin_bytes} to {self.kmax_bytes} B with {self.pmax} "
                "is no curve",
                "0 <= kmin_bytes < kmax_bytes and 0 < pmax <= 1",
            )
        times = (self.cnp_interval_ns, self.alpha_timer_ns, self.increase_timer_ns)
        if min(times) < 1 or self.byte_counter < 1 or self.fast_recovery < 0:
            raise UsageError("a time or count of DCQCN is not positive", "see Dcqcn")
        rises = (self.additive_gbps, self.hyper_gbps)
        if not 0.0 < self.gain <= 1.0 or not all(0.0 <= rise < math.inf for rise in rises):
            raise UsageError("a gain of DCQCN is out of its range", "0 < gain <= 1, rates >= 0")
        if not 0.0 < self.least_gbps < math.inf:
            raise UsageError("the least rate of DCQCN is not positive", "see Dcqcn")

    @classmethod
    def for_link(cls, gbps: float) -> Dcqcn:
        """The paper's values for a link of another rate.

        Queues and rates in proportion, times as they are: as operators do, no measurement.
        """
        scale = gbps / 40.0
        base = cls()
        return cls(
            kmin_bytes=round(base.kmin_bytes * scale),
            kmax_bytes=round(base.kmax_bytes * scale),
            byte_counter=round(base.byte_counter * scale),
            additive_gbps=base.additive_gbps * scale,
            hyper_gbps=base.hyper_gbps * scale,
            least_gbps=base.least_gbps * scale,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Nscc:
    """ECN marks in the switches and NSCC at the senders (Ultra Ethernet specification 1.0).

    A sender keeps a window of bytes that are not acknowledged. Unmarked acknowledgements raise
    it: by a quarter of their bytes once a whole window met no queue, else in proportion to how
    far their delay is below the target, or slowly above it. Marked ones beyond the target cut it
    by how far the average delay is beyond, once a round trip. What a switch trims (a lossy
    ``SharedBuffer`` with ``recovery="selective"``) shrinks it by its bytes; after that, or a delay
    of four targets, it becomes what came through in the last round, if that was little.

    Gains follow from the bytes of a round trip, as in the specification and in the public
    simulator of its authors (``uec.cpp``, defaults), beside which the defaults here were set.

    Attributes:
        rtt_ns: Longest round trip of the network without queues.
        gbps: Rate of its links.
        target_ns: Delay in queues that is aimed at.
        kmin_bytes: Queue above which packets are marked.
        kmax_bytes: Queue from which on all are; in between their share rises evenly.
        window_rtts: Largest and first window, in bytes of a flow's own round trip.
        ack_bytes: Unmarked bytes that one acknowledgement stands for; what fills a window asks
            for its own.
        average: Weight of an acknowledgement in the average delay.
        cut: Share of the average delay beyond the target by which a window is cut.
        least_left: Share that a cut leaves at least.
        adapt_shift: Quick adapt needs less than 2 to this power less than the largest window.
        clear_ns: Delay below which an acknowledgement met no queue.
    """

    rtt_ns: float
    gbps: float
    target_ns: float
    kmin_bytes: int
    kmax_bytes: int
    window_rtts: float = 1.5
    ack_bytes: int = 16_384
    average: float = 0.0125
    cut: float = 0.8
    least_left: float = 0.5
    adapt_shift: int = 3
    clear_ns: float = 1_000.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: one that cannot be.
        """
        if not 0 <= self.kmin_bytes < self.kmax_bytes:
            raise UsageError(
                f"marking from {self.kmin_bytes} to {self.kmax_bytes} B is no curve",
                "0 <= kmin_bytes < kmax_bytes",
            )
        positive = (self.rtt_ns, self.gbps, self.target_ns, self.window_rtts, self.ack_bytes)
        if not all(0 < value < math.inf for value in positive) or not self.clear_ns >= 0:
            raise UsageError("a time, rate or window of NSCC is not positive", "see Nscc")
        shares = (self.average, self.cut, self.least_left)
        if not all(0.0 < share <= 1.0 for share in shares) or self.adapt_shift < 0:
            raise UsageError("a gain of NSCC is out of its range", "0 < gain <= 1")

    @classmethod
    def for_path(cls, rtt_ns: float, gbps: float) -> Nscc:
        """The defaults for switches that trim: queues of the bytes of a round trip.

        Marks from 20 to 80 % of such a queue, and a target of three quarters of the round trip.
        """
        queue = rtt_ns * gbps / 8
        return cls(
            rtt_ns=rtt_ns, gbps=gbps, target_ns=0.75 * rtt_ns, kmin_bytes=round(0.2 * queue),
            kmax_bytes=round(0.8 * queue),
        )  # fmt: skip

    @property
    def scale(self) -> float:
        """Bytes of a round trip beside those of 12 us at 100 Gb/s, for which gains are given."""
        return self.rtt_ns * self.gbps / 8 / 150_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A directed port that is down or slow for a time.

    Where nothing may be lost (backpressure, or no shared buffer) a port that is down holds its
    bytes; otherwise what it carries and what comes to it is lost. A host's own port always holds.

    Attributes:
        at_ns: When it begins.
        port: Which port of the fabric.
        share: Of its rate that is left; 0 is down.
        until_ns: When it ends; None means never.
    """

    at_ns: int
    port: int
    share: float = 0.0
    until_ns: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: times that run backwards, or a share outside 0..1.
        """
        if self.at_ns < 0 or (self.until_ns is not None and self.until_ns <= self.at_ns):
            raise UsageError(f"a fault from {self.at_ns} to {self.until_ns} ns is no time", "")
        if not 0.0 <= self.share <= 1.0:
            raise UsageError(f"a fault leaves a share of {self.share}", "0 (down) to 1")


def flaps(port: int, at_ns: int, *, down_ns: int, up_ns: int, times: int) -> tuple[Fault, ...]:
    """A port that goes down again and again.

    Args:
        port: Which port.
        at_ns: First time.
        down_ns: How long it is down each time.
        up_ns: How long it is up in between.
        times: How often it goes down.
    """
    starts = [at_ns + i * (down_ns + up_ns) for i in range(times)]
    return tuple(Fault(at_ns=at, port=port, until_ns=at + down_ns) for at in starts)


def _check_lengths(faults: Sequence[Fault], dt_ns: int) -> None:
    """Refuse faults of one port, and times between them, that are shorter than a step."""
    spans: list[tuple[float, float]] = []
    well_at = -1.0  # none before
    for fault in sorted(faults, key=lambda fault: fault.at_ns):
        if 0.0 <= well_at < fault.at_ns:
            spans.append((well_at, fault.at_ns))
        end = math.inf if fault.until_ns is None else fault.until_ns
        spans.append((fault.at_ns, end))
        well_at = max(well_at, end)
    for at, until in spans:
        if until - at < dt_ns:
            raise UsageError(
                f"port {faults[0].port} changes at {at:.0f} and {until:.0f} ns, "
                f"less than a step of {dt_ns} ns apart",
                "take a smaller dt_ns, or longer faults and times between them",
            )


def rate_changes(
    faults: Sequence[Fault], rate: NDArray[np.int64], dt_ns: int
) -> NDArray[np.int64]:
    """Steps at which ports change their rate; of overlapping faults the worst counts.

    Args:
        faults: The faults.
        rate: Bytes a step of each port that is well.
        dt_ns: Length of a step.

    Returns:
        int64, shape (changes, 3): step, port, new rate; in order of steps.

    Raises:
        UsageError: no such port, or what lasts less than a step, which no step would show.
    """
    found = []
    for port in sorted({fault.port for fault in faults}):
        if not 0 <= port < len(rate):
            raise UsageError(f"no port {port} can fail", f"ports are 0..{len(rate) - 1}")
        here = [fault for fault in faults if fault.port == port]
        _check_lengths(here, dt_ns)
        times = {f.at_ns for f in here} | {f.until_ns for f in here if f.until_ns is not None}
        for time in times:
            left = [f.share for f in here if f.at_ns <= time and time < (f.until_ns or time + 1)]
            # A slow port still sends a byte a step: only share 0 is down.
            share = min(left, default=1.0)
            new = max(1, int(rate[port] * share)) if share > 0.0 else 0
            found.append((time, port, new))
    changes = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    changes[:, 0] = -(-changes[:, 0] // dt_ns)
    return changes
