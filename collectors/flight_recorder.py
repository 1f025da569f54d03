"""PyTorch's NCCL Flight Recorder: one dump a rank, a pickle or (``dump_json``) JSON.

Source of the format: torch/csrc/distributed/c10d/FlightRecorder*. A dump holds the last
operations of a ring buffer, so that dumps of different ranks start at different operations:
``(comm, seq)`` aligns them, never the position.

When it lies: ``time_created_ns`` is when the host enqueued the operation; the discovery times are
when a watchdog looked, so neither is a start. ``duration_ms`` is there only with
``TORCH_NCCL_ENABLE_TIMING``. Sends and receives have no number in their group: ``seq`` is null.

An **empty dump** (no entries) is evidence: a process that could not answer, or has nothing under
way where only active operations are dumped. It becomes one row whose ``op`` is ``empty_dump`` and
whose ``state`` is ``empty``; ``comm``, ``seq`` and all times are null, so that it joins no
operation. The first row of every dump has in ``extra`` what the dump says as a whole:
``process_groups`` (name -> ranks) and ``process_group_status`` (id -> last enqueued, started,
completed) as JSON.

The rank of a dump is, in this order: the one rank that is in every process group of the dump (a
process records only groups that it belongs to), what the user says, the digits at the end of a
file name like ``nccl_trace_rank_3`` (a separator, then digits, then nothing), which is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    RowBuffer,
    Source,
    Unknown,
)
from xtune.collectors._collective import (
    DTYPE_BYTES,
    POINT_TO_POINT,
    canonical_op,
    group_comm,
    ranks_of,
    size_from_tensors,
    torch_dtype,
)
from xtune.collectors._json_items import Element, Elements, as_utf8
from xtune.collectors._plain_pickle import MAX_BYTES, UnsafePickleError, load_plain
from xtune.collectors._textlines import READ_ERRORS
from xtune.collectors._values import (
    MAX_HELD_BYTES,
    as_extra,
    held_bytes,
    natural,
    positive,
    scaled,
    small,
    text,
)

EMPTY_DUMP = "empty_dump"

#: Forks rename what is the library's (bccl_comm_state), not these.
_KEYS = frozenset(
    {"version", "nccl_version", "comm_lib_version", "pg_config", "pg_status", "entries"}
)
_WORDS = (
    b"pg_config",
    b"pg_status",
    b"nccl_version",
    b"comm_lib_version",
    b"collective_seq_id",
    b"time_discovered_started_ns",
)

_FILE_RANK = re.compile(r"[_\-.](\d{1,7})$")
_PEERS = re.compile(r"^(\d+)\s*(?:->|<-)\s*(\d+)$")
_MAX_TENSORS = 4096
_MAX_WHOLE = 1 << 21
_MAX_DIMENSIONS = 64


class FlightRecorder(Collector):
    """Reads dumps of PyTorch's NCCL Flight Recorder."""

    name = "flight_recorder"
    name_tells = True
    version = 3
    title = "PyTorch NCCL Flight Recorder dumps (pickle or JSON)"
    produce = (
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/shared/nccl_trace_rank_"
    )
    gives = "each rank's last collectives: order, sizes, state, what never came; empty dumps too"
    lacks = "start times; durations unless TORCH_NCCL_ENABLE_TIMING=1"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the words of a dump stand in a pickle; low for any other pickle."""
        known = sum(word in head for word in _WORDS)
        if len(head) > 1 and head[0] == 0x80 and head[1] in (2, 3, 4, 5):
            return 0.97 if known >= 2 else 0.3
        # A profiler trace has pg_config and nccl_version too.
        own = b'"pg_status"' in head or b'"collective_seq_id"' in head
        text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        return 0.95 if text[:1] == b"{" and known >= 2 and own else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row an entry, or one ``empty_dump`` row."""
        try:
            with source.open() as stream:
                data = stream.read(MAX_BYTES + 1)
        except READ_ERRORS as error:
            yield Reject("byte 0", f"cannot be read: {error}")
            return
        if not data:
            yield Reject("byte 0", "the file is empty", "the process died before it wrote")
            return
        if len(data) > MAX_BYTES:
            yield Reject(f"byte {MAX_BYTES}", "larger than any Flight Recorder dump")
            return
        try:
            dump = _load(data)
        except UnsafePickleError as error:
            yield Reject("byte 0", f"not loaded, because it is not plain data: {error}")
            return
        except (ValueError, RecursionError) as error:
            entries = list(_salvaged(source)) if b"{" in data[:64] else []
            kept = f"; {len(entries)} whole entries are kept" if entries else ""
            hint = "the dump was cut or is of another program"
            yield Reject("byte 0", f"{str(error)[:200]}{kept}", hint)
            if not entries:
                return
            dump = {"entries": entries}
        if not isinstance(dump, dict) or not {"entries", "pg_config", "pg_status"} & dump.keys():
            yield Reject("byte 0", "not a Flight Recorder dump: no entries, no process groups")
            return
        yield from _Dump(dump, source, context).items()


