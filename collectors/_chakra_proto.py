"""Chakra ``.et`` files: a GlobalMetadata message and then Nodes, each with its length before it.

Source: mlcommons/chakra ``schema/protobuf/et_def.proto`` and ``third_party/utils/protolib.py``.
Only the fields that are read are described here; protobuf passes over the others. Text is taken
as bytes, so that a name that is no UTF-8 does not cost its node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from xtune.collectors._base import Context, Item, Note, Reject, Source
from xtune.collectors._chakra_rows import Op, TraceRows
from xtune.collectors._textlines import READ_ERRORS
from xtune.collectors._values import natural, positive, scaled, small

SEND, RECV, COLLECTIVE = 5, 6, 7
_KINDS = frozenset(range(1, 11))
#: CollectiveCommType by number.
_OPS = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
#: Of these a trace's comm_size is one rank's share or the whole, depending on who wrote it.
_SHARES = frozenset({"all_gather", "gather", "scatter"})
_WORDS = (b"schema", b"comm_size", b"comm_type", b"is_cpu_op", b"num_ops", b"tensor_size")
_RANK = re.compile(r"\.(\d{1,7})\.et$")
_MAX_MESSAGE = 1 << 26
_CHUNK = 1 << 20
_MAX_BAD = 64

_VARINT, _BYTES, _DOUBLE, _BOOL = 4, 12, 1, 8  # types of FieldDescriptorProto
_MESSAGE, _INT32, _INT64, _UINT32, _SINT64 = 11, 5, 3, 13, 18
_ATTRIBUTE = {
    "name": (1, _BYTES),
    "double_val": (3, _DOUBLE),
    "int32_val": (7, _INT32),
    "int64_val": (9, _INT64),
    "uint32_val": (11, _UINT32),
    "uint64_val": (13, _VARINT),
    "sint64_val": (17, _SINT64),
    "bool_val": (27, _BOOL),
    "string_val": (29, _BYTES),
}
_NODE = {
    "id": (1, _VARINT),
    "name": (2, _BYTES),
    "type": (3, _INT32),
    "start_time_micros": (6, _VARINT),
    "duration_micros": (7, _VARINT),
    "attr": (10, _MESSAGE),
}
_METADATA = {"version": (1, _BYTES), "attr": (2, _MESSAGE)}


@cache
def messages() -> tuple[Any, Any]:
    """Classes for GlobalMetadata and Node."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="xtune/chakra.proto", package="xtune.chakra", syntax="proto2"
    )
    for title, fields in (("Attribute", _ATTRIBUTE), ("Metadata", _METADATA), ("Node", _NODE)):
        message = file.message_type.add(name=title)
        for name, (number, kind) in fields.items():
            field = message.field.add(name=name, number=number, type=kind, label=1)
            if kind == _MESSAGE:
                field.label, field.type_name = 3, ".xtune.chakra.Attribute"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"xtune.chakra.{title}"))
        for title in ("Metadata", "Node")
    ]
    return made[0], made[1]


def parse(kind: Any, data: bytes) -> Any:
    """A message of ``kind``, or null where the bytes are none."""
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except (DecodeError, RecursionError, ValueError):
        return None


def looks_like(head: bytes) -> float:
    """How sure it is that a file starts with a trace's messages."""
    length, at = _varint(head, 0)
    if (
        length is None
        or length > _MAX_MESSAGE
        or (length and head[at : at + 1] not in b"\x0a\x12")
    ):
        return 0.0
    if length > len(head) - at:  # metadata alone is longer than the head
        return 0.8 if b"\x0a\x06schema" in head[at : at + 32] else 0.0
    known = sum(word in head for word in _WORDS)
    if known == 0 or parse(messages()[0], head[at : at + length]) is None:
        return 0.0
    at += length
    nodes = 0
    while nodes < 8:
        length, start = _varint(head, at)
        if length is None or length > len(head) - start:
            break
        node = parse(messages()[1], head[start : start + length])
        if node is None or node.type not in _KINDS or not node.name:
            return 0.0
        at, nodes = start + length, nodes + 1
    return 0.95 if nodes else 0.6


