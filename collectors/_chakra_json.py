"""PyTorch execution traces: one JSON object with ``nodes``, of schema 1.0.1 to 1.1.x.

Source: torch/csrc/profiler/standalone/execution_trace_observer.cpp and ParamCommsUtils.hpp. A
``record_param_comms`` node has, in this order: tensors, sequence number (or a pair of it and
whether it is point to point), process group (a pair of name and description; before 2024 where it
is in this process), rank, name of the operation, splits, the group's ranks (start and stride,
later versions) and its size. ``rank`` is the root or the peer of some operations and the own rank
of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from xtune.collectors._base import Context, Item, Note, Reject, Source
from xtune.collectors._chakra_rows import Op, TraceRows
from xtune.collectors._collective import (
    DTYPE_BYTES,
    canonical_op,
    size_from_tensors,
    torch_dtype,
)
from xtune.collectors._json_items import Elements, as_utf8
from xtune.collectors._values import natural, scaled, small, text, whole

#: How a node starts, and no attribute in it: those have no id.
_START = r'\{\s*"(?:id"\s*:|name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*"id"\s*:)'
_TENSOR = re.compile(r"Tensor\(([^)]{1,64})\)")
_KERNEL = re.compile(r"(?:void )?(?:nccl|rccl)", re.I)
#: Operations whose ``rank`` is the root's or the peer's.
_OTHERS_RANK = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv", "send_recv"})
_MAX_TENSORS = 65536
_YEAR_2000_US = 946_684_800_000_000


def json_items(source: Source, context: Context) -> Iterator[Item]:
    """Rows, rejects and notes of a trace; whole nodes of a cut one are kept."""
    nodes = Elements(source, "nodes", start=_START)
    rows = TraceRows(context)
    count = 0
    for node in nodes:
        if isinstance(node, Reject):
            yield node
            continue
        count += 1
        name = node.value.get("name")
        if name == "record_param_comms":
            op = _op(node.value)
            if op is None:
                yield Reject(f"byte {node.offset}", "a communication without an operation's name")
                continue
            yield from rows.add(op)
        elif isinstance(name, str) and "dur" in node.value and _KERNEL.match(name[:16]):
            # Only in a trace that was linked with the profiler's.
            start = node.value.get("ts")
            epoch = isinstance(start, (int, float)) and start > _YEAR_2000_US
            rows.launched(
                _parent(node.value),
                scaled(node.value.get("dur"), 1000),
                scaled(start, 1000) if epoch else None,
            )
    yield from rows.end()
    if nodes.cut is not None:
        yield Reject(
            f"byte {nodes.cut}",
            f"the trace is cut here: {count} whole nodes are kept",
            "the process ended before it closed the trace",
        )
    elif not count:
        yield Note("no node in this execution trace")


def _op(node: dict[str, Any]) -> Op | None:
    attributes = _attributes(node)
    values, shapes = _sides(node, "inputs"), _sides(node, "outputs")
    given = values[0]
    place = _name_place(given)
    name = as_utf8(attributes.get("collective_name"))
    if not isinstance(name, str) and place is not None:
        name = as_utf8(given[place])
    name = text(name, 256)
    if not name:
        return None
    op = Op(node=natural(node.get("id")), name=name)
    if place is not None:
        _from_values(op, given, place)
    group = text(as_utf8(attributes.get("pg_name")), 256)
    op.group = group or op.group
    op.size = small(attributes.get("pg_size")) or op.size
    _sizes(op, attributes, values, shapes)
    description = text(as_utf8(attributes.get("pg_desc")), 256)
    op.extra["group_description"] = description or op.extra.get("group_description")
    return op


def _name_place(values: list[Any]) -> int | None:
    """Where the operation's name stands among the values: behind the rank."""
    for place, value in enumerate(values[:8]):
        if isinstance(value, str) and place >= 3 and isinstance(values[place - 1], int):
            return place
    return None


def _from_values(op: Op, values: list[Any], place: int) -> None:
    seq, group, rank = values[place - 3 : place]
    if isinstance(seq, list) and len(seq) == 2:
        op.point_to_point = seq[1] is True
        seq = seq[0]
    op.seq = natural(seq)
    if isinstance(group, list) and group:
        op.group = text(as_utf8(group[0]), 256) or None
        op.extra["group_description"] = text(as_utf8(group[1]), 256) if len(group) > 1 else None
    elif isinstance(group, str):
        op.group = text(as_utf8(group), 256) or None
    elif isinstance(group, int) and not isinstance(group, bool):
        op.pointer = natural(group) or None
    rest = [whole(v) for v in values[place + 1 :] if not isinstance(v, (list, bool))]
    start = stride = None
    if len(rest) == 3:
        start, stride = rest[0], rest[1]
    op.size = small(rest[-1]) or None if rest else None
    own = small(rank)
    if op.op in _OTHERS_RANK:
        op.extra["root_or_peer"] = own
        return
    op.comm_rank = own
    if own is not None and start is not None and stride is not None and start >= 0 < stride:
        op.rank = start + stride * own


def _sizes(op: Op, attributes: dict[str, Any], sent: tuple[list[Any], str], received: Any) -> None:
    """Bytes in and out: by the counts that later versions write, else by the tensors."""
    name = canonical_op(op.name) or ""
    printed = attributes.get("dtype")
    dtype = torch_dtype(printed) if isinstance(printed, str) else None
    counts = natural(attributes.get("in_msg_nelems")), natural(attributes.get("out_msg_nelems"))
    width = DTYPE_BYTES.get(dtype or "")
    if width is not None and counts[0] is not None and counts[1] is not None:
        op.dtype = dtype
        size = size_from_tensors(name, counts[0] * width, counts[1] * width, op.size)
    else:
        found = _TENSOR.search(sent[1]) or _TENSOR.search(received[1])
        op.dtype = torch_dtype(found[1]) if found else None
        into, out = _tensor_bytes(sent[0][:1]), _tensor_bytes(received[0])
        if not found or into is None or out is None:
            return
        size = size_from_tensors(name, into, out, op.size)
    op.message_bytes = size if name else None


def _tensor_bytes(values: list[Any]) -> int | None:
    """Bytes of all tensors in these values: ``[id, storage, offset, elements, width, device]``."""
    total = seen = 0
    stack = list(values)
    while stack:
        value = stack.pop()
        seen += 1
        if seen > _MAX_TENSORS:
            return None
        if not isinstance(value, list):
            continue
        if len(value) == 6 and isinstance(value[5], str) and not isinstance(value[3], list):
            elements, width = natural(value[3]), natural(value[4])
            if elements is None or width is None:
                return None
            total += elements * width
        else:
            stack.extend(value[:_MAX_TENSORS])
    return total


def _sides(node: dict[str, Any], side: str) -> tuple[list[Any], str]:
    """Values of the inputs or outputs, and their types as one text; both schemas."""
    given = node.get(side)
    types = node.get(f"{side[:-1]}_types")
    if isinstance(given, dict):
        types = given.get("types")
        given = given.get("values")
    words = ",".join(t for t in types if isinstance(t, str)) if isinstance(types, list) else ""
    return (given if isinstance(given, list) else []), words[:4096]


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    listed = node.get("attrs")
    if not isinstance(listed, list):
        return node
    return {
        a["name"]: a.get("value")
        for a in listed
        if isinstance(a, dict) and isinstance(a.get("name"), str)
    }


def _parent(node: dict[str, Any]) -> int | None:
    parent = node.get("ctrl_deps", node.get("parent"))
    return natural(parent[0] if isinstance(parent, list) and parent else parent)
