"""Rows of many plain operations at once: whole Arrow columns from numbers and shared parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from xtune.collectors import _nccl_kernels as kernels
from xtune.collectors import _nccl_prefix as prefix
from xtune.collectors import _nccl_settle as settling
from xtune.collectors._base import Context, Rows, rows_of
from xtune.collectors._nccl_blocks import MARGIN
from xtune.collectors._nccl_call import Call, Choice, User
from xtune.collectors._stamps import StampReader

_QUARTER_S = 900  # time zones change at quarters of an hour


class Parts:
    """Maps that rows share, each kept as the bytes that Arrow wants of it."""

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, bytes]] = []
        self._firsts = [0]
        self._made: Any = None

    def __len__(self) -> int:
        return len(self._firsts) - 1

    def add(self, extra: Mapping[str, str]) -> None:
        """Add one map."""
        self._entries += [(key.encode(), value.encode()) for key, value in extra.items()]
        self._firsts.append(len(self._entries))
        self._made = None

    def arrays(self) -> tuple[Any, ...]:
        """Bytes of keys, ends of keys, bytes of values, ends of values, first entries."""
        if self._made is None:
            made: list[Any] = []
            for side in (0, 1):
                pieces = [entry[side] for entry in self._entries]
                # With room to look beyond the end, as the loops do.
                made.append(np.frombuffer(b"".join(pieces) + bytes(MARGIN), np.uint8))
                made.append(np.cumsum([0, *map(len, pieces)], dtype=np.int64))
            made.append(np.array(self._firsts, np.int64))
            self._made = tuple(made)
        return tuple(self._made)

    def places(self) -> tuple[Any, ...]:
        """As :meth:`arrays`, with addresses of the bytes, valid until a map is added."""
        keys, key_ends, values, value_ends, firsts = self.arrays()
        return keys.ctypes.data, key_ends, values.ctypes.data, value_ends, firsts

    def room(self, which: Any) -> tuple[int, int, int]:
        """Bytes of keys, bytes of values and entries of these maps together."""
        _, key_ends, _, value_ends, firsts = self.arrays()
        times = np.bincount(which, minlength=len(self))
        return (
            int((np.diff(key_ends[firsts]) * times).sum()),
            int((np.diff(value_ends[firsts]) * times).sum()),
            int((np.diff(firsts) * times).sum()),
        )


class Shared:
    """What rows share: the calls, users and choices by number."""

    def __init__(self) -> None:
        self.calls: list[Call | None] = []
        self.choices: list[Choice | None] = []
        self.users: list[User] = []
        self.call_parts = Parts()
        self.user_parts = Parts()
        self._made: dict[str, tuple[int, Any]] = {}

    def add_call(self, call: Call | None, choice: Choice | None) -> None:
        """The next number is a call's or a choice's, or nobody's."""
        self.calls.append(call)
        self.choices.append(choice)
        self.call_parts.add(call.extra if call else {})

    def add_user(self, user: User) -> int:
        """The user's number."""
        self.users.append(user)
        self.user_parts.add(user.extra)
        return len(self.users) - 1

    def forget_users(self) -> None:
        """Start their numbers anew."""
        self.users.clear()
        self.user_parts = Parts()
        for name in list(self._made):
            if name in _USER_COLUMNS:
                del self._made[name]

    def column(self, name: str) -> Any:
        """Values of a column by number of the user, the call or the choice."""
        among: list[Any] = self.calls
        if name in _USER_COLUMNS:
            among = self.users
        elif name in ("algorithm", "protocol"):
            among = self.choices
        made = self._made.get(name)
        if made is None or made[0] != len(among):
            if name in _USER_COLUMNS:
                values = [user.columns[name] for user in self.users]
            else:
                values = [getattr(one, name) if one else None for one in among]
            kind = pa.int32() if name in ("rank", "comm_rank", "comm_size") else pa.string()
            made = (len(among), pa.array(values, kind))
            self._made[name] = made
        return made[1]


_USER_COLUMNS = ("host", "rank", "comm_rank", "comm", "comm_size")


def times(items: Any, stamps: StampReader) -> Any:
    """Nanoseconds since the epoch per item, masked where not known; None where none has a time."""
    known = items[:, kernels.STAMPS]
    if not known.any():
        return None
    seconds = items[:, kernels.SECONDS].copy()
    local = known == prefix.LOCAL
    if local.any():
        quarters, which, counts = np.unique(
            seconds[local] // _QUARTER_S, return_inverse=True, return_counts=True
        )
        starts = quarters * _QUARTER_S
        placed = [
            stamps.local(int(start), int(n)) for start, n in zip(starts, counts, strict=True)
        ]
        seconds[local] += (np.array(placed, np.int64) - starts)[which]
    unplaced = int((known == prefix.UNPLACED).sum())
    if unplaced:
        stamps.unplaced(unplaced)
    absent = (known == prefix.NO_STAMP) | (known == prefix.UNPLACED)
    return np.ma.array(seconds * 1_000_000_000 + items[:, kernels.NANOS], mask=absent)


def batch(rows: Any, items: Any, shared: Shared, stamps: StampReader, context: Context) -> Rows:
    """Rows of ``collectives`` of the operations in ``rows`` (see ``settling.settle``)."""
    _, users, calls, choices, seqs, sizes, op_counts = rows
    count = rows.shape[1]
    by_user, by_call = pa.array(users), pa.array(calls)
    columns: dict[str, Any] = {name: shared.column(name).take(by_user) for name in _USER_COLUMNS}
    for name in ("op", "dtype"):
        columns[name] = shared.column(name).take(by_call)
    unchosen = choices < 0
    if not unchosen.all():
        chosen = pa.array(choices, mask=unchosen)
        for name in ("algorithm", "protocol"):
            columns[name] = shared.column(name).take(chosen)
    columns["seq"] = pa.array(seqs, mask=seqs < 0)
    columns["message_bytes"] = pa.array(sizes, mask=sizes < 0)
    if items[:, kernels.STAMPS].any():
        moments = times(items[rows[settling.ITEM]], stamps)
        if moments is not None:
            columns["enqueue_ts"] = pa.array(moments.data, mask=np.ma.getmaskarray(moments)).cast(
                pa.timestamp("ns", "UTC")
            )
    if context.job is not None:
        columns["job"] = pa.repeat(pa.scalar(context.job), count)
    columns["extra"] = _extras(users, calls, op_counts, shared)
    return rows_of("collectives", context, columns, count)


def _extras(users: Any, calls: Any, op_counts: Any, shared: Shared) -> Any:
    rooms = zip(shared.call_parts.room(calls), shared.user_parts.room(users), strict=True)
    key_bytes, value_bytes, entries = (one + other for one, other in rooms)
    count = len(users)
    keys = np.empty(key_bytes + len("op_count") * count + MARGIN, np.uint8)
    values = np.empty(value_bytes + 16 * count + MARGIN, np.uint8)
    key_ends = np.zeros(entries + count + 1, np.int32)
    value_ends = np.zeros(entries + count + 1, np.int32)
    map_ends = np.zeros(count + 1, np.int32)
    settling.write_extras(
        users, op_counts, calls, shared.call_parts.places(), shared.user_parts.places(),
        keys.ctypes.data, values.ctypes.data, key_ends[1:], value_ends[1:], map_ends[1:],
    )  # fmt: skip
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(map_ends), [None, pa.py_buffer(map_ends)]),
        _strings(key_ends, keys),
        _strings(value_ends, values),
    )


def _strings(ends: Any, data: Any) -> Any:
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(data))
