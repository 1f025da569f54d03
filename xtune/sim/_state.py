"""The arrays of one phase: filled from the arguments, grown when full, read out at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.policies.spec import Routing
from xtune.sim import _extras as x
from xtune.sim import _layout as k
from xtune.sim._choices import MOVE_BURST
from xtune.sim._fill_extras import fill_extras, unused
from xtune.sim.bounds import way_ns
from xtune.sim.congestion import Dcqcn, Fault, Nscc, SharedBuffer
from xtune.sim.fabric import PACKET_BYTES, Backpressure, Fabric, LeafSpine
from xtune.sim.flows import DRAW, Flows
from xtune.sim.kernel import stepper

MODES = {
    "static": k.STATIC,
    "binary": k.BINARY,
    "spray": k.SPRAY,
    "power_of_two": k.POWER_OF_TWO,
    "flowlet": k.FLOWLET,
    "switch_adaptive": k.SWITCH,
}
FORECASTS = {"reading": k.READING, "ewma": k.EWMA, "slope": k.SLOPE, "holt": k.HOLT}
KINDS = {"none": k.NO_BACKPRESSURE, "pfc": k.PFC, "credit": k.CREDIT}

_MOST_PATHS = 16  # of one flow, as the engine's path finder computes them ahead
_MOST_ENTROPIES = 1 << 16  # an entropy value has the 16 bits of a UDP source port
_NEVER = 2**62  # a unit or time that does not end
_FIRST_NODES = 1 << 15
_MOST_NODES = (2**32 - 2) // k.NODE_SIZE  # uint32 indices
# Paths of one flow that may be in flight at once. Units of 1 MB leave few open; sprayed packets
# of one flow fill at most Xoff at each of four hops, and 512 packets are 2 MB.
_UNIT_SEGMENTS = 32
_SPRAY_SEGMENTS = k.MOST_SLOTS


class State:
    """One phase in progress.

    Args:
        fabric: The fabric.
        flows: All flows, background too.
        routing: Path choice.
        dt_ns: Step.
        seed: Random seed.
        pfc: Flow control.
        limit_ns: Time of the last step.
        shared_buffer: Of every switch.
        rate_control: Marks, and senders' rates or windows.
        faults: Of ports.
        entropies: Values that sprayed packets of a flow carry in turn; 0: any path each time.
        in_order: Receivers take bytes in order alone, of fabrics that lose nothing too.
        queue_bands: Bounds, bytes, of the bands in which a switch sees a queue.

    Raises:
        UsageError: something does not fit.
    """

    def __init__(
        self,
        fabric: Fabric,
        flows: Flows,
        *,
        routing: Routing,
        dt_ns: int,
        seed: int,
        pfc: Backpressure,
        limit_ns: int,
        shared_buffer: SharedBuffer | None = None,
        rate_control: Dcqcn | Nscc | None = None,
        faults: Sequence[Fault] = (),
        entropies: int = 0,
        in_order: bool = False,
        queue_bands: Sequence[int] = (),
    ) -> None:
        flows.check(fabric)
        if not len(flows) or flows.background.all():
            raise UsageError("a phase without foreground flows never ends", "give some flows")
        if dt_ns < 1 or routing.probe_interval_ns < 1:
            raise UsageError(f"a step of {dt_ns} ns is not a time", "use 500 or 1000")
        self.fabric, self.flows, self.dt_ns, self.routing = fabric, flows, dt_ns, routing
        lanes = 2 if routing.lanes > 1 else 1
        queues = lanes * fabric.ports
        self.rate = fabric.step_bytes(dt_ns)
        self.head = np.full(queues, k.NIL, dtype=np.uint32)
        self.tail = np.full(queues, k.NIL, dtype=np.uint32)
        self.queued = np.zeros(queues, dtype=np.int64)
        self.resident = np.zeros(queues, dtype=np.int64)
        self.paused = np.zeros(queues, dtype=np.uint8)
        self.pauses = np.zeros(queues, dtype=np.int64)
        self.stopped = np.zeros(queues, dtype=np.int64)
        self.asked = np.zeros(queues, dtype=np.uint8)
        self._fill_signals(queues, pfc)
        self.ended = np.zeros(fabric.ports)  # when a port was last in use; of those that keep it
        self.nodes = np.empty(_FIRST_NODES * k.NODE_SIZE, dtype=np.uint32)
        # numpy draws the paths, the kernel the packets: two streams of one seed.
        paths, packets = np.random.SeedSequence(seed).spawn(2)
        self.rng = packets.generate_state(1, dtype=np.uint64)
        self._take_options(entropies, queue_bands)
        self._fill_flows(np.random.default_rng(paths), lanes)
        self._fill_order()
        self._fill_probes(lanes)
        self._fill_parameters(lanes, pfc, limit_ns)
        self.extras = unused()
        given = shared_buffer is not None or rate_control is not None
        self.has_extras = bool(faults) or in_order or given
        if self.has_extras:
            self.extras = fill_extras(
                self, pfc=pfc, shared_buffer=shared_buffer, rate_control=rate_control,
                faults=faults, in_order=in_order,
            )  # fmt: skip

    def _take_options(self, entropies: int, queue_bands: Sequence[int]) -> None:
        """Options that one mode has: they are refused where they would change nothing."""
        mode, load = self.routing.mode, self.routing.switch_load
        if not 0 <= entropies <= _MOST_ENTROPIES or (entropies > 0 and mode != "spray"):
            raise UsageError(
                f"{entropies} entropies are not for mode {mode!r}",
                f"at most {_MOST_ENTROPIES}, in mode 'spray'; else 0",
            )
        if len(queue_bands) > k.MOST_BANDS or not all(0 < band < math.inf for band in queue_bands):
            raise UsageError(
                f"queue_bands {list(queue_bands)} divide no queue",
                f"at most {k.MOST_BANDS}, each a positive number of bytes",
            )
        if len(queue_bands) and (mode != "switch_adaptive" or load != "queue"):
            raise UsageError(
                f"queue_bands are not for mode {mode!r} by {load}",
                "mode 'switch_adaptive' with switch_load 'queue'; else none",
            )
        self.entropies, self.queue_bands = entropies, sorted(queue_bands)

    def _fill_signals(self, queues: int, pfc: Backpressure) -> None:
        """Steps that a pause and its end are under way, and the room for those that are.

        What a port sends counts in the next switch at once, and lies there a step later; a pause
        falls into the middle of a step on average, and so does its end. Both ways and both halves
        together are as long as the signal and the link make them.
        """
        steps = 0
        if pfc.signal_ns is not None:
            both_ns = pfc.signal_ns + self.fabric.link_latency_ns
            steps = round(both_ns / self.dt_ns)
            if steps == 0:
                raise UsageError(
                    f"no step of {self.dt_ns} ns shows that a pause acts {both_ns} ns late",
                    f"steps below {2 * both_ns} ns, or no signal_ns"
                    if both_ns
                    else "no signal_ns",
                )
        self.stop_steps, self.go_steps = steps, max(0, steps - 1)
        # A queue asks for each at most once a step.
        self.signals = np.zeros((2, (queues * (steps + 2)) if steps else 1, 2), dtype=np.int64)

    def _fill_flows(self, rng: np.random.Generator, lanes: int) -> None:
        fabric, flows, n = self.fabric, self.flows, len(self.flows)
        routes = fabric.routes(flows.src, flows.dst)
        flows.check_paths(routes)
        self.route, self.links_on_path = routes.table, routes.links
        self.first = np.array(fabric.stage_first, dtype=np.int64)
        # Drawn for every flow, so that a given path does not move the draws of the others.
        bound = np.where(routes.count > 1, routes.count, routes.count.max())
        drawn = rng.integers(0, bound) % routes.count
        primary = np.where(flows.spine == DRAW, drawn, flows.spine % routes.count)
        self._fill_paths(rng, primary, routes.count)
        u = np.zeros((n, k.FLOW_U), dtype=np.uint32)
        self.ends = np.zeros((n, k.ENDS), dtype=np.uint16)
        self.ends[:, k.SRC], self.ends[:, k.DST] = flows.src, flows.dst
        self.ends[:, k.SRC_LEAF] = fabric.leaves_of(flows.src)
        self.ends[:, k.DST_LEAF] = fabric.leaves_of(flows.dst)
        u[:, k.ROW], u[:, k.CHOICES] = routes.row, routes.count
        u[:, k.PATH] = primary
        u[:, k.RING] = k.NIL
        u[:, k.LANE] = flows.lane if lanes > 1 else 0
        u[:, k.BACKGROUND] = flows.background
        u[:, k.BEFORE] = np.bincount(flows.after[:, 1], minlength=n)
        i = np.zeros((n, k.FLOW_I), dtype=np.int64)
        i[:, k.SIZE] = i[:, k.TO_SEND] = flows.size
        i[:, k.START], i[:, k.RELEASE] = flows.start_ns, flows.release_ns
        half = (len(self.first) - 3) // 2  # of the stages between switches: those that lead down
        f = np.full((n, k.LATE + max(1, half)), np.nan)
        f[:, k.LATE :] = 0.0
        # A fragment makes a hop a step; what the real path takes in addition, or less.
        for links in np.unique(routes.links):
            on = routes.links == links
            way = way_ns(fabric, flows.size[on], int(links))
            f[on, k.EXTRA] = way - (int(links) - 1) * self.dt_ns
        self.flow_u, self.flow_i, self.flow_f = u, i, f

    def _fill_paths(
        self, rng: np.random.Generator, primary: NDArray[np.int64], count: NDArray[np.int64]
    ) -> None:
        """Paths of each flow in the order in which the engine's router would try them."""
        n, most, binary = len(self.flows), int(count.max()), self.routing.mode == "binary"
        width = min(most, _MOST_PATHS) if self.routing.mode in ("binary", "flowlet") else 0
        order = np.zeros((n, 0))
        if width:
            order = rng.random((n, most))
            order[np.arange(most) >= count[:, None]] = np.inf
            rows = np.arange(n)
            given = np.flatnonzero(self.flows.alternative != DRAW)
            order[given, self.flows.alternative[given] % count[given]] = -1.0  # second
            order[rows, primary] = -2.0  # first, even where the alternative is the same
        paths = np.argsort(order, axis=1)[:, :width]
        # Beyond a flow's own paths its primary stands, which is never an alternative.
        self.paths = np.where(paths < count[:, None], paths, primary[:, None]).astype(np.uint32)
        # A flow that was given its own primary as alternative has nowhere to go.
        alone = self.flows.alternative == primary
        self.paths[alone] = primary[alone, None]
        if self.entropies:  # each value is hashed to some path
            self.paths = rng.integers(0, count[:, None], (n, self.entropies)).astype(np.uint32)
        pairs = max(1, min(self.routing.pairs, width))
        self.pairs = np.zeros((n * pairs if binary else 1, k.PAIR_SIZE), dtype=np.int64)
        self.pairs[:, k.USED] = -1
        self.pairs[:, k.MOVED_AT] = -_NEVER // 4  # nothing holds the first move back
        self.budgets = np.full(len(self.pairs), MOVE_BURST)
        self.pair_count = pairs

    def _fill_order(self) -> None:
        flows, n = self.flows, len(self.flows)
        order = np.argsort(flows.after[:, 0], kind="stable")
        self.after = flows.after[order, 1].astype(np.uint32)
        counts = np.bincount(flows.after[:, 0], minlength=n)
        self.after_at = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        free = np.flatnonzero(self.flow_u[:, k.BEFORE] == 0)
        free = free[np.argsort(flows.start_ns[free], kind="stable")]
        self.starts = free.astype(np.uint32)
        self.start_step = -(-flows.start_ns[free] // self.dt_ns)
        # The wheel must hold the longest way ahead that a completion can release a flow.
        ahead = float(np.nanmax(self.flow_f[:, k.EXTRA])) + float(flows.release_ns.max())
        if len(self.route):  # what is behind its clock, see the kernel
            ahead += self.dt_ns * float(np.ptp(self.links_on_path))
        waiting = self.flow_u[:, k.BEFORE] > 0
        if waiting.any():
            ahead = max(ahead, float(flows.start_ns[waiting].max()))
        self.wheel = np.full(math.ceil(max(ahead, 0.0) / self.dt_ns) + 4, k.NIL, dtype=np.uint32)

    def _fill_probes(self, lanes: int) -> None:
        routing, between = self.routing, self.fabric.ports - 2 * self.fabric.hosts
        self.probe_steps = max(1, round(routing.probe_interval_ns / self.dt_ns))
        self.delay_steps = max(0, round(routing.decision_delay_ns / self.dt_ns))
        rows = self.delay_steps // self.probe_steps + 2
        adaptive = routing.mode != "static"
        self.links = np.full((lanes * between if adaptive else 1, k.LINK_SIZE), np.nan)
        self.links[:, k.PLACED] = 0.0
        self.pending = np.zeros((rows, lanes * between))
        width = max(2, routing.window_readings)
        self.window = np.zeros((lanes * between if routing.forecast == "slope" else 1, width))
        self.times = np.zeros(width, dtype=np.int64)
        self.hist = np.zeros((k.BINS + 1, between), dtype=np.int64)
        packets = -(-int(self.flows.size.max()) // PACKET_BYTES)
        self.segments = np.zeros(
            (
                len(self.flows) if adaptive else 1,
                {"static": 1, "spray": min(_SPRAY_SEGMENTS, packets + 1)}.get(
                    routing.mode, _UNIT_SEGMENTS
                ),
                2,
            ),
            dtype=np.int64,
        )

    def _fill_parameters(self, lanes: int, pfc: Backpressure, limit_ns: int) -> None:
        fabric, routing = self.fabric, self.routing
        if routing.mode not in MODES or routing.forecast not in FORECASTS:
            raise UsageError(
                f"routing mode {routing.mode!r} or forecast {routing.forecast!r} is unknown",
                f"modes: {', '.join(MODES)}; forecasts: {', '.join(FORECASTS)}",
            )
        whole = dict.fromkeys(("static", "switch_adaptive"), _NEVER)
        unit = (whole | {"spray": PACKET_BYTES}).get(routing.mode, routing.unit_bytes)
        values = {
            k.HOSTS: fabric.hosts,
            k.LEAVES: fabric.leaves,
            k.SPINES: fabric.spines if isinstance(fabric, LeafSpine) else 0,
            k.LANES: lanes,
            k.PORTS: fabric.ports,
            k.DT: self.dt_ns,
            k.LIMIT_STEP: -(-limit_ns // self.dt_ns),
            k.KIND: KINDS[pfc.kind],
            k.XOFF: pfc.xoff_bytes,
            k.XON: pfc.xon_bytes,
            k.BUFFER: fabric.buffer_bytes,
            k.PACKET: PACKET_BYTES,
            k.MODE: MODES[routing.mode],
            k.FORECAST: FORECASTS[routing.forecast],
            k.PAIRS: self.pair_count,
            k.COLDEST: int(routing.order == "coldest"),
            k.HORIZON: routing.horizon_ns,
            k.HOLD: routing.hold_ns,
            k.GAP: routing.flowlet_gap_ns,
            k.UNIT: max(PACKET_BYTES, unit),
            k.PROBE_STEPS: self.probe_steps,
            k.DELAY_STEPS: self.delay_steps,
            k.MAX_RATE: int(self.rate.max()),
            k.BY_FLOWS: int(routing.switch_load == "flows"),
            k.STOP_STEPS: self.stop_steps,
            k.GO_STEPS: self.go_steps,
            k.FREE: int(k.NIL),
            k.LEFT: int((~self.flows.background).sum()),
        }
        self.cfg = np.zeros(k.CFG_SIZE, dtype=np.int64)
        for at, value in values.items():
            self.cfg[at] = value
        self.real = np.zeros(k.REAL_SIZE)
        self.real[k.LEVEL_GAIN], self.real[k.SLOPE_GAIN] = routing.level_gain, routing.slope_gain
        self.real[k.ENTER], self.real[k.EXIT] = routing.enter_occupancy, routing.exit_occupancy
        self.real[k.BAND :] = np.inf
        self.real[k.BAND : k.BAND + len(self.queue_bands)] = self.queue_bands
        self.real[k.COLD] = routing.cold_occupancy
        self.real[k.MOVES_PER_MS] = routing.moves_per_ms
        self.active = np.full(fabric.hosts * lanes, k.NIL, dtype=np.uint32)
        self.counts = np.zeros(fabric.hosts * lanes, dtype=np.int64)

    def run(self) -> None:
        """Step until the phase ends or its limit is reached.

        Raises:
            UsageError: flows wait for each other in a circle, or too much is in flight.
        """
        advance = stepper(by_table=len(self.route) > 0, extras=self.has_extras)
        while True:
            ended = advance(
                self.cfg, self.real, self.rng, self.rate, self.head, self.tail, self.queued,
                self.resident, self.paused, self.pauses, self.stopped, self.asked, self.signals,
                self.nodes, self.ends,
                self.flow_u, self.flow_i, self.flow_f, self.after_at, self.after, self.starts,
                self.start_step, self.wheel, self.active, self.counts, self.links, self.pending,
                self.window, self.times, self.segments, self.hist,
                self.paths, self.pairs, self.budgets, self.ended,
                self.route, self.first, self.extras,
            )  # fmt: skip
            if ended == k.STUCK:
                raise UsageError(
                    f"{int(self.cfg[k.LEFT])} flows wait for each other and never start",
                    "remove the circle from the edges of the flows",
                )
            if ended != k.GROW:
                return
            size = 2 * len(self.nodes)
            if size // k.NODE_SIZE > _MOST_NODES:
                raise UsageError("too much is in flight for this simulator", "use backpressure")
            larger = np.empty(size, dtype=np.uint32)
            larger[: len(self.nodes)] = self.nodes
            self.nodes = larger
            if self.has_extras:
                notes = np.zeros((size // k.NODE_SIZE, x.NOTE_SIZE), dtype=np.int64)
                notes[: len(self.extras.notes)] = self.extras.notes
                self.extras = self.extras._replace(notes=notes)

    def figures(self) -> dict[str, Any]:
        """The fields of ``PhaseResult``."""
        foreground = ~self.flows.background
        completion = self.flow_f[:, k.DONE_AT].copy()
        finished = bool(self.cfg[k.LEFT] == 0)
        lanes = int(self.cfg[k.LANES])
        # A port that still stands paused has only the (negative) step of its stop so far.
        stopped = self.stopped + self.paused * self.cfg[k.STEP]
        return {
            "finished": finished,
            "phase_ns": float(completion[foreground].max()) if finished else math.nan,
            "completion_ns": completion,
            "released_ns": self.flow_f[:, k.RELEASED_AT].copy(),
            "background": self.flows.background.copy(),
            "sent_bytes": self.flows.size - self.flow_i[:, k.TO_SEND],
            "delivered_bytes": self.flow_i[:, k.DELIVERED].copy(),
            "in_fabric_bytes": int(self.queued.sum()),
            "moves": self.flow_i[:, k.MOVES].copy(),
            "reorder_bytes": self.flow_i[:, k.HELD].copy(),
            "pauses": self.pauses.reshape(lanes, -1).sum(axis=0),
            "paused_ns": stopped.reshape(lanes, -1).sum(axis=0) * self.dt_ns,
            "occupancy_p50": _quantile(self.hist.T, 0.50),
            "occupancy_p99": _quantile(self.hist.T, 0.99),
            "steps": int(self.cfg[k.STEP]),
            **self._losses(lanes),
        }

    def _losses(self, lanes: int) -> dict[str, Any]:
        """What shared buffers and marks add to the figures."""
        if not self.has_extras:
            none, ports = np.zeros(len(self.flows), dtype=np.int64), self.fabric.ports
            return {
                "dropped_bytes": 0,
                "discarded_bytes": 0,
                "retransmitted_bytes": none,
                "port_dropped_bytes": np.zeros(ports, dtype=np.int64),
                "marked_bytes": np.zeros(ports, dtype=np.int64),
            }
        flow, queue = self.extras.flow, self.extras.queue.reshape(lanes, -1, x.QUEUE_SIZE)
        return {
            "sent_bytes": flow[:, x.SENT].copy(),
            "dropped_bytes": int(flow[:, x.DROPPED].sum()),
            "discarded_bytes": int(flow[:, x.DISCARDED].sum()),
            "retransmitted_bytes": flow[:, x.RESENT].copy(),
            "port_dropped_bytes": queue[:, :, x.DROPS].sum(axis=0),
            "marked_bytes": queue[:, :, x.MARKED_BYTES].sum(axis=0),
        }


def _quantile(hist: NDArray[np.int64], share: float) -> NDArray[np.float64]:
    """Quantile of each row of a histogram over [0, 1): the middle of its bin; 1.0 at the top."""
    total = hist.sum(axis=1)
    reached = np.cumsum(hist, axis=1) >= np.ceil(share * total)[:, None]
    bins = reached.argmax(axis=1)
    middle = np.where(bins == k.BINS, 1.0, (bins + 0.5) / k.BINS)
    return np.where(total == 0, np.nan, middle)
