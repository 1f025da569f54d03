"""The report's words in English and Chinese; English text is the key."""

from __future__ import annotations

from collections.abc import Callable

ZH = {
    "Congestion report": "拥塞报告",
    "Verdict": "结论",
    "Episodes": "拥塞事件",
    "Levels over time": "拥塞等级时间线",
    "Regulation period": "调节周期",
    "Baselines and ablations": "基线与消融",
    "What was assumed": "假设",
    "Provenance": "来源",
    "Data quality": "数据质量",
    "this panel failed": "此面板生成失败",
    "episodes": "拥塞事件数",
    "GPU hours lost": "损失的 GPU 小时",
    "links hit": "受影响链路",
    "hours observed": "观测时长（小时）",
    "share of time with an episode": "存在拥塞的时间占比",
    "longest episode, s": "最长事件（秒）",
    "recommended T, iterations": "推荐的 T（迭代）",
    "expected gain": "预期收益",
    "start (UTC)": "开始（UTC）",
    "length, s": "时长（秒）",
    "cause": "原因",
    "root": "根端口",
    "links": "链路数",
    "jobs": "作业",
    "steps": "受影响步数",
    "slowdown": "减速比",
    "idle GPU hours": "空闲 GPU 小时",
    "evidence": "证据",
    "policy": "策略",
    "time to target, s": "达到目标损失的时间（秒）",
    "low": "下界",
    "high": "上界",
    "gain of the best": "最优策略的收益",
    "parameter": "参数",
    "value": "取值",
    "unit": "单位",
    "why": "原因说明",
    "item": "项目",
    "T, iterations": "T（迭代）",
    "simulated": "仿真",
    "from telemetry": "来自遥测",
    "not told apart from": "与其他取值不可区分：",
    "The study's calibration is not in this lake: it was deleted, or the study is of other"
    " telemetry than the episodes on this page.": "该研究的标定不在此数据湖中：标定已被删除，"
    "或该研究所用遥测与本页事件不同。",
    "founding document": "创始文档",
    "no congestion episode was found": "未发现拥塞事件",
    "search": "搜索",
    "unknown": "未知",
    "tuned policy": "调优策略",
}


def translator(language: str) -> Callable[[str], str]:
    """A function from English text to ``language``; what has no translation stays English."""
    return (lambda text: ZH.get(text, text)) if language == "zh" else (lambda text: text)
