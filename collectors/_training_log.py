"""A training job's log, whatever is in it: NCCL's messages and loss lines share one stdout.

One file has one collector, so each of the three that read such logs reads all three kinds of
lines: which one claims a mixed log makes no difference to its rows.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import GZIP_MAGIC, HEAD_BYTES, Context, Item, Note, Source
from xtune.collectors._loss_forms import WORDS, event, match
from xtune.collectors._loss_lines import LossLines
from xtune.collectors._megatron_log import START, MegatronLog
from xtune.collectors._nccl_comms import Survey
from xtune.collectors._nccl_large import open_fast
from xtune.collectors._nccl_log import NcclLog, of_interest, survey_line
from xtune.collectors._textlines import Line, Lines

_TAIL_BYTES = 65536
_TRIGGERS = (b"iteration", *WORDS)


class Kind(enum.Enum):
    """A kind of lines; the value is what to say of a log that has none."""

    NCCL = (
        "nothing of use in this NCCL log: it has no COLL lines; set"
        " NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING"
    )
    MEGATRON = "no Megatron-LM progress line in this file"
    LOSS = "no loss line that xtune knows in this file"


def read_log(source: Source, context: Context, claimed: Kind) -> Iterator[Item]:
    """Rows of all kinds of lines; two passes, the first to learn which there are and who writes.

    Args:
        source: The log.
        context: What the user says.
        claimed: The kind the log was claimed for; it is said if there is none.
    """
    survey = Survey()
    kinds = {claimed}
    named = False
    fast = open_fast(source, context, _TRIGGERS)
    for line in fast.survey(survey) if fast else Lines(source):
        if of_interest(line):
            survey_line(line, survey)
            if b"opCount " in line.data:
                kinds.add(Kind.NCCL)
        elif b"iteration" in line.data and START.search(line.text):
            kinds.add(Kind.MEGATRON)
        elif not named and _is_named_loss(line):
            named = True
            kinds.add(Kind.LOSS)
    if fast and fast.plain:
        kinds.add(Kind.NCCL)
    parts: dict[Kind, NcclLog | MegatronLog | LossLines] = {}
    if Kind.NCCL in kinds:
        parts[Kind.NCCL] = NcclLog(survey, context)
    if Kind.MEGATRON in kinds:
        parts[Kind.MEGATRON] = MegatronLog(context)
    if Kind.LOSS in kinds:
        parts[Kind.LOSS] = LossLines(context, bare=not named, losses=Kind.MEGATRON in kinds)
    others = list(parts.values())
    first = others[0]
    if fast and isinstance(first, NcclLog):
        others = others[1:]
        yield from fast.read(first, rejects=not others)
    lines = Lines(source)
    if others:
        for line in lines:
            for part in others:
                yield from part.line(line)
    for part in others:
        yield from part.end()
    yield from lines.rejects
    if not parts[claimed].found:
        yield Note(claimed.value)


def _is_named_loss(line: Line) -> bool:
    if not any(word in line.data for word in WORDS):
        return False
    for text in line.text.split("\r"):
        said = match(text)
        if (said is not None and not said.bare) or event(text) is not None:
            return True
    return False


def tail(path: Path, head: bytes) -> str:
    """The end of a text file whose head is not all of it; empty for a gzip file or a binary one.

    A log may begin with more than a head of other text: source code, or NCCL's own start.
    """
    if len(head) < HEAD_BYTES or b"\0" in head:
        return ""
    try:
        with path.open("rb") as stream:
            if stream.read(2) == GZIP_MAGIC:
                return ""
            size = stream.seek(0, 2)
            stream.seek(max(HEAD_BYTES, size - _TAIL_BYTES))
            return stream.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
