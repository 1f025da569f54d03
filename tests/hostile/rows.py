"""What must hold of every row that any collector makes of any bytes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from xtune.collectors import Note, Reject, Rows, Unknown
from xtune.tables import COUNTERS, TABLES

_GUID = re.compile(r"0x[0-9a-f]{16}")
_SHARES = frozenset({"utilization", "sm_active", "density", "depth", "occupancy"})
_NOT_NEGATIVE = frozenset(
    {
        *("duration_ns", "rank", "comm_rank", "seq", "message_bytes", "algbw_gigabytes_s"),
        *("busbw_gigabytes_s", "port", "src_port", "dst_port", "lane", "path", "rtt_ns", "step"),
        *("tokens", "step_time_s", "skipped", "elements", "norm", "memory_used_bytes", "power_w"),
        *("raw_ber", "effective_ber", "error_rate", "tier"),
    }
)
_ABOVE_ZERO = frozenset({"comm_size", "interval_s", "rate_gbps", "xmit_wait_tick"})
#: What a tool logs as it is, NaN and infinity included.
_AS_LOGGED = frozenset({"loss", "grad_norm", "learning_rate", "norm"})
_GUIDS = frozenset({"node_guid", "port_guid", "src_guid", "dst_guid"})
#: What a value belongs to.
_KEYS = {
    "link_counters": ("link", "ts"),
    "link_signal": ("link", "lane", "ts"),
    "ports": ("link",),
    "topology_links": ("src_guid", "src_port"),
    "steps": ("step", "split"),
    "decisions": ("ts", "step", "kind"),
    "link_probes": ("ts", "path"),
    "layer_gradients": ("step", "layer"),
    "gpu_samples": ("host", "gpu", "ts"),
}
#: Columns that other lines decide: what is cut off may change them.
_OF_THE_WHOLE = frozenset({"tier", "labels", "extra", "saturated", "interval_s"})
#: Links of ports without a host hold a hash of the input.
_HASH = re.compile(r"unknown-[0-9a-f]{12}")
_STUCK = 2**64 - 1
#: The longest text that belongs in one cell.
_LONGEST = 1 << 16
#: The summary shortens what is longer than a line; this bounds the memory.
_LONGEST_MESSAGE = 1 << 18


class WrongRowError(AssertionError):
    """A collector yielded what no input can justify."""


@dataclass(kw_only=True, slots=True)
class Found:
    """All that a collector yielded; times are integers."""

    rows: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    def cells(self) -> set[str]:
        """Each value with what it is a value of; sets of a cut input and of the whole compare."""
        return {
            _HASH.sub("unknown", repr((table, [row[key] for key in keys], name, value)))
            for table, row in self.rows
            if (keys := _KEYS.get(table))
            for name, value in row.items()
            if value is not None and name not in _OF_THE_WHOLE
        }

    def bag(self, columns: Iterable[str] | None = None) -> Counter[str]:
        """Rows as a multiset, of some columns where given (of the tables that have them)."""
        names = None if columns is None else tuple(columns)
        return Counter(
            repr((table, row if names is None else [row[name] for name in names]))
            for table, row in self.rows
            if names is None or all(name in row for name in names)
        )


def gather(items: Iterable[object]) -> Found:
    """Take a collector's items apart, checking each.

    Raises:
        WrongRowError: Something among them cannot be.
    """
    found = Found()
    for item in items:
        match item:
            case Rows(table=table, batch=batch):
                found.rows += ((table, row) for row in _checked(table, batch))
            case Reject(offset=offset, reason=reason, hint=hint):
                _message("reject", offset, reason, hint)
                _require(bool(offset and reason), f"a reject without place or reason: {item}")
                found.rejects.append(item)
            case Note(text=text, count=count):
                _message("note", text)
                _require(bool(text) and count > 0, f"not a note: {item}")
                found.notes[text] += count
            case Unknown(name=name, count=count):
                _message("unknown name", name)
                _require(count > 0, f"not a count: {item}")
                found.unknown[name] += count
            case _:
                raise WrongRowError(f"not an item: {item!r}")
    return found


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise WrongRowError(what[:500])


def _message(what: str, *texts: str) -> None:
    for text in texts:
        _require(len(text) <= _LONGEST_MESSAGE, f"{what} of {len(text)} characters: {text[:80]!r}")


def _checked(table: str, batch: pa.RecordBatch) -> Iterable[dict[str, Any]]:
    wanted = pa.schema([f for f in TABLES[table].schema if f.name != "source"])
    _require(batch.schema.equals(wanted), f"{table}: not the table's schema")
    batch.validate(full=True)
    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns[name] = column.to_pylist()
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        for name, value in row.items():
            if value is not None:
                _cell(table, name, value)
        _together(table, row)
        yield row


def _cell(table: str, name: str, value: Any) -> None:
    where = f"{table}.{name} = {str(value)[:80]!r}"
    if name == "ts" or name.endswith("_ts"):
        _require(value >= 0, f"{where}: before 1970")
    elif isinstance(value, float) and name not in _AS_LOGGED:
        _require(math.isfinite(value), f"{where}: not finite")
    if name in _NOT_NEGATIVE:
        _require(not value < 0, f"{where}: negative")
    elif name in _ABOVE_ZERO:
        _require(value > 0, f"{where}: not above zero")
    elif name in _SHARES:
        _require(0 <= value <= 1, f"{where}: not a share")
    elif name in _GUIDS:
        _require(bool(_GUID.fullmatch(value)), f"{where}: not a GUID")
        _require(int(value, 16) != 0, f"{where}: no GUID")
    elif name in COUNTERS:
        _require(value != _STUCK, f"{where}: at its maximum, so unknown")
    elif name == "host":
        _require(value == value.lower() and value != "", f"{where}: not lower case, or empty")
    if isinstance(value, str):
        _require(len(value) <= _LONGEST, f"{table}.{name}: {len(value)} characters")
    elif name in ("labels", "extra"):
        for key, text in value:
            _require(isinstance(key, str) and len(key) <= _LONGEST, f"{where}: a key")
            _require(not isinstance(text, str) or len(text) <= _LONGEST, f"{where}: a value")


def _together(table: str, row: dict[str, Any]) -> None:
    """What columns of one row must not say of each other."""
    if table == "link_counters":
        for name in row["saturated"] or ():
            known = row.get(name) if name in COUNTERS else None
            _require(known is None, f"{name} is saturated and {known}")
        _require(bool(row["link"]), "counters of no link")
    elif table == "collectives":
        rank, size = row["comm_rank"], row["comm_size"]
        inside = rank is None or size is None or rank < size
        _require(inside, f"rank {rank} of {size}")
    elif table == "topology_links":
        ends = [(row[f"{end}_guid"], row[f"{end}_port"]) for end in ("src", "dst")]
        _require(ends[0] != ends[1] or None in ends[0], f"a link from a port to itself: {ends[0]}")
