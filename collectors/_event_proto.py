"""TensorBoard's Event message, as far as scalars need it, for the protobuf library.

Sources: tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto. Tags
are bytes here: a writer may have cut one within a character.
"""

from __future__ import annotations

from functools import cache
from typing import Any

# Message -> (field, number, type, type's name); repeated where the name ends in a star.
_DOUBLE, _FLOAT, _INT64, _INT32, _MESSAGE, _BYTES = 1, 2, 3, 5, 11, 12
_MESSAGES: dict[str, tuple[tuple[str, int, int, str], ...]] = {
    "Tensor": (
        ("dtype", 1, _INT32, ""),
        ("tensor_content", 4, _BYTES, ""),
        ("float_val*", 5, _FLOAT, ""),
        ("double_val*", 6, _DOUBLE, ""),
    ),
    "Value": (
        ("tag", 1, _BYTES, ""),
        ("simple_value", 2, _FLOAT, ""),
        ("tensor", 8, _MESSAGE, "Tensor"),
    ),
    "Summary": (("value*", 1, _MESSAGE, "Value"),),
    "Event": (
        ("wall_time", 1, _DOUBLE, ""),
        ("step", 2, _INT64, ""),
        ("summary", 5, _MESSAGE, "Summary"),
    ),
}


@cache
def event_class() -> Any:
    """The class of Event; ``FromString`` raises ``google.protobuf.message.DecodeError``."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="xtune/event.proto", package="xtune.event", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, type_name in fields:
            added = message.field.add(name=field.rstrip("*"), number=number, type=kind)
            added.label = 3 if field.endswith("*") else 1
            if type_name:
                added.type_name = f".xtune.event.{type_name}"
        if name == "Value":  # one of these: a zero is written too
            message.oneof_decl.add(name="value")
            for field_ in message.field[1:]:
                field_.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("xtune.event.Event"))
