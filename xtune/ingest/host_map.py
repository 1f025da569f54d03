"""Names that a file uses for hosts, such as pod names, to the hosts' own names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from xtune.errors import InputError

#: Columns of raw tables that hold a host.
HOST_COLUMNS = ("host", "src", "dst")
_LINE = re.compile(r"\s*+([^\s,=;]++)(?:\s*+[,=;]\s*+|\s++)([^\s,=;]++)\s*+")
_HEADERS = {("from", "to"), ("pod", "host"), ("name", "host"), ("pod", "node")}


@dataclass(frozen=True, slots=True)
class HostMap:
    """Exact names, compared in lower case; what is not named stays as it was read.

    Attributes:
        names: Name in a file -> host, both lower case.
    """

    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> HostMap:
        """Read lines ``from,to``, ``from=to`` or ``from to``; ``#`` begins a comment.

        A first line ``from,to`` or ``pod,host`` is a heading.

        Raises:
            InputError: A line is neither, or one name has two hosts.
        """
        try:
            text = path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: host map cannot be read: {error}") from error
        names: dict[str, str] = {}
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.partition("#")[0].strip().lower().replace('"', "")
            if not line:
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise InputError(
                    f"{path}: line {number}: {raw.strip()!r} is not a pair of names",
                    "write from,to or from=to, one pair a line",
                )
            name, host = match.groups()
            if not names and (name, host) in _HEADERS:
                continue
            if names.setdefault(name, host) != host:
                raise InputError(
                    f"{path}: line {number}: {name} is {host} here and {names[name]} before",
                    "give each name one host",
                )
        return cls(names)

    @property
    def digest(self) -> str:
        """Equal for maps that say the same, in any order."""
        return hashlib.sha256(repr(sorted(self.names.items())).encode()).hexdigest()[:16]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Host columns in lower case and mapped; the host in a link id too.

        A link id begins with a host only where no GUID is known: ``<host>/<device>/<port>``.
        """
        for name in HOST_COLUMNS:
            index = batch.schema.get_field_index(name)
            if index >= 0:
                batch = _replace(batch, index, self._hosts(batch.column(index)))
        index = batch.schema.get_field_index("link")
        if index >= 0 and self.names:
            batch = _replace(batch, index, self._links(batch.column(index)))
        return batch

    def unmatched(self, batch: pa.RecordBatch) -> set[str]:
        """Hosts in the rows of :meth:`apply` that the map neither names nor leads to."""
        if not self.names:
            return set()
        found: set[str] = set()
        for name in HOST_COLUMNS:
            index = batch.schema.get_field_index(name)
            if index >= 0:
                found.update(pc.unique(batch.column(index)).drop_null().to_pylist())
        return found - set(self.names.values())

    def _hosts(self, column: pa.Array) -> pa.Array:
        lower = pc.utf8_lower(column)
        if not self.names:
            return lower
        distinct = lower.dictionary_encode()
        mapped = [self.names.get(host, host) for host in distinct.dictionary.to_pylist()]
        return pa.array(mapped, pa.string()).take(distinct.indices)

    def _links(self, column: pa.Array) -> pa.Array:
        distinct = column.dictionary_encode()
        mapped = [self._link(link) for link in distinct.dictionary.to_pylist()]
        return pa.array(mapped, pa.string()).take(distinct.indices)

    def _link(self, link: str) -> str:
        host, slash, rest = link.partition("/")
        if slash and "/" in rest:
            return f"{self.names.get(host.lower(), host)}/{rest}"
        return link


def _replace(batch: pa.RecordBatch, index: int, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(index, batch.schema.field(index), column)
