"""One sentence, and the figures it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xtune.reports._base import Block, Figures, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import covered_seconds, number, percent, union_seconds


def build(content: Content) -> Sequence[Block]:
    """Verdict line and key figures."""
    words, episodes = content.words, content.tables["episodes"]
    rates = content.tables["link_rates"]
    hours = covered_seconds(rates) / 3600.0
    lost = float(episodes["idle_gpu_hours"].sum()) if episodes["idle_gpu_hours"].count() else None
    measured = words("from telemetry")
    rows = [
        (words("hours observed"), number(hours), measured),
        (words("episodes"), number(episodes.height), measured),
        (words("GPU hours lost"), number(lost), measured),
        (words("links hit"), number(content.tables["link_episodes"]["link"].n_unique()), measured),
    ]
    if episodes.is_empty():
        return (Text(text=words("no congestion episode was found"), strong=True),
                Figures(rows=rows))  # fmt: skip
    seconds = (episodes["end_ts"] - episodes["start_ts"]) / 1e9
    # Two causes at one time are two episodes, but one time.
    busy = union_seconds(episodes["start_ts"].to_list(), episodes["end_ts"].to_list())
    share = busy / (hours * 3600.0) if hours else None
    rows.append((words("share of time with an episode"), percent(share), measured))
    rows.append((words("longest episode, s"), number(float(max(seconds))), measured))
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
            remark = words("simulated") + _no_better(content)
            rows.append((words("recommended T, iterations"), number(period), remark))
        if gain:
            g = gain["gain_of_best"]
            span = "" if g["low"] is None else f", [{percent(g['low'])}, {percent(g['high'])}]"
            remark = f"{gain['name']}, {words('simulated')}{span}"
            rows.append((words("expected gain"), percent(g["mean"]), remark))
            line += _compared(gain["name"], g, content.study["objective"], content.language)
        better = [
            b["name"]
            for b in (*content.study["baselines"], *content.study["ablations"])
            if "gain_of_best" in b
            and b is not gain
            and b["gain_of_best"]["told_apart"]
            and b["gain_of_best"]["mean"] < 0.0
        ]
        if better:
            line += _beaten(better, content.study["objective"], content.language)
    return (Text(text=line, strong=True), Figures(rows=rows))


def _no_better(content: Content) -> str:
    """How many other points the seeds do not tell from the best one, "" if none."""
    assert content.study is not None
    best = content.study["best"]["number"]
    others = [t["gain_of_best"] for t in content.study["trials"] if "gain_of_best" in t
              and t["number"] != best]  # fmt: skip
    alike = sum(not gain["told_apart"] for gain in others)
    return f"; {content.words('not told apart from')} {alike} / {len(others)}" if alike else ""


def _compared(
    name: str, gain: Mapping[str, Any], objective: Mapping[str, Any], language: str
) -> str:
    """Sooner or later than the first baseline, or that the seeds do not tell."""
    timed = objective["name"] == "time_to_target_s"
    by = percent(abs(gain["mean"]))
    if language == "zh":
        if not gain["told_apart"]:
            return f" 仿真中，现有随机种子不足以区分调优后的策略与 {name}。"
        if not timed:
            word = "优于" if gain["mean"] > 0.0 else "劣于"
            return f" 仿真中，调优后的策略在 {objective['name']} 上{word} {name} {by}。"
        word = "快" if gain["mean"] > 0.0 else "慢"
        return f" 仿真中，调优后的策略比 {name} {word} {by} 达标。"
    if not gain["told_apart"]:
        return f" In simulation these seeds do not tell the tuned policy and {name} apart."
    if not timed:
        word = "better" if gain["mean"] > 0.0 else "worse"
        return f" In simulation {objective['name']} is {by} {word} than with {name}."
    word = "sooner" if gain["mean"] > 0.0 else "later"
    return f" In simulation the tuned policy reaches the target loss {by} {word} than {name}."


def _beaten(names: Sequence[str], objective: Mapping[str, Any], language: str) -> str:
    """The tuned policy is not the best there is: that must be in the first line."""
    timed = objective["name"] == "time_to_target_s"
    if language == "zh":
        return f" {', '.join(names)} 比它更{'快' if timed else '好'}。"
    if not timed:
        return f" Better than it would be: {', '.join(names)}."
    return f" Faster than it would be: {', '.join(names)}."


SECTION = Section(name="verdict", order=10, title="Verdict", build=build)
