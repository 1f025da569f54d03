"""The decision log of an exported policy: JSON lines, one a change (``XTUNE_DECISIONS``).

A line is ``{"xtune_decision": 1, "ts_ns", "job", "rank", "step", "kind", "before", "after",
"reason"}``; fields that a later version adds go to ``extra``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Source
from xtune.collectors._own_logs import rows_of_log
from xtune.collectors._values import as_extra, natural, positive, small, text

_MARK = "xtune_decision"
_KNOWN = frozenset(
    {_MARK, "ts_ns", "job", "rank", "step", "kind", "before", "after", "reason"},
)


class Decisions(Collector):
    """Reads decision logs of exported policies."""

    name = "decisions"
    title = "decision logs of exported policies"
    produce = "XTUNE_DECISIONS=decisions-%h-%r.jsonl in the job's environment"
    gives = "each change of level, ratio, bits, path or mode, with its reason"
    lacks = "what stayed as it was"
    tail_lines = True
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where a line has the log's own mark."""
        return 0.99 if head.lstrip().startswith(b'{"xtune_decision"') else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a line."""
        return rows_of_log(
            source, context, table="decisions", mark=_MARK, make=_row,
            refused="not a decision: no version or no kind",
        )  # fmt: skip


def _row(record: dict[str, Any], context: Context) -> dict[str, Any] | None:
    kind = text(record.get("kind"), 256)
    if kind is None:
        return None
    rank = small(record.get("rank"))
    return {
        "ts": positive(record.get("ts_ns")),
        "job": text(record.get("job"), 256) or context.job,
        "rank": context.rank if rank is None else rank,
        "step": natural(record.get("step")),
        "kind": kind,
        "before": _shown(record.get("before")),
        "after": _shown(record.get("after")),
        "reason": text(record.get("reason")),
        "extra": as_extra(
            {
                text(key, 64) or "": _shown(value)
                for key, value in record.items()
                if key not in _KNOWN
            }
        ),
    }


def _shown(value: Any) -> str | None:
    """A value as text: text as it is, anything else as JSON."""
    if value is None or isinstance(value, str):
        return text(value)
    try:
        return text(json.dumps(value))
    except (ValueError, RecursionError):
        return None


COLLECTOR = Decisions()
