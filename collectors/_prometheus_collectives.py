"""Rows of ``collectives`` made of summaries: NCCL Inspector's and DLRover xpu_timer's series.

A series is a mean over a window of one kind of operation (its communicator's size, its algorithm,
a range of sizes), not one collective: there is no start and no sequence number. A row stands for
each change of a mean, since a server scrapes the same one many times. Inspector of RCCL and of
later NCCL also names its slowest operations one by one, with times: those are rows of their own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from xtune.collectors._base import Context, RowBuffer, Rows
from xtune.collectors._collective import canonical_op, named_comm, size_from_call, torch_dtype
from xtune.collectors._prometheus import Group
from xtune.collectors._prometheus_gpu import xpu_host
from xtune.collectors._prometheus_names import INSPECTOR
from xtune.collectors._prometheus_samples import NO_TIME
from xtune.collectors._values import as_extra, natural, scaled, small

SUMMARIES = (
    "summaries of operations: means over a window, without start, sequence number or exact size"
)
_DROPPED = "operations that NCCL Inspector dropped before it wrote them"
_MEASURE = re.compile(r"nccl_(?:collective_|p2p_)?")
#: Inspector's ranges: ``4-5GB`` of powers of 1024, from the lower bound up to below the upper.
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?([KMGT]?)B")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_UNSET = frozenset({"", "unknown", "NOT_SET"})


def size_range(text: str | None) -> tuple[int | None, int | None]:
    """Least and most bytes of a range such as ``512-513MB``; ``0B`` is 0 and 0."""
    match = _RANGE.fullmatch(text or "")
    if match is None:
        return None, None
    unit = 1024 ** _POWER[match[3]]
    low = int(match[1]) * unit
    return low, int(match[2]) * unit - 1 if match[2] else low


class Collectives:
    """Makes rows of the series of kinds of operations."""

    def __init__(self, context: Context) -> None:
        self.notes: Counter[str] = Counter()
        self.rows = RowBuffer("collectives", context)
        self._context = context

    def add(self, group: Group) -> Iterator[Rows]:
        """Take all series of one kind of operation, or Inspector's counts of one GPU."""
        if group.exporter == INSPECTOR and self._counts(group):
            return
        moments: dict[int, dict[str, float]] = {}
        for meaning, gauge in group.gauges.items():
            for ts, value in gauge.items():
                moments.setdefault(ts, {})[meaning] = value
        row_of = self._inspector if group.exporter == INSPECTOR else self._xpu
        before: dict[str, float] | None = None
        for ts in sorted(moments):
            if moments[ts] == before:
                continue
            before = moments[ts]
            row = row_of(group.labels, before)
            if ts != NO_TIME:
                row["extra"]["exposition_ms"] = str(ts // 1_000_000)
            self.rows.add(row)
            if row.get("start_ts") is None:
                self.notes[SUMMARIES] = 1
            if self.rows.full:
                yield from self.rows.flush()

    def finish(self) -> Iterator[Rows]:
        """Yield what is left."""
        yield from self.rows.flush()

    def _counts(self, group: Group) -> bool:
        """Whether these are Inspector's counters of one GPU; what it dropped is said."""
        known = {name for name in group.gauges if name.endswith("_total")}
        for name in known:
            values = group.gauges[name].values()
            if name.endswith("_dropped_total"):
                self.notes[_DROPPED] += int(max(filter(math.isfinite, values), default=0))
        self.notes = +self.notes
        return bool(known)

    def _common(self, labels: Mapping[str, str], job: str | None) -> dict[str, Any]:
        algorithm, _, protocol = (
            (labels.get("algo_proto") or labels.get("algorithm") or "").upper().partition("_")
        )
        return {
            "job": self._context.job if job in (None, *_UNSET) else job,
            "algorithm": None if algorithm in ("", "UNKNOWN") else algorithm,
            "protocol": protocol or None,
            "state": "completed",
        }

    def _inspector(self, labels: Mapping[str, str], values: Mapping[str, float]) -> dict[str, Any]:
        name = labels.get("collective") or labels.get("p2p_operation") or "unknown"
        op, ranks = canonical_op(name) or name, small(labels.get("nranks")) or None
        plain = {_MEASURE.sub("", k): v for k, v in values.items() if math.isfinite(v)}
        slow = plain.pop("slow_event_exec_time_microseconds", None)
        duration = plain.pop("exec_time_microseconds", None) if slow is None else slow
        bandwidth = plain.pop("bus_bandwidth_gbs", None)
        size = natural(labels.get("message_size_bytes"))
        low, high = size_range(labels.get("message_size"))
        host = labels.get("node")
        host = self._context.host if host in (None, *_UNSET) else host
        rank = small(labels.get("world_rank"))
        extra = {
            "gpu": labels.get("gpu"),
            "comm_name": labels.get("comm_name"),
            "message_size": labels.get("message_size"),
            "call_bytes_from": low,
            "call_bytes_to": high,
            "nnodes": labels.get("n_nodes"),
            "peer": labels.get("peer"),
            "timing_source": labels.get("timing_source"),
            "format_version": labels.get("version"),
            **{key: f"{value:.12g}" for key, value in plain.items()},
        }
        return {
            **self._common(labels, labels.get("slurm_job_id")),
            "start_ts": scaled(labels.get("start_timestamp_us"), 1000),
            "seq": natural(labels.get("sequence")),
            "duration_ns": None if duration is None else scaled(duration, 1000),
            "host": host.lower() if host else None,
            "rank": self._context.rank if rank is None else rank,
            "comm_rank": small(labels.get("comm_rank")),
            "comm": _comm(labels.get("comm_id")),
            "comm_size": ranks,
            "op": op,
            "message_bytes": None if size is None else natural(size_from_call(op, size, ranks)),
            "busbw_gigabytes_s": bandwidth if bandwidth and bandwidth > 0 else None,
            "extra": as_extra(extra),
        }

    def _xpu(self, labels: Mapping[str, str], values: Mapping[str, float]) -> dict[str, Any]:
        """Latencies are microseconds; bandwidth is of bits over that time, in 1e9 bit/s."""
        plain = dict(values)
        mean = plain.pop("avg_latency", None)
        host = xpu_host(labels) or self._context.host
        name = labels.get("operation") or "unknown"
        extra = {
            **{f"{key}_us" if "latency" in key else key: f"{v:.12g}" for key, v in plain.items()},
            "level": labels.get("level"),
            "small": labels.get("small"),
            "transport": labels.get("transport"),
            "local_rank": labels.get("local_rank"),
        }
        if "bandwidth" in extra:
            extra["bandwidth_gbps"] = extra.pop("bandwidth")
        return {
            **self._common(labels, labels.get("job_name")),
            "duration_ns": None if mean is None else scaled(mean, 1000),
            "host": host.lower() if host else None,
            "rank": small(labels.get("rank")),
            "op": canonical_op(name) or name,
            "dtype": torch_dtype(labels.get("dtype") or ""),
            "extra": as_extra(extra),
        }


def _comm(text: str | None) -> str | None:
    return None if text is None or text in _UNSET else named_comm(text)
