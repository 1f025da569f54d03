"""The winner on days that the search never saw, beside the baselines."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import number, objective_label, percent


def build(content: Content) -> Sequence[Block]:
    """One row a policy, on the held-out days."""
    study = content.study
    held = study.get("held_out") if study else None
    if study is None or not held:
        return ()
    words = content.words
    label = objective_label(study["objective"], words)
    columns = [words("policy"), label, words("low"), words("high")]
    rows: list[tuple[object, ...]] = [
        (words("tuned policy"), *(number(held["best"].get(k)) for k in ("mean", "low", "high")),
         None, None)
    ]  # fmt: skip
    for row in (*held["baselines"], *held.get("ablations", ())):
        gain = row.get("gain_of_best")
        rows.append(
            (
                row["name"],
                *(number(row.get(k)) for k in ("mean", "low", "high")),
                percent(gain["mean"]) if gain else None,
                f"{percent(gain['low'])} .. {percent(gain['high'])}"
                if gain and gain["low"] is not None
                else None,
            )
        )
    span = held.get("span") or {}
    days = f"{span.get('from')} to {span.get('to')}" if span.get("from") else words("unknown")
    text = (
        f"Fitted on telemetry that the search never saw ({days}), same seeds for all; simulated. "
        f"This, and not the trials' own figure, is what to expect."
    )
    return (
        Text(text=text),
        Grid(columns=[*columns, words("gain of the best"), "95 %"], rows=rows),
    )


SECTION = Section(name="held_out", order=52, title="On held-out days", build=build)
