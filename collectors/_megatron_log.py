"""Megatron-LM's progress lines, one by one: what ``loss_megatron`` says of them holds here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xtune.collectors._base import Context, Item, Reject, RowBuffer
from xtune.collectors._loss_pairs import step_line
from xtune.collectors._stamps import StampReader
from xtune.collectors._steps import Attempts, lasting
from xtune.collectors._textlines import Line
from xtune.collectors._values import as_extra, natural, real

# NeMo's lines, which are another reader's, say "epoch 0, iteration 12/100 |".
START = re.compile(r"(?<!, )\biteration\s+(\d{1,18})\s*/\s*(\d{1,18})\s*\|")
# The last evaluation of a run may be "on test set", which is no validation.
_VALIDATION = re.compile(
    r"valid(?:ation)? (?:loss|results) at iteration\s+(\d{1,18})\b"
    r"(?![^|]*\btest\b)[^|]*\|\s*lm[ _]loss value:\s*(\S+)"
)
_LAST = re.compile(r"numberofnaniterations:\d")
_BARE = re.compile(r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)$", re.I)
_NOT_MORE = re.compile(
    r"^\s*(?:time \(ms\)|-{10}|\[\d{4}-|Traceback|.{0,40}\bafter \d+ iterations\)? memory\b)"
)
_MEAN = re.compile(r"/[\d.]+$")
_MAX_WRAPPED = 12
#: What the loss of the language model is called, without blanks; GPT-NeoX writes ``lm_loss``.
_LOSS = ("lmloss", "lm_loss", "loss")


@dataclass(slots=True)
class _Open:
    """A progress line that is not known to be whole yet.

    ``followed``: another one starts in the same line, or the file ends within it.
    """

    line: Line
    before: str
    text: str
    wrapped: int = 0
    followed: bool = False


@dataclass(frozen=True, slots=True)
class _Last:
    iteration: int
    tokens: int | None


class MegatronLog:
    """Progress lines of one log; holds one that may go on in the next line."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rows = RowBuffer("steps", context)
        self._stamps = StampReader(context)
        self._attempts = Attempts()
        self._open: _Open | None = None
        self._last: _Last | None = None
        self._stepped: tuple[int | None, int | None] = (None, None)
        self.found = False

    def line(self, line: Line) -> Iterator[Item]:
        """Read one physical line."""
        if b"skipped=" in line.data and (said := step_line(line.text)) is not None:
            self._stepped = said.step, self._stamps.last(said.before)
        if self._open is None and b"iteration" not in line.data:
            return
        text = line.text
        starts = list(START.finditer(text))
        if not starts:
            yield from self._more(line, text)
        for index, start in enumerate(starts):
            end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
            yield from self._close()
            before = text[: start.start()] if index == 0 else ""
            self._open = _Open(line, before, text[start.start() : end])
            self._open.followed = index + 1 < len(starts) or not line.whole
            if index + 1 < len(starts) or _LAST.search(_squeezed(self._open.text)):
                yield from self._close()
        if self._rows.full:
            yield from self._rows.flush()

    def _more(self, line: Line, text: str) -> Iterator[Item]:
        """A line without the start of a record: the rest of a wrapped one, or another thing."""
        if self._open is not None:
            goes_on = ("|" in text or ":" in text) and not _NOT_MORE.match(text)
            if goes_on and self._open.wrapped < _MAX_WRAPPED and not _VALIDATION.search(text):
                self._open.text += re.sub(r"^\[default\d+\]:", "", text)
                self._open.wrapped += 1
                if _LAST.search(_squeezed(self._open.text)):
                    yield from self._close()
                return
            yield from self._close()
        found = _VALIDATION.search(text)
        if found:
            self.found = True
            row = self._row(text[: found.start()], int(found[1]), "validation")
            self._rows.add(self._attempts.mark({**row, "loss": real(found[2])}))

    def end(self) -> Iterator[Item]:
        """What is still open, and notes."""
        yield from self._close()
        yield from self._rows.flush()
        yield from self._stamps.notes()
        yield from self._attempts.notes()

    def _close(self) -> Iterator[Item]:
        record, self._open = self._open, None
        if record is None:
            return
        squeezed = _squeezed(record.text)
        whole = _LAST.search(squeezed) is not None
        # Versions before 2021 end a record with its last bar, on one line of its own.
        alone = not record.wrapped and not record.followed
        if not whole and not (alone and record.text.rstrip().endswith("|")):
            yield Reject(
                record.line.place,
                "a progress line that is not whole: cut, or another rank's output is in it",
            )
            return
        self.found = True
        self._rows.add(self._attempts.mark(self._progress(record)))

    def _progress(self, record: _Open) -> dict[str, Any]:
        start = START.search(record.text)
        iteration = int(start[1]) if start else 0
        values = _fields(record.text[start.end() :] if start else "")
        ms, s = values.get("elapsedtimeperiteration(ms)"), values.get("elapsedtimeperiteration(s)")
        tokens = natural(values.get("consumedtokens"))
        last = self._last if self._last and self._last.iteration < iteration else None
        steps = iteration - last.iteration if last else None
        self._last = _Last(iteration, tokens)
        per_step = None
        if last and steps and tokens is not None and last.tokens is not None:
            per_step = natural((tokens - last.tokens) / steps)
        row = self._row(record.before, iteration, "train")
        if row["ts"] is None and self._stepped[0] == iteration:
            # DeepSpeed's engine has just said the same step, with the time.
            row["ts"] = self._stepped[1]
        return {
            **row,
            "loss": next((values[name] for name in _LOSS if name in values), None),
            "grad_norm": values.get("gradnorm"),
            "learning_rate": values.get("learningrate"),
            "tokens": per_step,
            "step_time_s": lasting(ms / 1000 if ms is not None else s),
            "skipped": natural(values.get("numberofskippediterations")),
            "extra": as_extra(
                {
                    "steps_since_last_line": steps,
                    "consumed_samples": natural(values.get("consumedsamples")),
                    "consumed_tokens": tokens,
                    "global_batch_size": natural(values.get("globalbatchsize")),
                    "loss_scale": values.get("lossscale"),
                    "nan_iterations": natural(values.get("numberofnaniterations")),
                }
            ),
        }

    def _row(self, before: str, step: int, split: str) -> dict[str, Any]:
        return {
            "ts": self._stamps.last(before),
            "job": self._context.job,
            "run": self._context.run,
            "step": step,
            "split": split,
        }


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _fields(text: str) -> dict[str, float]:
    """Values of a record by name without blanks: a wrap may fall within a name."""
    found: dict[str, float] = {}
    for part in _squeezed(text).split("|"):
        name, _, shown = part.rpartition(":")
        if not name:  # the oldest versions have no colon: loss scale 8192.0
            number = _BARE.search(part)
            name, shown = (part[: number.start()], number[0]) if number else ("", "")
        # Primus adds the mean since the start: 13100.0/13240.9
        value = real(_MEAN.sub("", shown))
        if name and value is not None:
            found.setdefault(name.lower(), value)
    return found
