"""NCCL's own NVTX ranges of an Nsight Systems export: which call launched a kernel.

Source: NCCL's ``src/include/nvtx_payload_schemas.h`` (domain NCCL, a range a call, payload with
communicator id, message size of one rank, ranks, rank) and NVTX's ``nvToolsExtPayload.h`` (types
of entries). The export has a payload as JSON text, or as bytes: 32 bytes of header (domain at 0,
schema at 8, size of the payload at 16), then entries at the offsets that the schema tells.

A kernel belongs to the call during which its thread launched it; inside a group to the one call
of that group, if it is the only one.
"""

from __future__ import annotations

import bisect
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xtune.collectors._collective import canonical_op
from xtune.collectors._nsight_db import ENTRIES, NVTX, STRINGS, Database
from xtune.collectors._values import natural, small, whole

_CALL = re.compile(r"^(?:nccl|rccl)([A-Z]\w{2,40})$")
_MAX_RANGES = 500_000
_LONGEST_CALL_NS = 60_000_000_000
_GROUP_START, _GROUP_END = "GroupStart", "GroupEnd"
_HEADER = struct.Struct("<IIIIQQ")
#: NVTX_PAYLOAD_ENTRY_TYPE_*: int, unsigned, long (long), (u)int32, (u)int64, size.
_FORMATS = {5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q"}
_FORMATS |= {15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
_MAX_ENTRIES = 10_000

Schemas = Mapping[tuple[int, int], list[tuple[str, str, int]]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of NCCL on the host.

    Attributes:
        start, end: Nanoseconds since the session's start.
        name: Without ``nccl``: AllReduce, GroupEnd.
        thread: The export's global id of the thread.
        comm: Communicator's id, where the payload has it.
        call_bytes: Count times element size of this rank's call.
        peer: Of a send or receive.
    """

    start: int
    end: int | None
    name: str
    thread: int | None
    comm: int | None
    call_bytes: int | None
    peer: int | None

    @property
    def op(self) -> str | None:
        """The operation in our words; null for a call that moves no data."""
        return canonical_op(self.name)


class Calls:
    """All calls of NCCL in an export.

    Attributes:
        comms: Ranks and own rank of communicators whose making is in the export.
        too_many: There are more than are held at once: none is.
    """

    def __init__(self, database: Database) -> None:
        """Read them.

        Raises:
            One of DAMAGE: The database is damaged.
        """
        self.comms: dict[tuple[int | None, int], tuple[int | None, int | None]] = {}
        self.too_many = False
        self._threads: dict[int | None, list[Call]] = {}
        if not database.has(NVTX, "start"):
            return
        self._names = database.names("_ccl%")
        schemas = _schemas(database)
        end, text, text_id, thread, json_text, binary = (
            database.column("n", NVTX, name)
            for name in ("end", "text", "textId", "globalTid", "jsonText", "binaryData")
        )
        where = f"{text} LIKE '_ccl%'"
        if database.has(STRINGS, "id", "value"):
            found = f"SELECT id FROM {STRINGS} WHERE value LIKE '_ccl%'"
            where += f" OR {text_id} IN ({found})"
            if database.has(NVTX, "jsonTextId"):
                value = f"SELECT value FROM {STRINGS} WHERE id = n.jsonTextId"
                json_text = f"COALESCE({json_text}, ({value}))"
        count = 0
        for row in database.rows(
            f"SELECT n.start, {end}, {text}, {text_id}, {thread}, {json_text}, {binary} "
            f"FROM {NVTX} n WHERE {where}"
        ):
            call = self._call(row, schemas)
            count += call is not None
            if count > _MAX_RANGES:
                self.too_many = True
                self._threads.clear()
                return
            if call is not None:
                self._threads.setdefault(call.thread, []).append(call)
        for calls in self._threads.values():
            calls.sort(key=lambda call: call.start)

    def _call(self, row: tuple[Any, ...], schemas: Schemas) -> Call | None:
        start, end, text, text_id, thread, json_text, binary = row
        name = text if isinstance(text, str) else self._names.get(text_id)
        named = _CALL.match(name) if name is not None else None
        start, thread = natural(start), natural(thread)
        if named is None or start is None:
            return None
        said = _from_json(json_text) or _from_bytes(binary, schemas)
        comm = _unsigned(said.get("communicator id"))
        if comm is not None and "no. of ranks" in said:
            key = process_of(thread), comm
            self.comms[key] = small(said["no. of ranks"]) or None, small(said.get("rank"))
        return Call(
            start,
            natural(end),
            named[1],
            thread,
            comm,
            natural(said.get("message size [bytes]")),
            small(said.get("peer rank")),
        )

    @property
    def operations(self) -> list[Call]:
        """Calls that move data, thread by thread in order."""
        return [call for calls in self._threads.values() for call in calls if call.op]

    def launching(self, thread: int | None, time: int | None) -> Call | None:
        """The one call that launched a kernel at ``time`` on ``thread``, where it is known."""
        calls = self._threads.get(thread)
        if thread is None or time is None or not calls:
            return None
        at = bisect.bisect_right(calls, time, key=lambda call: call.start) - 1
        while at >= 0:
            call = calls[at]
            if call.start < time - _LONGEST_CALL_NS:
                return None
            inside = call.end is not None and call.end >= time
            if inside and call.op:
                return call
            if inside and call.name == _GROUP_END:
                return self._only_one(calls[max(0, at - 64) : at])
            at -= 1
        return None

    def _only_one(self, before: list[Call]) -> Call | None:
        """The one operation since the group's start, going back over groups within it."""
        found: list[Call] = []
        depth = 1
        for call in reversed(before):
            depth += (call.name == _GROUP_END) - (call.name == _GROUP_START)
            if depth == 0:
                return found[0] if len(found) == 1 else None
            if call.op:
                found.append(call)
        return None


def process_of(thread: int | None) -> int | None:
    """Process id in a global thread id: bits 24 to 47; the thread's own are below."""
    return None if thread is None else thread >> 24 & 0xFFFFFF


def _schemas(database: Database) -> Schemas:
    found: dict[tuple[int, int], list[tuple[str, str, int]]] = {}
    if not database.has(ENTRIES, "domainId", "schemaId", "type", "name", "offset"):
        return found
    query = f"SELECT domainId, schemaId, type, name, offset FROM {ENTRIES} LIMIT {_MAX_ENTRIES}"
    for domain, schema, kind, name, offset in database.rows(query):
        layout = _FORMATS.get(kind) if isinstance(kind, int) else None
        place = whole(0 if offset is None else offset, low=0, high=65536)
        known = isinstance(domain, int) and isinstance(schema, int) and isinstance(name, str)
        if layout is not None and place is not None and known:
            found.setdefault((domain, schema), []).append((name, layout, place))
    return found


def _from_bytes(data: Any, schemas: Schemas) -> dict[str, Any]:
    if isinstance(data, str):  # a column declared as text has the bytes in hexadecimal
        try:
            data = bytes.fromhex(data[:8192])
        except ValueError:
            return {}
    if not isinstance(data, bytes) or len(data) < _HEADER.size:
        return {}
    domain, _, schema, _, size, _ = _HEADER.unpack_from(data)
    payload = data[_HEADER.size : _HEADER.size + size] if size <= 65536 else b""
    return {
        _key(name): struct.unpack_from(layout, payload, place)[0]
        for name, layout, place in schemas.get((domain, schema), ())
        if place + struct.calcsize(layout) <= len(payload)
    }


def _from_json(text: Any) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > 65536:
        return {}
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, Any] = {}
    stack = [said]
    while stack and len(found) < 64:
        value = stack.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                found.setdefault(_key(key), inner)
                stack.append(inner)
        elif isinstance(value, list):
            stack.extend(value[:64])
    return found


def _key(name: str) -> str:
    return name.lower().removeprefix("nccl ").strip()


def _unsigned(value: Any) -> int | None:
    """A 64-bit id, which SQLite and JSON may show as a negative number or as text."""
    try:
        number = int(value[:40].replace(",", ""), 0) if isinstance(value, str) else value
    except ValueError:
        return None
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number % (1 << 64) or None if -(1 << 63) <= number < 1 << 64 else None
