"""Reads a large NCCL log: plain messages by columns, all others line by line.

Gives the rows that :class:`NcclLog` gives line by line: it reads what is not plain here, too, and
keeps the communicators, whose counters and names these columns take. Rows come in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xtune.collectors import _nccl_call
from xtune.collectors import _nccl_kernels as kernels
from xtune.collectors import _nccl_settle as settling
from xtune.collectors._base import GZIP_MAGIC, Context, Item, Reject, Source
from xtune.collectors._nccl_blocks import BLOCK_BYTES, Block, Blocks, too_long
from xtune.collectors._nccl_call import Call, Choice
from xtune.collectors._nccl_columns import Shared, batch, times
from xtune.collectors._nccl_comms import Survey
from xtune.collectors._nccl_lines import MARKS, split_messages
from xtune.collectors._nccl_log import WORDS, NcclLog, Thread, nowhere
from xtune.collectors._nccl_scan import Scanner, unpacked
from xtune.collectors._stamps import StampReader
from xtune.collectors._textlines import LINE_LIMIT, READ_ERRORS, Line

_ROWS = 1 << 15
_MOST_USERS = 1 << 16
_KEPT_BYTES = 1 << 26


@dataclass(slots=True)
class Kept:
    """A block that the first pass saw, the items it found there, and the next line's number."""

    number: int
    offset: int
    size: int
    whole: bool
    following: int = 0
    scans: list[Any] = field(default_factory=list)

    def block(self, path: Path) -> Block:
        """The block, which is read when a line of it is asked for: most have only plain ones."""
        return Block(self.number, self.offset, bytearray(), self.size, self.whole, path)


