"""Jobs that hung, and the ranks it came from."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section
from xtune.reports._data import Content
from xtune.reports._figures import moment


def build(content: Content) -> Sequence[Block]:
    """One row a hang, as Flight Recorder dumps show it."""
    hangs = content.tables["desync_verdict"].sort("ts", "job", nulls_last=True)
    if hangs.is_empty():
        return ()
    columns = [
        content.words(name)
        for name in ("start (UTC)", "job", "cause", "culprit ranks", "confidence",
                     "waiting ranks", "explained", "ranks without a dump")
    ]  # fmt: skip
    rows = [
        (
            "" if row["ts"] is None else moment(row["ts"]),
            row["job"],
            row["cause"],
            _ranks(row["culprits"]),
            row["confidence"],
            row["waiting"],
            row["explained"],
            _ranks(row["absent"]),
        )
        for row in hangs.iter_rows(named=True)
    ]
    return (Grid(columns=columns, rows=rows),)


def _ranks(ranks: Sequence[int] | None) -> str:
    """Neighbouring ranks as a span: ``0, 4-7``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks or ()):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


SECTION = Section(name="hangs", order=21, title="Hangs", build=build)
