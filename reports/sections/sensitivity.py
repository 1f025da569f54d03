"""What happens around the best point when one field is moved and all others stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xtune.reports._base import Block, Plot, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import INK, figure_json

COLUMNS = 3
MOST_FIELDS = 24


def build(content: Content) -> Sequence[Block]:
    """A small plot a field, with intervals; the widest reaction first."""
    study = content.study
    found = (study.get("sensitivity") or ()) if study else ()
    fields = [f for f in found if len(_known(f)) > 1]
    if study is None or not fields:
        return ()
    fields = sorted(fields, key=_reach, reverse=True)
    flat = [f["field"] for f in fields if _reach(f) == 0.0]
    text = (
        "Around the best point, one field at a time, on the simulator; 95 % intervals over the"
        " seeds."
    )
    if flat:
        text += f" Nothing changes with: {', '.join(flat)}."
    moving = [f for f in fields if _reach(f) > 0.0][:MOST_FIELDS]
    if not moving:
        return (Text(text=text),)
    return (Text(text=text), _plots(study["objective"], moving))


def _reach(entry: Mapping[str, Any]) -> float:
    """By how much the mean moves over the values tried."""
    means = [value["mean"] for value in _known(entry)]
    return float(max(means) - min(means))


def _known(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [value for value in entry["values"] if value["mean"] is not None]


def _plots(objective: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]) -> Plot:
    from plotly.subplots import make_subplots

    columns = min(COLUMNS, len(fields))
    rows = -(-len(fields) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[f["field"] for f in fields],
        vertical_spacing=0.35 / rows,
    )
    for i, entry in enumerate(fields):
        known = _known(entry)
        figure.add_scatter(
            x=[_tick(v["value"]) for v in known],
            y=[v["mean"] for v in known],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [_length(v, "high") for v in known],
                "arrayminus": [_length(v, "low") for v in known],
            },
            mode="lines+markers",
            line={"color": INK},
            showlegend=False,
            row=i // columns + 1,
            col=i % columns + 1,
        )
    # One scale for all: a field that does little must look as if it does.
    figure.update_yaxes(matches="y", automargin=True)
    figure.update_xaxes(type="category", tickfont={"size": 10})
    figure.update_annotations(font={"size": 11})
    return Plot(
        figure=figure_json(figure),
        alternative=f"{objective['name']}, {objective['unit']}, against each field's values.",
        height_px=80 + 230 * rows,
    )


def _tick(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _length(value: Mapping[str, Any], end: str) -> float | None:
    return None if value[end] is None else abs(value[end] - value["mean"])


SECTION = Section(name="sensitivity", order=45, title="Around the best point", build=build)
