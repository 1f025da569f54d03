"""What a run of ``xtune collect`` did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from xtune.collectors._base import Reject
from xtune.console import rfc3339

FileState = Literal["read", "unchanged", "replaced", "rejected", "unknown"]
STATES: tuple[FileState, ...] = ("read", "replaced", "unchanged", "rejected", "unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileResult:
    """What became of one input.

    Attributes:
        path: The input, as the user named it or below that.
        collector: What read it; None where nothing claims it.
        source: Ledger id of its rows.
        state: ``read`` its rows are new; ``replaced`` they stand in place of an earlier reading;
            ``unchanged`` they were there; ``rejected`` nothing in it could be read; ``unknown``
            no collector claims it.
        rows: Rows written, by table.
        rejects: Rejected pieces, those of an earlier reading included where unchanged.
        reasons: The first few of them.
        notes: What loses no data but should be known: text -> count.
        unknown: Names in the input (metrics, counters, keys) that the collector does not know.
        first_ns: Earliest and ``last_ns`` latest time of its new rows; None where none has one.
    """

    path: str
    collector: str | None
    source: str
    state: FileState
    rows: Mapping[str, int] = field(default_factory=dict)
    rejects: int = 0
    reasons: tuple[Reject, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    first_ns: int | None = None
    last_ns: int | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "path": self.path,
            "kind": self.collector,
            "source": self.source,
            "state": self.state,
            "rows": dict(self.rows),
            "rejected": self.rejects,
            "first_ts": _time(self.first_ns),
            "last_ts": _time(self.last_ns),
            "unknown": dict(self.unknown),
            "reasons": [
                {"offset": r.offset, "reason": r.reason, "hint": r.hint} for r in self.reasons
            ],
            "notes": [{"text": text, "count": count} for text, count in self.notes.items()],
        }


def _time(ns: int | None) -> str | None:
    return None if ns is None else rfc3339(ns)


@dataclass(kw_only=True, slots=True)
class IngestSummary:
    """All inputs of one run.

    Attributes:
        files: In the order they were read.
        notes: About the run as a whole: text -> count.
        strict: Whether rejected or unknown input makes :attr:`exit_code` 3.
        dry_run: Whether nothing was written.
    """

    files: list[FileResult] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    strict: bool = False
    dry_run: bool = False

    @property
    def states(self) -> dict[str, int]:
        """Number of inputs by state, every state named."""
        counts = Counter(result.state for result in self.files)
        return {state: counts[state] for state in STATES}

    @property
    def rows(self) -> dict[str, int]:
        """Rows written, by table."""
        total: Counter[str] = Counter()
        for result in self.files:
            total.update(result.rows)
        return dict(sorted(total.items()))

    @property
    def rejects(self) -> int:
        """Rejected pieces."""
        return sum(result.rejects for result in self.files)

    @property
    def exit_code(self) -> int:
        """0, or 3 where ``strict`` and something was rejected or unknown."""
        return 3 if self.strict and self.rejects else 0

    def to_json(self) -> dict[str, Any]:
        """The document of ``xtune collect --json``."""
        notes = Counter(self.notes)
        for result in self.files:
            notes.update(result.notes)
        return {
            "schema": 1,
            "dry_run": self.dry_run,
            "files": [result.to_json() for result in self.files],
            "totals": {
                "files": len(self.files),
                "states": self.states,
                "rows": self.rows,
                "rejected": self.rejects,
                "notes": [{"text": text, "count": count} for text, count in notes.items()],
            },
        }
