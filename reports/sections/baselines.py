"""The tuned policy beside today's remedies and beside halves of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    """One row a policy, same seeds, paired differences."""
    study = content.study
    if study is None:
        return ()
    others = compared(study)
    if not others:
        return ()
    words = content.words
    label = objective_label(study["objective"], words)
    columns = [words("policy"), label, words("low"), words("high")]
    columns += ["mean step, s", "jitter, s", "ratio vs bf16", words("gain of the best"), "95 %"]
    columns += [words("seeds alone")]
    rows = []
    for row in others:
        if row["state"] != "complete":
            rows.append((named(row, row["name"]), *[None] * 9))
            continue
        metrics, gain = row["metrics"], row.get("gain_of_best")
        rows.append(
            (
                row["name"],
                *(number(row[k]) for k in ("mean", "low", "high")),
                *(number(metrics.get(k)) for k in ("mean_step_s", "jitter_s")),
                percent(metrics.get("ratio_vs_bf16")),
                percent(gain["mean"]) if gain else None,
                share_span(gain),
                share_span(gain.get("over_seeds")) if gain else None,
            )
        )
    text = (
        f"Same seeds for all, so differences are paired. Gain: by how much {_better(study)}. "
        f"All of it simulated. {intervals_hold(others)}"
    )
    return (Text(text=text), Grid(columns=columns, rows=rows))


def _better(study: Mapping[str, Any]) -> str:
    name = study["objective"]["name"]
    if name == "time_to_target_s":
        return "sooner the tuned policy reaches the target loss"
    return f"better {name} is under the tuned policy"


SECTION = Section(name="baselines", order=50, title="Baselines and ablations", build=build)
