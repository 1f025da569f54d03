"""Which collector reads an input, and what to say where none does."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from xtune.collectors import _registry
from xtune.collectors._base import GZIP_MAGIC, Collector, Reject
from xtune.errors import UsageError
from xtune.ingest._together import with_others

# A collector may be vaguely reminded of a folder; to read it whole instead of its files it must
# be rather sure.
FOLDER_CONFIDENCE = 0.5

# First bytes -> what it is and what to do.
_Magics = tuple[tuple[int, bytes, str, str], ...]
# Members that are text stand in these as they are, one after the other: no log, though it looks
# like one. collect unpacks a tar archive before it asks here.
_CONTAINERS: _Magics = (
    (0, b"PK\x03\x04", "a zip archive", "unzip it first"),
    (257, b"ustar", "a tar archive", "collect it without --follow, or unpack it"),
)
_PACKED: _Magics = (
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd", "decompress it first: zstd -d"),
    (0, b"\xfd7zXZ\x00", "compressed with xz", "decompress it first: xz -d"),
    (0, b"BZh", "compressed with bzip2", "decompress it first: bzip2 -d"),
    (0, GZIP_MAGIC, "gzip within gzip", "undo one layer first: gunzip"),
    (0, b"PAR1", "a Parquet file", "the lake's own tables are not collected again"),
)
_MAP_HINT = "with --map name the --kind too, such as loss_table or counters_csv"
_LIST_HINT = "xtune collect --list shows what is known; --kind forces one"


class Claims:
    """Asks the collectors.

    Args:
        collectors: By name.
        kind: The one to read every input with, or None.
        mapped: Whether the user gave a column map.

    Raises:
        UsageError: There is no collector of that name.
    """

    def __init__(
        self, collectors: Mapping[str, Collector], kind: str | None, *, mapped: bool = False
    ) -> None:
        self._collectors = collectors
        self._hint = _MAP_HINT if mapped else _LIST_HINT
        self._forced: Collector | None = None
        if kind is not None:
            if kind not in collectors:
                near = difflib.get_close_matches(kind, collectors, n=1)
                raise UsageError(
                    f"--kind {kind}: no such format",
                    f"did you mean {near[0]}?" if near else "xtune collect --list shows them",
                )
            self._forced = collectors[kind]

    @property
    def forced(self) -> bool:
        """Whether the user named the kind."""
        return self._forced is not None

    def folder(self, path: Path) -> bool:
        """Whether a collector reads this folder whole."""
        among = [self._forced] if self._forced else self._collectors.values()
        return any(_registry.confidence(c, path, b"") >= FOLDER_CONFIDENCE for c in among)

    def of(self, path: Path, head: bytes) -> Collector | Reject:
        """The collector for an input, or why there is none."""
        if self._forced is not None:
            return self._forced
        if container := _begins(head, _CONTAINERS):
            return container
        best = _registry.claim_best(path, head, self._collectors) if self._collectors else None
        if best is not None:
            return with_others(best[0], path, head, self._collectors)
        unknown = Reject("file", "no collector knows this format", self._hint)
        return _begins(head, _PACKED) or unknown


def _begins(head: bytes, magics: _Magics) -> Reject | None:
    for offset, magic, what, hint in magics:
        if head[offset : offset + len(magic)] == magic:
            return Reject("file", f"is {what}", hint)
    return None
