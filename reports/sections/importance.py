"""How much of the objective's spread each searched field explains, and by whose reckoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xtune.reports._base import Block, Plot, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import INK, figure_json, percent

MOST_FIELDS = 20
COLOURS = (INK, "#d9662b")


def build(content: Content) -> Sequence[Block]:
    """Bars for each field, one an evaluator: they disagree, so each bears its evaluator's name."""
    study = content.study
    found = study.get("importance") if study else None
    if not found or not found["values"]:
        return ()
    import plotly.graph_objects as go

    evaluators = [found, *([found["other"]] if found.get("other") else [])]
    order = sorted(found["values"], key=lambda name: (-found["values"][name], name))
    shown = order[:MOST_FIELDS][::-1]  # Plotly draws from below
    figure = go.Figure(
        [
            go.Bar(
                x=[evaluator["values"].get(name) for name in shown], y=shown, orientation="h",
                marker={"color": colour}, name=evaluator["evaluator"],
            )
            for evaluator, colour in zip(evaluators, COLOURS, strict=False)
        ]
    )  # fmt: skip
    figure.update_xaxes(title=content.words("importance"), tickformat=".0%")
    figure.update_yaxes(automargin=True)
    figure.update_layout(barmode="group", showlegend=True, legend={"orientation": "h", "y": 1.1})
    names = " and ".join(evaluator["evaluator"] for evaluator in evaluators)
    text = (
        f"By {names}, over the trials of this search. Evaluators ask different questions and give "
        f"different orders: a hint where to look, no measure."
    )
    first = "; ".join(f"{e['evaluator']}: {_top(e)}" for e in evaluators)
    height = max(240, 110 + 20 * len(shown) * len(evaluators))
    return (
        Text(text=text),
        Plot(figure=figure_json(figure), alternative=f"First by {first}.", height_px=height),
    )


def _top(evaluator: Mapping[str, Any]) -> str:
    rows = sorted(evaluator["values"].items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {percent(value)}" for name, value in rows[:3])


SECTION = Section(name="importance", order=44, title="Importance of the fields", build=build)
