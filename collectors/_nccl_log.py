"""Operations of an NCCL log, line by line: what ``nccl_debug`` says of them holds here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from xtune.collectors import _nccl_call
from xtune.collectors._base import Context, Item, Note, Reject, RowBuffer
from xtune.collectors._nccl_call import Call, Choice, User
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
from xtune.collectors._values import natural, small

_POINTER = re.compile(r" comm (0x[0-9a-f]+) \[nranks=")
#: A line with none of these words says nothing of operations or communicators.
WORDS = (
    b"opCount ",
    b" comm 0x",
    b" Bytes -> ",
    b"sendbuff ",
    b"recvbuff ",
    b"datatype ",
    b"[nranks=",
)
_KEEP_APART = "set NCCL_DEBUG_FILE=%h.%p to keep ranks apart"

Thread = tuple[Process, int]


def of_interest(line: Line) -> bool:
    """Whether a line may hold a COLL, TUNING or Init message or a piece of one: most do not."""
    return any(word in line.data for word in WORDS)


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


def nowhere(_: Thread) -> dict[str, Any] | None:
    """No row of a thread is held but in the log itself."""
    return None


class NcclLog:
    """Second pass: holds, per thread, one row that a TUNING message may complete.

    Attributes:
        found: Operations so far.
        comms: The communicators alive.
        stamps: Reads the times.
        held: By thread, the row that may be completed.
        touched: Threads whose row in ``held`` came or went since the caller last emptied the set.
        elsewhere: Gives the row of a thread that the caller holds, and forgets it.
    """

    def __init__(self, survey: Survey, context: Context) -> None:
        self._survey = survey
        self._context = context
        self._candidates = survey.candidates()
        self._rows = RowBuffer("collectives", context)
        self._open: tuple[Message, Line] | None = None
        self._nameless = 0
        self.found = 0
        self.comms = Comms()
        self.stamps = StampReader(context, in_order=False)
        self.held: dict[Thread, dict[str, Any]] = {}
        self.touched: set[Thread] = set()
        self.elsewhere: Callable[[Thread], dict[str, Any] | None] = nowhere

    @property
    def waits(self) -> bool:
        """Whether the next line may be the rest of a message: it must be read, whatever it is."""
        return self._open is not None

    def user(
        self, process: Process | None, pointer: str, ranks: int, global_rank: int | None
    ) -> tuple[int, User]:
        """Whose an operation is that ``process`` wrote: its counter's slot, and its columns."""
        comm = self.comms.of(process, pointer, ranks)
        candidate = self._candidates.get(ranks)
        user = User.of(process, comm, pointer, global_rank, candidate, self._context)
        return comm.slot, user

    def is_writer(self, process: Process, pointer: str, ranks: int) -> bool:
        """Whether messages of a process with this pointer are surely its own."""
        return self._survey.writer(process, pointer, ranks) == process

    def count(self, found: int, nameless: int) -> None:
        """Count operations that the caller read."""
        self.found += found
        self._nameless += nameless

    def release(self, thread: Thread) -> None:
        """A later operation of the thread came: the held row stays as it is."""
        held = self.held.pop(thread, None)
        if held is not None:
            self._rows.add(held)

    def line(self, line: Line) -> Iterator[Item]:
        """Read one physical line."""
        if self._open is None and not of_interest(line):
            return
        text = line.text
        head, messages = split_messages(text, self._survey.processes)
        yield from self._unprefixed(head, line)
        for message in messages:
            self.comms.see(message)
            operation = COLLECTIVE.search(message.body)
            if operation:
                yield from self._collective(message, line)
                after = message.body[operation.end() :]
                if FRAGMENT.search(after):  # its prefix is gone: whose it is cannot be told
                    yield self._lost(None, after, line)
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
        for thread in list(self.held):
            self.release(thread)
        yield from self._rows.flush()
        yield from self.stamps.notes()
        if not self.found and self.comms.names:
            yield Note("communicators in Init lines, without operations", len(self.comms.names))
        if self._nameless:
            yield Note(
                "operations whose communicator has no Init line with a commId"
                " (NCCL_DEBUG_SUBSYS=INIT, new enough): comm is null, extra has its pointer",
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
        self.comms.lose(process, pointer[1] if pointer else None)
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
            self.comms.lose(None, found["comm"])
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
        pointer = found["comm"]
        global_rank = small(found["global_rank"]) if found["global_rank"] else None
        _, user = self.user(process, pointer, ranks, global_rank)
        self.count(1, not user.named)
        call = Call.of(found["name"], found["datatype"], found["redop"], found["root"], ranks)
        row = _nccl_call.row(
            call,
            user,
            enqueue_ts=self.stamps.last(message.before) if message.at is None else message.at,
            seq=self.comms.number(self.comms.of(process, pointer, ranks))
            if call.numbered
            else None,
            message_bytes=call.size(natural(found["count"])),
            op_count=found["op_count"],
        )
        if process is None:
            self._rows.add(row)
            return
        thread = (process, message.tid)
        before = self._take(thread)
        if before is not None:
            self._rows.add(before)
        self.held[thread] = row

    def _take(self, thread: Thread) -> dict[str, Any] | None:
        held = self.held.pop(thread, None)
        self.touched.add(thread)
        return self.elsewhere(thread) if held is None else held

    def _tuning(self, message: Message) -> None:
        """Give the choice of algorithm to the operation just before on the same thread."""
        found = TUNING.search(message.body)
        if found is None or message.process is None:
            return
        thread = (message.process, message.tid)
        row = self._take(thread)
        if row is None:
            return
        choice = Choice.of(found["name"], found["algorithm"], found["protocol"])
        if (row["op"], row["message_bytes"]) == (choice.op, natural(found["bytes"])):
            row["algorithm"], row["protocol"] = choice.algorithm, choice.protocol
            self._rows.add(row)
        else:
            self.held[thread] = row
