"""Collectors: one file a source, bytes in, Arrow batches out."""

from xtune.collectors._base import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    RowBuffer,
    Rows,
    Source,
    Unknown,
    rows_of,
)
from xtune.collectors._registry import all_collectors, claim_best

__all__ = [
    "Collector",
    "Context",
    "Item",
    "Note",
    "Reject",
    "RowBuffer",
    "Rows",
    "Source",
    "Unknown",
    "all_collectors",
    "claim_best",
    "rows_of",
]
