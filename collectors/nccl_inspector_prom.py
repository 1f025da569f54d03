"""NCCL Inspector's Prometheus text (format 5.1): the last figure of each kind of operation.

A file that is written anew at intervals, one line a metric and label set, without times unless
the exposition has them. What it lacks: sequence numbers, and exact sizes (``message_size`` is a
range like ``4-5GB``), so ``seq`` and ``message_bytes`` are null. ``comm_name`` is a name that the
framework gave, which several communicators may share, so ``comm`` is null too; ``extra`` has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._collective import canonical_op
from xtune.collectors._textlines import Lines
from xtune.collectors._values import as_extra, real, scaled, small

_LINE = re.compile(
    r"nccl_(?:collective_|p2p_)?(?P<metric>bus_bandwidth_gbs|exec_time_microseconds)"
    r"\{(?P<labels>[^}]*)\}\s+(?P<value>\S+)(?:\s+(?P<ms>\d{12,14}))?\s*$"
)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_MAX_OPEN = 100_000


class NcclInspectorProm(Collector):
    """Reads the Prometheus text of NCCL Inspector."""

    name = "nccl_inspector_prom"
    title = "NCCL Inspector Prometheus text"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where a line is one of Inspector's metrics."""
        lines = head.decode("utf-8", "replace").splitlines()[:200]
        return 0.97 if any(_LINE.match(line) for line in lines) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a label set: its time and bandwidth are two lines."""
        lines = Lines(source)
        rows = RowBuffer("collectives", context)
        held: dict[tuple[str, str | None], dict[str, Any]] = {}
        for line in lines:
            if not line.data.strip() or line.data.startswith(b"#"):
                continue
            found = _LINE.match(line.text)
            if found is None or not line.whole:
                yield Reject(line.place, "not a metric of NCCL Inspector, or cut")
                continue
            key = (found["labels"], found["ms"])
            if key not in held and len(held) >= _MAX_OPEN:
                for row in held.values():
                    rows.add(row)
                held.clear()
                yield from rows.flush()
            row = held.setdefault(key, _row(found["labels"], found["ms"], context))
            if found["metric"] == "bus_bandwidth_gbs":
                bandwidth = real(found["value"])
                good = bandwidth is not None and 0 < bandwidth < float("inf")
                row["busbw_gigabytes_s"] = bandwidth if good else None
            else:
                row["duration_ns"] = scaled(found["value"], 1000)
        for row in held.values():
            rows.add(row)
        yield from rows.flush()
        yield from lines.rejects
        if held:
            yield Note(
                "NCCL Inspector's Prometheus text has no sequence numbers and no exact sizes"
            )


def _row(body: str, ms: str | None, context: Context) -> dict[str, Any]:
    labels = dict(_LABEL.findall(body))
    name = labels.get("collective") or labels.get("p2p_operation") or "unknown"
    algorithm, _, protocol = labels.get("algo_proto", "").upper().partition("_")
    job = labels.get("slurm_job_id")
    host = labels.get("node") or context.host
    return {
        "job": context.job if job in (None, "", "unknown") else job,
        "host": host.lower() if host else None,
        "rank": context.rank,
        "comm_size": small(labels.get("nranks")) or None,
        "op": canonical_op(name) or name,
        "algorithm": algorithm or None,
        "protocol": protocol or None,
        "state": "completed",
        "extra": as_extra(
            {
                "gpu": labels.get("gpu"),
                "comm_name": labels.get("comm_name"),
                "message_size": labels.get("message_size"),
                "nnodes": labels.get("n_nodes"),
                "format_version": labels.get("version"),
                "exposition_ms": ms,
            }
        ),
    }


COLLECTOR = NcclInspectorProm()
