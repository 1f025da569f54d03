"""Congestion level of each link over time; unknown stays empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xtune.reports._base import Block, Plot, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import LEVEL_COLOURS, figure_json, label, moment, number

MOST_BINS = 720
MOST_LINKS = 80


def build(content: Content) -> Sequence[Block]:
    """A heat map of the highest level in each time bin; hours without samples are left out."""
    import plotly.graph_objects as go
    import polars as pl

    rates = content.tables["link_rates"]
    worst = (
        rates.group_by("link")
        .agg(pl.col("level").max().alias("peak"), pl.col("wait_fraction").mean().alias("wait"))
        .sort(["peak", "wait", "link"], descending=[True, True, False], nulls_last=True)
    )
    links = worst["link"].head(MOST_LINKS).to_list()
    rates = rates.filter(pl.col("link").is_in(links))
    stamps = rates["ts"].unique().sort().to_numpy()
    bins = min(MOST_BINS, len(stamps))
    edges = stamps[np.linspace(0, len(stamps), bins + 1).astype(int)[:-1]]
    column = np.searchsorted(edges, rates["ts"].to_numpy(), side="right") - 1
    order = {link: i for i, link in enumerate(links)}
    row = np.array([order[link] for link in rates["link"].to_list()])
    grid = np.full((len(links), bins), -1.0)
    level = rates["level"].cast(pl.Float64).fill_null(-1.0).to_numpy()
    np.maximum.at(grid, (row, column), level)
    grid[grid < 0] = np.nan
    scale = [[i / 3, colour] for i, colour in enumerate(LEVEL_COLOURS)]
    figure = go.Figure(
        go.Heatmap(
            z=grid.astype(np.float32),
            x=_distinct([moment(int(edge))[5:] for edge in edges]),
            y=_distinct([label(content.name_of(link)) for link in links]),
            zmin=0,
            zmax=3,
            colorscale=scale,
            colorbar={"title": "level", "tickvals": [0, 1, 2, 3]},
            hoverongaps=False,
        )
    )
    figure.update_xaxes(type="category", nticks=6, tickangle=0, automargin=True)
    figure.update_yaxes(
        type="category", autorange="reversed", automargin=True, tickfont={"size": 10}
    )
    text = (
        f"Highest level in each of {bins} bins for {len(links)} of {worst.height} links, worst "
        f"first; empty where unknown. 0 clear, 1 rising, 2 congested, 3 severe."
    )
    known = int(np.isfinite(grid).sum())
    alternative = f"{number(known)} of {number(grid.size)} cells are known."
    height = max(300, 60 + 14 * len(links))
    return (
        Text(text=text),
        Plot(figure=figure_json(figure), alternative=alternative, height_px=height),
    )


def _distinct(names: list[str]) -> list[str]:
    """Rows and columns of one name would be drawn over each other: later ones get a number."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


SECTION = Section(name="timeline", order=30, title="Levels over time", build=build)
