"""Collectives of a PyTorch trace: CPU ops and kernels told apart, joined, numbered.

Sources: torch/csrc/distributed/c10d/ParamCommsUtils (record_param_comms) and kineto's
output_json.cpp. A kernel's name says which kernel was launched, not which algorithm and protocol
ran in it: NCCL runs many of its functions in a few kernels, so those columns stay null.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._collective import (
    DTYPE_BYTES,
    POINT_TO_POINT,
    canonical_op,
    size_from_tensors,
    torch_dtype,
)
from xtune.collectors._json_events import as_utf8
from xtune.collectors._values import natural, small, text

_KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev|Symk)?(?:Kernel)?_?([A-Za-z]+)")
# Marks that are no operation: a wait has no data, the others frame a group of operations.
_PSEUDO = frozenset({"wait", "init", "startcoalescing", "endcoalescing", "coalesced"})
_BY_SEND_RECV = frozenset({"all_to_all", "gather", "scatter", "send", "recv", "send_recv"})

CPU, ANNOTATION, KERNEL, GLOO, DISPATCH = "cpu", "annotation", "kernel", "gloo", "dispatch"


@dataclass(slots=True)
class Op:
    """One event that is or belongs to a collective; times are the trace's, in microseconds."""

    kind: str
    op: str
    ts: float
    duration: float | None
    name: str
    external_id: int | None = None
    group: str | None = None
    description: str | None = None
    size: int | None = None
    ranks: list[int] | None = None
    seq: int | None = None
    dtype: str | None = None
    sent: int | None = None
    received: int | None = None
    enqueued: float | None = None
    started: float | None = None

    @property
    def message_bytes(self) -> int | None:
        """nccl-tests' size, where the elements and their type are known."""
        width = DTYPE_BYTES.get(self.dtype or "")
        if width is None or self.sent is None:
            return None
        received = (self.received or 0) * width
        return natural(size_from_tensors(self.op, self.sent * width, received, self.size))

    @property
    def order(self) -> float:
        """When the host enqueued it, as far as is known."""
        return self.ts if self.enqueued is None else self.enqueued


def op_of(event: dict[str, Any]) -> Op | None:
    """The operation that an event is a part of, or null where it is none."""
    name = event.get("name")
    if not isinstance(name, str) or event.get("ph") != "X":
        return None
    category = event.get("cat")
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        arguments = {}
    collective = arguments.get("Collective name")
    if name == "record_param_comms":
        kind = CPU if isinstance(collective, str) else None
    elif category in ("kernel", "Kernel") and (
        "nccl" in name[:64].lower() or isinstance(collective, str)
    ):
        kind = KERNEL
    elif category == "user_annotation" and name.startswith("nccl:"):
        kind = ANNOTATION
    elif category == "user_annotation" and name.startswith("gloo:"):
        kind = GLOO
    elif category == "cpu_op" and name.startswith("c10d::"):
        kind = DISPATCH
    else:
        kind = None
    ts = event.get("ts")
    if kind is None or isinstance(ts, bool) or not isinstance(ts, (int, float)) or not ts > 0:
        return None
    said = collective if isinstance(collective, str) else name
    if said.lower() in _PSEUDO:
        return None
    found = _KERNEL.match(name) if kind == KERNEL and said is name else None
    op = canonical_op(found[1] if found else said)
    duration = event.get("dur")
    good = isinstance(duration, (int, float)) and not isinstance(duration, bool) and duration > 0
    made = Op(
        kind,
        op or (text(as_utf8(said), 128) or "unknown").rpartition(":")[2],
        ts,
        duration if good else None,
        text(as_utf8(name), 256) or "",
        natural(arguments.get("External id")),
    )
    if isinstance(collective, str):
        _from_collective(made, arguments)
    else:
        _from_input(made, arguments)
    return made


def _from_collective(op: Op, arguments: dict[str, Any]) -> None:
    op.group = text(as_utf8(arguments.get("Process Group Name")), 256) or None
    op.description = text(as_utf8(arguments.get("Process Group Description")), 256) or None
    op.size = small(arguments.get("Group size")) or None
    op.sent = natural(arguments.get("In msg nelems"))
    op.received = natural(arguments.get("Out msg nelems"))
    op.seq = None if op.op in POINT_TO_POINT else natural(arguments.get("Seq"))
    dtype = arguments.get("dtype")
    op.dtype = torch_dtype(dtype) if isinstance(dtype, str) else None
    op.ranks = ranks_of(arguments.get("Process Group Ranks"))


