"""Execution traces: PyTorch's (JSON) and Chakra's (``.et``, protobuf): operations in order.

What it assumes: the order of an operation in the file is the order of calls in its process group.
``seq`` is the number that PyTorch writes beside the operation, the one that Flight Recorder and
the profiler print; where there is none it is the place in the order (``seq_source`` in ``extra``).

When it lies: an execution trace has no times (``start_ts`` is null) unless a tool linked it with
a profiler's trace: then the duration is the kernel's, with its wait for the slowest rank. A
generated ``.et`` has the times that its author gave it. ``comm_size`` of an all-gather in ``.et``
is one rank's share or the whole, depending on the writer: it is kept in ``extra`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Reject, Source
from xtune.collectors._chakra_json import json_items
from xtune.collectors._chakra_proto import looks_like, proto_items


class Chakra(Collector):
    """Reads collectives of execution traces."""

    name = "chakra"
    name_tells = True
    title = "PyTorch and Chakra execution traces (JSON, protobuf .et)"
    produce = "torch.profiler.ExecutionTraceObserver().register_callback('et.json'); .et: chakra"
    gives = "every collective of a process in order: group, size, element type"
    lacks = "times, unless linked with a profiler's trace"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the schema and a node, or length-delimited nodes, stand in the head."""
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start.startswith(b"{"):
            nodes = b'"nodes"' in head and b'"schema"' in head
            own = (b'"ctrl_deps"', b'"rf_id"', b"execution_trace|", b"execution_graph|")
            return 0.95 if nodes and any(word in head for word in own) else 0.0
        return looks_like(head) if head[:1] not in (b"", b"\x1f") else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a collective, send or receive."""
        try:
            head = source.head()
        except OSError as error:
            yield Reject("byte 0", f"cannot be read: {error}")
            return
        if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            yield from json_items(source, context)
        else:
            yield from proto_items(source, context)


COLLECTOR = Chakra()
