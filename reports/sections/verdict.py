"""One sentence, and the figures it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Figures, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import covered_seconds, number, percent


def build(content: Content) -> Sequence[Block]:
    """Verdict line and key figures."""
    words, episodes = content.words, content.tables["episodes"]
    rates = content.tables["link_rates"]
    hours = covered_seconds(rates) / 3600.0
    lost = float(episodes["idle_gpu_hours"].sum()) if episodes["idle_gpu_hours"].count() else None
    rows = [
        (words("hours observed"), number(hours), ""),
        (words("episodes"), number(episodes.height), ""),
        (words("GPU hours lost"), number(lost), ""),
        (words("links hit"), number(content.tables["link_episodes"]["link"].n_unique()), ""),
    ]
    if episodes.is_empty():
        return (Text(text=words("no congestion episode was found"), strong=True),
                Figures(rows=rows))  # fmt: skip
    seconds = (episodes["end_ts"] - episodes["start_ts"]) / 1e9
    share = float(seconds.sum()) / (hours * 3600.0) if hours else None
    rows.append((words("share of time with an episode"), percent(share), ""))
    rows.append((words("longest episode, s"), number(float(max(seconds))), ""))
    causes = episodes.group_by("cause").len().sort("len", "cause", descending=[True, False])
    top, count = causes.row(0)
    line = (
        f"{episodes.height} episodes in {number(hours)} h of telemetry, {number(lost)} GPU hours "
        f"lost; most often {top} ({count})."
        if content.language == "en"
        else f"{number(hours)} 小时遥测中有 {episodes.height} 次拥塞，损失 {number(lost)} GPU "
        f"小时；最常见原因：{top}（{count} 次）。"
    )
    best = content.study["best"] if content.study else None
    if content.study and best:
        gain = next((b for b in content.study["baselines"] if "gain_of_best" in b), None)
        period = best["params"].get("period.iterations")
        if period is not None:
            rows.append((words("recommended T, iterations"), number(period), words("simulated")))
        if gain:
            g = gain["gain_of_best"]
            span = f"[{percent(g['low'])}, {percent(g['high'])}]"
            remark = f"{gain['name']}, {words('simulated')}, {span}"
            rows.append((words("expected gain"), percent(g["mean"]), remark))
            line += _sooner(gain["name"], g["mean"], content.language)
        better = [
            b["name"]
            for b in (*content.study["baselines"], *content.study["ablations"])
            if "gain_of_best" in b and b["gain_of_best"]["high"] < 0.0
        ]
        if better:
            line += _beaten(better, content.language)
    return (Text(text=line, strong=True), Figures(rows=rows))


def _sooner(name: str, gain: float, language: str) -> str:
    if language == "zh":
        return f" 仿真中，调优后的策略比 {name} 快 {percent(gain)} 达标。"
    sooner = f"{percent(gain)} sooner than {name}"
    return f" In simulation the tuned policy reaches the target loss {sooner}."


def _beaten(names: Sequence[str], language: str) -> str:
    """The tuned policy is not the best there is: that must be in the first line."""
    if language == "zh":
        return f" 但 {', '.join(names)} 更快。"
    return f" But {', '.join(names)} would be faster than it."


SECTION = Section(name="verdict", order=10, title="Verdict", build=build)
