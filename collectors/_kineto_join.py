"""Joins each kernel of a trace with the CPU op that enqueued it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from xtune.collectors._kineto_ops import ANNOTATION, CPU, DISPATCH, GLOO, KERNEL, Op

_BY_SEND_RECV = frozenset({"all_to_all", "gather", "scatter", "send", "recv", "send_recv"})
_FROM_KERNEL = ("group", "description", "size", "ranks", "seq", "dtype", "sent", "received")
#: Operations held at once; 300 bytes each. A CPU op's kernel stands far after it in the file.
HELD = 300_000


@dataclass(slots=True)
class Joined:
    """Operations of a trace with each one once, and how many CPU ops were left out."""

    ops: list[Op] = field(default_factory=list)
    left_out: int = 0


class Join:
    """Takes the parts of collectives in any order and gives each collective once.

    By ``External id`` where both have one; else, for each kind of operation, in order, if there
    are as many of both and no kernel starts before its CPU op. Where neither holds, the kernels
    count, and CPU ops would count twice.
    """

    def __init__(self) -> None:
        self._of: dict[str, list[Op]] = defaultdict(list)
        self._held = 0
        self._matched = False

    def add(self, op: Op) -> bool:
        """Hold one part; true where no more can be held and :meth:`take` is due."""
        self._of[op.kind].append(op)
        self._held += 1
        if self._held < HELD:
            return False
        self._shrink()
        return self._held > HELD * 3 // 4

    def take(self) -> Joined:
        """What the parts held make; holds nothing afterwards."""
        of, self._of, self._held = self._of, defaultdict(list), 0
        joined = Joined(list(_join_gloo(of[GLOO], of[DISPATCH])))
        host = of[CPU] or of[ANNOTATION]
        launched = bool(of[KERNEL])
        loose = self._by_id(host, of[KERNEL])
        matched, self._matched = self._matched, False
        pairs = _in_order([op for op in host if op.started is None], loose)
        for op, kernel in pairs:
            _merge(op, kernel)
        taken = {id(kernel) for _, kernel in pairs}
        for kernel in loose:
            if id(kernel) not in taken:
                kernel.started = kernel.ts
                joined.ops.append(kernel)
        for op in host:
            if op.started is not None or matched or not launched:
                op.enqueued = op.ts
                joined.ops.append(op)
            else:
                joined.left_out += 1
        return joined

    def _shrink(self) -> None:
        """Drop what no row will be made of: joined kernels, and what says a CPU op again."""
        of = self._of
        if of[CPU]:
            of[ANNOTATION].clear()
        if not of[GLOO]:
            of[DISPATCH].clear()
        of[KERNEL] = self._by_id(of[CPU] or of[ANNOTATION], of[KERNEL])
        self._held = sum(map(len, of.values()))

    def _by_id(self, host: list[Op], kernels: list[Op]) -> list[Op]:
        """Join kernels by their id; those that no CPU op has."""
        by_id = {op.external_id: op for op in host if op.external_id is not None}
        loose: list[Op] = []
        for kernel in kernels:
            call = None if kernel.external_id is None else by_id.get(kernel.external_id)
            if call is not None and _alike(call, kernel) and kernel.ts >= call.ts:
                _merge(call, kernel)
                self._matched = True
            else:
                loose.append(kernel)
        return loose


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
    for name in _FROM_KERNEL:
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
