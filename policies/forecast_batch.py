"""The forecasters for a whole table of links at once, with the same bits as one by one.

Every expression stands in the order of :mod:`._core`, element by element: numpy neither fuses nor
reorders it. Holt's method is also there as a compiled loop over the formula itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ._core import CLOSER, LONGER, USUAL_FACTOR, forecast_peak, holt_update
from .forecast import usual_at_first
from .schedule import PEAKS_KEPT, Burst, BurstSchedule
from .spec import Routing

Floats: TypeAlias = npt.NDArray[np.float64]
Times: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class ForecastTable:
    """One forecaster a link, as arrays.

    Args:
        links: How many links.
        routing: The policy's routing parameters.
        compiled: Compile Holt's method, where numba is installed; the first update then takes
            seconds.
    """

    def __init__(self, links: int, routing: Routing, *, compiled: bool = False) -> None:
        self._compiled = compiled and routing.forecast == "holt" and find_spec("numba") is not None
        self.level: Floats = np.full(links, np.nan)
        self.slope: Floats = np.full(links, np.nan)
        self.usual_ns: Floats = np.full(links, usual_at_first(routing))  # between two readings
        self.at_ns: Times = np.zeros(links, np.int64)
        self.marks: Floats = np.full(links, np.nan)
        self.marks_ns: Times = np.zeros(links, np.int64)
        self._marked = False  # whether marks were ever known: most tables have none
        self._bursts: _BurstPeaks | None = None
        # Of the last reading and between two, where they are those of all links, with a slope.
        self._even_ns: int | None = None
        self._routing = routing
        window = routing.window_readings if routing.forecast == "slope" else 0
        self._values: Floats = np.zeros((window, links))
        self._times_ns: Times = np.zeros((window, links), np.int64)
        self._count = np.zeros(links, np.int64)
        self._head = np.zeros(links, np.int64)

    def update(self, readings: Floats, at_ns: Times | int, marks: Floats | None = None) -> None:
        """Take one reading a link.

        Args:
            readings: Occupancy 0..1, shape (links,), NaN where missing.
            at_ns: When, one time or shape (links,).
            marks: Share of packets with a congestion mark 0..1, shape (links,), NaN where missing.
        """
        if self._compiled and marks is None and not self._marked and self._bursts is None:
            self._update_compiled(readings, at_ns)
            return
        if marks is None and isinstance(at_ns, int) and self._go_on(readings, at_ns):
            return
        at = np.broadcast_to(np.asarray(at_ns, np.int64), self.level.shape)
        stale_ns = self._routing.stale_ns
        marked = None if marks is None else self._mark(marks, at)
        known = ~np.isnan(self.level)
        dt = np.where(known, at - self.at_ns, 0)
        taken = ~np.isnan(readings) & ((dt >= 0) | (dt < -stale_ns))
        restart = taken & (abs(dt) > stale_ns)
        dt = np.where(restart, 0, dt)
        self._restart(restart)
        if self._marked:
            self.marks[taken & (self.marks_ns - at > stale_ns)] = np.nan
        kind = self._routing.forecast
        self._even_ns = None
        if kind == "holt":
            self._holt(readings, dt, taken)
            usual = self.usual_ns
            even = taken.all() and not np.isnan(self.slope).any() and (usual == usual[:1]).all()
            if isinstance(at_ns, int) and len(usual) and even:
                self._even_ns = at_ns
        elif kind == "ewma":
            moved = self.level + self._routing.level_gain * (readings - self.level)
            new = np.where(np.isnan(self.level), readings, moved)
            self.level = np.where(taken, new, self.level)
        else:
            self.level = np.where(taken, readings, self.level)
            if kind == "slope":
                self._window(readings, at, taken)
        self.at_ns = np.where(taken, at, self.at_ns)
        if self._bursts is not None:
            if marked is not None:  # the queue as far as marks tell it, where nothing else does
                blind = marked & np.isnan(readings)
                readings, taken = np.where(blind, self._by_marks(), readings), taken | blind
            self._bursts.take(readings, at, taken)

    def expect(self, schedule: BurstSchedule | None) -> None:
        """Warn ahead of the bursts of a schedule from now on; None: no longer."""
        self._bursts = None if schedule is None else _BurstPeaks(schedule, len(self.level))

    @property
    def heard_ns(self) -> Times:
        """Time of each link's newest reading or marks; means nothing before the first."""
        if not self._marked:
            return self.at_ns
        read_later = ~np.isnan(self.level) & (self.at_ns > self.marks_ns)
        return np.where(np.isnan(self.marks) | read_later, self.at_ns, self.marks_ns)

    def peak(self, horizon_ns: int) -> Floats:
        """Highest occupancy of each link up to the horizon, NaN where unknown."""
        if self._compiled and not self._marked and self._bursts is None:
            found: Floats = np.empty_like(self.level)
            _compiled_peak()(self.level, self.slope, horizon_ns, found)
            return found
        with np.errstate(invalid="ignore"):
            rising = self.slope > 0.0
        peak = np.where(rising, self.level + self.slope * horizon_ns, self.level)
        np.maximum(peak, 0.0, out=peak)
        if self._marked:
            peak = self._with_marks(peak)
        if self._bursts is not None:
            floor = self._bursts.floor(self.heard_ns, horizon_ns)
            peak = np.where(~np.isnan(floor) & ~(peak >= floor), floor, peak)
        return peak

    def _update_compiled(self, readings: Floats, at_ns: Times | int) -> None:
        routing = self._routing
        arrays = self.level, self.slope, self.usual_ns, self.at_ns, readings
        gains = routing.level_gain, routing.slope_gain
        alike = isinstance(at_ns, int)
        dt = self._usual_step(at_ns)
        if dt and _compiled_even()(*arrays, at_ns, float(dt), *gains):
            even = True
        else:
            even = _compiled_holt(alike)(*arrays, at_ns, routing.stale_ns, *gains) and alike
        self._even_ns = int(at_ns) if even else None

    def _usual_step(self, at_ns: Times | int) -> int:
        """Time since the last readings, where all links had them then; 0 where unusual."""
        if self._even_ns is None or not isinstance(at_ns, int):
            return 0
        dt, usual_ns = at_ns - self._even_ns, self.usual_ns[0]  # that of all of them
        usual = usual_ns <= dt * USUAL_FACTOR and dt <= usual_ns * USUAL_FACTOR
        return dt if usual and 0 < dt <= self._routing.stale_ns else 0

    def _go_on(self, readings: Floats, at_ns: int) -> bool:
        """Holt's method where nothing is missing, new, or unusual, for a third of the time."""
        if self._marked or self._bursts is not None:
            return False
        dt = self._usual_step(at_ns)
        if not dt or np.isnan(readings).any():
            return False
        level, slope = self.level, self.slope
        updated = level + slope * dt
        updated = updated + self._routing.level_gain * (readings - updated)
        self.slope = slope + self._routing.slope_gain * ((updated - level) / dt - slope)
        self.level = updated
        self.at_ns = np.full(level.shape, at_ns)
        self.usual_ns.fill(dt)
        self._even_ns = at_ns
        return True

    def _restart(self, which: Mask) -> None:
        self.level[which] = np.nan
        self.slope[which] = np.nan
        self._count[which] = 0
        self._head[which] = 0

    def _mark(self, marks: Floats, at: Times) -> Mask:
        """Take marks; which of them are there and not late."""
        self._marked = True
        stale_ns = self._routing.stale_ns
        told = ~np.isnan(marks)
        self._restart(told & ~np.isnan(self.level) & (self.at_ns - at > stale_ns))
        since = at - self.marks_ns
        late = ~np.isnan(self.marks) & (since < 0) & (since >= -stale_ns)
        taken = told & ~late
        self.marks = np.where(taken, marks, self.marks)
        self.marks_ns = np.where(taken, at, self.marks_ns)
        return taken

    def _by_marks(self) -> Floats:
        """How full queues at least are by their marks, see `_core.with_marks`."""
        routing = self._routing
        low, high = routing.mark_low_occupancy, routing.mark_high_occupancy
        return low + (high - low) * np.minimum(self.marks / routing.mark_top_share, 1.0)

    def _with_marks(self, peak: Floats) -> Floats:
        routing, heard = self._routing, self.heard_ns
        known = ~np.isnan(self.marks)
        peak = np.where(known & (heard - self.at_ns > routing.stale_ns), np.nan, peak)
        fresh = known & (heard - self.marks_ns <= routing.stale_ns)
        marked = self._by_marks()
        raised = np.isnan(peak) | ((self.marks > 0.0) & (marked > peak))
        return np.where(fresh & raised, marked, peak)

    def _holt(self, readings: Floats, dt: Times, taken: Mask) -> None:
        level, slope, usual = self.level, self.slope, self.usual_ns
        level_gain, slope_gain = self._routing.level_gain, self._routing.slope_gain
        first, flat = np.isnan(level), np.isnan(slope)
        soon = ~first & ((dt == 0) | (dt * USUAL_FACTOR < usual))
        late = ~flat & (dt > usual * USUAL_FACTOR)
        anew = late | (flat & ~soon)  # with its own slope, which the first has not
        span = np.where(dt > 0, dt, 1)
        predicted = level + np.where(flat, 0.0, slope) * dt
        updated = predicted + level_gain * (readings - predicted)
        new_slope = slope + slope_gain * ((updated - level) / span - slope)
        new_slope = np.where(anew, (readings - level) / span, new_slope)
        new_slope = np.where(first | soon, slope, new_slope)
        new_usual = np.where(late, usual * LONGER, dt)
        new_usual = np.where(first, usual, np.where(soon, usual - CLOSER * dt, new_usual))
        self.level = np.where(taken, np.where(anew, readings, updated), level)
        self.slope = np.where(taken, new_slope, slope)
        self.usual_ns = np.where(taken, new_usual, usual)

    def _window(self, readings: Floats, at: Times, taken: Mask) -> None:
        which = np.flatnonzero(taken)
        size = len(self._values)
        self._values[self._head[which], which] = readings[which]
        self._times_ns[self._head[which], which] = at[which]
        self._head[which] = (self._head[which] + 1) % size
        self._count[which] = np.minimum(self._count[which] + 1, size)
        count = self._count[which]
        values, times = self._values[:, which], self._times_ns[:, which]
        mean_t = np.zeros(len(which))
        mean_v = np.zeros(len(which))
        for i in range(size):
            filled = i < count
            mean_t = np.where(filled, mean_t + (times[i] - times[0]), mean_t)
            mean_v = np.where(filled, mean_v + values[i], mean_v)
        mean_t = mean_t / count
        mean_v = mean_v / count
        square = np.zeros(len(which))
        product = np.zeros(len(which))
        for i in range(size):
            filled = i < count
            offset = (times[i] - times[0]) - mean_t
            square = np.where(filled, square + offset * offset, square)
            product = np.where(filled, product + offset * (values[i] - mean_v), product)
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = np.where((count < 2) | (square == 0.0), np.nan, product / square)
        self.slope[which] = slope


