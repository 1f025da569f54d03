"""Rows of an execution trace: what its nodes share (rank, order in a group), JSON or protobuf."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, Item, Note, RowBuffer, Unknown
from xtune.collectors._collective import (
    POINT_TO_POINT,
    PSEUDO_OPS,
    canonical_op,
    group_comm,
    hash_comm,
)
from xtune.collectors._values import as_extra, member, natural, positive, small, text

_HELD = 65536
_MAX_GROUPS = 65536


@dataclass(slots=True)
class Op:
    """One operation of a trace.

    Attributes:
        node: Its id in the trace.
        name: The operation as the trace calls it.
        group: Process group's name, equal on all its ranks.
        pointer: Where the trace tells a group only by where it is in this process.
        seq: Its number in the group, where the trace has it.
        rank: Global rank of this process, as this operation tells it.
    """

    node: int | None
    name: str
    group: str | None = None
    pointer: int | None = None
    size: int | None = None
    seq: int | None = None
    point_to_point: bool = False
    comm_rank: int | None = None
    rank: int | None = None
    dtype: str | None = None
    message_bytes: int | None = None
    duration_ns: int | None = None
    start_ns: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def op(self) -> str | None:
        """The operation in our words; null for a mark that is none."""
        if self.name.lower() in PSEUDO_OPS:
            return None
        return canonical_op(self.name) or text(self.name.rpartition(":")[2], 64)


class TraceRows:
    """Makes rows of operations in the order of the trace, held back until its rank is known."""

    def __init__(self, context: Context, rank_of_name: int | None = None) -> None:
        self._context = context
        self._rows = RowBuffer("collectives", context)
        self._held: list[Op] = []
        self._by_node: dict[int, Op] = {}
        self._numbers: dict[str, int] = {}
        self._rank: int | None = None
        self._rank_of_name = rank_of_name
        self.count = 0

    def add(self, op: Op) -> Iterator[Item]:
        """Take one operation; yields rows now and then."""
        name = op.op
        if name is None:
            return
        if canonical_op(op.name) is None:
            yield Unknown(name)
        if self._rank is None:
            self._rank = op.rank
        self._held.append(op)
        if op.node is not None:
            self._by_node[op.node] = op
        if len(self._held) >= _HELD:
            yield from self._flush()

    def launched(self, node: int | None, duration_ns: int | None, start_ns: int | None) -> None:
        """A kernel that an operation launched: it tells how long that took on the device."""
        op = self._by_node.get(node) if node is not None else None
        if op is not None and duration_ns is not None:
            op.duration_ns = (op.duration_ns or 0) + duration_ns
            op.start_ns = op.start_ns or start_ns

    def end(self) -> Iterator[Item]:
        """The rest of the rows, and what a user should know of the trace."""
        yield from self._flush()
        if not self.count:
            yield Note("no collective in this execution trace")
            return
        given = self._context.rank
        if self._rank is not None and given not in (None, self._rank):
            yield Note(f"rank {self._rank} is what the trace says, not the rank given")
        elif self._rank is None and given is None and self._rank_of_name is not None:
            yield Note("rank taken from the number before .et in the file name")
        elif self._rank is None and given is None:
            yield Note("the trace does not say its rank: null; give --rank")

    def _flush(self) -> Iterator[Item]:
        for op in self._held:
            self._rows.add(self._row(op))
            if self._rows.full:
                yield from self._rows.flush()
        yield from self._rows.flush()
        self._held, self._by_node = [], {}

    def _row(self, op: Op) -> dict[str, Any]:
        self.count += 1
        name = op.op
        alone = op.point_to_point or name in POINT_TO_POINT
        key = op.group if op.group is not None else hash_comm(op.pointer) if op.pointer else None
        seq, source = None if alone else op.seq, None
        if seq is None and key is not None and not alone and len(self._numbers) < _MAX_GROUPS:
            seq = self._numbers.get(key, 0)
            self._numbers[key] = seq + 1
            source = "trace order"
        rank = self._rank
        if rank is None:
            given = self._context.rank
            rank = given if given is not None else self._rank_of_name
        return {
            "start_ts": op.start_ns,
            "duration_ns": positive(op.duration_ns),
            "job": self._context.job,
            "host": self._context.host,
            "rank": small(rank),
            "comm_rank": member(op.comm_rank, small(op.size) or None),
            "comm": group_comm(op.group) if op.group is not None else None,
            "comm_size": small(op.size) or None,
            "seq": natural(seq),
            "op": name,
            "dtype": text(op.dtype, 64),
            "message_bytes": natural(op.message_bytes),
            "state": "completed" if positive(op.duration_ns) is not None else None,
            "extra": as_extra(
                {
                    "event": text(op.name, 256),
                    "node": op.node,
                    "seq_source": source,
                    "comm_pointer": hash_comm(op.pointer) if op.pointer else None,
                    **op.extra,
                }
            ),
        }
