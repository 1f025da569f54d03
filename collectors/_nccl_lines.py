"""Find NCCL's own messages in a physical line, wherever they stand in it.

Source of the format: src/debug.cc and the INFO calls of NCCL 2.4 to 2.30, and RCCL's. A message
is ``host:pid:tid [device] NCCL INFO text``. Before it stand what a launcher or a logger put there
(``3: ``, ``(Worker pid=7) ``, one or two time stamps); after it, or in the midst of it, another
rank's message where ranks share a pipe.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from xtune.collectors._stamps import STAMP

_MARK = re.compile(r" NCCL (?:INFO|WARN|CALL) ")
#: What :data:`_MARK` finds.
MARKS = (b" NCCL INFO ", b" NCCL WARN ", b" NCCL CALL ")
# What stands before the mark; a WARN has its place in the source, too, and a message of early
# versions of RCCL microseconds since the epoch.
_PREFIX = re.compile(
    r"(?P<host>[A-Za-z0-9][\w.\-]*):(?P<pid>\d{1,10}):(?P<tid>\d{1,10})"
    r"(?: \[-?\d+\])?(?: (?P<us>\d{16}))?(?: [\w./\-]+:\d+(?: \([^)]*\))?)?$"
)
_MAX_PREFIX = 512
_POINTER = r"(?:0x[0-9a-f]+|\(nil\))"
COLLECTIVE = re.compile(
    rf"(?P<name>[A-Z][A-Za-z]+): opCount (?P<op_count>[0-9a-f]+) sendbuff {_POINTER}"
    rf" recvbuff {_POINTER}(?: acc {_POINTER})? count (?P<count>\d+) datatype (?P<datatype>\d+)"
    r" op (?P<redop>\d+) root (?P<root>-?\d+) comm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<ranks>\d+)\]"
    rf"(?: stream {_POINTER})?(?: task \d+ globalrank (?P<global_rank>\d+))?"
)
TUNING = re.compile(
    r"(?P<name>[A-Z][A-Za-z]+): (?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto"
    r" (?P<protocol>\w+)"
)
#: Words of a COLL message: a text that has some of them, but is not one, is a piece of one.
FRAGMENT = re.compile(r"opCount |sendbuff |recvbuff |datatype |\[nranks=")

# What changes from line to line is no label: a time, with or without a date, in brackets or bare.
_TIMES = re.compile(rf"\[?(?:{STAMP.pattern}|\b\d\d?:\d\d:\d\d(?:[.,]\d+)?\b(?!:))\]?", re.ASCII)
_LABEL = re.compile(
    r"\s*(\d+(?=:\s)|\[(?:\d+(?:,\d+)?|[A-Za-z][^\]\s]{0,40})\](?:<std(?:out|err)>)?"
    r"|\([A-Za-z][^)]{0,80}\)|[A-Za-z][\w.\-]{0,63}(?=:\s| +\|))"
)
_CUT_PREFIX = re.compile(r"[\w.\-]+:\d+:?$")
_CLEAN_END = re.compile(r"(?:^|[\s\]>)|]|^\s*\d+:|[\]>]:)$")


@dataclass(frozen=True, slots=True)
class Process:
    """Who wrote a message. Process ids repeat across containers: the label tells them apart.

    Attributes:
        label: What a launcher put before the line, without time stamps; may be empty.
        host: As NCCL printed it, in lower case.
        pid: Process id within its container.
    """

    label: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message of NCCL, or a line with the words of one and no prefix.

    Attributes:
        process: Who wrote it; null where that cannot be told.
        tid: Thread.
        before: What stands before it in the line (stamps of launcher and logger).
        body: The text after ``NCCL INFO``.
        cut: Another message follows at once in the same line, so this one may be cut.
        at: Nanoseconds since the epoch, where NCCL itself printed them.
    """

    process: Process | None
    tid: int
    before: str
    body: str
    cut: bool
    at: int | None = None


def split_messages(
    line: str, processes: Mapping[int, Collection[Process]] | None
) -> tuple[str, list[Message]]:
    """What stands before the first message, and the messages of a physical line in order.

    Only at a clean start of a line is it plain where a host's name begins. A prefix that follows
    other text (``stream 0x55f0node-1:7:7``) is cut to the process it fits in ``processes`` (by
    process id); where none or several fit, the message has no process. ``None`` finds clean starts
    only.
    """
    marks = []
    end = 0
    for mark in _MARK.finditer(line):
        start = max(end, mark.start() - _MAX_PREFIX)
        prefix = _PREFIX.search(line[start : mark.start()])
        if prefix:
            marks.append((start + prefix.start(), mark.end(), prefix))
            end = mark.end()
    if not marks:
        return line, []
    head = line[: marks[0][0]]
    messages: list[Message] = []
    for index, (_, body_start, prefix) in enumerate(marks):
        cut = index + 1 < len(marks)
        body = line[body_start : marks[index + 1][0] if cut else len(line)]
        pid, tid = int(prefix["pid"]), int(prefix["tid"])
        process: Process | None = None
        if index == 0 and _clean(head):
            process = Process(_label(head), prefix["host"].lower(), pid)
        elif processes is not None:
            process = _fitting(prefix["host"].lower(), processes.get(pid, ()))
            if process is not None and messages:
                # The pattern took the end of the message before for a part of the host's name.
                taken = prefix["host"][: -len(process.host)]
                last = messages[-1]
                messages[-1] = Message(
                    last.process, last.tid, last.before, last.body + taken, True
                )
        at = int(prefix["us"]) * 1000 if prefix["us"] else None
        messages.append(Message(process, tid, head if index == 0 else "", body, cut, at))
    return head, messages


def _clean(head: str) -> bool:
    """Whether a message that follows ``head`` starts where its host's name starts."""
    if FRAGMENT.search(head):
        return False
    if _CUT_PREFIX.search(_TIMES.sub("", head).rstrip()) and not _label(head):
        return False
    return _CLEAN_END.search(head) is not None


def _label(head: str) -> str:
    found = _LABEL.match(_TIMES.sub("", head))
    return found[1].strip("[]()") if found else ""


def _fitting(token: str, processes: Collection[Process]) -> Process | None:
    fitting = [p for p in processes if token.endswith(p.host)]
    return fitting[0] if len(fitting) == 1 else None