@cache
def _compiled_holt(alike: bool) -> Callable[..., Any]:
    njit = import_module("numba").njit
    when = njit(_same if alike else _own)
    return njit(_holt_loop(njit(holt_update), when))  # type: ignore[no-any-return]


def _same(at, i):  # type: ignore[no-untyped-def]
    return at


def _own(at, i):  # type: ignore[no-untyped-def]
    return at[i]


def _holt_loop(holt: Callable[..., Any], when: Callable[..., Any]) -> Callable[..., Any]:
    """`Holt.update` of each link, in terms of functions that are compiled, or not."""

    def run(  # type: ignore[no-untyped-def]
        level, slope, usual, at_ns, readings, at, stale, level_gain, slope_gain
    ):  # fmt: skip
        even = len(level) > 0  # all have this reading, a slope, and one usual time
        for i in range(len(level)):
            now, reading, before, rise = when(at, i), readings[i], level[i], slope[i]
            dt = now - at_ns[i] if before == before else 0
            if reading != reading or -stale <= dt < 0:
                even = False
                continue
            if abs(dt) > stale:
                before = rise = np.nan
                dt = 0
            level[i], slope[i], usual[i] = holt(
                before, rise, usual[i], reading, dt, level_gain, slope_gain
            )
            at_ns[i] = now
            even = even and slope[i] == slope[i] and usual[i] == usual[0]
        return even

    return run


