"""Communicators of an NCCL log: pointers of one process become names equal on all ranks.

A pointer means something in one process only, and is used again after its communicator is gone.
``Init`` lines give rank, size and commId, which is equal on all ranks; ``Destroy`` and ``Abort``
end a communicator.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from xtune.collectors._collective import hash_comm
from xtune.collectors._nccl_lines import Message, Process

_COMM = re.compile(r"comm (0x[0-9a-f]+) rank (\d{1,9}) n[rR]anks (\d{1,9})\b")
_ID = re.compile(r"commId (0x[0-9a-f]{1,16})\b")
_EVENT = re.compile(r"- (Init START|Init COMPLETE|Destroy|Abort)")
_SPLIT = re.compile(
    r"parent (0x[0-9a-f]+) (?:split|child)Count (-?\d{1,10}) color (-?\d{1,10}) key"
)
_WORD = 0xFFFFFFFFFFFFFFFF
_LOST = -1

_Key = tuple[Process | None, str]


@dataclass(slots=True)
class Comm:
    """One communicator on one rank, from its Init to its Destroy.

    Attributes:
        slot: Its place among the counters.
        ranks: Its size.
        rank: Rank in it; null without an Init line.
        name: Equal on all its ranks; null where that is not known.
    """

    slot: int
    ranks: int
    rank: int | None = None
    name: str | None = None


class Survey:
    """First pass over a log: who writes, and which pointers each process and thread uses."""

    def __init__(self) -> None:
        self.processes: dict[int, set[Process]] = {}  # by process id
        self._threads: set[tuple[Process, int, str, int]] = set()
        self._uses: dict[tuple[str, int], Counter[Process]] = {}
        self._named: set[tuple[Process, str]] = set()

    def see(self, message: Message) -> None:
        """Note the writer of a clean message, and the communicator that an Init line names."""
        if message.process is not None:
            self.meet(message.process)
            found = _COMM.search(message.body)
            if found and _EVENT.search(message.body):
                self._named.add((message.process, found[1]))

    def meet(self, process: Process) -> None:
        """Note that a process writes here."""
        self.processes.setdefault(process.pid, set()).add(process)

    def see_use(
        self, process: Process, tid: int, pointer: str, ranks: int, times: int = 1
    ) -> None:
        """Note that a thread used a communicator in messages that stood alone in their lines."""
        self._threads.add((process, tid, pointer, ranks))
        self._uses.setdefault((pointer, ranks), Counter())[process] += times

    def used_by(self, process: Process, tid: int, pointer: str, ranks: int) -> bool:
        """Whether this thread used this communicator in a message that stood alone."""
        return (process, tid, pointer, ranks) in self._threads

    def writer(self, process: Process, pointer: str, ranks: int) -> Process | None:
        """Who really wrote a message with this pointer, seen as ``process``'s.

        Where this process names the pointer once, without an Init line, and another one has an
        Init line for it or names it more often, the message is two pieces put together: null. It
        is the other one's where only a piece of the host's name is missing or too much.
        """
        uses = self._uses.get((pointer, ranks), Counter())
        if (process, pointer) in self._named or uses[process] > 1:
            return process
        others = [
            other
            for other, count in uses.items()
            if other != process and (count > 1 or (other, pointer) in self._named)
        ]
        if not others:
            return process
        alike = [
            other
            for other in others
            if other.pid == process.pid
            and (other.host.endswith(process.host) or process.host.endswith(other.host))
        ]
        return alike[0] if len(alike) == 1 else None

    def owner(self, pointer: str, ranks: int) -> Process | None:
        """The one process that uses a pointer, if there is one."""
        uses = self._uses.get((pointer, ranks), Counter())
        return next(iter(uses)) if len(uses) == 1 else None

    def candidates(self) -> dict[int, str]:
        """By size, a name for communicators without Init lines that may be one and the same.

        That may be so where no process has two of a size and no more processes than its ranks
        have one. It is a candidate, not a fact: the log of one node of a job looks alike where
        each of its processes is in another group that spans the nodes.
        """
        nameless: dict[int, list[Process]] = {}
        for (pointer, ranks), uses in self._uses.items():
            nameless.setdefault(ranks, []).extend(
                process for process in uses if (process, pointer) not in self._named
            )
        return {
            ranks: f"unnamed:{ranks}"
            for ranks, users in nameless.items()
            if len(set(users)) == len(users) <= ranks
        }


class _Numbered:
    """Slots of communicators that no operation was lost of, by process and by pointer.

    Each leaves once, so that many lost operations among many communicators take no time.
    """

    def __init__(self) -> None:
        self._slots: dict[_Key, int] = {}
        self._by_process: dict[Process | None, dict[_Key, None]] = {}
        self._by_pointer: dict[str, dict[_Key, None]] = {}

    def add(self, key: _Key, slot: int) -> None:
        self._slots[key] = slot
        self._by_process.setdefault(key[0], {})[key] = None
        self._by_pointer.setdefault(key[1], {})[key] = None

    def pop(self, key: _Key) -> int | None:
        slot = self._slots.pop(key, None)
        if slot is not None:
            _drop(self._by_process, key[0], key)
            _drop(self._by_pointer, key[1], key)
        return slot

    def like(self, process: Process | None, pointer: str | None) -> list[_Key]:
        """Keys of this process and pointer; null stands for any."""
        if process is None:
            among = self._slots if pointer is None else self._by_pointer.get(pointer, {})
            return list(among)
        return list(self._by_process.get(process, {})) if pointer is None else [(process, pointer)]


def _drop(groups: dict[Any, dict[_Key, None]], name: Any, key: _Key) -> None:
    group = groups[name]
    del group[key]
    if not group:
        del groups[name]


class Comms:
    """Second pass: the communicators that are alive at a point of the log.

    Attributes:
        counters: By slot, how many operations were numbered so far; negative after one was lost.
        names: Of all communicators that Init lines showed.
        changed: Processes and pointers whose communicator is another now, or has another name,
            since the caller last emptied the set.
    """

    def __init__(self) -> None:
        self._alive: dict[_Key, Comm] = {}
        self._numbered = _Numbered()
        self._slots = 0
        self._free: list[int] = []
        self.counters: Any = np.zeros(64, np.int64)
        self.names: set[str] = set()
        self.changed: set[_Key] = set()

    def see(self, message: Message) -> None:
        """Take note of Init, Destroy and Abort lines."""
        found = _COMM.search(message.body)
        event = _EVENT.search(message.body)
        if found is None or event is None or message.process is None:
            return
        key = (message.process, found[1])
        if event[1] in {"Destroy", "Abort"}:
            self._end(key)
            return
        name = self._name(message)
        if name:
            self.names.add(name)
        rank, ranks = int(found[2]), int(found[3])
        if rank >= ranks:
            return  # two lines run together, or damage
        comm = self._alive.get(key)
        same = comm is not None and (comm.rank, comm.ranks) == (rank, ranks)
        if comm is None or not same or (name and comm.name and comm.name != name):
            self._start(key, ranks, rank, name)
        elif name:
            comm.name = name
            self.changed.add(key)

    def _name(self, message: Message) -> str | None:
        """The hash that an Init line prints, or that NCCL makes of what the line of a split says.

        A split has no unique id: NCCL hashes its parent's hash, how often the parent was split,
        and the color (src/init.cc, 2.19 and later).
        """
        unique = _ID.search(message.body)
        if unique:
            return hash_comm(int(unique[1], 16))
        split = _SPLIT.search(message.body)
        parent = self._alive.get((message.process, split[1])) if split else None
        if split is None or parent is None or parent.name is None:
            return None
        return hash_comm(split_hash(int(parent.name, 16), int(split[2]), int(split[3])))

    def of(self, process: Process | None, pointer: str, ranks: int) -> Comm:
        """The communicator behind a pointer; a new one where no Init line told of it."""
        comm = self._alive.get((process, pointer))
        if comm is None or comm.ranks != ranks:
            comm = self._start((process, pointer), ranks, None, None)
        return comm

    def number(self, comm: Comm) -> int | None:
        """Number of the next operation, from 0; null where one before it was lost."""
        number = int(self.counters[comm.slot])
        if number < 0:
            return None
        self.counters[comm.slot] = number + 1
        return number

    def lose(self, process: Process | None, pointer: str | None) -> None:
        """An operation was lost: the numbers that follow on its communicator are not known.

        What is null is not known either, and stands for any.
        """
        for key in self._numbered.like(process, pointer):
            slot = self._numbered.pop(key)
            if slot is not None:
                self.counters[slot] = _LOST

    def _start(self, key: _Key, ranks: int, rank: int | None, name: str | None) -> Comm:
        self._end(key)
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._slots = self._slots, self._slots + 1
            if slot == len(self.counters):
                self.counters = np.concatenate([self.counters, np.zeros_like(self.counters)])
        self.counters[slot] = 0
        comm = Comm(slot, ranks, rank, name)
        self._alive[key] = comm
        self._numbered.add(key, slot)
        return comm

    def _end(self, key: _Key) -> None:
        comm = self._alive.pop(key, None)
        self._numbered.pop(key)
        if comm is not None:
            self._free.append(comm.slot)
        self.changed.add(key)


def split_hash(parent: int, splits: int, color: int) -> int:
    """NCCL's hash of a communicator made by a split (``eatHash``, src/include/utils.h).

    Args:
        parent: Hash of the communicator that was split.
        splits: How often that one had been split (``splitCount``, later ``childCount``).
        color: What the split gave this part.
    """
    first = second = 1
    for value, size in ((parent, 8), (splits & 0xFFFFFFFF, 4), (color & 0xFFFFFFFF, 4)):
        first = ((first ^ size) + second) & _WORD
        second ^= first
        first = (first ^ first >> 31) * 0x9DE62BBC8CEF3CE3 & _WORD
        second = (second ^ second >> 32) * 0x485CD6311B599E79 & _WORD
        first = (first + value) & _WORD
    digest = (first ^ first >> 31) * 0xBAC3BD562846DE6B & _WORD
    digest = (digest + second) & _WORD
    return (digest ^ digest >> 32) * 0x995A187A14E7B445 & _WORD
