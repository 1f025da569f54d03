"""Many binary choices in one call, with the same outcome as the router's one by one.

For who decides for a whole host, or a whole fabric, at once: forecasts of all links come in as an
array (`ForecastTable`), paths of all pairs go out as one. Where numba is installed and asked
for, a loop over the engine's own arithmetic is compiled; else numpy does the same for all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ._core import MOVE_BURST, budget_refill, choose_binary
from .flow_state import Pair, PathSet
from .spec import Routing

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

NEVER = -(2**62)  # when a pair moved that did not
USED, MOVED, REFILLED, PATHS = range(4)  # columns of a row's state; PATHS: how many it has


class ChoiceTable:
    """The pairs of many flows, as arrays.

    The rules are the router's in mode ``binary``, without its waiting for others (``yield_ns``),
    its logging and its bus.

    Args:
        rows: For each choice the paths between its ends, and the pair that it chooses in.
        routing: The policy's routing parameters.
        compiled: Compile the loop, where numba is installed; the first call then takes seconds.

    Raises:
        ValueError: The policy wants waiting.
    """

    def __init__(
        self,
        rows: Sequence[tuple[PathSet, Pair]],
        routing: Routing,
        *,
        compiled: bool = False,
    ) -> None:
        if routing.yield_ns:
            raise ValueError("routing.yield_ns: a table of choices has no flows that wait")
        self._routing = routing
        self._path_links = _padded([paths for paths, _ in rows])
        orders = [[pair.primary, *pair.candidates] for _, pair in rows]
        width = max(map(len, orders), default=1)
        self._orders: Ints = np.array([o + [-1] * (width - len(o)) for o in orders], np.int64)
        self._orders.shape = (len(rows), width)
        self._state: Ints = np.empty((len(rows), 4), np.int64)
        for row, (paths, pair) in zip(self._state, rows, strict=True):
            moved_ns = NEVER if pair.moved_ns is None else pair.moved_ns
            row[:] = pair.alternative, moved_ns, pair.budget_ns, len(paths.links)
        self._budget: Floats = np.array([pair.budget for _, pair in rows], np.float64)
        self._links = int(self._path_links.max()) + 1 if rows else 0
        self._first = self._orders[:, 0].copy()
        self._primaries = self._path_links[np.arange(len(rows)), self._first]
        self._by_numpy = not compiled or find_spec("numba") is None

    def choose(self, worth: Floats, seen_ns: Ints, now_ns: int, *, reserve: float = 0.0) -> Ints:
        """The path of each row's next unit.

        Args:
            worth: Forecast occupancy of each link, shape (links,); NaN unknown, inf blacklisted.
            seen_ns: Time of the readings behind it, shape (links,).
            now_ns: The time of the choices.
            reserve: Share of bandwidth that counts as occupied.

        Returns:
            Index into each row's path set, shape (rows,).

        Raises:
            ValueError: Too few links.
        """
        routing = self._routing
        thresholds = (
            float(routing.enter_occupancy - reserve),
            float(routing.exit_occupancy - reserve),
            float(routing.cold_occupancy - reserve),
        )
        if min(len(worth), len(seen_ns)) < self._links:
            raise ValueError(f"worth and seen_ns must tell of {self._links} links")
        chosen = self._first.copy()
        if self._by_numpy:
            self._choose_by_numpy(worth, seen_ns, chosen, now_ns, thresholds)
            return chosen
        _compiled()(
            worth, seen_ns, self._path_links, self._primaries, self._orders, self._state,
            self._budget, chosen, now_ns, now_ns - routing.stale_ns, thresholds, routing.hold_ns,
            routing.moves_per_ms, routing.order == "coldest",
        )  # fmt: skip
        return chosen

    def _choose_by_numpy(
        self,
        worth: Floats,
        seen: Ints,
        chosen: Ints,
        now_ns: int,
        thresholds: tuple[float, float, float],
    ) -> None:
        """What the loop does, for all rows at once."""
        with np.errstate(invalid="ignore"):
            hot = worth >= thresholds[0]
            busy = self._state[:, USED] >= 0
            for links in self._primaries.T:
                busy |= hot[links]
            rows = np.flatnonzero(busy)
            if not len(rows):  # the common case: no primary is warned, and none was left
                return
            stale = (seen < now_ns - self._routing.stale_ns) & (worth != math.inf)
            values = np.where(stale, np.nan, worth)
            used = self._state[rows, USED]
            to, free = self._paths_of(rows, used, values, now_ns, thresholds)
        self._state[rows, USED] = to
        moved = rows[(to != used) & ~free]
        self._state[moved, MOVED] = now_ns
        self._budget[moved] = np.maximum(0.0, self._budget[moved] - 1.0)
        chosen[rows] = np.where(to >= 0, to, chosen[rows])

    def _paths_of(
        self,
        rows: Ints,
        used: Ints,
        worth: Floats,
        now_ns: int,
        thresholds: tuple[float, float, float],
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The alternative that each of some rows takes, -1: its primary; and if it had to."""
        primary, _ = self._worst_of(rows, self._orders[rows, 0], worth)
        other, known = self._worst_of(rows, used, worth)
        other[used < 0], known[used < 0] = np.nan, True
        to = used.copy()
        dead, gone = primary == math.inf, other == math.inf
        lost = dead & ((used < 0) | gone)
        to[lost], _ = self._cold_of(rows[lost], worth, thresholds[2])
        warm = np.flatnonzero(lost & (to < 0))
        to[warm] = self._best_of(rows[warm], worth)
        left = ~dead & gone
        to[left] = -1
        warned = np.flatnonzero(left & (primary >= thresholds[0]))
        to[warned], _ = self._cold_of(rows[warned], worth, thresholds[2])
        # While the primary is blacklisted, the path in use is left as a primary would be, and also
        # where it is no longer known.
        moved_in = dead & ~lost
        home, away = np.where(moved_in, used, -1), np.where(moved_in, -1, used)
        primary = np.where(moved_in, np.where(known, other, math.inf), primary)
        other[moved_in], known[moved_in] = np.nan, True
        clear = (away < 0) & ~(primary >= thresholds[0])  # what is above is stale
        rest = np.flatnonzero(~lost & ~left & ~clear)
        use = self._binary(
            rows[rest], away[rest], primary[rest], other[rest], known[rest], worth, now_ns,
            thresholds,
        )  # fmt: skip
        to[rest] = np.where(use >= 0, use, home[rest])
        return to, lost | left

    def _binary(
        self,
        rows: Ints,
        used: Ints,
        primary: Floats,
        other: Floats,
        known: npt.NDArray[np.bool_],
        worth: Floats,
        now_ns: int,
        thresholds: tuple[float, float, float],
    ) -> Ints:
        """`choose_binary` of rows with a living primary, and the search for an alternative."""
        routing, (enter, leave, cold) = self._routing, thresholds
        moved_ns = self._state[rows, MOVED]
        since = np.where(moved_ns <= now_ns, now_ns - moved_ns, routing.hold_ns)
        waited = np.maximum(0, now_ns - self._state[rows, REFILLED])
        budget = np.minimum(
            self._budget[rows] + waited * (routing.moves_per_ms * 1e-6), MOVE_BURST
        )
        self._budget[rows], self._state[rows, REFILLED] = budget, now_ns
        may_move = (since >= routing.hold_ns) & (budget >= 1.0)
        candidate, on_alternative = used.copy(), used >= 0
        looking = np.flatnonzero(may_move & ~on_alternative)
        candidate[looking], other[looking] = self._cold_of(rows[looking], worth, cold)
        value = np.where(known, other, np.nan)
        leaves = (primary >= enter) & (value < cold)
        warned = (value >= enter) & (primary < value)
        stays = np.where(np.isnan(value), primary >= enter, ~warned) & ~(primary < leave)
        use = np.where(may_move, np.where(on_alternative, stays, leaves), on_alternative)
        return np.where(use, candidate, -1)

    def _cold_of(self, rows: Ints, worth: Floats, cold: float) -> tuple[Ints, Floats]:
        """The alternative to move to, -1 if none is cold; and what it is worth, else NaN."""
        found, least = np.full(len(rows), -1), np.full(len(rows), cold)
        looking = np.full(len(rows), True)
        for paths in self._orders[rows, 1:].T:
            if not looking.any():
                break
            value, known = self._worst_of(rows, paths, worth)
            better = looking & (paths >= 0) & known & (value < least)
            found[better], least[better] = paths[better], value[better]
            if self._routing.order != "coldest":
                looking &= ~better
        return found, np.where(found >= 0, least, np.nan)

    def _worst_of(
        self, rows: Ints, paths: Ints, worth: Floats
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        links = self._path_links[rows, paths]
        values = worth[links]
        worst = np.fmax.reduce(values, axis=1)
        return worst, ~np.isnan(values).any(axis=1) | (worst == math.inf)

    def _best_of(self, rows: Ints, worth: Floats) -> Ints:
        found, least = np.full(len(rows), -1), np.full(len(rows), math.inf)
        every = np.repeat(np.arange(self._path_links.shape[1])[:, None], len(rows), axis=1)
        for paths in (*self._orders[rows].T, *every):
            value, known = self._worst_of(rows, paths, worth)
            rank = np.where(known & ~np.isnan(value), value, math.inf)
            there = (paths >= 0) & (paths < self._state[rows, PATHS])
            better = there & (value != math.inf) & ((rank < least) | (found < 0))
            found[better], least[better] = paths[better], rank[better]
        return found


def _padded(sets: Sequence[PathSet]) -> npt.NDArray[np.uint32]:
    """Links of each path, shape (sets, paths, links of a path); a short one repeats its last.

    An only path has no link of its own: that of all paths stands for it, and nothing depends
    on it. Unsigned, since a signed index pays a test for wrapping.
    """
    links = [[path or paths.common for path in paths.links] for paths in sets]
    most = max(map(len, links), default=1)
    longest = max((len(path) for of in links for path in of), default=1)
    made = np.zeros((len(sets), most, longest), np.uint32)
    for row, paths in zip(made, links, strict=True):
        for at, path in zip(row, paths, strict=False):
            at[:] = [*path, *[path[-1]] * (longest - len(path))]
    return made


@cache
def _compiled() -> Callable[..., Any]:
    njit = import_module("numba").njit
    worst = njit(_worst)
    parts = _best_of(worst), _cold_of(worst), choose_binary, budget_refill
    return njit(_loop(worst, *map(njit, parts)))  # type: ignore[no-any-return]


def _worst(worth, seen, links, oldest):  # type: ignore[no-untyped-def]
    """A path is worth its worst link, NaN where none is known; also whether all are."""
    most, known = math.nan, True
    for i in range(len(links)):
        link = links[i]
        value = worth[link]
        if value == math.inf:
            return math.inf, True
        if value != value or seen[link] < oldest:
            known = False
        elif not value <= most:
            most = value
    return most, known


def _best_of(worst: Callable[..., Any]) -> Callable[..., Any]:
    def best(worth, seen, paths, order, count, oldest):  # type: ignore[no-untyped-def]
        """The usable path with the least occupancy, unknown ones last; -1 if none is usable."""
        found, least = -1, math.inf
        for at in range(len(order) + count):
            path = order[at] if at < len(order) else at - len(order)
            if path < 0:
                continue
            value, known = worst(worth, seen, paths[path], oldest)
            if value == math.inf:
                continue
            rank = value if known and value == value else math.inf
            if rank < least or found < 0:
                found, least = path, rank
        return found

    return best


def _cold_of(worst: Callable[..., Any]) -> Callable[..., Any]:
    def cold_of(worth, seen, paths, order, oldest, cold, coldest):  # type: ignore[no-untyped-def]
        """The alternative to move to, -1 if none is cold; and what it is worth, else NaN."""
        found, least = -1, cold
        for path in order[1:]:
            if path < 0:
                break
            value, known = worst(worth, seen, paths[path], oldest)
            if known and value < least:
                found, least = path, value
                if not coldest:
                    break
        return found, least if found >= 0 else math.nan

    return cold_of


def _loop(
    worst: Callable[..., Any],
    best: Callable[..., Any],
    cold_of: Callable[..., Any],
    choose: Callable[..., Any],
    refill: Callable[..., Any],
) -> Callable[..., Any]:
    """The loop over all rows, in terms of functions that are compiled, or not."""

    def run(  # type: ignore[no-untyped-def]
        worth, seen, paths, primaries, orders, state, budget, chosen, now, oldest, thresholds,
        hold, rate, coldest,
    ):  # fmt: skip
        enter, leave, cold = thresholds
        width = primaries.shape[1]
        for row in range(len(budget)):
            used = state[row, USED]
            if used < 0:  # the common case: no link of the primary is warned
                hot = False
                for i in range(width):
                    hot |= worth[primaries[row, i]] >= enter
                if not hot:
                    continue
            primary, _ = worst(worth, seen, primaries[row], oldest)
            if used < 0 and not primary >= enter:  # what is above is stale
                continue
            other, known = math.nan, True
            if used >= 0:
                other, known = worst(worth, seen, paths[row, used], oldest)
            to, forced = used, True
            if primary == math.inf and (used < 0 or other == math.inf):
                to, _ = cold_of(worth, seen, paths[row], orders[row], oldest, cold, coldest)
                if to < 0:
                    to = best(worth, seen, paths[row], orders[row], state[row, PATHS], oldest)
            elif primary != math.inf and other == math.inf:
                to = -1
                if primary >= enter:
                    to, _ = cold_of(worth, seen, paths[row], orders[row], oldest, cold, coldest)
            else:
                forced, home, away = False, -1, used
                if primary == math.inf:  # what is in use is left as a primary would be
                    home, primary = used, other if known else math.inf
                    away, other, known = -1, math.nan, True
                on_alternative = away >= 0
                if not on_alternative and not primary >= enter:
                    chosen[row] = home
                    continue
                since = hold
                if state[row, MOVED] <= now:
                    since = now - state[row, MOVED]
                waited = max(0, now - state[row, REFILLED])
                budget[row] = refill(budget[row], waited, rate, MOVE_BURST)
                state[row, REFILLED] = now
                if not on_alternative and since >= hold and budget[row] >= 1.0:
                    away, other = cold_of(
                        worth, seen, paths[row], orders[row], oldest, cold, coldest
                    )
                if away >= 0:
                    value = other if known else math.nan
                    use = choose(
                        primary, value, on_alternative, enter, leave, cold, since, hold,
                        budget[row],
                    )  # fmt: skip
                    to = away if use else home
            if to != used:
                state[row, USED] = to
                if not forced:
                    state[row, MOVED] = now
                    budget[row] = max(0.0, budget[row] - 1.0)
            if to >= 0:
                chosen[row] = to

    return run
