"""The router: which of its paths each unit of a flow takes, decided inline in microseconds.

A unit belongs to one (primary, alternative) pair of its flow and makes a binary choice in it
(founding document R3, R5): hysteresis, a hold, a move budget; alternatives edge first; blacklisted
paths avoided, and the primary taken where all are blacklisted (N4), so that there is always a
path. Static tables, oblivious spray, power of two choices and flowlets are baselines of the same
interface.

Decide at enqueue, in the thread that sends: a timer thread beside a busy Python thread wakes
milliseconds late.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

from ._core import MOVE_BURST, NAN, budget_refill, choose_binary, level_update
from .bus import Bus
from .decisions import DecisionLog
from .flow_state import Flow as Flow
from .flow_state import FlowState, Pair, PathSet, checked_paths, flow_key, make_room, turned
from .links import DEAD, FULL, LinkTable, link_rates
from .phase_placement import free_share, place_flows
from .schedule import BurstSchedule
from .spec import Policy

MOST_PENDING = 10_000  # moves waiting to be logged
PUBLISH_NS = 1_000_000  # the bus hears from the router at most so often
LEVEL_EXIT = 0.9  # a congestion level is left below this share of its threshold


class Router:
    """Chooses paths from readings in memory.

    Args:
        paths: For each (src, dst) the paths as lists of links, primary first. Paths as short as
            the primary count as equal-cost, longer ones as detours.
        policy: The policy.
        bus: Shared with a controller; a private one by default.
        clock: Nanoseconds on the clock of the readings.
        rng: For power of two choices; a generator of its own, seeded with 0, by default.
        log: Where moves and blacklisting are noted.
        link_gbps: Rate of each link, or of all, in 1e9 bit/s; without it the available bandwidth
            is told as a share alone.

    Raises:
        ValueError: A path set or a path is empty, a path is no list, a key no pair, a link rate
            no positive number.
    """

    def __init__(
        self,
        paths: Mapping[tuple[str, str], Sequence[Sequence[str]]],
        policy: Policy,
        bus: Bus | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        rng: random.Random | None = None,
        log: DecisionLog | None = None,
        link_gbps: Mapping[str, float] | float | None = None,
    ) -> None:
        paths = checked_paths(paths)
        self.policy = policy
        self.bus = Bus() if bus is None else bus
        self.moves = 0
        self.unknown_flows = 0  # choices for ends without a path set
        routing = policy.routing
        self._routing = routing
        self._clock = clock
        self._rng = random.Random(0) if rng is None else rng
        self._log = DecisionLog() if log is None else log
        names = (link for sets in paths.values() for path in sets for link in path)
        self.links = LinkTable(names, routing, self._log)
        self._worth = self.links.worth
        self._seen_ns = self.links.seen_ns
        self._sets = {
            ends: PathSet(number, [tuple(self.links.index[x] for x in path) for path in sets])
            for number, (ends, sets) in enumerate(paths.items())
        }
        self._rates = link_rates(self.links.names, link_gbps)
        self._gbps = min((rate for rate in self._rates if rate == rate), default=None)
        self._flows: dict[Flow, FlowState] = {}
        self._placed: dict[Flow, int] = {}
        self._strays: dict[Flow, int] = {}  # units of the flows between ends without a path set
        self._choose = {
            "static": self._static,
            "binary": self._binary,
            "spray": self._spray,
            "power_of_two": self._power_of_two,
            "flowlet": self._flowlet,
            "switch_adaptive": self._static,  # the fabric chooses
        }[routing.mode]
        enter, leave = routing.enter_occupancy, routing.exit_occupancy
        # Above 0 also where flows never return (exit_occupancy 0): an idle fabric is clear.
        rising, severe = max(leave, enter / 2), (1.0 + enter) / 2
        self._level_enter = (rising, enter, severe)
        self._level_exit = (LEVEL_EXIT * rising, LEVEL_EXIT * enter, LEVEL_EXIT * severe)
        self._level = 0
        self._published_ns: int | None = None
        self._pending: list[tuple[Flow, int, int, str]] = []

    def observe(
        self,
        link: str,
        *,
        occupancy: float | None = None,
        error_rate: float | None = None,
        marks: float | None = None,
        at_ns: int | None = None,
        lost: bool = False,
    ) -> None:
        """Take one reading of a link, or the timeout of a probe.

        Args:
            link: The link; one of no path set is counted and ignored.
            occupancy: Buffer occupancy 0..1, None if unknown.
            error_rate: Packet error rate 0..1, None if unknown.
            marks: Share of packets with a congestion mark 0..1, None if unknown.
            at_ns: When; now by default.
            lost: The probe timed out.
        """
        now_ns = self._clock() if at_ns is None else at_ns
        self.links.observe(link, now_ns, occupancy, error_rate, lost, marks)
        if self._published_ns is None or not 0 <= now_ns - self._published_ns < PUBLISH_NS:
            self.publish(now_ns)

    def choose(self, flow: Flow, *, at_ns: int | None = None) -> int:
        """The path for the next unit of a flow.

        Args:
            flow: (src, dst, id).
            at_ns: When; now by default.

        Returns:
            Index into the flow's path set; 0 for ends without a path set.
        """
        return self.assign(flow, at_ns=at_ns)[0]

    def assign(self, flow: Flow, *, at_ns: int | None = None) -> tuple[int, int]:
        """The path for the next unit of a flow, and the unit's place in the flow's order.

        Args:
            flow: (src, dst, id).
            at_ns: When; now by default.

        Returns:
            Index into the flow's path set, 0 for ends without one; number of the unit in its
            flow, from 0: what a receiver restores the order by. A flow that was given up (the
            oldest of more than 65,536) begins anew.
        """
        now_ns = self._clock() if at_ns is None else at_ns
        state = self._flows.get(flow)
        if state is None:
            paths = self._sets.get((flow[0], flow[1]))
            if paths is None:
                return 0, self._stray(flow)
            state = self._open(flow, paths, now_ns)
        unit = state.units
        state.units = unit + 1
        return self._choose(flow, state, unit, now_ns), unit

    def expect(self, schedule: BurstSchedule | None) -> None:
        """Warn ahead of the bursts that a job tells the schedule; None: no longer."""
        self.links.expect(schedule)

    def weigh(self, link: str, weight: float, *, at_ns: int) -> None:
        """Take a central verdict on a link: what others' readings say of it.

        It counts where this host's own reading is older or absent; a central blacklisting only
        where the own reading is stale as well. The own blacklist stands above any verdict.

        Args:
            link: The link; one of no path set is counted and ignored.
            weight: Forecast occupancy 0..1, inf: blacklisted, NaN: no verdict any more.
            at_ns: When the readings behind it were taken.
        """
        self.links.weigh(link, weight, at_ns)

    def knows(self, link: str) -> bool:
        """Whether a link is one of a path set."""
        return link in self.links.index

    def path_count(self, src: str, dst: str) -> int:
        """How many paths there are between two ends; 0 where they have no path set.

        Args:
            src: Where from.
            dst: Where to.
        """
        paths = self._sets.get((src, dst))
        return 0 if paths is None else len(paths.links)

    def place(self, flows: Mapping[Flow, float], *, at_ns: int | None = None) -> dict[Flow, int]:
        """Paths for the flows of the phase that starts, so that they collide least.

        From then on all units of a placed flow have the path as their primary, and leave it as
        any other. Hosts that are given the same flows and paths and hold the same central
        verdicts come to the same placement without a word; see `phase_placement` for what is
        guaranteed. Costs some 0.07 s for 1024 flows of 32 paths, so do it once a traffic pattern.

        Args:
            flows: Bytes of each flow, this host's and the others'; those between ends without a
                path set are left out.
            at_ns: When; now by default.

        Returns:
            Index of each flow's path.

        Raises:
            ValueError: The bytes of a flow are no number from 0 up; nothing is placed then.
        """
        now_ns = self._clock() if at_ns is None else at_ns
        known = {flow: sets for flow in flows if (sets := self._sets.get(flow[:2])) is not None}
        standard = 1.0 if self._gbps is None else self._gbps
        free = [
            (rate if rate == rate else standard) * free_share(worth)
            for rate, worth in zip(self._rates, self.links.view(now_ns), strict=True)
        ]
        chosen = place_flows(flows, known, free, self.links.names)
        self._placed = chosen
        for flow, path in chosen.items():
            state = self._flows.get(flow)
            if state is not None:
                state.place(path, now_ns)
        return dict(chosen)

    def publish(self, at_ns: int) -> None:
        """Push level and available bandwidth to the bus; `observe` does it once a millisecond.

        The level is that of the worst pair of ends, by the mean forecast occupancy of the paths
        that its units took since the last time: a collective is as slow as its slowest flow. The
        available share is what that occupancy leaves, a stand-in for free bandwidth. Where no
        unit was sent, nothing is told.

        Args:
            at_ns: When.
        """
        self._published_ns = at_ns
        worst = None
        for paths in self._sets.values():
            if paths.units:
                mean = paths.total / paths.units
                worst = mean if worst is None else max(worst, mean)
                paths.total, paths.units = 0.0, 0
        self._flush()
        if worst is None:
            return
        self._level = level_update(self._level, worst, self._level_enter, self._level_exit)
        share = 1.0 - worst
        self.bus.push_routing(
            at_ns=at_ns,
            level=self._level,
            available_share=share,
            available_gbps=None if self._gbps is None else share * self._gbps,
        )

    def _open(self, flow: Flow, paths: PathSet, now_ns: int) -> FlowState:
        state = FlowState(flow[2], paths, self._routing, now_ns)
        placed = self._placed.get(flow)
        if placed is not None:
            state.place(placed, now_ns)
        make_room(self._flows)
        self._flows[flow] = state
        return state

    def _stray(self, flow: Flow) -> int:
        """The next unit of a flow that has no choice."""
        self.unknown_flows += 1
        unit = self._strays.get(flow)
        if unit is None:
            make_room(self._strays)
            unit = 0
        self._strays[flow] = unit + 1
        return unit

    def _binary(self, flow: Flow, state: FlowState, unit: int, now_ns: int) -> int:
        routing, paths = self._routing, state.paths
        pair = state.pairs[(state.hash + unit) % len(state.pairs)]
        # What routing is asked to keep free counts as occupied.
        reserve = self.bus.compression.reserve
        enter = routing.enter_occupancy - reserve
        cold = routing.cold_occupancy - reserve
        home, away, other, known, blind = pair.primary, pair.alternative, NAN, True, False
        worth, _ = self._worst(paths.links[home], now_ns)
        if away >= 0:
            other, known = self._worst(paths.links[away], now_ns)
        if worth == DEAD:
            if away < 0 or other == DEAD:
                return self._without_primary(flow, state, pair, cold, now_ns)
            # While the primary is blacklisted, the path in use is left as a primary would be,
            # and also where it is no longer known: there is none to go back to.
            blind = not known
            home, worth, away, other, known = away, other, -1, NAN, True
        elif other == DEAD:
            to = self._cold(state, pair, cold, now_ns)[0] if worth >= enter else -1
            self._move(flow, pair, to, now_ns, "alternative blacklisted", free=True)
            return self._taken(state, pair.path, now_ns)
        on_alternative = away >= 0
        if not on_alternative and not (worth >= enter or blind):
            # Also where nothing is known: the common case, so the first.
            pair.warned_ns = None
            self._took(paths, worth)
            return home
        since = routing.hold_ns
        if pair.moved_ns is not None and pair.moved_ns <= now_ns:  # else the clock was set back
            since = now_ns - pair.moved_ns
        budget = self._refill(pair, now_ns)
        if not on_alternative and since >= routing.hold_ns and budget >= 1.0:
            away, other = self._cold(state, pair, cold, now_ns)
        if away < 0:  # nowhere to go, or not yet
            self._took(paths, worth)
            return home
        use = choose_binary(
            DEAD if blind else worth, other if known else NAN, on_alternative, enter,
            routing.exit_occupancy - reserve, cold, since, routing.hold_ns, budget,
        )  # fmt: skip
        if use == on_alternative:
            pair.warned_ns = None
        elif routing.yield_ns and pair.yields(
            flow_key(flow), now_ns, other if on_alternative else worth, routing.yield_ns,
            routing.hold_ns,
        ):  # fmt: skip
            use = on_alternative
        else:
            left = "primary" if home == pair.primary else "alternative"
            why = "unknown" if blind else "warned"
            reason = f"{left} {why}" if use else "back on the primary"
            self._move(flow, pair, away if use else -1, now_ns, reason)
        self._took(paths, other if use else worth)
        return away if use else home

    def _without_primary(
        self, flow: Flow, state: FlowState, pair: Pair, cold: float, now_ns: int
    ) -> int:
        """The path where both of the pair are blacklisted; the primary where all are.

        A cold one, as where the primary is warned: were all to take the best one, all flows that
        a dead link throws out would meet on it.
        """
        best, _ = self._cold(state, pair, cold, now_ns)
        if best < 0:
            best = self._best(state.paths, pair, now_ns)
        if best != pair.alternative:
            reason = "primary blacklisted" if best >= 0 else "all paths blacklisted"
            self._move(flow, pair, best, now_ns, reason, free=True)
        return self._taken(state, pair.path, now_ns)

    def _cold(self, state: FlowState, pair: Pair, cold: float, now_ns: int) -> tuple[int, float]:
        """The alternative to move to: the first cold one, or the coldest; -1 if none is cold."""
        coldest = self._routing.order == "coldest"
        worths, seen, oldest = self._worth, self._seen_ns, now_ns - self._routing.stale_ns
        found, least = -1, cold
        for index in pair.candidates:
            worst = -1.0
            for link in state.paths.links[index]:
                worth = worths[link]
                if not worth < least or seen[link] < oldest:  # warm, dead, or unknown
                    break
                if worth > worst:
                    worst = worth
            else:
                found, least = index, worst
                if not coldest:
                    break
        return found, least if found >= 0 else NAN

    def _best(self, paths: PathSet, pair: Pair, now_ns: int) -> int:
        """The usable path with the least occupancy, unknown ones last; -1 if none is usable.

        Of several the first in the pair's order, which differs between flows.
        """
        found, least = -1, math.inf
        for index in (pair.primary, *pair.candidates, *range(len(paths.links))):
            worth, known = self._worst(paths.links[index], now_ns)
            if worth == DEAD:
                continue
            rank = worth if known and worth == worth else math.inf
            if rank < least or found < 0:
                found, least = index, rank
        return found

    def _worst(self, links: tuple[int, ...], now_ns: int) -> tuple[float, bool]:
        """A path is worth its worst link; also whether all of its links are known."""
        worths, seen, oldest = self._worth, self._seen_ns, now_ns - self._routing.stale_ns
        worst = NAN
        known = True
        for link in links:
            worth = worths[link]
            if worth == DEAD:
                if not self.links.forgotten(link, now_ns):
                    return DEAD, True
                worth = worths[link]
            if worth != worth or seen[link] < oldest:
                known = False
            elif not worth <= worst:
                worst = worth
        return worst, known

    def _static(self, flow: Flow, state: FlowState, unit: int, now_ns: int) -> int:
        """As a static table does: by a hash of the flow, whatever happens."""
        return self._taken(state, state.pairs[state.hash % len(state.pairs)].primary, now_ns)

    def _spray(self, flow: Flow, state: FlowState, unit: int, now_ns: int) -> int:
        """Over all shortest paths in turn, whatever their load; blacklisted ones left out."""
        equal = state.paths.equal
        for turn in range(len(equal)):
            index = equal[(state.hash + unit + turn) % len(equal)]
            if self._worst(state.paths.links[index], now_ns)[0] != DEAD:
                return self._taken(state, index, now_ns)
        return self._fallback(state, now_ns)

    def _power_of_two(self, flow: Flow, state: FlowState, unit: int, now_ns: int) -> int:
        """The emptier of two random shortest paths (Mitzenmacher, 2001)."""
        equal = state.paths.equal
        count = len(equal)
        draw = int(self._rng.random() * count)
        other = (draw + 1 + int(self._rng.random() * (count - 1))) % count
        one, two = equal[draw], equal[other]
        links = state.paths.links
        first, second = self._worst(links[one], now_ns)[0], self._worst(links[two], now_ns)[0]
        if first == DEAD and second == DEAD:
            return self._fallback(state, now_ns)
        return self._taken(state, two if second < first or first == DEAD else one, now_ns)

    def _flowlet(self, flow: Flow, state: FlowState, unit: int, now_ns: int) -> int:
        """After a gap the least loaded known path, as CONGA takes it; LetFlow would draw one.

        The gap is between the enqueueing of two units. Where none is known to be less loaded
        than the path in use, that one is kept (Alizadeh et al. 2014, Vanini et al. 2017).
        """
        pair, paths = state.pairs[0], state.paths
        gap_ns, state.asked_ns = now_ns - state.asked_ns, now_ns
        now_on = best = pair.path
        least, known = self._worst(paths.links[now_on], now_ns)
        if least == DEAD:
            usable = self._best(paths, pair, now_ns)
            best = now_on if usable < 0 else usable
        elif known and (unit == 0 or not 0 <= gap_ns < self._routing.flowlet_gap_ns):
            for index in turned(paths.equal, state.hash):
                worth, known = self._worst(paths.links[index], now_ns)
                if known and worth < least:
                    best, least = index, worth
        if best != now_on:
            why = "path blacklisted" if least == DEAD else "less loaded"
            self._move(flow, pair, -1 if best == pair.primary else best, now_ns, why)
        return self._taken(state, best, now_ns)

    def _fallback(self, state: FlowState, now_ns: int) -> int:
        """For baselines without a pair in use: the best path, the first where all are dead."""
        pair = state.pairs[state.hash % len(state.pairs)]
        return self._taken(state, max(0, self._best(state.paths, pair, now_ns)), now_ns)

    def _taken(self, state: FlowState, index: int, now_ns: int) -> int:
        self._took(state.paths, self._worst(state.paths.links[index], now_ns)[0])
        return index

    def _took(self, paths: PathSet, worth: float) -> None:
        """Note how full the path of one unit is, links that all paths share included."""
        for link in paths.common:
            shared = self._worth[link]
            if shared > worth or worth != worth:
                worth = shared
        if worth == worth:
            # A steep forecast or a blacklisted link says full, not five times.
            paths.total += FULL if worth > FULL else worth
            paths.units += 1

    def _refill(self, pair: Pair, now_ns: int) -> float:
        dt_ns = max(0, now_ns - pair.budget_ns)
        pair.budget = budget_refill(pair.budget, dt_ns, self._routing.moves_per_ms, MOVE_BURST)
        pair.budget_ns = now_ns
        return pair.budget

    def _move(
        self, flow: Flow, pair: Pair, to: int, now_ns: int, reason: str, *, free: bool = False
    ) -> None:
        """Change a pair's path; free: off a dead one, which neither holds nor costs budget."""
        before = pair.path
        pair.alternative = to
        pair.moves += 1
        pair.warned_ns = None
        if not free:
            pair.moved_ns = now_ns
            pair.budget = max(0.0, pair.budget - 1.0)
        self.moves += 1
        if len(self._pending) < MOST_PENDING:
            self._pending.append((flow, before, pair.primary if to < 0 else to, reason))
        else:
            self._log.dropped += 1

    def _flush(self) -> None:
        """Write the moves since the last time: files are too slow for the moment of a choice."""
        pending, self._pending = self._pending, []
        for (src, dst, ident), before, after, reason in pending:
            self._log.change(None, "path", before, after, f"{src} to {dst} flow {ident}: {reason}")
