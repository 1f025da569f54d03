"""The time of a collective as a line over its size: a median regression, exact and small.

Least absolute deviations of ``time = latency + bytes / bandwidth`` with neither below zero, each
residual relative to the times at its size: else the largest messages alone decide, and a latency
is lost among their noise. The minimum of such a sum lies on a line through one of the samples, so
the search goes from sample to sample: the best line through one of them has the weighted median of
the slopes to all others (Bloomfield and Steiger, Least Absolute Deviations, 1983).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]

# Fewer samples, or sizes, than these make no line.
_SAMPLES = 8
_SIZES = 3
# Sizes this near each other are one: no line, but a time.
_ALIKE = 1.1
_KIND = ("own", "job", "comm", "op", "comm_size", "algorithm", "spread")
_TURNS = 100

FITS = pa.schema(
    [
        ("own", pa.bool_()),
        ("job", pa.string()),
        ("comm", pa.string()),
        ("op", pa.string()),
        ("comm_size", pa.int32()),
        ("algorithm", pa.string()),
        ("spread", pa.bool_()),
        ("latency_ns", pa.float64()),
        ("ns_per_byte", pa.float64()),
        ("low_bytes", pa.int64()),
        ("high_bytes", pa.int64()),
        ("samples", pa.int64()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Time over size: ``latency_ns + ns_per_byte * bytes``."""

    latency_ns: float
    ns_per_byte: float


def fit_kinds(samples: pa.Table) -> pa.Table:
    """A line for each kind of collective that has samples enough.

    Args:
        samples: Rows of model ``fit_samples``.

    Returns:
        One row a kind, columns :data:`FITS`. A line holds from the smallest to the largest size
        that it was made of; of a single size (to a tenth) there is its median, which holds a
        tenth around it.
    """
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for index, kind in enumerate(zip(*(samples[name].to_pylist() for name in _KIND), strict=True)):
        kinds.setdefault(kind, []).append(index)
    sizes = samples["message_bytes"].to_numpy().astype(np.float64)
    times = samples["transfer_ns"].to_numpy().astype(np.float64)
    rows = [
        {**dict(zip(_KIND, kind, strict=True)), **found}
        for kind, at in kinds.items()
        if (found := _fit(sizes[at], times[at])) is not None
    ]
    return pa.Table.from_pylist(rows, schema=FITS)


def _fit(sizes: Floats, times: Floats) -> Mapping[str, Any] | None:
    low, high = float(sizes.min()), float(sizes.max())
    if high <= _ALIKE * low:
        line = Line(latency_ns=float(np.median(times)), ns_per_byte=0.0)
        low, high, enough = high / _ALIKE, low * _ALIKE, 5
    else:
        if len(times) < _SAMPLES or len(np.unique(sizes)) < _SIZES:
            return None
        line, enough = median_line(sizes, times), _SAMPLES
    if len(times) < enough:
        return None
    return {
        "latency_ns": line.latency_ns,
        "ns_per_byte": line.ns_per_byte,
        "low_bytes": int(np.ceil(low)),
        "high_bytes": int(np.floor(high)),
        "samples": len(times),
    }


def median_line(sizes: Floats, times: Floats) -> Line:
    """The line of least absolute relative deviations, latency and slope not below zero.

    Args:
        sizes: Bytes, above zero, at least two different ones.
        times: Nanoseconds, above zero.
    """
    order = np.lexsort((times, sizes))
    sizes, times = sizes[order], times[order]
    weights = 1.0 / _typical(sizes, times)
    # Sizes in units of the largest: sums of both stay near one.
    scale = float(sizes[-1])
    x = sizes / scale
    latency, slope = _free_line(x, times, weights)
    if latency < 0 or slope < 0:
        edges = (
            (0.0, _weighted_median(times / x, weights * x)),
            (_weighted_median(times, weights), 0.0),
        )
        latency, slope = min(edges, key=lambda line: (_loss(x, times, weights, *line), line))
    return Line(latency_ns=latency, ns_per_byte=slope / scale)


def _free_line(x: Floats, times: Floats, weights: Floats) -> tuple[float, float]:
    pivot, best = 0, (np.inf, 0.0, 0.0)
    for _ in range(_TURNS):
        apart = x - x[pivot]
        others = apart != 0
        slopes = (times[others] - times[pivot]) / apart[others]
        importance = weights[others] * np.abs(apart[others])
        middle = _weighted_median_at(slopes, importance)
        slope = float(slopes[middle])
        latency = float(times[pivot] - slope * x[pivot])
        found = (_loss(x, times, weights, latency, slope), latency, slope)
        if not found[0] < best[0]:
            break
        best, pivot = found, int(np.flatnonzero(others)[middle])
    return best[1], best[2]


def _typical(sizes: Floats, times: Floats) -> Floats:
    """Median time at each sample's size; ``sizes`` are sorted, times within a size too."""
    _, starts, counts = np.unique(sizes, return_index=True, return_counts=True)
    medians = (times[starts + (counts - 1) // 2] + times[starts + counts // 2]) / 2
    return np.repeat(medians, counts)


def _loss(x: Floats, times: Floats, weights: Floats, latency: float, slope: float) -> float:
    return float(np.sum(weights * np.abs(times - latency - slope * x)))


def _weighted_median(values: Floats, weights: Floats) -> float:
    return float(values[_weighted_median_at(values, weights)])


def _weighted_median_at(values: Floats, weights: Floats) -> int:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return int(order[np.searchsorted(reached, reached[-1] / 2)])
