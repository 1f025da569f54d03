"""Reads one input into one transaction."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from xtune.collectors._base import Collector, Context, Item, Note, Reject, Rows, Source, Unknown
from xtune.errors import LakeError
from xtune.ingest.host_map import HostMap
from xtune.ingest.summary import FileResult, FileState
from xtune.lake import REJECTED, Transaction
from xtune.tables import TABLES

# A binary file forced through a text collector would reject each line: these are stored, the rest
# is counted.
STORED_REJECTS = 1000
SHOWN_REJECTS = 5
SHOWN_HOSTS = 20
LISTED_UNKNOWN = 200
LISTED_NOTES = 200
# What a message quotes of a damaged input may be megabytes.
_LONGEST_TEXT, _LONGEST_NAME = 1000, 200


def utf8(text: str) -> str:
    """``text`` as UTF-8 can hold it: names may be any bytes, JSON may escape half a pair."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _short(text: str, limit: int = _LONGEST_TEXT) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


@dataclass(kw_only=True, slots=True)
class Reading:
    """What one input gave."""

    rows: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    rejects: int = 0
    stored: list[Reject] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    first_ns: int | None = None
    last_ns: int | None = None

    @classmethod
    def of(cls, reject: Reject) -> Reading:
        """What an input gives that cannot be read at all."""
        reading = cls()
        reading.reject(reject)
        return reading

    @property
    def reasons(self) -> tuple[Reject, ...]:
        """The first rejects."""
        return tuple(self.stored[:SHOWN_REJECTS])

    def result(
        self,
        path: str,
        *,
        collector: str | None,
        source: str,
        state: FileState,
        warned: Mapping[str, int] | None = None,
    ) -> FileResult:
        """The result of an input that gave this; ``warned``: notes of where it came from."""
        return FileResult(
            path=path,
            collector=collector,
            source=source,
            state=state,
            rows=dict(self.rows),
            rejects=self.rejects,
            reasons=self.reasons,
            notes={**self.notes, **(warned or {})},
            unknown=dict(self.unknown),
            first_ns=self.first_ns,
            last_ns=self.last_ns,
        )

    @property
    def state(self) -> FileState:
        """``rejected`` where nothing but rejects was read."""
        return "rejected" if self.rejects and not self.rows.total() else "read"

    def rows_read(self, table: str, batch: pa.RecordBatch) -> None:
        """Count rows, and widen the span of time that they cover."""
        self.rows[table] += batch.num_rows
        times = batch.column(TABLES[table].time).cast(pa.int64())
        span = pc.min_max(times).as_py()
        if span["min"] is not None:
            known = [ns for ns in (self.first_ns, self.last_ns) if ns is not None]
            self.first_ns = min([span["min"], *known])
            self.last_ns = max([span["max"], *known])

    def unknown_name(self, name: str, count: int) -> None:
        """Count a name that the collector does not know; later ones beyond many as one."""
        name = _short(utf8(name), _LONGEST_NAME)
        if name not in self.unknown and len(self.unknown) >= LISTED_UNKNOWN:
            name = "(others)"
        self.unknown[name] += count

    def note(self, text: str, count: int) -> None:
        """Count a note; those beyond many as one."""
        text = _short(utf8(text))
        if text not in self.notes and len(self.notes) >= LISTED_NOTES:
            text = "more notes, of other words"
        self.notes[text] += count

    def reject(self, reject: Reject) -> None:
        """Count a reject, and keep it if there is room."""
        self.rejects += 1
        if len(self.stored) < STORED_REJECTS:
            fields = (reject.offset, reject.reason, reject.hint)
            self.stored.append(Reject(*(_short(utf8(field)) for field in fields)))


def read_input(
    collector: Collector,
    source: Source,
    context: Context,
    hosts: HostMap,
    transaction: Transaction | None,
    source_id: str,
    *,
    debug: bool,
) -> Reading:
    """Read an input and write its rows.

    Args:
        collector: Reads it.
        source: The input.
        context: What the user says of it.
        hosts: Applied to host columns.
        transaction: Where rows go; None writes nothing.
        source_id: Fills the column ``source``.
        debug: Let an exception of the collector through.
    """
    reading = Reading()
    unmatched: set[str] = set()
    for item in _items(collector, source, context, debug=debug):
        match item:
            case Rows(table=table, batch=batch):
                try:
                    mapped = hosts.apply(batch)
                    if transaction is not None:
                        transaction.write(table, mapped, source=source_id)
                    reading.rows_read(table, batch)
                    unmatched |= hosts.unmatched(mapped)
                except (LakeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                    if debug:
                        raise
                    reading.reject(_bug(collector, error))
            case Reject():
                reading.reject(item)
            case Note(text=text, count=count):
                reading.note(text, count)
            case Unknown(name=name, count=count):
                reading.unknown_name(name, count)
    for host in sorted(unmatched)[:SHOWN_HOSTS]:
        reading.notes[f"host {host} is not in the host map: kept as read"] += 1
    if len(unmatched) > SHOWN_HOSTS:
        reading.notes["more hosts are not in the host map"] += len(unmatched) - SHOWN_HOSTS
    return reading


def write_rejects(
    transaction: Transaction, reading: Reading, result: FileResult, now_ns: int
) -> None:
    """Write the rejects of one input into the table ``rejected``."""
    kept = reading.stored
    if reading.rejects > len(kept):
        more = f"{reading.rejects - len(kept)} more pieces, the first {len(kept)} are listed"
        kept = [*kept, Reject("after them", more)]
    rows = [
        {
            "ts": now_ns,
            "file": result.path,
            "offset": reject.offset,
            "reason": reject.reason,
            "hint": reject.hint or None,
            "collector": result.collector,
            "source": result.source,
        }
        for reject in kept
    ]
    if rows:
        transaction.write(REJECTED.name, pa.Table.from_pylist(rows, schema=REJECTED.schema))


def _items(
    collector: Collector, source: Source, context: Context, *, debug: bool
) -> Iterator[Item]:
    """A collector's items; an exception ends them with a reject, what came before is kept."""
    try:
        yield from collector.read(source, context)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield Reject("end", f"damaged gzip: {error}", "copy it again; what came before is kept")
    except OSError as error:
        yield Reject("file", f"cannot be read: {error.strerror or error}", "check the file")
    except Exception as error:  # a collector may be anyone's; one bad file costs itself only
        if debug:
            raise
        yield _bug(collector, error)


def _bug(collector: Collector, error: Exception) -> Reject:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return Reject(
        "file",
        f"collector {collector.name} failed: {text}",
        "a bug of the collector: --debug shows where; what came before is kept",
    )
