"""Flight Recorder dumps: what each rank had enqueued, what was under way, what had completed.

A rank's own view comes from two places that need not agree: the entries of its ring buffer, and
the last operation of each process group that the process counts beside it. The count has the last
operation of any kind, so it says nothing of collectives in a group that also sends and receives.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

Comm = str


class Last(NamedTuple):
    """Last operation of a group on one rank; None where it is not known, or there was none."""

    enqueued: int | None
    started: int | None
    completed: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One operation in one dump.

    Attributes:
        comm: Communicator.
        seq: Number among the collectives of its group; None for a send or receive.
        op: Operation.
        completed: Whether the dump says that it has completed.
        started: Whether it says that it has started; False where starts are not recorded.
        collectives: Collectives of the group that were enqueued before a send or receive.
        p2p_seq: Number among the group's sends and receives on this rank.
        peer: Global rank at the other end of a send or receive.
        enqueue_ns: When the host enqueued it.
        timeout_ms: After which the watchdog gives up.
    """

    comm: Comm
    seq: int | None
    op: str
    completed: bool
    started: bool = False
    collectives: int | None = None
    p2p_seq: int | None = None
    peer: int | None = None
    enqueue_ns: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dump:
    """One dump of one rank.

    Attributes:
        source: Ledger ids of what it was read from.
        job: Job.
        rank: Global rank.
        groups: Communicator -> global ranks, the groups that the rank belongs to.
        last: Communicator -> its last operation, as the process counted.
        pairs: Communicators in which this dump has sends or receives.
        ops: In the order of enqueueing.
        last_ns: Latest time in it; None for one without entries.
        unplaced: Counts of groups whose names are not known.
    """

    source: str
    job: str | None
    rank: int
    groups: Mapping[Comm, tuple[int, ...]] = field(default_factory=dict)
    last: Mapping[Comm, Last] = field(default_factory=dict)
    pairs: frozenset[Comm] = frozenset()
    ops: tuple[Op, ...] = ()
    last_ns: int | None = None
    unplaced: int = 0

    @property
    def empty(self) -> bool:
        """Whether it has no entry."""
        return not self.ops

    def content(self) -> tuple[object, ...]:
        """What makes two dumps the same one, delivered twice."""
        return self.job, self.rank, self.ops, tuple(sorted(self.last.items()))


def read_dumps(rows: Iterable[Mapping[str, Any]]) -> list[Dump]:
    """Dumps from rows of the model ``flight_dumps``, by (source, rank); the same one once."""
    dumps: dict[tuple[object, ...], Dump] = {}
    for _, found in groupby(rows, key=lambda row: (row["source"], row["job"], row["rank"])):
        dump = _dump(list(found))
        dumps.setdefault(dump.content(), dump)
    return _named(list(dumps.values()))


def _dump(rows: list[Mapping[str, Any]]) -> Dump:
    first = rows[0]
    groups: dict[Comm, tuple[int, ...]] = {}
    counts: dict[int, Last] = {}
    for row in rows:
        groups |= {f"pg:{n}": tuple(r) for n, r in _json(row["process_groups"]).items() if r}
        counts |= {int(k): _last(v) for k, v in _json(row["process_group_status"]).items()}
    entries = [row for row in rows if not row["empty"]]
    names = {row["pg_id"]: row["comm"] for row in entries if row["pg_id"] is not None}
    names = _in_order(sorted(counts), groups, names) or names
    last = {names[number]: count for number, count in counts.items() if number in names}
    for row in entries:
        count = Last(row["last_enqueued"], row["last_started"], row["last_completed"])
        if row["comm"] not in last and count != Last(None, None, None):
            last[row["comm"]] = count
    times = [row["last_ns"] for row in entries if row["last_ns"] is not None]
    return Dump(
        source=first["source"],
        job=first["job"],
        rank=first["rank"],
        groups=groups,
        last=last,
        pairs=frozenset(row["comm"] for row in entries if _is_pair(row)),
        ops=tuple(_op(row, groups) for row in entries),
        last_ns=max(times, default=None),
        unplaced=len(counts.keys() - names.keys()),
    )


def _in_order(
    numbers: list[int], groups: Mapping[Comm, object], known: Mapping[int, Comm]
) -> dict[int, Comm] | None:
    """Names of a process's groups by their number in it.

    A process numbers its groups in the order of their creation, and so does the job as a whole,
    whose numbers are the names: both orders are the same. None where names are no numbers, the
    two lists differ in length, or an entry of the dump says otherwise.
    """
    if len(numbers) != len(groups) or not all(name[3:].isdigit() for name in groups):
        return None
    names = dict(zip(numbers, sorted(groups, key=lambda name: int(name[3:])), strict=True))
    return names if all(names.get(n) == name for n, name in known.items()) else None


def _named(dumps: list[Dump]) -> list[Dump]:
    """Give every rank's groups their members where only another rank's dump names them."""
    members: dict[tuple[str | None, Comm], set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps:
        for comm, ranks in dump.groups.items():
            members[dump.job, comm].add(ranks)
    full = []
    for dump in dumps:
        groups = dict(dump.groups)
        for op in dump.ops:
            told = members.get((dump.job, op.comm), set())
            if op.comm not in groups and len(told) == 1:
                groups[op.comm] = next(iter(told))
        full.append(replace(dump, groups=groups))
    return full


def _op(row: Mapping[str, Any], groups: Mapping[Comm, tuple[int, ...]]) -> Op:
    return Op(
        comm=row["comm"],
        seq=row["seq"],
        op=row["op"],
        completed=row["completed"],
        started=row["started"],
        collectives=row["collective_seq"],
        p2p_seq=row["p2p_seq"],
        peer=_peer(row["peer"], row["op"], groups.get(row["comm"], ())),
        enqueue_ns=row["enqueue_ns"],
        timeout_ms=row["timeout_ms"],
    )


def _peer(text: str | None, op: str, ranks: tuple[int, ...]) -> int | None:
    """The other end of ``0->1`` or ``0<-1``: own rank in the group, then the peer's."""
    ends = (text or "").replace("<-", " ").replace("->", " ").split()
    if len(ends) != 2 or not ends[1].isdigit() or op not in ("send", "recv"):
        return None
    place = int(ends[1])
    return ranks[place] if place < len(ranks) else None


def _is_pair(row: Mapping[str, Any]) -> bool:
    return row["seq"] is None and row["p2p_seq"] is not None


def _last(count: Any) -> Last:
    words = count if isinstance(count, dict) else {}
    return Last(*(words.get(word) for word in Last._fields))


def _json(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
