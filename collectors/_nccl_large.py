"""Whether a log is large enough to earn loading a compiler, and the reader for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xtune.collectors._base import GZIP_MAGIC, Context, Source

if TYPE_CHECKING:
    from xtune.collectors._nccl_fast import FastLog

# Line by line a log takes 0.4 s a MB. To load what is compiled takes 1 s; to compile it, once on a
# machine, 15 s.
LARGE_BYTES = 16 << 20
_GZIP_RATIO = 10  # logs of NCCL compress so far at least


def open_fast(source: Source, context: Context, trigger: Sequence[bytes]) -> FastLog | None:
    """A reader by columns; none for a small log.

    Args:
        source: The log.
        context: What the user says.
        trigger: Words of lines that its first pass gives, whatever else stands in them.
    """
    try:
        size = source.path.stat().st_size
        with source.path.open("rb") as stream:
            size *= _GZIP_RATIO if stream.read(2) == GZIP_MAGIC else 1
    except OSError:
        return None
    if size < LARGE_BYTES:
        return None
    from xtune.collectors._nccl_fast import FastLog

    return FastLog(source, context, trigger)
