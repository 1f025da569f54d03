"""Samples for the kernel: straight from a compacted file of counters, or from merged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from xtune.pipelines._convert import counter, together
from xtune.pipelines._engine import Session, duck_type, literal, with_inputs
from xtune.pipelines._model import load_model
from xtune.pipelines._samples import SAMPLE, metadata_of
from xtune.pipelines._stream import BATCH_ROWS, FLOATS, Arrays, Feed
from xtune.tables import LINK_COUNTERS

_ERRORS = (
    "symbol_error",
    "port_rcv_errors",
    "link_error_recovery",
    "link_downed",
    "local_link_integrity_errors",
)
_RESENT = (
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
)
_MARKS = ("np_ecn_marked_roce_packets", "rp_cnp_handled")
#: Columns of ``link_counters`` that a column of ``samples_direct`` rests on beside ``saturated``
#: (what tells an Ethernet port is known by what is there at all).
RESTS_ON: dict[str, tuple[str, ...]] = {
    "data_rate_bytes_s": ("rate_gbps",),
    "tick": ("xmit_wait_tick",),
    "tx_bytes": ("port_xmit_data", "data_unit_bytes"),
    "rx_bytes": ("port_rcv_data", "data_unit_bytes"),
    "wait_ticks": ("port_xmit_wait",),
    "discards": ("port_xmit_discards",),
    "pause_us": ("rx_pause_duration",),
    "tx_pause_us": ("tx_pause_duration",),
    "errors": _ERRORS,
    "errors_present": (),
    "symbols": ("symbol_error",),
    "marks": _MARKS,
    "marks_present": (),
    "cnps": ("rp_cnp_handled",),
    "resent": _RESENT,
    "resent_present": (),
}
#: Columns whose being there, and no more, a column of ``samples_direct`` rests on.
RESTS_ON_PRESENCE: dict[str, tuple[str, ...]] = {
    "data_rate_bytes_s": ("rx_pause_duration", "np_ecn_marked_roce_packets"),
    "errors_present": _ERRORS,
    "marks_present": _MARKS,
    "resent_present": _RESENT,
}
_AS_THEY_ARE = ("ts", "link")
_LEFT_OUT = ("host", "device", "port", "node_guid", "source", "labels", "extra", "interval_s")
#: Octets of a data counter's word where the source does not say (macro ``octets``).
_WORD_BYTES = 4
_VARIES = object()
_SOMETIMES = object()


def direct_feed(session: Session, path: Path) -> Feed:
    """Rows of a compacted file of counters; what they have in common is taken from its statistics.

    A fabric has a third of the counters there are: what a file lacks costs nothing.
    """
    metadata = metadata_of(path)
    common = _common(metadata)
    sql = load_model("samples_direct").sql
    selects = []
    for field in LINK_COUNTERS.schema:
        if field.name in _LEFT_OUT:
            continue
        value, kind = common.get(field.name, _VARIES), duck_type(field.type)
        if value is _VARIES or value is _SOMETIMES:
            selects.append(f'"{field.name}"')
        else:
            selects.append(f'{literal(value)}::{kind} AS "{field.name}"')
    columns = ", ".join(selects)
    # One row of what is common: a column that is in each row counts as 0.
    probe = ", ".join(
        f"0::{duck_type(LINK_COUNTERS.schema.field(name).type)} AS {text}"
        if (name := text.strip('"')) in LINK_COUNTERS.schema.names and name not in ("ts", "link")
        else text
        for text in selects
    )
    nowhere = "(SELECT NULL::TIMESTAMPTZ_NS AS ts, NULL::VARCHAR AS link)"
    fixed = [
        name
        for name in SAMPLE.names
        if name in RESTS_ON
        and all(common.get(raw, _VARIES) is not _VARIES and common[raw] is not _SOMETIMES
                for raw in RESTS_ON[name])
        and all(common.get(raw) is not _SOMETIMES for raw in RESTS_ON_PRESENCE.get(name, ()))
        and common.get("saturated", _VARIES) is None
    ]  # fmt: skip
    constants: dict[str, Any] = {"restarts": False}
    if fixed:
        row = f"(SELECT {probe} FROM {nowhere})"
        values = session.constants(f"SELECT {', '.join(fixed)} FROM ({with_inputs(sql, raw=row)})")
        constants |= dict(zip(fixed, values, strict=True))

    if _is_plain(common, constants):
        batches = _plain(path, metadata, common, constants, threads=session.threads)
        return Feed(batches=batches, constants=constants, queries=False)

    def source(low: int, high: int) -> str:
        raw = f"(SELECT {columns} FROM {_rows(path, low, high)})"
        return f"({with_inputs(sql, raw=raw)})"

    return Feed(batches=_queried(source, constants), constants=constants, queries=True)


def merged_feed(path: Path) -> Feed:
    """Rows of a file of merged samples."""
    constants = {"restarts": False}
    batches = _queried(lambda low, high: _rows(path, low, high), constants)
    return Feed(batches=batches, constants=constants, queries=True)


def _queried(
    source: Callable[[int, int], str], constants: Mapping[str, Any]
) -> Callable[[Session, int, int], Iterator[Arrays]]:
    """Batches of a FROM item that has the columns of samples."""
    names = [name for name in SAMPLE.names if name not in constants]
    selected = ", ".join(
        f"epoch_ns(ts) AS {name}"
        if name == "ts"
        else f"coalesce({name}, 'nan'::DOUBLE) AS {name}"
        if name in FLOATS
        else f"coalesce({name}::BIGINT, -2) AS {name}"
        for name in names
    )

    def batches(session: Session, low: int, high: int) -> Iterator[Arrays]:
        query = f"SELECT {selected} FROM {source(low, high)}"
        for batch in session.connection.sql(query).to_arrow_reader(BATCH_ROWS):
            yield {name: batch.column(name).to_numpy() for name in names}

    return batches


def _is_plain(common: Mapping[str, Any], constants: Mapping[str, Any]) -> bool:
    """Whether rows differ in their time and counters alone, and no counter is named saturated."""
    unit = common.get("data_unit_bytes", _VARIES)
    return (
        {"data_rate_bytes_s", "tick"} <= constants.keys()
        and common.get("saturated", _VARIES) is None
        and unit is not _VARIES
        and unit is not _SOMETIMES
    )


def _plain(
    path: Path,
    metadata: Any,
    common: Mapping[str, Any],
    constants: Mapping[str, Any],
    *,
    threads: int,
) -> Callable[[Session, int, int], Iterator[Arrays]]:
    """Batches of a plain file: decoded and converted without a query, in half the time."""
    names = [name for name in SAMPLE.names if name not in constants and name != "ts"]
    raw = sorted(
        {column for name in names for column in _raw(name) if common.get(column) is not None}
    )
    unit = common["data_unit_bytes"] or _WORD_BYTES

    def convert(table: pa.Table) -> Arrays:
        found = {column: table[column].combine_chunks() for column in raw}
        arrays: dict[str, Any] = {"ts": table["ts"].combine_chunks().cast(pa.int64()).to_numpy()}
        for name in names:
            if name in arrays:
                continue
            parts = [found.get(column) for column in _raw(name)]
            if name in ("errors", "marks", "resent"):
                arrays[name], arrays[f"{name}_present"] = together(parts)
            elif name in ("tx_bytes", "rx_bytes"):
                arrays[name] = counter(parts[0], narrow=True, unit=unit)
            else:
                arrays[name] = counter(parts[0], narrow=name == "wait_ticks")
        return {name: array for name, array in arrays.items() if name not in constants}

    def batches(session: Session, low: int, high: int) -> Iterator[Arrays]:
        file = pq.ParquetFile(path, metadata=metadata, pre_buffer=False)
        begin = 0
        for group in range(file.num_row_groups):
            rows = metadata.row_group(group).num_rows
            first, last = max(low - begin, 0), min(high - begin, rows)
            begin += rows
            if first < last:
                # Arrow's threads do not wait for each other; two readers without them do.
                table = file.read_row_group(group, columns=["ts", *raw], use_threads=threads > 1)
                yield convert(table.slice(first, last - first))

    return batches


def _raw(name: str) -> tuple[str, ...]:
    """Counters that a column of samples is made of."""
    whole = RESTS_ON.get(name.removesuffix("_present"), ())
    return tuple(column for column in whole if column != "data_unit_bytes")


def _rows(path: Path, low: int, high: int) -> str:
    """A FROM item: rows of a file from one number to before another."""
    return (
        f"read_parquet({literal(str(path))}, file_row_number = true)"
        f" WHERE file_row_number >= {low} AND file_row_number < {high}"
    )


def _common(metadata: Any) -> dict[str, Any]:
    """Each column's one value (None: never there), or that it varies, or is not always there."""
    found: dict[str, Any] = {}
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    for index, name in enumerate(names):
        column = name.partition(".")[0]
        if column in (*_LEFT_OUT, *_AS_THEY_ARE):
            continue
        groups = [metadata.row_group(i).column(index) for i in range(metadata.num_row_groups)]
        found[column] = _value(groups)
    return found


def _value(groups: Sequence[Any]) -> Any:
    known = [g.statistics for g in groups]
    if any(s is None or not s.has_null_count for s in known):
        return _SOMETIMES
    nulls, total = sum(s.null_count for s in known), sum(g.num_values for g in groups)
    if nulls == total:
        return None
    if nulls:
        return _SOMETIMES
    if not all(s.has_min_max for s in known):
        return _VARIES
    ends = {end for s in known for end in (s.min, s.max)}
    [first, *others] = ends
    return _VARIES if others or isinstance(first, bytes | str) else first
