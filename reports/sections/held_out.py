"""The winner on days that the search never saw, beside the baselines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import (
    compared,
    intervals_hold,
    named,
    number,
    objective_label,
    percent,
    share_span,
)


def build(content: Content) -> Sequence[Block]:
    """One row a policy, on the held-out days."""
    study = content.study
    held = study.get("held_out") if study else None
    if study is None or not held:
        return ()
    words = content.words
    label = objective_label(study["objective"], words)
    columns = [words("policy"), label, words("low"), words("high")]
    others = compared(held)
    rows: list[tuple[object, ...]] = []
    for row in (held["best"], *others):
        gain = row.get("gain_of_best")
        rows.append(
            (
                named(row, row.get("name", words("tuned policy"))),
                *(number(row.get(k)) for k in ("mean", "low", "high")),
                percent(gain["mean"]) if gain else None,
                share_span(gain),
                share_span(gain.get("over_seeds")) if gain else None,
            )
        )
    span = held.get("span") or {}
    first, last = (_seconds(span.get(end)) for end in ("from", "to"))
    days = f"{first} to {last}" if first else words("unknown")
    text = (
        f"Fitted on telemetry that the search never saw ({days}), same seeds for all; simulated. "
        f"This, and not the trials' own figure, is what to expect. "
        f"{intervals_hold((held['best'], *others))}"
    )
    columns += [words("gain of the best"), "95 %", words("seeds alone")]
    return (Text(text=text), Grid(columns=columns, rows=rows))


def _seconds(time: str | None) -> str | None:
    """A time of a result without what is below a second."""
    return None if time is None else re.sub(r"\.\d+", "", time)


SECTION = Section(name="held_out", order=52, title="On held-out days", build=build)