def _from_input(op: Op, arguments: dict[str, Any]) -> None:
    """Elements and type of the one tensor that a ``nccl:`` or ``gloo:`` annotation records."""
    shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != 1:
        return
    if len(types) != 1 or not isinstance(types[0], str) or not isinstance(shapes[0], list):
        return
    op.dtype = torch_dtype(types[0])
    count = 1
    for length in shapes[0][:64]:
        known = natural(length)
        if known is None:
            return
        count *= known
    op.sent = natural(count)


def ranks_of(listed: Any) -> list[int] | None:
    """Ranks of a group; null where the list was shortened (``[0, 1, ...]``)."""
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (ValueError, RecursionError):
            return None
    if not isinstance(listed, list) or not listed:
        return None
    ranks = [rank for rank in map(small, listed) if rank is not None]
    return ranks if len(ranks) == len(listed) else None


@dataclass(slots=True)
class Joined:
    """Operations of a trace with each one once, and how many CPU ops were left out."""

    ops: list[Op] = field(default_factory=list)
    left_out: int = 0


def join(found: Iterable[Op]) -> Joined:
    """Join each kernel with the CPU op that enqueued it.

    By ``External id`` where both have one; else, for each kind of operation, in order, if there
    are as many of both and no kernel starts before its CPU op. Where neither holds, the kernels
    count, and CPU ops would count twice.
    """
    of: dict[str, list[Op]] = defaultdict(list)
    for op in found:
        of[op.kind].append(op)
    joined = Joined(list(_join_gloo(of[GLOO], of[DISPATCH])))
    host = of[CPU] or of[ANNOTATION]
    kernels = of[KERNEL]
    by_id = {op.external_id: op for op in host if op.external_id is not None}
    loose: list[Op] = []
    for kernel in kernels:
        call = None if kernel.external_id is None else by_id.get(kernel.external_id)
        if call is not None and _alike(call, kernel) and kernel.ts >= call.ts:
            _merge(call, kernel)
        else:
            loose.append(kernel)
    matched = len(kernels) > len(loose)
    waiting = [op for op in host if op.started is None]
    pairs = _in_order(waiting, loose)
    for op, kernel in pairs:
        _merge(op, kernel)
    taken = {id(kernel) for _, kernel in pairs}
    for kernel in loose:
        if id(kernel) not in taken:
            kernel.started = kernel.ts
            joined.ops.append(kernel)
    for op in host:
        if op.started is not None or matched or not kernels:
            op.enqueued = op.ts
            joined.ops.append(op)
        else:
            joined.left_out += 1
    return joined


def _alike(op: Op, kernel: Op) -> bool:
    return op.op == kernel.op or kernel.op == "send_recv" or kernel.op.lower() == "generic"


def _merge(op: Op, kernel: Op) -> None:
    """Give a CPU op its kernel; a second kernel of the same op lengthens the first."""
    if op.started is None:
        op.started, op.duration, op.name = kernel.ts, kernel.duration, kernel.name
    elif op.duration is not None and kernel.duration is not None:
        end = max(op.started + op.duration, kernel.ts + kernel.duration)
        op.started = min(op.started, kernel.ts)
        op.duration = end - op.started
    for name in ("group", "description", "size", "ranks", "seq", "dtype", "sent", "received"):
        if getattr(op, name) is None:
            setattr(op, name, getattr(kernel, name))


def _family(op: Op) -> str:
    return "send_recv" if op.op in _BY_SEND_RECV else op.op


def _in_order(host: list[Op], kernels: list[Op]) -> list[tuple[Op, Op]]:
    by_family: dict[str, tuple[list[Op], list[Op]]] = defaultdict(lambda: ([], []))
    for op in host:
        by_family[_family(op)][0].append(op)
    for kernel in kernels:
        by_family[_family(kernel)][1].append(kernel)
    pairs: list[tuple[Op, Op]] = []
    for ops, launched in by_family.values():
        candidate = list(
            zip(sorted(ops, key=_ts), sorted(launched, key=_ts), strict=False)
            if len(ops) == len(launched)
            else ()
        )
        if all(kernel.ts >= op.ts for op, kernel in candidate):
            pairs += candidate
    return pairs


def _ts(op: Op) -> float:
    return op.ts


def _join_gloo(ops: list[Op], dispatched: list[Op]) -> Iterator[Op]:
    """Gloo runs operations on worker threads: the dispatcher's op says when each was enqueued."""
    for kind in {op.op for op in ops}:
        ran = sorted((op for op in ops if op.op == kind), key=_ts)
        sent = sorted((op for op in dispatched if op.op == kind), key=_ts)
        known = len(ran) == len(sent) and all(
            op.ts >= call.ts for op, call in zip(ran, sent, strict=True)
        )
        for index, op in enumerate(ran):
            op.started = op.ts
            op.enqueued = sent[index].ts if known else None
            yield op
