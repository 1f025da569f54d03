"""The ledger's key of an input, and which earlier readings a new one replaces.

The key is the content, the flags and the collector's version. Flags that say how to read
(``reading``) and a newer collector replace an earlier reading of the same content; flags that say
whose it is (``whose``) stand beside it. A file that grew begins with what was read before: its new
reading holds the earlier rows, so it replaces them, and what is added is the tail.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xtune.collectors._base import Context
from xtune.ingest._content import Content
from xtune.ingest.host_map import HostMap
from xtune.lake import ConflictError, InputRecord, Inputs

#: In ``whose``: the time that ``--time-from`` takes from the file's place, and its name where the
#: collector reads something from it. Two snapshots of an idle port, or the empty dumps of two
#: ranks, have the same content and are two readings where these differ.
TIME, NAME = "time", "name"


def reading_flags(context: Context, host_map: HostMap) -> dict[str, str]:
    """Flags that say how to read; those not given are absent.

    ``--kind`` is not among them: what it decides, the collector, is in the key.
    """
    flags = {"tz": context.tz, "time_from": context.time_from}
    flags |= {f"map.{ours}": theirs for ours, theirs in context.column_map.items()}
    if host_map.names:
        flags["host_map"] = host_map.digest
    return {name: value for name, value in sorted(flags.items()) if value is not None}


def whose_flags(context: Context, time: str | None, name: str | None) -> dict[str, str]:
    """Flags that say whose it is, and what its place says; those not given are absent."""
    rank = None if context.rank is None else str(context.rank)
    host = context.host.lower() if context.host else None
    flags = {"host": host, "job": context.job, "run": context.run, "rank": rank}
    flags |= {TIME: time, NAME: name}
    flags |= {f"label.{name}": value for name, value in context.labels.items()}
    return {name: value for name, value in sorted(flags.items()) if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """One input as it is about to be read.

    Attributes:
        path: Absolute path; empty for standard input.
        content: Its hashes.
        parser: The collector; empty where none reads it.
        parser_version: The collector's version.
        reading: See :func:`reading_flags`.
        whose: See :func:`whose_flags`.
    """

    path: str
    content: Content
    parser: str
    parser_version: int
    reading: Mapping[str, str]
    whose: Mapping[str, str]

    @property
    def id(self) -> str:
        """12 hex digits, the same wherever and whenever the same input is read alike."""
        key = [
            self.content.digest,
            self.parser,
            self.parser_version,
            dict(self.reading),
            dict(self.whose),
        ]
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]

    def earlier_sizes(self, inputs: Inputs, sign: str) -> Iterator[int]:
        """Lengths of earlier readings that this file may begin with."""
        for record in inputs.alike(path=self.path, head=sign):
            yield record.size

    def known(self, inputs: Inputs) -> InputRecord | None:
        """The reading that makes this one superfluous.

        The same (under its first id, where the file was followed), one by a newer version of the
        collector, or where no collector claims the input now one that was told with ``--kind``.
        """
        if self.id in inputs:
            return inputs[self.id]
        for record in self._same_content(inputs):
            newer = record.parser == self.parser and record.parser_version > self.parser_version
            if newer or self._is(record) or (record.parser and not self.parser):
                return record
        for record in inputs.alike(begins=self.content.digest):
            if self._reads_as(record):
                return record
        return None

    def within(self, inputs: Inputs) -> Iterator[InputRecord]:
        """Readings of longer files elsewhere that may begin with this one."""
        for record in inputs.alike(head=self.content.sign):
            longer = record.size > self.content.size and record.path != self.path
            marks = self.content.marks
            alike = record.marks[: len(marks)] == marks or not record.marks
            if longer and alike and self._reads_as(record):
                yield record

    def begins(self, inputs: Inputs) -> tuple[str, ...]:
        """Contents of files elsewhere that this reading stands for once it is recorded.

        Raises:
            ConflictError: Another process read the same meanwhile.
        """
        found: dict[str, None] = {}
        for record in map(inputs.__getitem__, self.supersedes(inputs)):
            found |= dict.fromkeys(record.begins)
            elsewhere = record.path != self.path and record.content != self.content.digest
            if record.parser and elsewhere:
                found[record.content] = None
        return tuple(found)

    def supersedes(self, inputs: Inputs) -> frozenset[str]:
        """Ids of the earlier readings whose rows this one replaces.

        Raises:
            ConflictError: Another process read the same meanwhile.
        """
        if self.known(inputs) is not None:
            raise ConflictError(f"input {self.id} is in the lake already")
        found = {record.id for record in self._same_content(inputs)}
        for record in inputs.alike(path=self.path, head=self.content.sign):
            # What could not be read at this path before, for want of rights or of a collector.
            retried = not record.parser and bool(self.path) and record.path == self.path
            if retried or self._continues(record):
                found.add(record.id)
        return frozenset(found)

    def _same_content(self, inputs: Inputs) -> Iterator[InputRecord]:
        for record in inputs.alike(content=self.content.digest):
            if self.same_owner(record):
                here = bool(self.path) and record.path == self.path
                if here or not any(self._differs(record, key) for key in (TIME, NAME)):
                    yield record

    def _is(self, record: InputRecord) -> bool:
        mine = (self.parser, self.parser_version, self.reading, self.whose)
        return mine == (record.parser, record.parser_version, record.reading, record.whose)

    def _differs(self, record: InputRecord, key: str) -> bool:
        both = key in self.whose and key in record.whose
        return both and self.whose[key] != record.whose[key]

    def _continues(self, record: InputRecord) -> bool:
        return (
            record.size < self.content.size
            and self.content.beginnings.get(record.size) == record.content
            and self.same_owner(record)
            and not self._differs(record, NAME)
        )

    def _reads_as(self, record: InputRecord) -> bool:
        """Whether rows of the same bytes are the same, as far as the owner goes."""
        named = self._differs(record, NAME)
        return record.parser == self.parser and self.same_owner(record) and not named

    def same_owner(self, record: InputRecord) -> bool:
        """Whether a reading is of the same host, job, run and rank."""
        return _owner(self.whose) == _owner(record.whose)


def _owner(whose: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in whose.items() if key not in (TIME, NAME)}
