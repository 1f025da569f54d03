"""The searched parameter against the objective, with intervals and the baselines beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xtune.reports._base import Block, Grid, Plot, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import (
    INK,
    figure_json,
    number,
    objective_label,
    percent,
    with_unit,
)

MOST_FIELDS = 8  # columns that a table has room for
MOST_ROWS = 60
NUMBERS = re.compile(r"\[?-?\d[\d.e, -]*\]?")
NOT_RUN = ("failed", "infeasible", "pruned")
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
    blocks += _tables(content, study, fields)
    blocks += _left_out(study["trials"])
    blocks += [
        Text(text=f"{words('founding document')} ({c['id']}): {c['claim']}")
        for c in study["founding_document"]
    ]
    return blocks


def _tables(content: Content, study: Mapping[str, Any], fields: Sequence[str]) -> list[Block]:
    """The trials, the best of a search first; with many fields, those of the best one apart."""
    words, rows = content.words, study["trials"]
    tables: list[Block] = []
    if study.get("sampler", {}).get("name", "grid") != "grid":
        rows = sorted((r for r in rows if r["state"] not in NOT_RUN), key=_rank(study))
    if len(fields) > MOST_FIELDS:
        if study["best"] is not None:
            best = study["best"]["params"]
            heads = [words(name) for name in ("parameter", "value")]
            tables.append(Grid(columns=heads, rows=[(f, _short(best[f])) for f in fields]))
        fields = ()
    label = objective_label(study["objective"], words)
    columns = [words("trial"), *fields, label, words("low"), words("high")]
    cells = [
        (
            row["number"],
            *(_short(row["params"][f]) for f in fields),
            *(_short(row.get(k)) for k in ("mean", "low", "high")),
            *(percent(row.get("metrics", {}).get(k)) for k in ("ratio_vs_bf16", "ratio_vs_fp32")),
            _short(row.get("metrics", {}).get("control_changes")),
        )
        for row in rows
    ]
    columns += ["ratio vs bf16", "ratio vs fp32", "control changes"]
    tables.append(Grid(columns=columns, rows=cells[:MOST_ROWS], shown_of=len(cells)))
    return tables


def _rank(study: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], tuple[bool, float]]:
    """Trials with all seeds first, then those of few; each by the objective."""
    sign = -1.0 if study["objective"]["direction"] == "maximize" else 1.0
    return lambda row: (row["state"] != "complete", sign * row["mean"])


def _left_out(trials: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Why trials did not run whole: reasons that differ in their numbers alone count as one."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for row in trials:
        if row["state"] in NOT_RUN:
            reason = NUMBERS.sub("#", f"{row['state']}: {row.get('reason', '')}")
            alike.setdefault(reason, []).append(row)
    often = sorted(alike.values(), key=lambda rows: -len(rows))[:MOST_FIELDS]
    return [Text(text=_reason(rows[0], len(rows) - 1)) for rows in often]


def _reason(row: Mapping[str, Any], others: int) -> str:
    more = f", and {others} alike" if others else ""
    return f"{row['state']}: {_chosen(row)}: {row.get('reason', '')}{more}"


def _sentence(study: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> str:
    text = (
        f"{study['title']}: {_complete(study, done)},"
        f" {study['provenance']['iterations']} iterations, calibration {study['calibration']}; "
        f"simulated. Intervals of trials are 95 % bootstrap intervals over the seeds alone."
    )
    best = study["best"]
    if best is None:
        return text
    others = [row for row in done if row["number"] != best["number"]]
    alike = [row for row in others if row["gain_of_best"]["told_apart"] is False]
    values = "; ".join(_values(row) for row in alike)
    rest = f" Not told apart from it by these seeds: {values}." if alike else ""
    if any(row["gain_of_best"]["told_apart"] is None for row in others):
        rest = " These seeds are too few to tell the others from it."
    mean = with_unit(number(best["mean"]), study["objective"])
    return f"{text} Best: {_chosen(best)}, {mean}.{rest}"


def _values(row: Mapping[str, Any]) -> str:
    if len(row["params"]) > MOST_FIELDS:
        return f"trial {row['number']}"
    return ", ".join(str(v) for v in row["params"].values())


def _complete(study: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> str:
    """How many trials; in a search only the most promising run on all seeds."""
    every = study.get("counts", {}).get("complete", len(done))
    text = f"{every} of {study['planned']} trials complete"
    made = study["provenance"]
    seeds = len(made["seeds"])
    if every == len(done):
        return f"{text}, {seeds} seeds each"
    first = len(made.get("search_seeds") or ()) or "few"
    return f"{text} on {first} seeds, the {len(done)} most promising of them again on {seeds}"


def _chosen(row: Mapping[str, Any]) -> str:
    if len(row["params"]) > MOST_FIELDS:
        return f"trial {row['number']}"
    return ", ".join(f"{name} = {value}" for name, value in row["params"].items())


def _curve(
    content: Content, study: Mapping[str, Any], done: Sequence[Mapping[str, Any]], field: str
) -> Plot:
    import plotly.graph_objects as go

    objective = study["objective"]
    x, axis = _axis([row["params"][field] for row in done])
    figure = go.Figure(
        go.Scatter(
            x=x,
            y=[row["mean"] for row in done],
            mode="lines+markers" if axis["type"] != "category" else "markers",
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
    ends = [x[0], x[-1]] if axis["type"] == "category" else [min(x), max(x)]
    far = []
    for row in (*study["baselines"], *study["ablations"]):
        if row["state"] == "complete" and _off_scale(row["mean"], done, objective["direction"]):
            far.append(f"{row['name']} ({with_unit(number(row['mean']), objective)})")
        elif row["state"] == "complete":
            figure.add_trace(
                go.Scatter(
                    x=ends,
                    y=[row["mean"]] * 2,
                    mode="lines",
                    line={"dash": "dot", "width": 1.5},
                    name=row["name"],
                )
            )
    title = content.words("T, iterations") if field == "period.iterations" else field
    figure.update_xaxes(title=title, **axis)
    figure.update_yaxes(title=objective_label(objective, content.words), automargin=True)
    figure.update_layout(legend={"orientation": "h", "y": -0.25})
    return Plot(
        figure=figure_json(figure),
        alternative="The table below holds every point and its interval."
        + (f" Off the scale: {', '.join(far)}." if far else ""),
        height_px=460,
    )


def _axis(values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Places on the axis and its form: by size where they are numbers, else one beside another."""
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        return [str(v) for v in values], {"type": "category"}
    kind = "log" if min(values) > 0 else "linear"
    ticks = {"tickvals": list(values), "ticktext": [str(v) for v in values]}
    return list(values), {"type": kind, **ticks}


def _off_scale(mean: float, done: Sequence[Mapping[str, Any]], direction: str) -> bool:
    """Worse by so much that its line would press the curve flat; the table below has it."""
    means = [row["mean"] for row in done]
    room = 0.25 * max(abs(m) for m in means) or math.inf
    if direction == "maximize":
        return bool(mean < min(means) - room)
    return bool(mean > max(means) + room)


def _reach(row: Mapping[str, Any], end: str) -> float | None:
    """Length of the error bar; none where one seed gives no interval."""
    return None if row[end] is None else abs(row[end] - row["mean"])


def _short(value: Any) -> Any:
    """Five digits of a number that is not whole; what is no number is text."""
    if isinstance(value, bool | list | tuple):
        return str(value)
    return float(f"{value:.5g}") if isinstance(value, float) else value


SECTION = Section(name="study", order=40, title="Study", build=build)
