"""What an NCCL log says of one operation, in the terms of the table ``collectives``.

A row is put together from a :class:`Call` (the same for many operations), a :class:`User` (one
rank of one communicator) and what is the operation's own. Both readers of a log, line by line and
by columns, use these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from xtune.collectors._base import Context
from xtune.collectors._collective import (
    DTYPE_BYTES,
    NCCL_DTYPES,
    NCCL_REDOPS,
    POINT_TO_POINT,
    canonical_op,
    size_from_call,
)
from xtune.collectors._nccl_comms import Comm
from xtune.collectors._nccl_lines import Process
from xtune.collectors._values import as_extra, natural

# Numbers that NCCL printed before it printed names (src/include/nccl_common.h).
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_NAME = re.compile(r"[A-Z][A-Za-z]+")
# NCCL prints an operator and a root for every operation; only for these do they mean something.
# For Send and Recv the root is the other rank.
_REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


@dataclass(frozen=True, slots=True)
class Call:
    """What operations of one name, type and reduction share in communicators of one size.

    Attributes:
        op: As xtune names it.
        dtype: Null where NCCL's number is not known.
        numbered: Whether all ranks of the communicator make the same calls in one order.
        factor: Bytes of nccl-tests' size for each element counted; null where not known.
        extra: Part of the column.
    """

    op: str
    dtype: str | None
    numbered: bool
    factor: int | None
    extra: dict[str, str]

    @classmethod
    def of(cls, name: str, datatype: str, redop: str, root: str, ranks: int) -> Call:
        """Take the words of a COLL message."""
        op = operation(name)
        dtype = _named(NCCL_DTYPES, datatype)
        width = DTYPE_BYTES.get(dtype or "")
        return cls(
            op=op,
            dtype=dtype,
            numbered=op not in POINT_TO_POINT,
            factor=None if width is None else size_from_call(op, width, ranks),
            extra=as_extra(
                {
                    "redop": (_named(NCCL_REDOPS, redop) or "user") if op in _REDUCING else None,
                    "root": root if op in _ROOTED else None,
                    "peer": root if op in POINT_TO_POINT else None,
                }
            ),
        )

    def size(self, count: int | None) -> int | None:
        """nccl-tests' size of an operation on ``count`` elements."""
        return None if self.factor is None or count is None else natural(count * self.factor)


@dataclass(frozen=True, slots=True)
class User:
    """One rank of one communicator, as its messages show it.

    Attributes:
        columns: Columns of the table that are the same in all its rows.
        named: Whether the communicator is known by more than its pointer.
        extra: Part of the column.
    """

    columns: dict[str, Any]
    named: bool
    extra: dict[str, str]

    @classmethod
    def of(
        cls,
        process: Process | None,
        comm: Comm,
        pointer: str,
        global_rank: int | None,
        candidate: str | None,
        context: Context,
    ) -> User:
        """``candidate`` names a communicator without Init lines that may be one of several."""
        return cls(
            columns={
                "job": context.job,
                "host": process.host if process else context.host,
                "rank": context.rank if global_rank is None else global_rank,
                "comm_rank": comm.rank,
                "comm": comm.name,
                "comm_size": comm.ranks,
            },
            named=comm.name is not None,
            extra=as_extra(
                {
                    "comm_pointer": pointer,
                    "comm_candidate": None if comm.name else candidate,
                    "pid": process.pid if process else None,
                    "launcher_label": process.label or None if process else None,
                }
            ),
        )


def row(
    call: Call,
    user: User,
    *,
    enqueue_ts: int | None,
    seq: int | None,
    message_bytes: int | None,
    op_count: str,
) -> dict[str, Any]:
    """One row of the table; a TUNING message may add algorithm and protocol."""
    return {
        "enqueue_ts": enqueue_ts,
        **user.columns,
        "seq": seq,
        "op": call.op,
        "dtype": call.dtype,
        "message_bytes": message_bytes,
        "extra": {"op_count": op_count, **call.extra, **user.extra},
    }


@dataclass(frozen=True, slots=True)
class Choice:
    """What a TUNING message says: the algorithm and the protocol for an operation."""

    op: str
    algorithm: str
    protocol: str

    @classmethod
    def of(cls, name: str, algorithm: str, protocol: str) -> Choice:
        """Take its words; old versions print numbers."""
        return cls(
            operation(name),
            _named(_ALGORITHMS, algorithm) or algorithm,
            _named(_PROTOCOLS, protocol) or protocol,
        )


@lru_cache(256)
def operation(name: str) -> str:
    """Xtune's name of an operation; NCCL's own where xtune has none."""
    return canonical_op(name) or name


def is_name(text: str) -> bool:
    """Whether a text may be the name of an operation in NCCL's messages."""
    return _NAME.fullmatch(text) is not None


def _named(names: tuple[str, ...], number: str) -> str | None:
    index = natural(number)
    return names[index] if index is not None and index < len(names) else None