class FastLog:
    """Two passes over one log: first :meth:`survey`, then :meth:`read`.

    Args:
        source: The log.
        context: What the user says.
        trigger: Words of lines that the first pass gives, whatever else stands in them.
        block_bytes: How much to look at at once.
    """

    def __init__(
        self,
        source: Source,
        context: Context,
        trigger: Sequence[bytes] = (),
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._source = source
        self._context = context
        self._block_bytes = block_bytes
        zone = StampReader(context).has_zone
        self._scanner = Scanner(WORDS, trigger, MARKS, zone=zone)
        self._threads: dict[int, Thread | None] = {}
        self._strange = np.zeros(self._scanner.capacity[0], np.bool_)
        self._strangers = 0
        self._kept: list[Kept] = []
        self._room = _KEPT_BYTES
        self._rejects: list[Reject] = []
        self.plain = False

    def survey(self, survey: Survey) -> Iterator[Line]:
        """First pass: note who uses what in plain messages; give the lines that are not."""
        blocks = Blocks(self._source, self._block_bytes)
        for block in blocks:
            at, number = 0, block.number
            kept = Kept(block.number, block.offset, block.size, block.whole)
            if self._room > 0:
                self._kept.append(kept)
            if not block.whole:
                blocks.number += 1
                yield block.line(0, block.size, number)
                continue
            while at < block.size:
                items, at, number, others = self._scanner.scan(block, at, number)
                self.learn_heads(block, items)
                if self._room > 0:
                    kept.scans.append(items.copy())
                    self._room -= items.nbytes
                if others or self._strangers:
                    for item in items[self._odd(items)]:
                        yield block.line(*item[kernels.START : kernels.NUMBER + 1].tolist())
            blocks.number = kept.following = number
            if self._room <= 0 and self._kept and kept is self._kept[-1]:
                self._kept.pop()  # not all of it
        self._rejects = blocks.rejects
        counts = self._scanner.use_counts
        for use in np.flatnonzero(counts).tolist():
            thread, pointer, ranks, _ = self.use(use)
            if thread is not None:
                survey.see_use(*thread, pointer, ranks, int(counts[use]))
                self.plain = True
        for thread in filter(None, self._threads.values()):
            survey.meet(thread[0])

    def _odd(self, items: Any) -> Any:
        """Which items have to be read by their text."""
        odd = items[:, kernels.KIND] == kernels.OTHER
        odd[~odd] = self._strange[items[~odd, kernels.PREFIX]]
        return odd

    def read(self, log: NcclLog, *, rejects: bool = True) -> Iterator[Item]:
        """Second pass: rows of all operations; what is wrong with the file, unless told not to."""
        run = _Run(self, log, self._scanner, self._context)
        found = run.rejects
        try:
            with self._source.path.open("rb") as file:
                packed = file.read(2) == GZIP_MAGIC
            if self._room > 0 and not packed:
                for kept in self._kept:
                    yield from run.block(kept.block(self._source.path), kept.scans)
                    kept.scans.clear()
                found += self._rejects
            else:
                by_offset = {kept.offset: kept for kept in self._kept}
                blocks = Blocks(self._source, self._block_bytes)
                for block in blocks:
                    known = by_offset.pop(block.offset, None)
                    scans = known.scans if known else []
                    yield from run.block(block, scans)
                    blocks.number = known.following if known and scans else run.number
                    scans.clear()
                found += blocks.rejects
        except READ_ERRORS as error:
            found.append(Reject("file", f"cannot be read again: {error}"))
        yield from run.end()
        yield from log.end()
        if rejects:
            yield from found

    def learn_heads(self, block: Block, items: Any) -> None:
        """Tell the thread of each prefix that is new; none where its line shows no clean start."""
        if self._scanner.heads == len(self._threads):
            return
        plain = items[:, kernels.KIND] != kernels.OTHER
        prefixes, rows = np.unique(items[plain, kernels.PREFIX], return_index=True)
        for prefix, row in zip(prefixes.tolist(), rows.tolist(), strict=True):
            if prefix not in self._threads:
                item = items[plain][row]
                line = block.line(*item[kernels.START : kernels.NUMBER + 1].tolist())
                _, messages = split_messages(line.text, None)
                process = messages[0].process if len(messages) == 1 else None
                self._threads[prefix] = (process, messages[0].tid) if process else None
                self._strange[prefix] = process is None
                self._strangers += process is None

    def thread(self, prefix: int) -> Thread | None:
        """Who writes with a prefix; none where that cannot be told from it alone."""
        return self._threads[prefix]

    def use(self, use: int) -> tuple[Thread | None, str, int, int | None]:
        """Thread, communicator's pointer, its size and the global rank of a use."""
        prefix, pointer, ranks, rank = self._scanner.use_rows[use].tolist()
        known = rank if rank >= 0 else None
        return self._threads[prefix], f"{pointer & 0xFFFFFFFFFFFFFFFF:#x}", ranks, known


class _Run:
    """State of the second pass between blocks."""

    def __init__(self, fast: FastLog, log: NcclLog, scanner: Scanner, context: Context) -> None:
        self._fast, self._log, self._scanner, self._context = fast, log, scanner, context
        self._shared = Shared()
        heads, uses, calls = scanner.capacity
        self._threads = np.full(heads, kernels.UNKNOWN, np.int64)
        self._slots = np.full(uses, kernels.UNKNOWN, np.int64)
        self._versions = np.zeros(uses, np.int64)
        self._kinds = np.full(calls, kernels.UNKNOWN, np.int64)
        self._factors = np.full(calls, -1, np.int64)
        self._ops = np.zeros(calls, np.int64)
        self._held = np.full(heads, kernels.NONE, np.int64)
        self._released = np.zeros(_ROWS, np.int64)
        self._rows = np.zeros((settling.ROW_COLUMNS, _ROWS), np.int64)
        self._items = np.zeros((_ROWS, kernels.COLUMNS), np.int64)
        self._made = self._filled = 0
        self.number = 1
        self._numbers: dict[Thread, int] = {}
        self._threads_by_number: list[Thread] = []
        self._uses: dict[tuple[Any, str], set[int]] = {}
        self._op_numbers: dict[str, int] = {}
        self.rejects: list[Reject] = []
        log.elsewhere = self._give

    def block(self, block: Block, scans: Sequence[Any] = ()) -> Iterator[Item]:
        """Read a block, of which ``scans`` may have the items."""
        at, self.number = 0, block.number
        if not block.whole:
            self.number += 1
            yield from self._slow(block.line(0, block.size, block.number))
            return
        while self._log.waits and at < block.size:
            end = block.next_end(at)
            yield from self._slow(block.line(at, end, self.number))
            at, self.number = end, self.number + 1
        if scans:
            for items in scans:
                if len(items) > len(self._items) - self._made:
                    yield from self._flush()
                items = items[np.searchsorted(items[:, kernels.START], at) :]
                first, self._made = self._made, self._made + len(items)
                self._items[first : self._made] = items
                yield from self._settle(block, first)
            return
        while at < block.size:
            if self._made == len(self._items):
                yield from self._flush()
            room = self._items[self._made :]
            made, at, self.number, _ = self._scanner.scan_into(room, block, at, self.number)
            first, self._made = self._made, self._made + made
            self._fast.learn_heads(block, room[:made])
            yield from self._settle(block, first)

    def end(self) -> Iterator[Item]:
        """What is still in columns; the log then has all rows that threads hold."""
        yield from self._flush()
        self._log.elsewhere = nowhere

    def _settle(self, block: Block, at: int) -> Iterator[Item]:
        """Settle the items from ``at`` on, which are of this block."""
        skip_to = 0
        self._learn_calls()
        while at < self._made:
            at, self._filled, let_go = settling.settle(
                self._items, at, self._made, LINE_LIMIT, self._threads, self._slots,
                self._versions, self._log.comms.counters, self._kinds, self._factors,
                self._ops, self._held, self._released, self._rows, self._filled,
            )  # fmt: skip
            for number in self._released[:let_go].tolist():
                self._log.release(self._threads_by_number[number])
            if at == self._made:
                return
            item = self._items[at]
            if item[kernels.START] >= skip_to and self._learn(item):
                continue
            at += 1
            start, end, number = item[kernels.START : kernels.NUMBER + 1].tolist()
            if start < skip_to:
                continue
            if end - start > LINE_LIMIT:
                self.rejects.append(too_long(number, block.offset + start))
            yield from self._slow(block.line(start, end, number))
            while self._log.waits and end < block.size:
                start, end, number = end, block.next_end(end), number + 1
                yield from self._slow(block.line(start, end, number))
            # What was read as the rest of a message is not read again.
            skip_to = end
            while at < self._made and self._items[at, kernels.START] < skip_to:
                at += 1

    def _learn(self, item: Any) -> bool:
        """Find out what kept an item from being settled; whether it can be settled now."""
        kind, prefix, use, call = item[
            [kernels.KIND, kernels.PREFIX, kernels.USE, kernels.CALL]
        ].tolist()
        if kind == kernels.OTHER:
            return False
        if self._threads[prefix] == kernels.UNKNOWN:
            thread = self._fast.thread(prefix)
            self._threads[prefix] = kernels.NEVER if thread is None else self._number(thread)
        if self._threads[prefix] < 0 or self._kinds[call] < 0:
            return False
        if kind == kernels.TUNING:
            return bool(self._held[self._threads[prefix]] != kernels.ELSEWHERE)
        if self._slots[use] == kernels.UNKNOWN:
            self._learn_use(use)
        return bool(self._slots[use] >= 0)

    def _number(self, thread: Thread) -> int:
        """The number of a thread, which several prefixes may show."""
        number = self._numbers.setdefault(thread, len(self._numbers))
        if number == len(self._threads_by_number):
            self._threads_by_number.append(thread)
            self._held[number] = kernels.ELSEWHERE if thread in self._log.held else kernels.NONE
        return number

    def _learn_calls(self) -> None:
        for number in range(len(self._shared.calls), self._scanner.calls):
            row = self._scanner.call_rows[number]
            name = unpacked(row, 0, 3)
            made, choice, op = None, None, ""
            if not _nccl_call.is_name(name):
                self._kinds[number] = kernels.NEVER
            elif self._scanner.is_choice(number):
                choice = Choice.of(name, unpacked(row, 3, 2), unpacked(row, 5, 2))
                op, self._kinds[number] = choice.op, 0
            else:
                datatype, redop, root, ranks = row[3:7].tolist()
                made = Call.of(name, str(datatype), str(redop), str(root), ranks)
                op, self._kinds[number] = made.op, int(made.numbered)
                self._factors[number] = -1 if made.factor is None else made.factor
            self._ops[number] = self._op_numbers.setdefault(op, len(self._op_numbers))
            self._shared.add_call(made, choice)

    def _learn_use(self, use: int) -> None:
        thread, pointer, ranks, global_rank = self._fast.use(use)
        if thread is None or not self._log.is_writer(thread[0], pointer, ranks):
            self._slots[use] = kernels.NEVER
            return
        slot, user = self._log.user(thread[0], pointer, ranks, global_rank)
        self._follow()
        self._uses.setdefault((thread[0], pointer), set()).add(use)
        self._versions[use] = self._shared.add_user(user)
        self._slots[use] = slot

    def _slow(self, line: Line) -> Iterator[Item]:
        """Read one line by its text, and see what it changes."""
        yield from self._log.line(line)
        self._follow()
        for thread in self._log.touched:
            number = self._numbers.get(thread)
            if number is not None:
                here = thread in self._log.held
                self._held[number] = kernels.ELSEWHERE if here else kernels.NONE
        self._log.touched.clear()

    def _follow(self) -> None:
        """Forget what was known of communicators that changed."""
        for key in self._log.comms.changed:
            for use in self._uses.pop(key, ()):
                self._slots[use] = kernels.UNKNOWN
        self._log.comms.changed.clear()

    def _give(self, thread: Thread) -> dict[str, Any] | None:
        """Take the row that a thread holds out of the columns."""
        number = self._numbers.get(thread)
        if number is None or self._held[number] < 0:
            return None
        index = int(self._held[number])
        self._held[number] = kernels.NONE
        at, version, number, _, seq, size, op_count = self._rows[:, index].tolist()
        self._rows[settling.ITEM, index] = -1
        item = self._items[at : at + 1]
        user, call = self._shared.users[version], self._shared.calls[number]
        if call is None:
            return None
        moments = times(item, self._log.stamps)
        known = moments is not None and not np.ma.getmaskarray(moments)[0]
        self._log.count(1, not user.named)
        return _nccl_call.row(
            call,
            user,
            enqueue_ts=int(moments.data[0]) if known else None,
            seq=None if seq < 0 else seq,
            message_bytes=None if size < 0 else size,
            op_count=f"{op_count & 0xFFFFFFFFFFFFFFFF:x}",
        )

    def _flush(self) -> Iterator[Item]:
        """Make a batch of what is in columns; what threads still hold goes to the log."""
        for number in np.flatnonzero(self._held >= 0).tolist():
            thread = self._threads_by_number[number]
            held = self._give(thread)
            if held is not None:
                self._log.held[thread] = held
                self._held[number] = kernels.ELSEWHERE
        here = self._rows[settling.ITEM, : self._filled] >= 0
        if here.any():
            rows = self._rows[:, : self._filled][:, here]
            nameless = np.array([not user.named for user in self._shared.users])
            self._log.count(rows.shape[1], int(nameless[rows[settling.USER]].sum()))
            items = self._items[: self._made]
            yield batch(rows, items, self._shared, self._log.stamps, self._context)
        self._made = self._filled = 0
        if len(self._shared.users) > _MOST_USERS:
            self._shared.forget_users()
            self._slots[self._slots >= 0] = kernels.UNKNOWN
