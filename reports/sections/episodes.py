"""Every episode with its cause, root and cost; the costliest first."""

from __future__ import annotations

import json
from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section
from xtune.reports._data import Content
from xtune.reports._figures import moment

MOST_ROWS = 2000


def build(content: Content) -> Sequence[Block]:
    """The table of episodes."""
    words = content.words
    episodes = content.tables["episodes"].sort(
        ["idle_gpu_hours", "start_ts"], descending=[True, False], nulls_last=True
    )
    if episodes.is_empty():
        return ()
    columns = [
        words(name)
        for name in ("start (UTC)", "length, s", "cause", "root", "links", "jobs", "steps",
                     "slowdown", "idle GPU hours", "evidence")
    ]  # fmt: skip
    rows = [
        (
            moment(row["start_ts"]),
            round((row["end_ts"] - row["start_ts"]) / 1e9, 1),
            row["cause"],
            content.name_of(row["root_link"]),
            len(row["links"] or ()),
            ", ".join(row["jobs"] or ()),
            row["steps_affected"],
            _rounded(row["slowdown"]),
            _rounded(row["idle_gpu_hours"]),
            _readable(row["evidence"], content),
        )
        for row in episodes.head(MOST_ROWS).iter_rows(named=True)
    ]
    return (Grid(columns=columns, rows=rows, shown_of=episodes.height, search=True),)


def _readable(evidence: str | None, content: Content) -> str:
    """The evidence's JSON object as ``name value`` pairs, ports by their names."""
    found = json.loads(evidence or "{}")
    return "; ".join(
        f"{name.replace('_', ' ')} {_shown(value, content)}" for name, value in found.items()
    )


def _shown(value: object, content: Content) -> str:
    if isinstance(value, bool):
        return content.words("yes" if value else "no")
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(_shown(item, content) for item in value)
    return content.name_of(value) if isinstance(value, str) else str(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


SECTION = Section(name="episodes", order=20, title="Episodes", build=build)
