"""NCCL's and RCCL's own log (``NCCL_DEBUG=INFO``, ``NCCL_DEBUG_SUBSYS=COLL``): COLL messages.

What it assumes: the order of COLL messages of one process is the order of its calls, which is the
same on all ranks of a communicator. ``seq`` is that order, counted here from 0 in each
communicator: ``opCount`` is no such number (it rises per launch, or stays 0, depending on the
version; it is hexadecimal and kept in ``extra``). A log that starts late starts its count late.

``comm`` is the commId of the Init lines, or the hash that NCCL makes of what the line of a split
says (parent, count, color). Without them a pointer is all there is: ``comm`` is null,
``extra`` has ``comm_pointer`` and, where it may be one communicator seen by several processes,
``comm_candidate``.

When it lies: the stamp of a line, local time unless a zone follows, is the enqueue; there is no
start and no duration. Ranks that share a pipe cut each other's messages: a cut message is put
together only where the piece that follows names a communicator of the same thread, else rejected;
after a rejected one the numbers of its communicator are null, as the count is no longer known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Source
from xtune.collectors._nccl_lines import COLLECTIVE, MARKS
from xtune.collectors._training_log import Kind, read_log, tail

_JOB = re.compile(r"\b(?:local|global)[ _-]?rank[:= ]{1,2}\d", re.I)


class NcclDebug(Collector):
    """Reads COLL messages of NCCL_DEBUG=INFO logs, and loss lines between them."""

    name = "nccl_debug"
    title = "NCCL and RCCL logs (NCCL_DEBUG=INFO)"
    lines_of = "training"
    produce = (
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING NCCL_DEBUG_FILE=nccl.%h.%p"
        " NCCL_DEBUG_TIMESTAMP_LEVELS=ALL in the job's environment; or the job's stdout"
    )
    gives = "each collective of each rank: communicator, size, type, algorithm, enqueue time"
    lacks = "start and duration; times before NCCL 2.26; the communicator without INIT lines"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """High where NCCL's prefix or a COLL message stands in the head, low at its traces."""
        text = head.decode("utf-8", "replace")
        if COLLECTIVE.search(text):
            return 0.92
        if any(mark.decode() in text for mark in MARKS):
            return 0.8
        end = tail(path, head)
        if COLLECTIVE.search(end):
            return 0.8
        if "ProcessGroupNCCL" in text or "NCCL version " in text:
            return 0.2
        # The output of a distributed job, where it has nothing else of use.
        return 0.1 if b"\0" not in head and _JOB.search(text) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a COLL message."""
        yield from read_log(source, context, Kind.NCCL)


COLLECTOR = NcclDebug()
