"""What one line of a small trainer's log says: its step and its losses.

Sources of the forms: nanoGPT's train.py, llm.c's logger.h and train_gpt2.c, modded-nanogpt's
records, torchtitan's components/metrics.py, DeepSpeed's engine.py and pipe/engine.py; those made
of pairs are in ``_loss_pairs``.
"""

from __future__ import annotations

import json
import re
from typing import Any

from xtune.collectors._loss_pairs import Said, dict_line, lightning_line, step_line
from xtune.collectors._steps import Measure, as_column

# A number that ends at its end: one that another rank's output cuts is none.
_T = r"([-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|inf))"
_N = rf"{_T}(?=[\s,|;)]|$)"
# A name that no other word stands before: "aux loss" is not the loss.
_NAMED = r"(?:^|[^A-Za-z_/\s-])\s*"
_IS = r"\s*[:=]?\s*"
_END = r"(?![\w%])"
_LOSS = Measure("loss")
_VALIDATION = Measure("loss", "validation")
_LR = Measure("learning_rate")
_NORM = Measure("grad_norm")
_TIME = Measure("step_time_s")
_TIME_MS = Measure("step_time_s", scale=1e-3)

# Pattern of the start of a line (step first), then patterns searched in the rest.
_FORMS: tuple[tuple[re.Pattern[str], tuple[tuple[re.Pattern[str], Measure], ...]], ...] = tuple(
    (
        re.compile(start, re.I),
        tuple((re.compile(pattern, re.I), measure) for pattern, measure in rest),
    )
    for start, rest in (
        # modded-nanogpt, llm.c's logger: s:12 trl:3.1 lr:0.1 norm:0.3 / s:12 tel:3.2
        (
            r"s:(\d+) (?=tr?[el]l?:)",
            (
                (rf"\btrl:{_N}", _LOSS),
                (rf"\btel:{_N}", _VALIDATION),
                (rf"\blr:{_N}", _LR),
                (rf"\bnorm:{_N}", _NORM),
            ),
        ),
        # modded-nanogpt: step:12/100 train_loss:3.1 train_time:7ms step_avg:1ms
        (
            r"step:(\d+)/\d+ (?=train_loss|val_loss)",
            ((rf"\btrain_loss:{_N}", _LOSS), (rf"\bval_loss:{_N}", _VALIDATION)),
        ),
        # nanoGPT: iter 12: loss 3.1, time 45.6ms, mfu 3% / step 12: train loss 3.1, val loss 3.2
        (r"iter (\d+): (?=loss )", ((rf"\bloss {_N}", _LOSS), (rf"\btime {_T}ms", _TIME_MS))),
        (
            r"step (\d+): (?=train loss )",
            ((rf"\btrain loss {_N}", _LOSS), (rf"\bval loss {_N}", _VALIDATION)),
        ),
        # llm.c: step 12/100 | loss 3.1 (+1.2z)| norm 0.3 (+0.1z)| lr 6.0e-04 | 45.6 ms
        (
            r"step\s+(\d+)/\d+ \| (?=(?:train )?loss )",
            (
                (rf"\bloss {_N}", _LOSS),
                (rf"\bnorm {_N}", _NORM),
                (rf"\blr {_N}", _LR),
                (rf"\| \(?{_N} ms", _TIME_MS),
            ),
        ),
        # torchtitan: step: 12  loss: 3.1  grad_norm: 0.3  memory: ...; validate step: 12 loss: 3
        (r"validate step:\s*(\d+)\s+(?=loss:)", ((rf"\bloss:\s*{_N}", _VALIDATION),)),
        (
            r"step:\s*(\d+)\s+(?=loss:)",
            (
                (rf"\bloss:\s*{_N}", _LOSS),
                (rf"\bgrad_norm:\s*{_N}", _NORM),
                (rf"\belapsed_time_per_step:\s*{_T}s", _TIME),
            ),
        ),
        # Plain FSDP examples: Batch 12 Loss: 3.1, Speed: 6.1 samples/sec, lr: 0.0001
        (r"Batch (\d+) (?=Loss:)", ((rf"\bLoss: {_N}", _LOSS), (rf"\blr: {_N}", _LR))),
        # DeepSpeed's pipeline engine: steps: 12 loss: 3.1 iter time (s): 0.25 samples/sec: 64.0
        (
            r"steps: (\d+) (?=loss: .*iter time \(s\): )",
            ((rf"\bloss: {_N}", _LOSS), (rf"\biter time \(s\): {_N}", _TIME)),
        ),
        # Others that say the step first and then name a loss: Step 12/100 | loss: 3.1 | lr: 1e-4
        (
            r"(?:(?:global|train(?:ing)?|completed)[ _])?(?:step|iter(?:ation)?)s?"
            r"(?:\s*[:=#]\s*|\s+)\[?(\d+)(?:\s*/\s*\d+)?\]?(?=[\s,|:;-])",
            (
                (rf"{_NAMED}(?:lm |avg |mean )?(?:train(?:ing)?[ _/])?loss{_IS}{_N}{_END}", _LOSS),
                (rf"{_NAMED}(?:val(?:id(?:ation)?)?|eval)[ _/]loss{_IS}{_N}{_END}", _VALIDATION),
                (rf"{_NAMED}(?:lr|learning[ _]rate){_IS}{_N}{_END}", _LR),
                (rf"{_NAMED}(?:grad(?:ient)?[ _]?norm|norm){_IS}{_N}{_END}", _NORM),
                (rf"{_NAMED}(?:dt|(?:step|iter(?:ation)?)[ _]time){_IS}{_T}\s?ms\b", _TIME_MS),
                (rf"{_NAMED}(?:dt|(?:step|iter(?:ation)?)[ _]time){_IS}{_T}\s?s(?:ec)?\b", _TIME),
                (rf"^,? *seconds: {_N}", _TIME),  # MaxText: completed step: 9, seconds: 1.3
            ),
        ),
        # torchtitan's reference curves: 12 3.1
        (r"(\d+) (?=(?:\d+\.\d+|nan|inf)$)", ((rf"^{_N}$", _LOSS),)),
    )
)
# Pages that a log is pasted into drop the escape and keep the rest.
COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[\d{1,3}(?:;\d{1,3})*m(?!\d|s\b|in\b)")
_BEFORE = re.compile(
    r"(?:\s*(?:\d+:(?=\s)|\[[^\]]{1,40}\]:?|\([^)]{1,80}\)"
    r"|(?!step\b|iter\b|validate\b)[A-Za-z_][\w.\-]{0,40}\s*[:|-](?=\s)"
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?|-(?=\s)))*\s*"
)
_EVENT = re.compile(r"\[#log\] \[INSTANT\] (\{.*\})\s*$")
_BARE = len(_FORMS) - 1

