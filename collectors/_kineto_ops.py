"""Which events of a PyTorch trace belong to a collective, and what they say of it.

Sources: torch/csrc/distributed/c10d/ParamCommsUtils (record_param_comms), saveNcclMeta in
torch/csrc/profiler/util.cpp (the arguments) and kineto's output_json.cpp. ``Rank`` among the
arguments is the root or the peer of some operations and the own rank of others: it is not used.

A kernel's name says which kernel was launched, not which algorithm and protocol ran in it: NCCL
runs many of its functions in a few kernels, so those columns stay null.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from xtune.collectors._collective import (
    DTYPE_BYTES,
    POINT_TO_POINT,
    PSEUDO_OPS,
    canonical_op,
    ranks_of,
    size_from_tensors,
    torch_dtype,
)
from xtune.collectors._values import natural, small, text

# NCCL's and RCCL's own: ncclKernel_AllReduce_*, ncclDevKernel_*, ncclSymkDevKernel_*.
_KERNEL = re.compile(r"(?:void )?(?:nccl|rccl)(?:Symk?)?(?:Dev)?(?:Kernel)?_?([A-Za-z]+)")
# Up to NCCL 2.9 the algorithm stands before the word: ncclAllReduceRingLLKernel_sum_f32.
_VARIANT = re.compile(r"(?:Ring|Tree|CollNet)?(?:LL|Simple)?(?:Kernel)?$")
# Kernels of other libraries that move a collective's data by themselves. DeepEP's notify_dispatch,
# get_dispatch_layout and the like only prepare one.
_OTHERS = re.compile(
    r"\bdeep_ep::(?:\w+::)?(?P<all_to_all>dispatch|combine)(?=[_\W]|$)"
    r"|\bmscclKernel_(?P<msccl>[A-Za-z]+)"
    r"|\b(?P<all_reduce>cross_device_reduce_[12]stage|(?:one|two)_shot_all_reduce"
    r"|multimem_(?:one_shot_)?all_reduce)"
)

# PyTorch before 1.12 had its annotations of collectives among the operators, at first "Operator".
_HOST = ("cpu_op", "user_annotation", "Operator")
_CATEGORIES = frozenset({*_HOST, "kernel", "Kernel"})
_STARTS = frozenset({"nccl:", "gloo:", "c10d:"})
_LOOKED_AT = 200

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
    peer: int | None = None

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
    kind = None
    if name == "record_param_comms":
        kind = CPU if isinstance(collective, str) else None
    elif category == "kernel" or category == "Kernel":
        moves = isinstance(collective, str) or kernel_op(name[:_LOOKED_AT]) is not None
        kind = KERNEL if moves else None
    elif category in _HOST:
        kind = {"nccl:": ANNOTATION, "gloo:": GLOO}.get(name[:5])
        if category == "cpu_op" and name.startswith("c10d::"):
            kind = DISPATCH
    ts = event.get("ts")
    if kind is None or isinstance(ts, bool) or not isinstance(ts, (int, float)) or not ts > 0:
        return None
    said = collective if isinstance(collective, str) else name
    if said.lower() in PSEUDO_OPS:
        return None
    launched = kernel_op(name[:_LOOKED_AT]) if kind == KERNEL and said is name else None
    op = launched or canonical_op(said)
    duration = event.get("dur")
    good = isinstance(duration, (int, float)) and not isinstance(duration, bool) and duration > 0
    made = Op(
        kind,
        op or (_shared(said, 128) or "unknown").rpartition(":")[2],
        ts,
        duration if good else None,
        _shared(name, 256) or "",
        natural(arguments.get("External id", arguments.get("external id"))),
    )
    if isinstance(collective, str):
        _from_collective(made, arguments)
    else:
        _from_input(made, arguments)
    return made


def _from_collective(op: Op, arguments: dict[str, Any]) -> None:
    op.group = _shared(arguments.get("Process Group Name"), 256) or None
    op.description = _shared(arguments.get("Process Group Description"), 256) or None
    op.size = small(arguments.get("Group size")) or None
    op.sent = natural(arguments.get("In msg nelems"))
    op.received = natural(arguments.get("Out msg nelems"))
    op.seq = None if op.op in POINT_TO_POINT else natural(arguments.get("Seq"))
    dtype = arguments.get("dtype")
    op.dtype = torch_dtype(dtype) if isinstance(dtype, str) else None
    ranks = arguments.get("Process Group Ranks")
    op.ranks = _ranks_of_text(ranks) if isinstance(ranks, str) else ranks_of(ranks)
    if op.op in POINT_TO_POINT:
        op.peer = small(arguments.get("Dst Rank", arguments.get("Src Rank")))


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


@lru_cache(maxsize=256)
def _ranks_of_text(listed: str) -> list[int] | None:
    return ranks_of(listed)


def _shared(value: Any, limit: int) -> str | None:
    """``text(value, limit)``, of which a trace has few different ones: one object each."""
    return _same(value[:limit]) if isinstance(value, str) else None


@lru_cache(maxsize=4096)
def _same(value: str) -> str:
    return text(value) or ""


@lru_cache(maxsize=4096)
def kernel_op(name: str) -> str | None:
    """The operation that a kernel of this name runs; ``None`` where it moves no data of one."""
    other = _OTHERS.search(name)
    if other is not None:
        if other["msccl"] is not None:
            return canonical_op(other["msccl"]) or other["msccl"]
        return other.lastgroup
    if "nccl" not in name[:64].lower():
        return None
    own = _KERNEL.match(name)
    said = own[1] if own else name
    known = canonical_op(said) or canonical_op(_VARIANT.sub("", said))
    return known or (text(said, 128) or "unknown").rpartition(":")[2]


def of_interest(
    events: list[dict[str, Any]], compute: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Those that :func:`op_of` may want, told cheaply: most events of a trace are of no use.

    Args:
        events: Events of a trace.
        compute: Kernels that move no data of a collective are appended.
    """
    try:
        return [
            event
            for event in events
            if (
                (category := event.get("cat")) in _CATEGORIES
                and _may_matter(category, event, compute)
            )
            or event.get("name") == "record_param_comms"
        ]
    except TypeError:  # a category that is a list
        return events


def _may_matter(category: Any, event: dict[str, Any], compute: list[dict[str, Any]]) -> bool:
    name = event.get("name")
    if not isinstance(name, str):
        return False
    if category in _HOST:
        return name[:5] in _STARTS
    if kernel_op(name[:_LOOKED_AT]) is not None:
        return True
    arguments = event.get("args")
    if isinstance(arguments, dict) and "Collective name" in arguments:
        return True
    compute.append(event)
    return False
