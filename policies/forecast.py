"""Congestion forecasters: where will a link's occupancy be within the horizon (200 us)?

Founding document R2. `Holt` smooths level and slope; `Reading`, `Ewma` and `Slope` are baselines
of the same interface, since with fresh readings none of them can be taken for granted. At 2:1
overload a 400 Gb/s port fills 1 MB in 20 us, so 200 us of warning exist only for mild overload
or deep buffers.

Two more inputs may raise a forecast, whatever the forecaster: congestion marks, which tell what
a queue was between two readings, and a `BurstSchedule`, which tells of a queue before it begins to
fill.

Times are integer nanoseconds of any one clock. A missing or a late reading changes nothing; after
a gap longer than ``stale_ns`` a forecaster starts anew, since no slope holds for that long, and
so it does where the clock was set back by more than that.
"""

from __future__ import annotations

from ._core import NAN, ewma_update, forecast_peak, holt_update, window_slope, with_marks
from .schedule import BurstPeaks, BurstSchedule
from .spec import Routing

MOST_READINGS = 100  # in a horizon, within `_core.USUAL_FACTOR`; else the first are smoothed alone


class Forecaster:
    """One link's forecaster; also the simplest one, which expects the last reading to stay.

    Args:
        routing: The policy's routing parameters.
    """

    __slots__ = ("_bursts", "_curve", "at_ns", "level", "marks", "marks_ns", "slope", "stale_ns")

    def __init__(self, routing: Routing) -> None:
        self.level = NAN  # occupancy 0..1 at the last reading
        self.slope = NAN  # per ns
        self.at_ns = 0  # of the last reading; means nothing while the level is unknown
        self.marks = NAN  # share of packets 0..1
        self.marks_ns = 0  # of the last that was known
        self.stale_ns = routing.stale_ns
        self._bursts: BurstPeaks | None = None
        self._curve = (
            routing.mark_low_occupancy,
            routing.mark_high_occupancy,
            routing.mark_top_share,
        )

    def update(self, reading: float, at_ns: int, marks: float = NAN) -> None:
        """Take one reading, of the queue or of marks or of both.

        Args:
            reading: Occupancy 0..1, NaN if missing.
            at_ns: When it was taken.
            marks: Share of packets with a congestion mark 0..1, NaN if missing.
        """
        new_marks = marks == marks and self._mark(marks, at_ns)
        if reading != reading:
            if new_marks and self._bursts is not None:  # the queue as far as marks tell it
                self._bursts.take(with_marks(NAN, marks, *self._curve), at_ns)
            return
        dt_ns = 0
        if self.level == self.level:
            dt_ns = at_ns - self.at_ns
            if -self.stale_ns <= dt_ns < 0:
                return
            if abs(dt_ns) > self.stale_ns:
                self._restart()
                dt_ns = 0
        if self.marks == self.marks and self.marks_ns - at_ns > self.stale_ns:
            self.marks = NAN  # of before the clock was set back
        self._smooth(reading, at_ns, dt_ns)
        self.at_ns = at_ns
        if self._bursts is not None:
            self._bursts.take(reading, at_ns)

    def expect(self, schedule: BurstSchedule | None) -> None:
        """Warn ahead of the bursts of a schedule from now on; None: no longer."""
        self._bursts = None if schedule is None else BurstPeaks(schedule)

    @property
    def heard_ns(self) -> int:
        """Time of the newest reading or marks; means nothing before the first."""
        if self.marks == self.marks and not (
            self.level == self.level and self.at_ns > self.marks_ns
        ):
            return self.marks_ns
        return self.at_ns

    def forget(self) -> None:
        """Know of no reading and no marks, as before the first."""
        self._restart()
        self.marks = NAN

    def peak(self, horizon_ns: int) -> float:
        """Highest occupancy from the last reading to the horizon, NaN if unknown."""
        peak = forecast_peak(self.level, self.slope, horizon_ns)
        if self.marks == self.marks or self._bursts is not None:
            return self._raised(peak, horizon_ns)
        return peak

    def _mark(self, marks: float, at_ns: int) -> bool:
        """Take marks; whether they are not late."""
        if self.level == self.level and self.at_ns - at_ns > self.stale_ns:
            self._restart()  # of before the clock was set back
        if self.marks == self.marks and -self.stale_ns <= at_ns - self.marks_ns < 0:
            return False
        self.marks, self.marks_ns = marks, at_ns
        return True

    def _raised(self, peak: float, horizon_ns: int) -> float:
        """The forecast with marks and schedule, each where it is not stale."""
        heard_ns = self.heard_ns
        if self.marks == self.marks:
            if heard_ns - self.at_ns > self.stale_ns:
                peak = NAN
            if heard_ns - self.marks_ns <= self.stale_ns:
                peak = with_marks(peak, self.marks, *self._curve)
        if self._bursts is not None:
            floor = self._bursts.floor(heard_ns, horizon_ns)
            if floor == floor and not peak >= floor:
                return floor
        return peak

    def _restart(self) -> None:
        self.level = NAN
        self.slope = NAN

    def _smooth(self, reading: float, at_ns: int, dt_ns: int) -> None:
        self.level = reading


class Ewma(Forecaster):
    """Expects the exponentially weighted mean to stay."""

    __slots__ = ("_gain",)

    def __init__(self, routing: Routing) -> None:
        super().__init__(routing)
        self._gain = routing.level_gain

    def _smooth(self, reading: float, at_ns: int, dt_ns: int) -> None:
        self.level = ewma_update(self.level, reading, self._gain)


class Slope(Forecaster):
    """Goes on from the last reading along the least-squares slope of the last N."""

    __slots__ = ("_count", "_head", "_times_ns", "_values")

    def __init__(self, routing: Routing) -> None:
        super().__init__(routing)
        self._values = [0.0] * routing.window_readings
        self._times_ns = [0] * routing.window_readings
        self._count = 0
        self._head = 0

    def _restart(self) -> None:
        super()._restart()
        self._count = 0
        self._head = 0

    def _smooth(self, reading: float, at_ns: int, dt_ns: int) -> None:
        size = len(self._values)
        self._values[self._head] = reading
        self._times_ns[self._head] = at_ns
        self._head = (self._head + 1) % size
        self._count = min(self._count + 1, size)
        self.level = reading
        self.slope = window_slope(self._values, self._times_ns, self._count)


def usual_at_first(routing: Routing) -> float:
    """The least that is likely, in ns: the first two readings may be of one burst."""
    return routing.horizon_ns / MOST_READINGS


class Holt(Forecaster):
    """Goes on from the smoothed level along the smoothed slope."""

    __slots__ = ("_level_gain", "_slope_gain", "usual_ns")

    def __init__(self, routing: Routing) -> None:
        super().__init__(routing)
        self.usual_ns = usual_at_first(routing)  # between two readings; outlives a restart
        self._level_gain = routing.level_gain
        self._slope_gain = routing.slope_gain

    def _smooth(self, reading: float, at_ns: int, dt_ns: int) -> None:
        self.level, self.slope, self.usual_ns = holt_update(
            self.level,
            self.slope,
            self.usual_ns,
            reading,
            dt_ns,
            self._level_gain,
            self._slope_gain,
        )


FORECASTERS: dict[str, type[Forecaster]] = {
    "reading": Forecaster,
    "ewma": Ewma,
    "slope": Slope,
    "holt": Holt,
}


def make_forecaster(routing: Routing) -> Forecaster:
    """The forecaster that a policy names, before its first reading."""
    return FORECASTERS[routing.forecast](routing)
