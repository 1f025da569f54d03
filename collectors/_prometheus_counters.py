"""Batches of ``link_counters`` from gathered samples, whole columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from xtune.collectors._base import Context, Rows, rows_of
from xtune.collectors._ib import DATA, GROWING, U32_MAX, U64_MAX, WIDTHS, WORD_BYTES
from xtune.collectors._prometheus_names import NODE, NODE_LEGACY, TREYDOCK
from xtune.collectors._prometheus_samples import NO_TIME, Counts, Flags, Ints, Samples, Table
from xtune.tables import COUNTERS, TABLES

if TYPE_CHECKING:
    from xtune.collectors._prometheus import Steps

_BATCH_ROWS = 1 << 15
_PAIRS = (("port_xmit_data", "port_xmit_packets"), ("port_rcv_data", "port_rcv_packets"))


@dataclass(frozen=True, slots=True)
class PortFacts:
    """What is the same for all rows of a port.

    Attributes:
        exporter: Its exporter.
        group_labels: All labels.
        identity: Columns that name the port.
        labels: Labels that are no column.
        rates: Rate in Gb/s over time.
    """

    exporter: str
    group_labels: Mapping[str, str]
    identity: Mapping[str, Any]
    labels: Mapping[str, str] | None
    rates: Steps


def maxima(
    count: int, names: Sequence[str], group: Ints, name: Ints, value: Counts
) -> dict[str, Counts]:
    """Largest value of each counter by group, zero where there is none."""
    found = {}
    for index, text in enumerate(names):
        mine = name == index
        if mine.any():
            largest = np.zeros(count, np.uint64)
            np.maximum.at(largest, group[mine], value[mine])
            found[text] = largest
    return found


def counter_rows(
    samples: Samples,
    facts: Sequence[PortFacts | None],
    unit_of: Callable[[str, Mapping[str, str], bool], int],
    context: Context,
) -> tuple[Iterator[Rows], list[tuple[int, int]]]:
    """Rows of all samples gathered, and the conflicts among them.

    Args:
        samples: Gathered since the last call; taken.
        facts: By group; None leaves the group out.
        unit_of: Bytes of a unit of the data counters of an exporter's port; told whether the
            port has such counters.
        context: Its labels go into each row.
    """
    count = len(facts)
    wide = np.zeros(count, np.bool_)
    unit = np.ones(count, np.int64)
    kept = np.array([fact is not None for fact in facts], np.bool_)

    def rename(group: Ints, name: Ints, value: Counts) -> tuple[Ints, Flags]:
        top = maxima(count, samples.names, group, name, value)
        present = {
            text: np.isin(np.arange(count), group[name == index])
            for index, text in enumerate(samples.names)
            if text in top
        }
        nowhere = np.zeros(count, np.bool_)
        data = present.get(DATA[0], nowhere) | present.get(DATA[1], nowhere)
        for index, fact in enumerate(facts):
            if fact is not None:
                unit[index] = unit_of(fact.exporter, fact.group_labels, bool(data[index]))
        wide[:] = [fact is not None and fact.exporter != NODE for fact in facts]
        wide[:] |= present.get("unicast_xmit_packets", nowhere)
        for text in GROWING:
            if text in top:
                limit = U32_MAX * (WORD_BYTES // unit if text in DATA else np.ones(count, int))
                wide[:] |= top[text] > limit.astype(np.uint64)
        return _legacy(samples, group, name, wide, kept)

    table = samples.take(rename)
    return _batches(table, samples.names, facts, wide, unit, context), table.conflicts


def _legacy(
    samples: Samples, group: Ints, name: Ints, wide: Flags, kept: Flags
) -> tuple[Ints, Flags]:
    """Let the extended set stand in for a 32-bit one; beside a 64-bit one it stays ``extra``."""
    keep = kept[group]
    name = name.copy()
    narrow = ~wide
    replaced = np.zeros(len(wide), np.bool_)
    for legacy, base in NODE_LEGACY.items():
        if legacy not in samples.names:
            continue
        mine = (name == samples.name(legacy)) & narrow[group]
        having = np.zeros(len(wide), np.bool_)
        having[group[mine]] = True
        keep &= ~((name == samples.name(base)) & having[group])
        name[mine] = samples.name(base)
        replaced |= having
    wide |= replaced
    return name, keep


def _batches(
    table: Table,
    names: Sequence[str],
    facts: Sequence[PortFacts | None],
    wide: Flags,
    unit: Ints,
    context: Context,
) -> Iterator[Rows]:
    """The rows as batches, some tens of thousands each."""
    total = len(table.ts)
    if not total:
        return
    columns, saturated, extra = _settle(table, names, facts, wide, unit)
    groups = pa.array(table.group)
    for text in ("host", "device", "port", "node_guid", "link"):
        kind = TABLES["link_counters"].schema.field(text).type
        column = pa.array([f.identity.get(text) if f else None for f in facts], kind)
        columns[text] = column.take(groups)
    labels = [_merged(f.labels if f else None, context.labels) for f in facts]
    kind = TABLES["link_counters"].schema.field("labels").type
    columns["labels"] = pa.array(labels, kind).take(groups)
    columns["ts"] = pa.array(table.ts, pa.int64(), mask=table.ts == NO_TIME)
    columns["data_unit_bytes"] = pa.array(unit[table.group], pa.int32())
    columns["rate_gbps"] = _rates(table, facts)
    columns["saturated"] = saturated
    columns["extra"] = extra
    for start in range(0, total, _BATCH_ROWS):
        part = {k: v.slice(start, _BATCH_ROWS) for k, v in columns.items()}
        yield rows_of("link_counters", context, part, min(_BATCH_ROWS, total - start))


def _settle(
    table: Table,
    names: Sequence[str],
    facts: Sequence[PortFacts | None],
    wide: Flags,
    unit: Ints,
) -> tuple[dict[str, pa.Array], pa.Array, pa.Array]:
    """Columns of counters, ``saturated`` and ``extra``.

    PMA counters stick at their maximum, which is thus no value (see ``_ib.settle``).
    """
    total = len(table.ts)
    row_wide, row_unit = wide[table.group], unit[table.group]
    wide_errors = np.array([bool(f and f.exporter == TREYDOCK) for f in facts])[table.group]
    columns: dict[str, pa.Array] = {}
    stuck: dict[int, list[str]] = {}
    others: list[tuple[str, Ints, Counts]] = []
    for index in np.unique(table.name).tolist():
        text = names[index]
        value, known = table.column(index)
        tops = _tops(text, row_wide, wide_errors, row_unit)
        stuck_here = known & ((value == tops) | (value == np.uint64(U64_MAX)))
        for row in np.flatnonzero(stuck_here).tolist():
            stuck.setdefault(row, []).append(text)
        known &= ~stuck_here
        if text in COUNTERS:
            columns[text] = pa.array(value, pa.uint64(), mask=~known)
        else:
            rows = np.flatnonzero(known)
            others.append((text, rows, value[rows]))
    kind = TABLES["link_counters"].schema.field("saturated").type
    lists = pa.array([stuck.get(r) for r in range(total)], kind) if stuck else None
    return columns, pa.nulls(total, kind) if lists is None else lists, _extra(others, total)


def _tops(text: str, wide: Flags, wide_errors: Flags, unit: Ints) -> Counts:
    """The value at which a counter sticks, by row."""
    width = WIDTHS.get(text)
    full = np.full(len(wide), U64_MAX, np.uint64)
    if width is None:
        return full
    scale = WORD_BYTES // unit if text in DATA else np.ones(len(unit), np.int64)
    narrow = (np.uint64(2**width - 1) * scale.astype(np.uint64)).astype(np.uint64)
    return np.where(wide if text in GROWING else wide_errors, full, narrow)


def _extra(others: list[tuple[str, Ints, Counts]], total: int) -> pa.Array:
    """The map of counters without a column, null where a row has none."""
    kind = TABLES["link_counters"].schema.field("extra").type
    if not others:
        return pa.nulls(total, kind)
    rows = np.concatenate([rows for _, rows, _ in others])
    which = np.concatenate([np.full(len(rows), i) for i, (_, rows, _) in enumerate(others)])
    values = np.concatenate([values for _, _, values in others])
    order = np.argsort(rows, kind="stable")
    sizes = np.bincount(rows, minlength=total)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    offsets = pa.array(ends, pa.int32(), mask=np.append(sizes == 0, False))
    keys = pa.array([text for text, _, _ in others]).take(pa.array(which[order]))
    return pa.MapArray.from_arrays(offsets, keys, pa.array(values[order], pa.uint64()))


def _rates(table: Table, facts: Sequence[PortFacts | None]) -> pa.Array:
    """Rate in force at each row."""
    single: list[float | None] = []
    moving: dict[int, Steps] = {}
    for index, fact in enumerate(facts):
        one, value = fact.rates.only() if fact else (True, None)
        single.append(value if one else None)
        if fact and not one:
            moving[index] = fact.rates
    rates = np.array([np.nan if v is None else v for v in single], np.float64)[table.group]
    for index, steps in moving.items():
        rows = slice(*np.searchsorted(table.group, [index, index + 1]).tolist())
        found = [steps.at(ts) for ts in table.ts[rows].tolist()]
        rates[rows] = [np.nan if rate is None else rate for rate in found]
    return pa.array(rates, pa.float64(), mask=np.isnan(rates))


def _merged(
    labels: Mapping[str, str] | None, given: Mapping[str, str]
) -> list[tuple[str, str]] | None:
    both = {**(labels or {}), **given}
    return list(both.items()) or None


def weigh_block(
    samples: Samples, facts: Sequence[Mapping[str, str] | None]
) -> Iterator[tuple[str, int, int]]:
    """Instance, data and packets of each port and direction gathered so far."""
    group, name, value = samples.peek()
    top = maxima(len(facts), samples.names, group, name, value)
    nothing = np.zeros(len(facts), np.uint64)
    for data, packets in _PAIRS:
        sent, number = top.get(data, nothing).tolist(), top.get(packets, nothing).tolist()
        for index, labels in enumerate(facts):
            if labels is not None:
                yield labels.get("instance", ""), sent[index], number[index]
