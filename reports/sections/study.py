"""The searched parameter against the objective, with intervals and the baselines beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xtune.reports._base import Block, Grid, Plot, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import INK, figure_json, number, percent

FOREIGN = (
    "The study's calibration is not in this lake: it was deleted, or the study is of other"
    " telemetry than the episodes on this page."
)


def build(content: Content) -> Sequence[Block]:
    """Curve of a one-dimensional grid, the trials as a table, the founding document's claim."""
    study = content.study
    if study is None:
        return ()
    words = content.words
    done = [row for row in study["trials"] if row["state"] == "complete"]
    fields = list(study["space"])
    blocks: list[Block] = [Text(text=_sentence(study, done))]
    if not content.provenance["calibration_in_lake"]:
        blocks.append(Text(text=words(FOREIGN)))
    if len(fields) == 1 and done:
        blocks.append(_curve(content, study, done, fields[0]))
    columns = [*fields, *(words(n) for n in ("time to target, s", "low", "high"))]
    blocks.append(
        Grid(
            columns=[*columns, "ratio vs bf16", "ratio vs fp32", "control changes"],
            rows=[
                (
                    *(row["params"][f] for f in fields),
                    *(_short(row.get(k)) for k in ("mean", "low", "high")),
                    *(
                        percent(row.get("metrics", {}).get(k))
                        for k in ("ratio_vs_bf16", "ratio_vs_fp32")
                    ),
                    _short(row.get("metrics", {}).get("control_changes")),
                )
                for row in study["trials"]
            ],
        )
    )
    blocks += [
        Text(text=f"{row['state']}: {_chosen(row)}: {row.get('reason', '')}")
        for row in study["trials"]
        if row["state"] != "complete"
    ]
    blocks += [
        Text(text=f"{words('founding document')} ({c['id']}): {c['claim']}")
        for c in study["founding_document"]
    ]
    return blocks


def _sentence(study: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> str:
    seeds = len(study["provenance"]["seeds"])
    text = (
        f"{len(done)} of {study['planned']} trials complete, {seeds} seeds each, "
        f"{study['provenance']['iterations']} iterations, calibration {study['calibration']}; "
        f"simulated. Intervals are 95 % bootstrap intervals over the seeds."
    )
    best = study["best"]
    if best is None:
        return text
    others = [row for row in done if row["number"] != best["number"]]
    alike = [row for row in others if row["gain_of_best"]["told_apart"] is False]
    values = "; ".join(", ".join(str(v) for v in row["params"].values()) for row in alike)
    rest = f" Not told apart from it by these seeds: {values}." if alike else ""
    if any(row["gain_of_best"]["told_apart"] is None for row in others):
        rest = " These seeds are too few to tell the others from it."
    return f"{text} Best: {_chosen(best)}, {number(best['mean'])} s.{rest}"


def _chosen(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in row["params"].items())


def _curve(
    content: Content, study: Mapping[str, Any], done: Sequence[Mapping[str, Any]], field: str
) -> Plot:
    import plotly.graph_objects as go

    x = [row["params"][field] for row in done]
    mean = [row["mean"] for row in done]
    title = content.words("T, iterations") if field == "period.iterations" else field
    figure = go.Figure(
        go.Scatter(
            x=x,
            y=mean,
            mode="lines+markers",
            line={"color": INK},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [_reach(row, "high") for row in done],
                "arrayminus": [_reach(row, "low") for row in done],
            },
            name=content.words("tuned policy"),
        )
    )
    # A line far above the curve would press the curve flat; the table below has it all the same.
    ceiling = 1.25 * max(mean)
    far = []
    for row in (*study["baselines"], *study["ablations"]):
        if row["state"] == "complete" and row["mean"] > ceiling:
            far.append(f"{row['name']} ({number(row['mean'])} s)")
        elif row["state"] == "complete":
            figure.add_trace(
                go.Scatter(
                    x=[min(x), max(x)],
                    y=[row["mean"]] * 2,
                    mode="lines",
                    line={"dash": "dot", "width": 1.5},
                    name=row["name"],
                )
            )
    figure.update_xaxes(type="log", title=title, tickvals=x, ticktext=[str(v) for v in x])
    figure.update_yaxes(title=content.words("time to target, s"), automargin=True)
    figure.update_layout(legend={"orientation": "h", "y": -0.25})
    return Plot(
        figure=figure_json(figure),
        alternative="The table below holds every point and its interval."
        + (f" Off the scale: {', '.join(far)}." if far else ""),
        height_px=460,
    )


def _reach(row: Mapping[str, Any], end: str) -> float | None:
    """Length of the error bar; none where one seed gives no interval."""
    return None if row[end] is None else abs(row[end] - row["mean"])


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


SECTION = Section(name="study", order=40, title="Regulation period", build=build)
