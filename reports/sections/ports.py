"""Hot ports by lifetime counters: what a fabric shows that was read once."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section, Text
from xtune.reports._data import Content

MOST_ROWS = 50


def build(content: Content) -> Sequence[Block]:
    """Ports that lost most bytes for those that they sent."""
    every = content.tables["link_totals"]
    ports = every.drop_nulls("lost_to_sent").sort(
        ["lost_to_sent", "link"], descending=[True, False]
    )
    if ports.is_empty():
        return ()
    names = ("port", "lost, GB", "sent, GB", "lost over sent", "errors", "drops")
    rows = [
        (
            content.name_of(row["link"]),
            float(f"{row['lost_bytes'] / 1e9:.4g}"),
            float(f"{row['sent_bytes'] / 1e9:.4g}"),
            float(f"{row['lost_to_sent']:.3g}"),
            row["errors"],
            row["discards"],
        )
        for row in ports.head(MOST_ROWS).iter_rows(named=True)
    ]
    said = "since the counters were cleared, which nobody knows: a ranking, no share of time"
    grid = Grid(columns=[content.words(n) for n in names], rows=rows, shown_of=every.height)
    return (Text(text=content.words(said)), grid)


SECTION = Section(name="ports", order=22, title="Hot ports", build=build)
