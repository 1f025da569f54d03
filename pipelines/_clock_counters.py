"""Offset of a host from one traffic seen at both ends of a link, each end by its own clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# The fabric's series is laid over the host's at this many places within one sampling interval.
_PHASES = 4
# Cells in which both ends must be known.
_FEWEST = 120
# Changes of the two rates must go together at the best lag this well, stand out this far from
# chance (in standard errors), and beat every other lag: periodic traffic fits at many.
_CORRELATION = 0.4
_ERRORS = 8.0
_OTHERS = 0.75
# Changes of one cell are not those of the next: where the best lag fits as well this many cells
# away, it is traffic that beats with the sampling, whose peak lies far beside the true lag.
_WIDEST = 1.5
# Changes smaller than this share of the rate are none.
_FLAT = 0.05
# A gap between samples of this many usual intervals is a gap, not an interval.
_GAP = 3.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Lag:
    """How far one clock is ahead of another.

    Attributes:
        offset_ns: Best estimate.
        half_ns: Half a sampling interval of the slower end, as no counter can tell more, and as
            far as lags next to the best fit about as well.
        cells: Intervals that both ends were compared in.
        correlation: Of the changes of the two rates, 0 to 1.
    """

    offset_ns: int
    half_ns: int
    cells: int
    correlation: float


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter's samples in the order of time.

    Attributes:
        ts_ns: Times, nanoseconds.
        values: Bytes so far; negative where not known.
    """

    ts_ns: NDArray[np.int64]
    values: NDArray[np.int64]

    @property
    def interval_ns(self) -> int:
        """The usual time between two samples; 0 where there are not two."""
        steps = np.diff(self.ts_ns)
        return int(np.median(steps)) if len(steps) else 0


def find_lag(host: Counter, fabric: Counter) -> Lag | None:
    """How far the host's clock is ahead of the fabric's.

    Rates are laid on one grid of the slower end's interval, and their changes correlated at every
    lag: changes, because slow traffic resembles itself at many.

    Returns:
        None where the traffic does not tell: flat, periodic, too short, or not the same.
    """
    step = max(host.interval_ns, fabric.interval_ns)
    if step <= 0 or min(len(host.ts_ns), len(fabric.ts_ns)) < _FEWEST:
        return None
    zero = int(min(host.ts_ns[0], fabric.ts_ns[0]))
    own = _changes(host, zero, step, 0.0)
    best: list[tuple[float, float, int]] = []
    others = 0.0
    rows = []
    for phase in range(_PHASES):
        part = phase / _PHASES
        lags, correlation, cells = _correlate(own, _changes(fabric, zero, step, part))
        rows.append((lags + part, correlation, cells))
    for lags, correlation, cells in rows:
        if len(lags):
            top = int(np.argmax(correlation))
            best.append((float(correlation[top]), float(lags[top]), int(cells[top])))
    if not best:
        return None
    top_value, top_lag, top_cells = max(best)
    for lags, correlation, _ in rows:
        away = correlation[np.abs(lags - top_lag) > 2.0]
        others = max(others, float(away.max()) if len(away) else 0.0)
    if top_value < max(_CORRELATION, _ERRORS / np.sqrt(top_cells)) or others > _OTHERS * top_value:
        return None
    near = sorted(
        (float(lag), float(value))
        for lags, correlation, _ in rows
        for lag, value in zip(lags, correlation, strict=True)
        if abs(lag - top_lag) <= 1.0
    )
    centre = _centre(near)
    apart = max(
        abs(float(lag) - centre)
        for lags, correlation, _ in rows
        for lag, value in zip(lags, correlation, strict=True)
        if abs(lag - top_lag) <= 2.0 and value >= _OTHERS * top_value
    )
    if apart > _WIDEST:
        return None
    return Lag(
        offset_ns=round(centre * step),
        half_ns=round((0.5 + apart) * step),
        cells=top_cells,
        correlation=top_value,
    )


def _centre(near: list[tuple[float, float]]) -> float:
    """Where a peak is centred: its lags weighed by what rises over half its height."""
    floor = max(value for _, value in near) / 2
    weights = [max(0.0, value - floor) for _, value in near]
    total = sum(weights)
    return sum(weight * lag for weight, (lag, _) in zip(weights, near, strict=True)) / total


def _changes(counter: Counter, zero_ns: int, step_ns: int, phase: float) -> Floats:
    """Change of the rate from each cell of a grid to the next; NaN where it is not known.

    The grid begins ``phase`` of a step before ``zero_ns``. Flat traffic has no changes at all:
    what is left of it is rounding, and how the samples fall.
    """
    time = (counter.ts_ns - zero_ns) / step_ns + phase
    usual = counter.interval_ns / step_ns
    rise, span = np.diff(counter.values), np.diff(time)
    known = (rise >= 0) & (counter.values[1:] >= 0) & (counter.values[:-1] >= 0)
    known &= (span > 0) & (span <= max(_GAP * usual, 1.0))
    edges = np.arange(0.0, np.ceil(time[-1]) + 1.0)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, rise, 0).astype(np.float64))])
    seen = np.concatenate([[0.0], np.cumsum(np.where(known, span, 0.0))])
    rate = np.diff(np.interp(edges, time, total))
    rate[np.diff(np.interp(edges, time, seen)) < 0.999] = np.nan
    changes: Floats = np.diff(rate)
    if _scale(changes[np.isfinite(changes)]) < _FLAT * _scale(rate[np.isfinite(rate)]):
        changes[:] = 0.0
    return changes


def _correlate(one: Floats, two: Floats) -> tuple[Floats, Floats, Floats]:
    """Correlation of two series at every lag of enough common cells.

    Returns:
        Lags in cells (``one`` behind its twin in ``two`` by so many), correlations, common cells.
    """
    size = 1 << int(len(one) + len(two) - 1).bit_length()

    def spectrum(series: Floats) -> NDArray[np.complex128]:
        return np.fft.rfft(series, size)

    def lagged(left: NDArray[np.complex128], right: NDArray[np.complex128]) -> Floats:
        product: Floats = np.fft.irfft(left * np.conj(right), size)
        return product

    seen_one, seen_two = np.isfinite(one), np.isfinite(two)
    scale_one, scale_two = _scale(one[seen_one]), _scale(two[seen_two])
    if not scale_one or not scale_two:
        empty = np.zeros(0)
        return empty, empty, empty
    x = np.where(seen_one, one, 0.0) / scale_one
    y = np.where(seen_two, two, 0.0) / scale_two
    mask_x, mask_y = spectrum(seen_one.astype(float)), spectrum(seen_two.astype(float))
    cells = np.rint(lagged(mask_x, mask_y))
    power = lagged(spectrum(x * x), mask_y) * lagged(mask_x, spectrum(y * y))
    product = lagged(spectrum(x), spectrum(y))
    lags = np.fft.fftfreq(size, 1.0 / size)
    enough = cells >= max(_FEWEST, 0.25 * min(seen_one.sum(), seen_two.sum()))
    enough &= power > 1e-9
    return lags[enough], product[enough] / np.sqrt(power[enough]), cells[enough]


def _scale(values: Floats) -> float:
    """Size of a series; 0 where it does not change."""
    return float(np.sqrt(np.mean(values * values))) if len(values) else 0.0
