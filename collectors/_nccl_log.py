"""Operations of an NCCL log, line by line: what ``nccl_debug`` says of them holds here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from xtune.collectors._base import Context, Item, Note, Reject, RowBuffer
from xtune.collectors._collective import (
    DTYPE_BYTES,
    NCCL_DTYPES,
    NCCL_REDOPS,
    POINT_TO_POINT,
    canonical_op,
    size_from_call,
)
from xtune.collectors._nccl_comms import Comms, Survey
from xtune.collectors._nccl_lines import (
    COLLECTIVE,
    FRAGMENT,
    TUNING,
    Message,
    Process,
    split_messages,
)
from xtune.collectors._stamps import StampReader
from xtune.collectors._textlines import Line
from xtune.collectors._values import as_extra, natural, small

# Numbers that NCCL printed before it printed names (src/include/nccl_common.h).
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_POINTER = re.compile(r" comm (0x[0-9a-f]+) \[nranks=")
_WORDS = (
    b"opCount ",
    b" comm 0x",
    b" Bytes -> ",
    b"sendbuff ",
    b"recvbuff ",
    b"datatype ",
    b"[nranks=",
)
_KEEP_APART = "set NCCL_DEBUG_FILE=%h.%p to keep ranks apart"
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


def of_interest(line: Line) -> bool:
    """Whether a line may hold a COLL, TUNING or Init message or a piece of one: most do not."""
    return any(word in line.data for word in _WORDS)


def survey_line(line: Line, survey: Survey) -> None:
    """First pass: note who writes, and who uses which communicator."""
    _, messages = split_messages(line.text, None)
    if len(messages) != 1 or messages[0].process is None:
        return
    survey.see(messages[0])
    found = COLLECTIVE.search(messages[0].body)
    ranks = small(found["ranks"]) if found else None
    if found and ranks is not None:
        survey.see_use(messages[0].process, messages[0].tid, found["comm"], ranks)


class NcclLog:
    """Second pass: holds, per thread, one row that a TUNING message may complete."""

    def __init__(self, survey: Survey, context: Context) -> None:
        self._survey = survey
        self._context = context
        self._comms = Comms()
        self._candidates = survey.candidates()
        self._rows = RowBuffer("collectives", context)
        self._held: dict[tuple[Process, int], dict[str, Any]] = {}
        self._stamps = StampReader(context)
        self._open: tuple[Message, Line] | None = None
        self.found = self._nameless = 0

    def line(self, line: Line) -> Iterator[Item]:
        """Read one physical line."""
        if self._open is None and not of_interest(line):
            return
        text = line.text
        head, messages = split_messages(text, self._survey.processes)
        yield from self._unprefixed(head, line)
        for message in messages:
            self._comms.see(message)
            if COLLECTIVE.search(message.body):
                yield from self._collective(message, line)
            elif FRAGMENT.search(message.body) or message.cut:
                yield from self._close()
                self._open = (message, line)
            else:
                self._tuning(message)
        if self._rows.full:
            yield from self._rows.flush()

    def end(self) -> Iterator[Item]:
        """What is still held, and what a user should know."""
        yield from self._close()
        for row in self._held.values():
            self._rows.add(row)
        yield from self._rows.flush()
        yield from self._stamps.notes()
        if self._nameless:
            yield Note(
                "operations whose communicator has no Init line (NCCL_DEBUG_SUBSYS=INIT):"
                " comm is null, extra has its pointer",
                self._nameless,
            )

    def _unprefixed(self, head: str, line: Line) -> Iterator[Item]:
        """Text before the first prefix: the rest of a cut message, or a line without prefix."""
        opened, self._open = self._open, None
        if opened is not None:
            message, first = opened
            whole = Message(
                message.process, message.tid, message.before, message.body + head, False
            )
            if self._fits(whole):
                yield from self._collective(whole, first)
                return
            if FRAGMENT.search(message.body):
                yield self._lost(message.process, message.body, first)
        if COLLECTIVE.search(head):
            yield from self._collective(Message(None, 0, head, head, False), line)
        elif FRAGMENT.search(head):
            yield self._lost(None, head, line)

    def _fits(self, message: Message) -> bool:
        """Whether a message put together from two pieces is surely one."""
        found = COLLECTIVE.match(message.body)
        if found is None or message.process is None:
            return False
        ranks = small(found["ranks"]) or 0
        return self._survey.used_by(message.process, message.tid, found["comm"], ranks)

    def _close(self) -> Iterator[Item]:
        opened, self._open = self._open, None
        if opened is not None and FRAGMENT.search(opened[0].body):
            yield self._lost(opened[0].process, opened[0].body, opened[1])

    def _lost(self, process: Process | None, piece: str, line: Line) -> Reject:
        pointer = _POINTER.search(piece)
        self._comms.lose(process, pointer[1] if pointer else None)
        return Reject(
            line.place,
            "a COLL message that another rank's output or the end of the file cut: the numbers"
            " after it are null",
            _KEEP_APART,
        )

    def _collective(self, message: Message, line: Line) -> Iterator[Item]:
        found = COLLECTIVE.search(message.body)
        ranks = small(found["ranks"]) if found else None
        if found is None or not ranks:
            yield Reject(line.place, "a communicator without ranks")
            return
        process = message.process or self._survey.owner(found["comm"], ranks)
        if process is None and message.body is not message.before:
            self._comms.lose(None, found["comm"])
            yield Reject(
                line.place,
                "the process of a message within another's line cannot be told",
                _KEEP_APART,
            )
            return
        if process is not None:
            writer = self._survey.writer(process, found["comm"], ranks)
            if writer is None:
                yield self._lost(process, "", line)
                return
            process = writer
        self.found += 1
        op = canonical_op(found["name"]) or found["name"]
        comm = self._comms.of(process, found["comm"], ranks)
        if comm.name is None:
            self._nameless += 1
        dtype = _named(NCCL_DTYPES, found["datatype"])
        width = DTYPE_BYTES.get(dtype or "")
        count = natural(found["count"])
        size = None if width is None or count is None else size_from_call(op, count * width, ranks)
        row = {
            "enqueue_ts": self._stamps.last(message.before),
            "job": self._context.job,
            "host": process.host if process else self._context.host,
            "rank": small(found["global_rank"]) if found["global_rank"] else self._context.rank,
            "comm_rank": comm.rank,
            "comm": comm.name,
            "comm_size": ranks,
            "seq": None if op in POINT_TO_POINT else comm.number(),
            "op": op,
            "dtype": dtype,
            "message_bytes": natural(size),
            "extra": as_extra(
                {
                    "op_count": found["op_count"],
                    "redop": _named(NCCL_REDOPS, found["redop"]) or "user",
                    "root": found["root"],
                    "comm_pointer": found["comm"],
                    "comm_candidate": None if comm.name else self._candidates.get(ranks),
                    "pid": process.pid if process else None,
                    "launcher_label": process.label or None if process else None,
                }
            ),
        }
        if process is None:
            self._rows.add(row)
            return
        before = self._held.get((process, message.tid))
        if before is not None:
            self._rows.add(before)
        self._held[process, message.tid] = row

    def _tuning(self, message: Message) -> None:
        """Give the choice of algorithm to the operation just before on the same thread."""
        found = TUNING.search(message.body)
        if found is None or message.process is None:
            return
        row = self._held.get((message.process, message.tid))
        if row is None or row["op"] != canonical_op(found["name"]):
            return
        if row["message_bytes"] == natural(found["bytes"]):
            row["algorithm"] = _named(_ALGORITHMS, found["algorithm"]) or found["algorithm"]
            row["protocol"] = _named(_PROTOCOLS, found["protocol"]) or found["protocol"]
            self._rows.add(self._held.pop((message.process, message.tid)))


def _named(names: tuple[str, ...], number: str) -> str | None:
    index = natural(number)
    return names[index] if index is not None and index < len(names) else None
