"""The tuned policy beside today's remedies and beside halves of itself."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import number, percent


def build(content: Content) -> Sequence[Block]:
    """One row a policy, same seeds, paired differences."""
    study = content.study
    if study is None or not (study["baselines"] or study["ablations"]):
        return ()
    words = content.words
    columns = [words(n) for n in ("policy", "time to target, s", "low", "high")]
    columns += ["mean step, s", "jitter, s", "ratio vs bf16", words("gain of the best"), "95 %"]
    rows = []
    for row in (*study["baselines"], *study["ablations"]):
        if row["state"] != "complete":
            why = row.get("reason", row["state"])  # columns of numbers hold numbers alone
            rows.append((f"{row['name']}: {why}", *[None] * 8))
            continue
        metrics, gain = row["metrics"], row.get("gain_of_best")
        rows.append(
            (
                row["name"],
                *(number(row[k]) for k in ("mean", "low", "high")),
                *(number(metrics.get(k)) for k in ("mean_step_s", "jitter_s")),
                percent(metrics.get("ratio_vs_bf16")),
                percent(gain["mean"]) if gain else None,
                f"{percent(gain['low'])} .. {percent(gain['high'])}"
                if gain and gain["low"] is not None
                else None,
            )
        )
    text = (
        "Same seeds for all, so differences are paired. Gain: by how much sooner the tuned policy "
        "reaches the target loss. All of it simulated."
    )
    return (Text(text=text), Grid(columns=columns, rows=rows))


SECTION = Section(name="baselines", order=50, title="Baselines and ablations", build=build)
