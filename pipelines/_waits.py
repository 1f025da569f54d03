"""Who waits for whom in one hang, from its dumps.

A collective completes nowhere before all its ranks have joined it, which gives three rules:

- An operation that any other rank has completed is over for all: where it stands as under way, the
  device or the watchdog of that rank stopped, and it waits for nobody there.
- A rank with an operation under way waits for every rank of the group that has not enqueued it.
- Where all have enqueued it, it waits for those that have an earlier operation under way: what a
  device was given in order it mostly does in order.

A send or receive is matched by its number where both ends count it alike, else by its place among
those under way between the two; where one end's dump cannot be trusted for that, it counts only
where nothing else tells.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from xtune.pipelines._dumps import Comm, Dump, Op
from xtune.pipelines._graph import Node
from xtune.pipelines._incidents import Incident

# These complete at one end without the others.
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """A collective that some ranks have enqueued and wait in, and others have not enqueued."""

    op: Op
    entered: tuple[int, ...]
    lacking: tuple[int, ...]
    absent: tuple[int, ...]


@dataclass(kw_only=True)
class Waits:
    """The wait-for graph of an incident.

    Attributes:
        incident: Its dumps.
        strong: Node -> nodes that it waits for; a rank is its number, a collective is its
            communicator and number.
        weak: Rank -> ranks that it may wait for, by sends and receives that cannot be matched.
    """

    incident: Incident
    strong: dict[Node, set[Node]] = field(default_factory=lambda: defaultdict(set))
    weak: dict[Node, set[Node]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        for rank in self.ranks:
            for place, op in enumerate(self.pending[rank]):
                if op.seq is None:
                    self._follow_pair(rank, op, front=place == 0)
                else:
                    self._follow(rank, op, op.seq, front=place == 0)

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks whose dumps are of the hang."""
        return sorted(self.incident.dumps.keys() - self.outdated)

    @cached_property
    def outdated(self) -> set[int]:
        """Ranks whose dump is older: others completed what they had not yet enqueued in it.

        Dumps of a job that runs on are written one after another; such a rank lacks nothing.
        """
        found = set()
        for rank, dump in self.incident.dumps.items():
            for comm in dump.last.keys() - self._paired:
                done = [n for other, n in self._done[comm].items() if other != rank]
                if max(done, default=-1) > (self.enqueued(rank, comm) or 0):
                    found.add(rank)
        return found

    def enqueued(self, rank: int, comm: Comm) -> int | None:
        """Number of the last collective of a group that a rank has enqueued; None: not known."""
        dump = self.incident.dumps[rank]
        known = [self._seqs[rank, comm]] if (rank, comm) in self._seqs else []
        if comm in dump.last and comm not in self._paired:
            count = dump.last[comm].enqueued
            known.append(-1 if count is None else count)
        return max(known, default=None)

    def members(self, comm: Comm) -> tuple[int, ...]:
        """Global ranks of a communicator: as dumps name them, else those seen in it."""
        return self._members.get(comm, ())

    @cached_property
    def unfinished(self) -> dict[int, list[Op]]:
        """Rank -> what its own dump says is under way, in order."""
        return {
            rank: [op for op in dump.ops if not (op.completed or self._counted(dump, op))]
            for rank, dump in self.incident.dumps.items()
        }

    @cached_property
    def pending(self) -> dict[int, list[Op]]:
        """Rank -> what is under way there, in order, without what others have completed."""
        return {
            rank: [op for op in ops if not self._over(rank, op)]
            for rank, ops in self.unfinished.items()
        }

    @cached_property
    def stale(self) -> set[int]:
        """Ranks that take for under way what others have completed: collectives tell."""
        return {
            rank
            for rank, ops in self.unfinished.items()
            if any(op.seq is not None and self._over(rank, op) for op in ops)
        }

    def lacks(self) -> list[Lack]:
        """Per communicator, the first collective that somebody waits in and another lacks."""
        first: dict[Comm, tuple[int, int, Op]] = {}
        for rank in self.ranks:
            for op in self.pending[rank]:
                if op.seq is not None and self.lacking(op.comm, op.seq):
                    key = op.seq, op.enqueue_ns or 0, op
                    if op.comm not in first or key[:2] < first[op.comm][:2]:
                        first[op.comm] = key
        return [self._lack(seq, op) for _, (seq, _, op) in sorted(first.items())]

    def lacking(self, comm: Comm, seq: int) -> list[int]:
        """Ranks with a dump of the hang that have not enqueued a collective, or nobody knows."""
        if (comm, seq) not in self._lacking:
            self._lacking[comm, seq] = [
                rank
                for rank in self.members(comm)
                if rank in self.incident.dumps
                and rank not in self.outdated
                and ((last := self.enqueued(rank, comm)) is None or last < seq)
            ]
        return self._lacking[comm, seq]

    def _lack(self, seq: int, op: Op) -> Lack:
        lacking = self.lacking(op.comm, seq)
        here = [rank for rank in self.members(op.comm) if rank in self.incident.dumps]
        return Lack(
            op=op,
            entered=tuple(r for r in here if r not in lacking and r not in self.outdated),
            lacking=tuple(lacking),
            absent=tuple(r for r in self.members(op.comm) if r not in self.incident.dumps),
        )

    @cached_property
    def _lacking(self) -> dict[tuple[Comm, int], list[int]]:
        return {}

    @cached_property
    def _members(self) -> dict[Comm, tuple[int, ...]]:
        named: dict[Comm, tuple[int, ...]] = {}
        seen: dict[Comm, set[int]] = defaultdict(set)
        for rank, dump in self.incident.dumps.items():
            named |= {comm: tuple(sorted(ranks)) for comm, ranks in dump.groups.items()}
            for op in dump.ops:
                seen[op.comm].add(rank)
        return {comm: tuple(sorted(ranks)) for comm, ranks in seen.items()} | named

    @cached_property
    def _paired(self) -> frozenset[Comm]:
        """Groups that send and receive: the count of their last operation mixes two numberings."""
        return frozenset().union(*(dump.pairs for dump in self.incident.dumps.values()))

    @cached_property
    def _seqs(self) -> dict[tuple[int, Comm], int]:
        found: dict[tuple[int, Comm], int] = {}
        for rank, dump in self.incident.dumps.items():
            for op in dump.ops:
                number = op.collectives if op.seq is None else op.seq
                if number is not None:
                    found[rank, op.comm] = max(number, found.get((rank, op.comm), -1))
        return found

    @cached_property
    def _done(self) -> dict[Comm, dict[int, int]]:
        """Communicator -> rank -> last collective that the rank saw complete."""
        found: dict[Comm, dict[int, int]] = defaultdict(dict)
        for rank, dump in self.incident.dumps.items():
            for comm, last in dump.last.items():
                if comm not in self._paired and last.completed is not None:
                    found[comm][rank] = last.completed
            for op in dump.ops:
                if op.completed and op.seq is not None:
                    found[op.comm][rank] = max(op.seq, found[op.comm].get(rank, -1))
        return found

    def _counted(self, dump: Dump, op: Op) -> bool:
        """Whether the process counted an operation as complete, whatever its entry says."""
        last = dump.last.get(op.comm)
        if last is None or last.completed is None:
            return False
        if op.seq is not None:
            return op.comm not in self._paired and op.seq <= last.completed
        return self._numbered_alike(op) and (op.p2p_seq or 0) <= last.completed

    def _numbered_alike(self, op: Op) -> bool:
        """Whether both ends of a send or receive number it alike: the group has two ranks."""
        return op.p2p_seq is not None and len(self.members(op.comm)) == 2

    def _over(self, rank: int, op: Op) -> bool:
        """Whether others' dumps say that an operation has completed."""
        if op.seq is not None:
            others = [n for other, n in self._done[op.comm].items() if other != rank]
            if op.op in _ROOTED:
                return len(others) == len(self.members(op.comm)) - 1 > 0 and min(others) >= op.seq
            return bool(others) and max(others) >= op.seq
        peer = self.incident.dumps.get(op.peer) if op.peer is not None else None
        last = peer.last.get(op.comm) if peer is not None else None
        if last is None or last.completed is None or not self._numbered_alike(op):
            return False
        return last.completed >= (op.p2p_seq or 0)

    def _follow(self, rank: int, op: Op, seq: int, *, front: bool) -> None:
        node = (op.comm, seq)
        lacking = self.lacking(op.comm, seq)
        if not front and not lacking:
            return
        self.strong[rank].add(node)
        if node in self.strong:
            return
        if lacking:
            self.strong[node] = set(lacking)
            return
        members = self.members(op.comm)
        self.strong[node] = {r for r in members if r not in self.incident.dumps}
        self.strong[node] |= {r for r in members if r in self.pending and self._elsewhere(r, node)}

    def _elsewhere(self, rank: int, node: tuple[Comm, int]) -> bool:
        """Whether a rank has something else under way, before a collective that it enqueued."""
        pending = self.pending[rank] if rank not in self.outdated else []
        return bool(pending) and (pending[0].comm, pending[0].seq) != node

    def _follow_pair(self, rank: int, op: Op, *, front: bool) -> None:
        """What a rank waits for in a send or receive."""
        peer = op.peer
        if peer is None or peer in self.outdated:
            return
        joined = self._joined(rank, peer, op) if peer in self.incident.dumps else False
        if joined is False:
            self.strong[rank].add(peer)
        elif joined is None:
            # A rank that stopped is the likelier end of the two.
            (self.strong if peer in self.stale and rank not in self.stale else self.weak)[
                rank
            ].add(peer)
        elif front and not self._at_front(peer, rank, op):
            self.strong[rank].add(peer)

    def _joined(self, rank: int, peer: int, op: Op) -> bool | None:
        """Whether the other end of a send or receive has enqueued it; None: not known.

        In a group of two, both number it alike. Elsewhere a transfer is over at both ends or at
        none, so what is under way from one rank to another is the same list at both ends, of
        which one may have enqueued more.
        """
        last = self.incident.dumps[peer].last.get(op.comm)
        if self._numbered_alike(op) and last is not None:
            return (last.enqueued or 0) >= (op.p2p_seq or 0)
        if {rank, peer} & self.stale:
            return None
        here = self._transfers(rank, peer, op.comm, op.op)
        there = self._transfers(peer, rank, op.comm, "recv" if op.op == "send" else "send")
        return here.index(op) < len(there)

    def _transfers(self, rank: int, peer: int, comm: Comm, op: str) -> list[Op]:
        return [o for o in self.pending[rank] if (o.comm, o.peer, o.op) == (comm, peer, op)]

    def _at_front(self, rank: int, peer: int, op: Op) -> bool:
        """Whether the first that a rank has under way is its end of a transfer."""
        first = self.pending[rank][:1]
        return (
            bool(first)
            and (first[0].comm, first[0].peer) == (op.comm, peer)
            and (first[0].op != op.op)
        )
