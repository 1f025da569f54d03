"""The course of a search: what each trial gave, and the best so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xtune.reports._base import Block, Figures, Plot, Section
from xtune.reports._data import Content
from xtune.reports._figures import INK, figure_json, number

# Not complete in three ways: left out early, refused or beyond a constraint, gone wrong.
STATES = ("complete", "pruned", "infeasible", "failed")


def build(content: Content) -> Sequence[Block]:
    """How the trials ended; of a search that draws its points, also its course."""
    study = content.study
    if study is None or "counts" not in study:
        return ()
    words = content.words
    rows = [(words(name), number(study["counts"].get(name)), "") for name in STATES]
    blocks: list[Block] = [Figures(rows=rows)]
    done = [row for row in study["trials"] if row["state"] in ("complete", "screened")]
    if study["sampler"]["name"] != "grid" and done:
        blocks.append(_course(content, study, done))
    return blocks


def _course(content: Content, study: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> Plot:
    import plotly.graph_objects as go

    objective, words = study["objective"], content.words
    better = max if objective["direction"] == "maximize" else min
    reached = done[0]["mean"]
    best = [reached := better(reached, row["mean"]) for row in done]
    figure = go.Figure()
    for state, name, size in (("screened", "few seeds", 6), ("complete", "all seeds", 10)):
        rows = [row for row in done if row["state"] == state]
        figure.add_scatter(
            x=[row["number"] for row in rows], y=[row["mean"] for row in rows], mode="markers",
            marker={"color": INK, "opacity": 0.6, "size": size}, name=words(name),
        )  # fmt: skip
    figure.add_scatter(
        x=[row["number"] for row in done], y=best, mode="lines",
        line={"color": "#d9662b", "shape": "hv"}, name=words("best so far"),
    )  # fmt: skip
    figure.update_xaxes(title=words("trial"))
    figure.update_yaxes(title=f"{objective['name']}, {objective['unit']}", automargin=True)
    figure.update_layout(legend={"orientation": "h", "y": -0.25})
    text = (
        f"{len(done)} trials that ran whole, the best with {number(best[-1])} "
        f"{objective['unit']}; means over the seeds. The best of many is partly luck: what to "
        f"expect of it is the figure on fresh seeds, below."
    )
    return Plot(figure=figure_json(figure), alternative=text)


SECTION = Section(name="history", order=42, title="Course of the search", build=build)
