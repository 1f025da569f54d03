"""Probes of an agent: JSON lines, one a probe (``log`` in the agent's configuration).

A line is ``{"xtune_probe": 1, "src", "dst", "path", "link", "name", "ts_ns", "rtt_ns",
"occupancy", "error_rate", "signal_margin", "lost"}``; the rest goes to ``extra``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Source
from xtune.collectors._own_logs import rows_of_log
from xtune.collectors._values import as_extra, natural, positive, real, small, text

_MARK = "xtune_probe"
_KNOWN = frozenset(
    {_MARK, "src", "dst", "path", "link", "ts_ns", "rtt_ns", "lost"}
    | {"occupancy", "error_rate", "signal_margin"}
)


class Probes(Collector):
    """Reads the log of a probe agent."""

    name = "probes"
    title = "logs of probe agents"
    produce = 'log = "probes-%h.jsonl" in the agent\'s configuration (docs/routing.md)'
    gives = "each probe's round trip or loss; occupancy, errors and margin of both ends, the worse"
    lacks = "which link of a path lost a probe; one-way times"
    tail_lines = True

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where a line has the log's own mark."""
        return 0.99 if head.lstrip().startswith(b'{"xtune_probe"') else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a line."""
        return rows_of_log(
            source, context, table="link_probes", mark=_MARK, make=_row,
            refused="not a probe: no version, or not whether it was lost",
        )  # fmt: skip


def _row(record: dict[str, Any], context: Context) -> dict[str, Any] | None:
    lost = record.get("lost")
    if not isinstance(lost, bool):
        return None
    src = text(record.get("src"), 256)
    return {
        "ts": positive(record.get("ts_ns")),
        "src": context.host if src is None else src.lower(),
        "dst": text(record.get("dst"), 256),
        "path": small(record.get("path")),
        "link": text(record.get("link"), 256),
        "rtt_ns": None if lost else natural(record.get("rtt_ns")),
        "occupancy": _between(record.get("occupancy"), 0.0, 1.0),
        "error_rate": _between(record.get("error_rate"), 0.0, 1.0),
        "signal_margin": _between(record.get("signal_margin"), -math.inf, math.inf),
        "lost": lost,
        "extra": as_extra(
            {
                text(key, 64) or "": value if isinstance(value, str) else str(value)
                for key, value in record.items()
                if key not in _KNOWN and value is not None
            }
        ),
    }


def _between(value: Any, low: float, high: float) -> float | None:
    """A finite number within the bounds, else null."""
    number = real(value)
    return None if number is None or not low <= number <= high or math.isinf(number) else number


COLLECTOR = Probes()
