"""Rows of the loss lines of one log: what ``loss_text`` says of them holds here.

What is said of one step in several lines is one row; where every rank prints the same line, one
rank's counts. Hugging Face's trainer prints no step: the progress bar it draws next has it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from xtune.collectors._base import Context, Item, Note, Reject, RowBuffer
from xtune.collectors._loss_forms import COLOUR, WORDS, all_in, event
from xtune.collectors._loss_pairs import Said
from xtune.collectors._stamps import StampReader
from xtune.collectors._steps import MEASURES, Attempts, Plan
from xtune.collectors._textlines import Line
from xtune.collectors._values import as_extra

_RANK = re.compile(r"\[(?:rank|default)\s*(\d{1,9})\]|^\s*(\d{1,9}):\s", re.I)
_BAR = re.compile(r"^\s*\d{1,3}%\|[^|]*\|\s*(\d{1,18})/(\d{1,18}) \[[^\]]*\](.*)")
_REMEMBERED = 4096


class LossLines:
    """Loss lines of one log.

    Args:
        context: What the user says.
        bare: Whether a line of two bare numbers is a step and its loss.
        losses: Whether only lines with a loss count: another's lines say the rest of each step.
    """

    def __init__(self, context: Context, *, bare: bool, losses: bool = False) -> None:
        self._context = context
        self._rows = RowBuffer("steps", context)
        self._stamps = StampReader(context)
        self._attempts = Attempts()
        self._bare = bare
        self._losses = losses
        self._open: dict[str, dict[str, Any]] = {}
        self._by_rank: OrderedDict[tuple[int, str], str | None] = OrderedDict()
        self._unstepped: list[dict[str, Any]] = []
        self._length: str | None = None
        self._validation: float | None = None
        self._skipped: int | None = None
        self._others = self._closing = self._without = 0
        self.found = False

    def line(self, line: Line) -> Iterator[Item]:
        """Read one physical line; a progress bar draws many lines in one."""
        if b" NCCL " in line.data:
            return
        named = any(word in line.data for word in WORDS)
        if not named and not self._bare and not self._unstepped:
            return
        parts = line.text.split("\r")
        for index, part in enumerate(parts):
            whole = line.whole or index + 1 < len(parts)
            yield from self._part(line, part, whole, drawn=len(parts) > 1)
        if self._rows.full:
            yield from self._rows.flush()

    def _part(self, line: Line, text: str, whole: bool, *, drawn: bool) -> Iterator[Item]:
        if self._unstepped and (bar := _BAR.match(COLOUR.sub("", text))):
            # What a terminal shows in the end is each line's last bar: other output ends it, and
            # steps may lie between it and the loss. A file has every bar, in one line.
            if drawn or not bar[3].strip():
                self._stepped(int(bar[1]), bar[2])
            else:
                self._flush_unstepped()
        logged = event(text)
        if logged is not None:
            before, record = logged
            plan = Plan.of(record, self._context.column_map)
            for row in plan.rows(record, self._context, self._stamps):
                self._add({**row, "ts": self._stamps.last(before)}, None)
            return
        for said in all_in(text):
            if said.bare and not self._bare:
                continue
            if whole:
                self._say(said)
            else:
                yield Reject(line.place, "loss line without an end: it may be cut")

    def _say(self, said: Said) -> None:
        if said.closing:
            self._closing += 1
            return
        if self._losses and said.skipped_in_all is not None:
            return
        label = _RANK.search(said.before)
        rank = (label[1] or label[2]) if label else None
        ts = self._stamps.last(said.before)
        for split, values in said.values.items():
            if said.repeats and split == "validation":
                if values["loss"] == self._validation:
                    continue
                self._validation = values["loss"]
            row = {
                "ts": ts,
                "job": self._context.job,
                "run": self._context.run,
                "step": said.step,
                "split": split,
                **values,
            }
            extra = as_extra(said.extra)
            if extra:
                row["extra"] = extra
            if said.skipped_in_all is not None:
                row["skipped"] = self._skipped_since(said.skipped_in_all)
            if said.step is None:
                self._flush_unstepped(split)
                self._unstepped.append(row)
            else:
                self._add(row, rank)

    def _skipped_since(self, in_all: int) -> int | None:
        """Steps skipped since the last line; null where the last one is not known."""
        last, self._skipped = self._skipped, in_all
        if last is None:
            return 0 if in_all == 0 else None
        return in_all - last if in_all >= last else None

    def _add(self, row: dict[str, Any], rank: str | None) -> None:
        """Add a row, or what it says more of the step that is being spoken of."""
        self.found = True
        step, split = row["step"], row["split"]
        known = self._by_rank.get((step, split), rank)
        if known is not None and rank is not None and known != rank:
            self._others += 1
            return
        self._by_rank[step, split] = rank
        if len(self._by_rank) > _REMEMBERED:
            self._by_rank.popitem(last=False)
        if any(other["step"] != step for other in self._open.values()):
            self._close()
        held = self._open.get(split)
        if held is not None and (
            held.get("loss") is None
            or row.get("loss") is None
            or all(_agree(held.get(name), row.get(name)) for name in MEASURES)
        ):
            # Where two lines differ in more than the loss, the line with the loss counts.
            first, second = (held, row) if held.get("loss") is not None else (row, held)
            said = {name: value for name, value in first.items() if value is not None}
            self._open[split] = {**second, **said}
            return
        if held is not None:
            self._close()
        self._open[split] = row

    def _close(self) -> None:
        for row in self._open.values():
            self._rows.add(self._attempts.mark(row))
        self._open = {}

    def _stepped(self, step: int, length: str) -> None:
        """The bar of the training loop that follows a line without a step; others are shorter."""
        if self._length is None:
            self._length = length
        if length == self._length:
            rows, self._unstepped = self._unstepped, []
            for row in rows:
                self._add({**row, "step": step}, None)

    def _flush_unstepped(self, split: str | None = None) -> None:
        """Give up on the step of lines that no bar followed."""
        if split is None or any(row["split"] == split for row in self._unstepped):
            for row in self._unstepped:
                self.found = True
                self._without += 1
                self._rows.add(row)
            self._unstepped = []

    def end(self) -> Iterator[Item]:
        """What is still held, and notes."""
        self._close()
        self._flush_unstepped()
        yield from self._rows.flush()
        yield from self._stamps.notes()
        yield from self._attempts.notes()
        if self._others:
            yield Note("lines of other ranks for the same step: left out", self._others)
        if self._without:
            yield Note("loss lines that say no step: null, in order", self._without)
        if self._closing:
            yield Note("closing row of a trainer left out: its loss is a mean over the run")


def _agree(held: Any, said: Any) -> bool:
    """Whether two values of a column may be of one row: NaN is itself here."""
    return held is None or said is None or held == said or (held != held and said != said)