@cache
def _compiled_even() -> Callable[..., Any]:
    return import_module("numba").njit(_go_on)  # type: ignore[no-any-return]


def _go_on(level, slope, usual, at_ns, readings, at, dt, level_gain, slope_gain):  # type: ignore[no-untyped-def]
    """As `ForecastTable._go_on`, without a branch a link; False where a reading is missing."""
    missing = False
    for i in range(len(readings)):
        missing |= readings[i] != readings[i]
    if missing:
        return False
    for i in range(len(level)):
        before, rise = level[i], slope[i]
        updated = before + rise * dt
        updated = updated + level_gain * (readings[i] - updated)
        slope[i] = rise + slope_gain * ((updated - before) / dt - rise)
        level[i] = updated
        usual[i] = dt
        at_ns[i] = at
    return True


@cache
def _compiled_peak() -> Callable[..., Any]:
    njit = import_module("numba").njit
    return njit(_peak_loop(njit(forecast_peak)))  # type: ignore[no-any-return]


def _peak_loop(peak: Callable[..., Any]) -> Callable[..., Any]:
    def run(level, slope, horizon, found):  # type: ignore[no-untyped-def]
        for i in range(len(level)):
            found[i] = peak(level[i], slope[i], horizon)

    return run


class _BurstPeaks:
    """`BurstPeaks` of each link."""

    def __init__(self, schedule: BurstSchedule, links: int) -> None:
        self._schedule = schedule
        self._number = np.zeros(links, np.int64)
        self._peak: Floats = np.full(links, np.nan)
        self._last: Floats = np.full(links, np.nan)
        self._peaks: Floats = np.full((PEAKS_KEPT, links), np.nan)

    def take(self, readings: Floats, at: Times, taken: Mask) -> None:
        burst = self._schedule.known
        inside = taken & (burst.begin_ns <= at) & (at < burst.end_ns)
        over = taken & ~(inside & (self._number == burst.number)) & ~np.isnan(self._peak)
        if over.any():
            pair = over & ~np.isnan(self._last)
            self._peaks[1:, pair] = self._peaks[:-1, pair]
            self._peaks[0, pair] = np.minimum(self._last, self._peak)[pair]
            self._last = np.where(over, self._peak, self._last)
            self._peak[over] = np.nan
        if inside.any():
            self._number[inside] = burst.number
            self._peak = np.where(inside & ~(readings <= self._peak), readings, self._peak)

    def floor(self, at: Times, horizon_ns: int) -> Floats:
        burst = self._schedule.known
        if not burst.period_ns:
            return np.full(at.shape, np.nan)
        highest = np.fmax.reduce(self._peaks)
        came = (self._number == burst.number) & (self._peak >= highest)
        under_way = (burst.begin_ns - horizon_ns <= at) & (at < burst.until_ns)
        to_come = _coming(burst, at, horizon_ns) | (under_way & ~came)
        return np.where(to_come, highest, np.nan)


def _coming(burst: Burst, at: Times, horizon_ns: int) -> Mask:
    """`Burst.coming` for each time, where the period is known."""
    ahead = np.maximum(1, -((burst.begin_ns - (at - burst.slack_ns)) // burst.period_ns))
    begins = burst.begin_ns + ahead * burst.period_ns
    found: Mask = (begins <= burst.last_ns) & (begins <= at + horizon_ns)
    return found
