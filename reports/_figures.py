"""Numbers and figures that several sections show alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

# cividis: readable without colour vision; unknown is the page's own background.
LEVEL_COLOURS = ("#e8eef4", "#f0c04a", "#d9662b", "#7a1030")
INK = "#3b6fb5"


def number(value: float | None) -> str:
    """Four significant digits; ``-`` for unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e12 else f"{value:.4g}"


def percent(value: float | None) -> str:
    """A share in per cent with one digit; ``-`` for unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:z.1%}"


def share_span(figures: Mapping[str, Any] | None) -> str | None:
    """Interval of a share; None where there is none."""
    if not figures or figures["low"] is None:
        return None
    return f"{percent(figures['low'])} .. {percent(figures['high'])}"


def compared(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What stands beside the tuned policy: the default, unless it is one of them, and the others.

    Args:
        part: A study's result, or what it holds of the held-out days.
    """
    others = [*part["baselines"], *part.get("ablations", ())]
    default = part.get("default")
    if default and default["name"] not in [row["name"] for row in others]:
        others.insert(0, default)
    return others


def named(row: Mapping[str, Any], name: str) -> str:
    """A policy's name, with the reason where it did not run whole: figures hold numbers alone."""
    if row.get("state", "complete") == "complete":
        return name
    return f"{name}: {row.get('reason') or row['state']}"


def intervals_hold(rows: Iterable[Mapping[str, Any]]) -> str:
    """What the intervals of compared policies hold, in a sentence."""
    shown = [row for row in rows if row.get("low") is not None]
    without = [row for row in shown if not _holds_own_error(row)]
    if not shown or len(without) == len(shown):
        return (
            "The 95 % intervals are over the seeds alone:"
            " the simulator's own error is not in them."
        )
    text = (
        "The 95 % intervals hold the noise of the seeds and the simulator's own error;"
        " the last column the gain's noise of the seeds alone."
    )
    if without:
        names = ", ".join(str(row.get("name", "the best")) for row in without)
        text += f" Not so of {names}: there the simulator's own error is not known."
    return text


def _holds_own_error(row: Mapping[str, Any]) -> bool:
    gain = row.get("gain_of_best")
    known = row.get("own_error") is not None
    return known and (gain is None or gain.get("own_error") is not None)


def moment(ns: int) -> str:
    """UTC to the second."""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def covered_seconds(rates: pl.DataFrame) -> float:
    """Time that at least one link was observed for.

    An interval ten times as long as the usual one is a hole in the sampling, not a sample.
    """
    import polars as pl

    usual = rates["interval_s"].median()
    if usual is None:
        return 0.0
    spans = (
        rates.filter(pl.col("interval_s") <= 10.0 * pl.lit(usual))
        .select(
            (pl.col("ts") - (pl.col("interval_s") * 1e9).cast(pl.Int64)).alias("a"),
            pl.col("ts").alias("b"),
        )
        .sort("a")
        .with_columns(pl.col("b").cum_max().shift(1).alias("before"))
        .with_columns(
            (pl.col("b") - pl.max_horizontal("a", "before")).clip(lower_bound=0).alias("new")
        )
    )
    return float(spans["new"].sum()) / 1e9


def union_seconds(starts_ns: Sequence[int], ends_ns: Sequence[int]) -> float:
    """Time that at least one of the intervals covers."""
    total, reached = 0, -(2**63)
    for start, end in sorted(zip(starts_ns, ends_ns, strict=True)):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e9


def label(text: str) -> str:
    """Foreign text for a figure: Plotly takes some HTML in labels, and a name is not HTML."""
    return escape(text, quote=False)


def figure_json(figure: go.Figure) -> dict[str, Any]:
    """The figure as a JSON object, without Plotly's default template's weight."""
    import json

    figure.update_layout(
        template="none",
        margin={"l": 70, "r": 20, "t": 20, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    loaded: dict[str, Any] = json.loads(figure.to_json())
    return loaded


def objective_label(objective: Mapping[str, Any], words: Callable[[str], str]) -> str:
    """Name and unit of what a study looks for."""
    if objective["name"] == "time_to_target_s":
        return words("time to target, s")
    return with_unit(objective["name"] + ",", objective).removesuffix(",")


def with_unit(text: str, objective: Mapping[str, Any]) -> str:
    """A figure of a study with its unit; shares have none."""
    unit = objective.get("unit") or "1"
    return text if unit == "1" else f"{text} {unit}"
