"""Trials that no other beats in every objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xtune.reports._base import Block, Grid, Plot, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import INK, figure_json

MOST_ROWS = 40


def build(content: Content) -> Sequence[Block]:
    """The front in its first two objectives, and a row for each of its trials."""
    study = content.study
    objectives = _objectives(study)
    if study is None or len(objectives) < 2 or not study.get("pareto"):
        return ()
    done = [row for row in study["trials"] if _known(row, objectives)]
    front = [row for row in done if row["number"] in set(study["pareto"])]
    if not front:
        return ()
    sense = {"minimize": "small", "maximize": "large"}
    text = "No other trial is at least as good in every objective: " + ", ".join(
        f"{o['metric']} ({sense[o['direction']]})" for o in objectives
    )
    names = [o["metric"] for o in objectives]
    return (
        Text(text=f"{text}. The trial that is exported is the best of the first."),
        _plane(content, done, front, names),
        Grid(
            columns=[content.words("trial"), *names],
            rows=[
                (row["number"], *(float(f"{row['metrics'][n]:.5g}") for n in names))
                for row in sorted(front, key=lambda row: row["metrics"][names[0]])[:MOST_ROWS]
            ],
            shown_of=len(front),
        ),
    )


def _objectives(study: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return list(study.get("objectives", ())) if study else []


def _known(row: Mapping[str, Any], objectives: Sequence[Mapping[str, Any]]) -> bool:
    metrics = row.get("metrics") or {}
    return all(metrics.get(o["metric"]) is not None for o in objectives)


def _plane(
    content: Content,
    done: Sequence[Mapping[str, Any]],
    front: Sequence[Mapping[str, Any]],
    names: Sequence[str],
) -> Plot:
    import plotly.graph_objects as go

    figure = go.Figure()
    for rows, name, colour, size in (
        (done, content.words("trial"), "#b8c4d0", 6),
        (front, content.words("front"), INK, 9),
    ):
        figure.add_scatter(
            x=[row["metrics"][names[0]] for row in rows],
            y=[row["metrics"][names[1]] for row in rows],
            text=[str(row["number"]) for row in rows],
            mode="markers", marker={"color": colour, "size": size}, name=name,
        )  # fmt: skip
    figure.update_xaxes(title=names[0])
    figure.update_yaxes(title=names[1], automargin=True)
    figure.update_layout(legend={"orientation": "h", "y": -0.25})
    return Plot(
        figure=figure_json(figure),
        alternative=f"{len(front)} of {len(done)} trials are on the front.",
    )


SECTION = Section(name="pareto", order=43, title="Trade-off between objectives", build=build)