def _load(data: bytes) -> Any:
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{":
        if held_bytes(text) > MAX_HELD_BYTES:
            raise UnsafePickleError("it is JSON of more values than a dump has")
        return json.loads(text)
    return load_plain(data)


def _salvaged(source: Source) -> Iterator[dict[str, Any]]:
    """Whole entries of JSON that is cut or broken elsewhere; keys of an entry are sorted."""
    for element in Elements(source, "entries", start=r'\{\s*"[a-z]'):
        if isinstance(element, Element):
            group = element.value.get("process_group")
            if isinstance(group, list):
                element.value["process_group"] = [as_utf8(word) for word in group]
            yield element.value


class _Dump:
    """One dump, read with suspicion: every field may be absent or of another type."""

    def __init__(self, dump: dict[Any, Any], source: Source, context: Context) -> None:
        self._context = context
        self._source = source
        self._entries = dump.get("entries")
        self._version = text(dump.get("version"))
        # Since dump version 2.10 the library's version has a name for any library.
        self._nccl = text(dump.get("nccl_version") or dump.get("comm_lib_version"))
        self._unknown = [
            key
            for key in dump
            if isinstance(key, str) and key not in _KEYS and not key.endswith("_comm_state")
        ]
        self._groups = _groups(dump.get("pg_config"))
        self._status = _status(dump.get("pg_status"))
        self._sizes: dict[int, int | None] = {}

    def items(self) -> Iterator[Item]:
        entries = self._entries if isinstance(self._entries, (list, tuple)) else ()
        rank, note = self._rank([e for e in entries if isinstance(e, dict)])
        if note is not None:
            yield note
        for key in self._unknown[:64]:
            yield Unknown(text(key, 64) or "")
        rows = RowBuffer("collectives", self._context)
        if not entries:
            rows.add(self._empty_row(rank))
            yield Note("empty Flight Recorder dump: kept as an empty_dump row")
        first = True
        for index, entry in enumerate(entries):
            row = self._row(entry, rank) if isinstance(entry, dict) else None
            if row is None:
                yield Reject(f"entry {index}", "an entry without process group or operation")
                continue
            if first:
                row["extra"] |= self._whole()
                first = False
            rows.add(row)
            if rows.full:
                yield from rows.flush()
        yield from rows.flush()

    def _rank(self, entries: list[dict[Any, Any]]) -> tuple[int | None, Note | None]:
        members = [set(ranks) for ranks in self._groups.values() if ranks]
        for entry in entries[:_MAX_TENSORS]:
            name, _ = _process_group(entry)
            peers = _PEERS.match(_profiling_name(entry).partition(" ")[2])
            ranks = self._groups.get(name or "")
            if peers and ranks and int(peers[1]) < len(ranks):
                members.append({ranks[int(peers[1])]})
        candidates = set.intersection(*members) if members else None
        given = self._context.rank
        if candidates and len(candidates) == 1:
            (rank,) = candidates
            if given is not None and given != rank:
                return rank, Note(f"rank {rank} is what the dump says, not the rank given")
            return rank, None
        if given is not None:
            return given, None
        digits = _FILE_RANK.search(Path(self._source.name).name)
        if digits and (not candidates or int(digits[1]) in candidates):
            return int(digits[1]), Note("rank taken from the digits that end the file name")
        return None, Note("rank is not known: give --rank")

    def _empty_row(self, rank: int | None) -> dict[str, Any]:
        return {
            "job": self._context.job,
            "host": self._context.host,
            "rank": rank,
            "op": EMPTY_DUMP,
            "state": "empty",
            "extra": as_extra({"version": self._version, "nccl_version": self._nccl})
            | self._whole(),
        }

    def _whole(self) -> dict[str, str]:
        """What a dump says beside its entries; left out where it is larger than any dump's."""
        whole = {"process_groups": self._groups, "process_group_status": self._status}
        shown = {key: json.dumps(value, sort_keys=True) for key, value in whole.items()}
        return {key: value for key, value in shown.items() if len(value) <= _MAX_WHOLE}

    def _row(self, entry: dict[Any, Any], rank: int | None) -> dict[str, Any] | None:
        group, description = _process_group(entry)
        raw = _profiling_name(entry)
        words = raw.partition(" ")
        if group is None or not raw:
            return None
        op = canonical_op(raw) or words[0].rpartition(":")[2]
        point_to_point = op in POINT_TO_POINT or entry.get("is_p2p") is True
        ranks = self._groups.get(group)
        size = len(ranks) if ranks else None
        sent = self._tensor_bytes(entry.get("input_sizes"), entry.get("input_dtypes"))
        received = self._tensor_bytes(entry.get("output_sizes"), entry.get("output_dtypes"))
        known = sent is not None and received is not None
        status = self._status.get(str(natural(entry.get("pg_id"))), {})
        return {
            "enqueue_ts": positive(entry.get("time_created_ns")),
            "duration_ns": scaled(entry.get("duration_ms"), 1_000_000),
            "job": self._context.job,
            "host": self._context.host,
            "rank": small(rank),
            "comm_rank": ranks.index(rank) if ranks and rank in ranks else None,
            "comm": group_comm(group),
            "comm_size": size,
            # Before PyTorch 2.4 it was called seq_id.
            "seq": None
            if point_to_point
            else natural(entry.get("collective_seq_id", entry.get("seq_id"))),
            "op": text(op, 256),
            "dtype": _first_dtype(entry),
            "message_bytes": natural(size_from_tensors(op, sent or 0, received or 0, size))
            if known
            else None,
            "state": text(entry.get("state"), 64),
            "extra": as_extra(
                {
                    "profiling_name": text(raw, 256),
                    "group_description": description,
                    "record_id": natural(entry.get("record_id")),
                    "op_id": natural(entry.get("op_id")),
                    "pg_id": natural(entry.get("pg_id")),
                    "collective_seq": natural(entry.get("collective_seq_id"))
                    if point_to_point
                    else None,
                    "p2p_seq": natural(entry.get("p2p_seq_id")) if point_to_point else None,
                    "peer": words[2] or None,
                    "retired": entry.get("retired")
                    if isinstance(entry.get("retired"), bool)
                    else None,
                    "timeout_ms": natural(entry.get("timeout_ms")),
                    "discovered_started_ns": positive(entry.get("time_discovered_started_ns")),
                    "discovered_completed_ns": positive(entry.get("time_discovered_completed_ns")),
                    "group_last_enqueued": status.get("enqueued"),
                    "group_last_started": status.get("started"),
                    "group_last_completed": status.get("completed"),
                }
            ),
        }

    def _tensor_bytes(self, sizes: Any, dtypes: Any) -> int | None:
        """Bytes of a list of tensor shapes; null where a shape or its type is not known."""
        if not isinstance(sizes, (list, tuple)) or len(sizes) > _MAX_TENSORS:
            return None
        names = dtypes if isinstance(dtypes, (list, tuple)) else [dtypes]
        total = 0
        for index, shape in enumerate(sizes):
            name = names[index] if index < len(names) else names[-1] if names else None
            width = DTYPE_BYTES.get(torch_dtype(name) or "") if isinstance(name, str) else None
            if width is None or not isinstance(shape, (list, tuple)):
                return None
            if len(shape) > _MAX_DIMENSIONS:
                return None
            for length in shape:
                count = natural(length)
                if count is None:
                    return None
                width *= count
            total += width
        return total


def _groups(config: Any) -> dict[str, list[int]]:
    """Process groups by name with their global ranks, which a dump writes as text."""
    groups: dict[str, list[int]] = {}
    if not isinstance(config, dict):
        return groups
    for key, group in config.items():
        if not isinstance(group, dict):
            continue
        name = text(group.get("name")) or text(key)
        if name is not None:
            groups[name] = ranks_of(group.get("ranks")) or []
    return groups


def _status(status: Any) -> dict[str, dict[str, int]]:
    """Last operation of each process group, by the group's id in this process; -1 left out."""
    found: dict[str, dict[str, int]] = {}
    if not isinstance(status, dict):
        return found
    for key, group in status.items():
        if isinstance(group, dict):
            figures = {
                word: natural(group.get(f"last_{word}_collective"))
                for word in ("enqueued", "started", "completed")
            }
            found[str(key)[:64]] = {word: n for word, n in figures.items() if n is not None}
    return found


def _process_group(entry: dict[Any, Any]) -> tuple[str | None, str | None]:
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group:
        return text(group[0], 256), text(group[1], 256) if len(group) > 1 else None
    return text(group, 256), None


def _profiling_name(entry: dict[Any, Any]) -> str:
    return text(entry.get("profiling_name"), 256) or ""


def _first_dtype(entry: dict[Any, Any]) -> str | None:
    for key in ("input_dtypes", "output_dtypes"):
        names = entry.get(key)
        if isinstance(names, (list, tuple)) and names and isinstance(names[0], str):
            return torch_dtype(names[0]) or text(names[0], 64)
    return None


COLLECTOR = FlightRecorder()
