"""What the study advises, in one sentence, and how far the simulator can be trusted in it."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Figures, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import number, percent, share_span


def build(content: Content) -> Sequence[Block]:
    """The sentence of the study; that nothing is gained is a possible answer."""
    study = content.study
    advice = study.get("recommendation") if study else None
    if study is None or not advice:
        return ()
    words = content.words
    rows = [(words("verdict"), words(advice["verdict"].replace("_", " ")), words("simulated"))]
    gain = advice.get("difference")
    if gain:
        span, seeds = share_span(gain), share_span(gain.get("over_seeds"))
        remark = f"95 %: {span}"
        if gain.get("own_error"):
            remark += f"; {words('seeds alone')} {seeds}"
        rows.append((words("gain over the default"), percent(gain["mean"]), remark))
    if advice.get("seeds_needed") is not None:
        needed = number(advice["seeds_needed"])
        rows.append((words("seeds for an 80 % chance to settle it"), needed, "tune.seeds"))
    fidelity = study.get("fidelity")
    if fidelity:
        remark = f"± {percent(fidelity['sd'])}, {number(fidelity['windows'])} {words('windows')}"
        rows.append(
            (words("step time against the full fabric model"), percent(fidelity["bias"]), remark)
        )
    return (Text(text=advice["text"], strong=True), Figures(rows=rows))


SECTION = Section(name="recommendation", order=38, title="Recommendation", build=build)
