"""When a trace's device computed: spans of its compute kernels, merged as the trace is read.

A trace has a compute kernel every few microseconds. Of their spans only the union matters, so
gaps of a launch's length are bridged and memory holds what is left.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xtune.collectors._base import Context, Rows, rows_of

#: Between two kernels of one stream lie some microseconds of launching: the device is not free.
BRIDGED_US = 10.0
#: What is later than Arrow's last nanosecond, or lasts for a day, is no kernel's time.
_LAST_NS = 2**63 - 1
_FAR_US, _LONG_US = _LAST_NS / 1000, 86_400e6
_HELD = 1 << 16
_BATCH = 1 << 16

Floats = npt.NDArray[np.float64]


class BusySpans:
    """Spans of kernels in a trace's microseconds, in any order."""

    def __init__(self) -> None:
        self._starts, self._ends = array("d"), array("d")
        self._new: tuple[array[float], array[float]] = array("d"), array("d")
        self._first, self._last = float("inf"), float("-inf")

    def add(self, kernels: list[dict[str, Any]]) -> None:
        """Take compute kernels, whose list is then empty; one without a time is passed over."""
        starts, lengths = self._new
        try:
            found = array("d", [k["ts"] for k in kernels]), array("d", [k["dur"] for k in kernels])
        except (KeyError, TypeError, OverflowError):
            if len(kernels) > 1:
                for kernel in kernels:
                    self.add([kernel])
        else:
            starts.extend(found[0])
            lengths.extend(found[1])
            if len(starts) >= _HELD:
                self._merge()
        kernels.clear()

    def watched(self, start: float, length: float | None) -> None:
        """The trace recorded some other kernel then: the device was watched."""
        if 0 < start < _FAR_US and 0 <= (length or 0.0) < _LONG_US:
            self._first = min(self._first, start)
            self._last = max(self._last, start + (length or 0.0))

    def rows(
        self,
        context: Context,
        host: str | None,
        rank: int | None,
        ns: Callable[[float], int | None],
    ) -> Iterator[Rows]:
        """Rows of ``gpu_busy``; none where no compute kernel has a time of day.

        Args:
            context: Whose data it is.
            host: Host of the trace.
            rank: Its rank.
            ns: Nanoseconds since the epoch of a time of the trace.
        """
        self._merge()
        if not self._ends:
            return
        starts, ends = np.frombuffer(self._starts), np.frombuffer(self._ends)
        origin = float(starts[0])
        origin_ns = ns(origin)
        if origin_ns is None:
            return
        room = (_LAST_NS - origin_ns) / 1000 - _LONG_US
        if room <= _LONG_US:
            return
        spans = np.stack([starts, ends])[:, ends - origin < room]
        first = max(min(self._first, origin), origin - origin_ns / 1000)
        last = max(self._last, spans[1, -1]) if self._last - origin < room else spans[1, -1]
        whole = [[first], [last]]
        for kind, (low, high) in (("traced", np.array(whole)), ("compute", spans)):
            for at in range(0, low.size, _BATCH):
                part = slice(at, at + _BATCH)
                count = low[part].size
                columns = {
                    "start_ts": _times(low[part] - origin, origin_ns),
                    "end_ts": _times(high[part] - origin, origin_ns),
                    "job": pa.repeat(pa.scalar(context.job, pa.string()), count),
                    "host": pa.repeat(pa.scalar(host, pa.string()), count),
                    "rank": pa.repeat(pa.scalar(rank, pa.int32()), count),
                    "kind": pa.repeat(pa.scalar(kind, pa.string()), count),
                }
                yield rows_of("gpu_busy", context, columns, count)

    def _merge(self) -> None:
        """Replace the spans held by their union, in order."""
        new, lengths = np.frombuffer(self._new[0]), np.frombuffer(self._new[1])
        good = (new > 0) & (new < _FAR_US) & (lengths > 0) & (lengths < _LONG_US)
        starts = np.r_[np.frombuffer(self._starts), new[good]]
        ends = np.r_[np.frombuffer(self._ends), (new + lengths)[good]]
        self._new = array("d"), array("d")
        if not starts.size:
            return
        order = np.argsort(starts, kind="stable")
        starts, reached = starts[order], np.maximum.accumulate(ends[order])
        opens = np.flatnonzero(starts[1:] > reached[:-1] + BRIDGED_US) + 1
        self._starts = array("d", starts[np.r_[0, opens]].tobytes())
        self._ends = array("d", reached[np.r_[opens - 1, -1]].tobytes())


def _times(since_us: Floats, origin_ns: int) -> pa.Array:
    return pa.array(np.rint(since_us * 1000).astype(np.int64) + origin_ns, pa.int64())
