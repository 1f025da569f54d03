"""What a trace says of itself before and after its events: time base, rank, groups, host."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, Note, Source
from xtune.collectors._collective import ranks_of
from xtune.collectors._textlines import READ_ERRORS
from xtune.collectors._values import positive, small, text

_NAMES = ("baseTimeNanoseconds", "distributedInfo", "host_name")
_KEY = re.compile(r'(?<!\\)"(' + "|".join(_NAMES) + r')"\s*:\s*(?=[\d"{\[n-])')
_DECODER = json.JSONDecoder()
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """What rows need to know of their trace.

    Attributes:
        base_ns: Epoch nanoseconds that the trace's times count from; null in an older trace.
        host: Its host, lower case, else the user's.
        rank: Its rank, else the user's.
        groups: Process groups by name with their ranks, null where the list is shortened.
        notes: What a user should know.
    """

    base_ns: int | None = None
    host: str | None = None
    rank: int | None = None
    groups: dict[str, list[int] | None] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @classmethod
    def of(cls, head: bytes, tail: bytes, context: Context) -> Metadata:
        """Metadata from what stands before and after the events, where both may be cut."""
        found = {**_values(b'{"":[' + tail), **_values(head + b"]}")}
        host = text(found.get("host_name"), 256) or context.host
        info = found.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank = small(info.get("rank"))
        notes: tuple[Note, ...] = ()
        if rank is None:
            rank = context.rank
            if rank is None:
                notes = (Note("the trace does not say its rank: null; give --rank"),)
        elif context.rank not in (None, rank):
            notes = (Note(f"rank {rank} is what the trace says, not the rank given"),)
        return cls(
            base_ns=positive(found.get("baseTimeNanoseconds")),
            host=host.lower() if host else None,
            rank=rank,
            groups=_groups(info.get("pg_config")),
            notes=notes,
        )


def end_of(source: Source) -> bytes:
    """The last megabytes of a file whose events are too many to hold until it has been read."""
    last = before = b""
    try:
        with source.open() as stream:
            while block := stream.read(_BLOCK):
                before, last = last, block
    except READ_ERRORS:
        pass  # the pass over the events says so
    return before + last


def _values(data: bytes) -> dict[str, Any]:
    """The top-level keys that matter; by their looks, where the object is cut or no JSON."""
    try:
        whole = json.loads(data.decode("utf-8", "replace").lstrip("\ufeff"))
    except (ValueError, RecursionError):
        whole = _search(data.decode("utf-8", "replace"))
    if not isinstance(whole, dict):
        return {}
    return {name: whole[name] for name in _NAMES if whole.get(name) is not None}


def _search(data: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for match in _KEY.finditer(data):
        try:
            found[match[1]], _ = _DECODER.raw_decode(data, match.end())
        except (ValueError, RecursionError):
            continue
    return found


def _groups(config: Any) -> dict[str, list[int] | None]:
    """Process groups by name with their ranks."""
    groups: dict[str, list[int] | None] = {}
    for group in config if isinstance(config, list) else ():
        if isinstance(group, dict):
            name = text(group.get("pg_name"), 256)
            if name:
                groups[name] = ranks_of(group.get("ranks"))
    return groups
