"""Loss lines of small trainers, one by one: what ``loss_text`` says of them holds here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from xtune.collectors._base import Context, Item, Reject, RowBuffer
from xtune.collectors._stamps import StampReader
from xtune.collectors._steps import Attempts, Measure, Plan, as_column
from xtune.collectors._textlines import Line

_N = r"([-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|inf))"
_SEP = r"[\s,|]+"
_LOSS = Measure("loss")
_VALIDATION = Measure("loss", "validation")
_LR = Measure("learning_rate")
_NORM = Measure("grad_norm")
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
        (r"iter (\d+): (?=loss )", ((rf"\bloss {_N}", _LOSS), (rf"\btime {_N}ms", _TIME_MS))),
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
                (rf"\| {_N} ms", _TIME_MS),
            ),
        ),
        # torchtitan: step: 12  loss: 3.1  grad_norm: 0.3  memory: ...; validate step: 12 loss: 3
        (r"validate step:\s*(\d+)\s+(?=loss:)", ((rf"\bloss:\s*{_N}", _VALIDATION),)),
        (
            r"step:\s*(\d+)\s+(?=loss:)",
            ((rf"\bloss:\s*{_N}", _LOSS), (rf"\bgrad_norm:\s*{_N}", _NORM)),
        ),
        # Plain FSDP examples: Batch 12 Loss: 3.1, Speed: 6.1 samples/sec, lr: 0.0001
        (r"Batch (\d+) (?=Loss:)", ((rf"\bLoss: {_N}", _LOSS), (rf"\blr: {_N}", _LR))),
        # torchtitan's reference curves: 12 3.1
        (r"(\d+) (?=(?:\d+\.\d+|nan|inf)$)", ((rf"^{_N}$", _LOSS),)),
    )
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BEFORE = re.compile(
    r"(?:\s*(?:\d+:(?=\s)|\[[^\]]{1,40}\]:?|\([^)]{1,80}\)"
    r"|(?!step\b|iter\b|validate\b)[A-Za-z_][\w.\-]{0,40}\s*[:|-](?=\s)"
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?|-(?=\s)))*\s*"
)
EVENT = re.compile(r"\[#log\] \[INSTANT\] (\{.*\})\s*$")
BARE = len(_FORMS) - 1


class LossLines:
    """Loss lines of one log.

    Args:
        context: What the user says.
        bare: Whether a line of two bare numbers is a step and its loss.
    """

    def __init__(self, context: Context, *, bare: bool) -> None:
        self._context = context
        self._rows = RowBuffer("steps", context)
        self._stamps = StampReader(context)
        self._attempts = Attempts()
        self._bare = bare
        self.found = False

    def line(self, line: Line) -> Iterator[Item]:
        """Read one physical line."""
        if b" NCCL " in line.data:
            return
        text = line.text
        event = EVENT.search(text)
        if event:
            rows = _event_rows(text[: event.start()], event[1], self._context, self._stamps)
        else:
            found = match(text)
            if found is None or (found[0] == BARE and not self._bare):
                return
            if not line.whole:
                yield Reject(line.place, "loss line without an end: it may be cut")
                return
            rows = _rows(found, self._context, self._stamps)
        for row in rows:
            self.found = True
            self._rows.add(self._attempts.mark(row))
        if self._rows.full:
            yield from self._rows.flush()

    def end(self) -> Iterator[Item]:
        """What is still held, and notes."""
        yield from self._rows.flush()
        yield from self._stamps.notes()
        yield from self._attempts.notes()


def match(line: str) -> tuple[int, str, int, str] | None:
    """Number of the form, what stands before it, the step and the rest of the line."""
    clean = _COLOUR.sub("", line)
    before = _BEFORE.match(clean)
    starts = {0, before.end() if before else 0}
    for index, (pattern, _) in enumerate(_FORMS):
        for start in sorted(starts):
            found = pattern.match(clean, start)
            if found and len(found[1]) < 19:
                return index, clean[:start], int(found[1]), clean[found.end() :].strip()
    return None


def _rows(
    found: tuple[int, str, int, str], context: Context, stamps: StampReader
) -> Iterator[dict[str, Any]]:
    form, before, step, rest = found
    values: dict[str, dict[str, Any]] = {}
    for pattern, measure in _FORMS[form][1]:
        value = pattern.search(rest)
        if value:
            number = as_column(measure, value[1].replace(",", ""))
            values.setdefault(measure.split, {})[measure.column] = number
    for split, row in values.items():
        if row.get("loss") is not None:
            yield {
                "ts": stamps.last(before),
                "job": context.job,
                "run": context.run,
                "step": step,
                "split": split,
                **row,
            }


def _event_rows(
    before: str, body: str, context: Context, stamps: StampReader
) -> Iterator[dict[str, Any]]:
    """DLRover's training events: a JSON object of measures under ``logs``."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return
    logs = event.get("logs") if isinstance(event, dict) else None
    if isinstance(logs, dict):
        record = {**logs, "step": event.get("global_step", logs.get("step"))}
        for row in Plan.of(record, context.column_map).rows(record, context, stamps):
            yield {**row, "ts": stamps.last(before)}