_DIGIT = re.compile(r"\d")
# No line of a trainer is longer; a file of one line may be.
_LONGEST = 1 << 12
#: One of these is in each line that has a form with names.
WORDS = (b"loss", b"Loss", b"trl:", b"tel:", b"[#log]", b"skipped=")


def match(line: str) -> Said | None:
    """What a line without its end says, by the first form that fits."""
    return next(iter(all_in(line)), None)


def all_in(line: str, most: int = 8) -> list[Said]:
    """All that a line says: where ranks share a pipe, one's line may start within another's.

    Args:
        line: The line without its end.
        most: How many lines it may be at most.
    """
    if not most or len(line) > _LONGEST or not _DIGIT.search(line):
        return []
    clean = COLOUR.sub("", line)
    if "loss" in clean or "skipped=" in clean:
        said = dict_line(clean) or lightning_line(clean) or step_line(clean)
        if said is not None:
            return [said]
    if "elapsed time per iteration" in clean:
        return []  # Megatron-LM's
    before = _BEFORE.match(clean)
    starts = {0, before.end() if before else 0}
    for index, (pattern, rest) in enumerate(_FORMS):
        for start in sorted(starts):
            found = pattern.match(clean, start)
            if found is None or len(found[1]) > 18:
                continue
            bare = index == _BARE
            other = None if bare else pattern.search(clean, found.end())
            end = other.start() if other else len(clean)
            part = clean[found.end() : end] + ("\0" if other else "")
            values = _values(rest, part.strip())
            more = all_in(clean[end:], most - 1) if other and end else []
            if values:
                step = int(found[1])
                more.insert(0, Said(before=clean[:start], step=step, values=values, bare=bare))
            if more:
                return more
    return []


def _values(
    rest: tuple[tuple[re.Pattern[str], Measure], ...], text: str
) -> dict[str, dict[str, Any]]:
    values: dict[str, dict[str, Any]] = {}
    for pattern, measure in rest:
        value = pattern.search(text)
        if value:
            number = as_column(measure, value[1].replace(",", ""))
            values.setdefault(measure.split, {})[measure.column] = number
    return {split: row for split, row in values.items() if row.get("loss") is not None}


def event(line: str) -> tuple[str, dict[str, Any]] | None:
    """What stands before one of DLRover's training events, and its measures with their step."""
    found = _EVENT.search(line)
    if found is None:
        return None
    try:
        body = json.loads(found[1])
    except (ValueError, RecursionError):
        return None
    logs = body.get("logs") if isinstance(body, dict) else None
    if not isinstance(logs, dict):
        return None
    return line[: found.start()], {**logs, "step": body.get("global_step", logs.get("step"))}