def proto_items(source: Source, context: Context) -> Iterator[Item]:
    """Rows, rejects and notes of a trace."""
    metadata_class, node_class = messages()
    found = _RANK.search(Path(source.name).name)
    rows = TraceRows(context, int(found[1]) if found else None)
    count = bad = 0
    for offset, data in _framed(source):
        if isinstance(data, Reject):
            hint = data.hint or f"{max(count - 1, 0)} whole nodes are kept"
            yield Reject(data.offset, data.reason, hint)
            break
        count += 1
        if count == 1:
            if parse(metadata_class, data) is None:
                yield Reject("byte 0", "the first message is no Chakra metadata")
                break
            continue
        node = parse(node_class, data)
        if node is None:
            bad += 1
            yield Reject(f"byte {offset}", "a message that is no Chakra node")
            if bad == _MAX_BAD:
                yield Reject(f"byte {offset}", "too many such messages: read no further")
                break
        elif node.type in (SEND, RECV, COLLECTIVE):
            op = _op(node)
            if op is not None:
                yield from rows.add(op)
    if count == 0:
        yield Note("no message in this file")
    yield from rows.end()


def _op(node: Any) -> Op | None:
    """The operation of a communication node; null for the host's call that launches one."""
    told: dict[str, Any] = {}
    for attribute in node.attr:
        fields = attribute.ListFields()  # by number: the name first
        if len(fields) > 1:
            told[attribute.name.decode("utf-8", "replace")] = fields[-1][1]
    if told.get("is_cpu_op") is True:
        return None
    kind = small(told.get("comm_type"))
    if node.type == COLLECTIVE:
        # A zero (all-reduce) is written, as it is one of several kinds of value.
        name = _OPS[kind] if kind is not None and kind < len(_OPS) else _text(node.name)
    else:
        name = "send" if node.type == SEND else "recv"
    size = natural(told.get("comm_size"))
    group = _text(told.get("pg_name"))
    return Op(
        node=natural(node.id),
        name=name or "unknown",
        group=group or None,
        message_bytes=None if name in _SHARES or name == "barrier" else size,
        duration_ns=scaled(node.duration_micros, 1000),
        extra={
            "event": _text(node.name),
            "comm_bytes": size,
            "peer": natural(told.get("comm_dst" if node.type == SEND else "comm_src")),
            "tag": natural(told.get("comm_tag")),
            "start_us": positive(node.start_time_micros),
        },
    )


def _text(value: Any) -> str | None:
    return value[:256].decode("utf-8", "replace") if isinstance(value, bytes) else None


def _framed(source: Source) -> Iterator[tuple[int, bytes | Reject]]:
    """Each message's bytes and where it starts; last what stopped the reading, if anything did."""
    buffer = b""
    at = base = 0
    try:
        with source.open() as stream:
            while True:
                length, start = _varint(buffer, at)
                while length is None or len(buffer) - start < length:
                    if length is not None and length > _MAX_MESSAGE:
                        wrong = f"a message of {length} bytes, longer than any node"
                        yield base + at, Reject(f"byte {base + at}", wrong, "not a Chakra trace?")
                        return
                    if length is None and len(buffer) - at >= 10:
                        wrong = "no length of a message where one should be"
                        yield base + at, Reject(f"byte {base + at}", wrong, "not a Chakra trace?")
                        return
                    more = stream.read(_CHUNK)
                    if not more:
                        if len(buffer) > at:
                            place = f"byte {base + at}"
                            yield base + at, Reject(place, "the trace is cut here")
                        return
                    base, buffer, at = base + at, buffer[at:] + more, 0
                    length, start = _varint(buffer, at)
                yield base + at, buffer[start : start + length]
                at = start + length
    except READ_ERRORS as error:
        yield base + at, Reject(f"byte {base + at}", f"cannot be read further: {error}")


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    """A base-128 number and the place behind it; null where there is no whole one."""
    value = 0
    for shift, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    return None, at
