"""Readings of counter files, held as bytes by live sampling, as rows of ``link_counters``.

The rows are those that a file collector makes of the same files: names, saturation and the
64-bit set are decided by the same functions, only a column at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import pyarrow as pa

from xtune.collectors._base import Context, Reject, Rows, rows_of
from xtune.collectors._ib import GROWING, U32_MAX, U64_MAX, tops
from xtune.collectors._ib_sysfs_tree import counter_value
from xtune.collectors.ib_sysfs import merged
from xtune.tables import COUNTERS

_WIDE_MARK = ("counters", "unicast_xmit_packets")
_ABOUT = ("link", "host", "device", "port", "node_guid")

Column = list[int | None]


@dataclass(slots=True)
class Block:
    """Readings of one port while its counters stayed the same.

    Attributes:
        about: The port's row of ``ports``.
        names: Directory and name of each counter.
        stamps: When each reading began, nanoseconds since the epoch.
        rates: The port's rate at each reading, Gb/s.
        values: For each reading the content of each counter's file, or of the first ones only.
    """

    about: Mapping[str, Any]
    names: tuple[tuple[str, str], ...]
    stamps: list[int] = field(default_factory=list)
    rates: list[float | None] = field(default_factory=list)
    values: list[list[bytes]] = field(default_factory=list)


def counter_rows(
    blocks: Sequence[Block], wide: set[str], rejected: dict[str, Reject], context: Context
) -> Iterator[Rows]:
    """Rows of ``link_counters``, ports with the same counters in one batch.

    Args:
        blocks: What was read.
        wide: Devices whose data counters once were seen to have 64 bits; added to.
        rejected: Place -> what was no number there; added to.
        context: Labels.
    """
    groups: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        if block.stamps and block.names:
            # Where no name tells how wide the counters are, each device is judged by itself.
            told = _WIDE_MARK in block.names
            key = (block.names, "" if told else block.about["device"])
            groups.setdefault(key, []).append(block)
    for group in groups.values():
        yield from _rows(group, wide, rejected, context)


def _rows(
    blocks: Sequence[Block], wide: set[str], rejected: dict[str, Reject], context: Context
) -> Iterator[Rows]:
    columns = _parsed(blocks, rejected)
    device = blocks[0].about["device"]
    is_wide = _WIDE_MARK in columns or device in wide
    if not is_wide and _beyond_32_bits(columns):
        wide.add(device)
        is_wide = True
    kinds: dict[str, dict[str, Column]] = {"counters": {}, "hw_counters": {}, "counters_ext": {}}
    for (kind, name), column in columns.items():
        kinds[kind][name] = column
    named, is_wide, unit = merged(
        kinds["counters"], kinds["hw_counters"], kinds["counters_ext"], is_wide
    )
    count = sum(len(block.stamps) for block in blocks)
    saturated = _settle(named, is_wide, unit, count)
    given: dict[str, Any] = {
        "ts": list(chain.from_iterable(block.stamps for block in blocks)),
        "rate_gbps": list(chain.from_iterable(block.rates for block in blocks)),
        "data_unit_bytes": pa.repeat(unit, count),
        **{name: _repeated(blocks, name) for name in _ABOUT},
        **{name: column for name, column in named.items() if name in COUNTERS},
    }
    if saturated is not None:
        given["saturated"] = saturated
    extra = {name: column for name, column in named.items() if name not in COUNTERS}
    if extra:
        given["extra"] = _extra(extra, count)
    rows = rows_of("link_counters", context, given, count)
    if all(None in column for column in named.values()):
        rows = _with_content(rows, named, saturated)
    if rows.batch.num_rows:
        yield rows


def _repeated(blocks: Sequence[Block], name: str) -> list[Any]:
    return [value for b in blocks for value in [b.about[name]] * len(b.stamps)]


def _parsed(blocks: Sequence[Block], rejected: dict[str, Reject]) -> dict[tuple[str, str], Column]:
    """Each counter's values over all blocks, null where the file held no counter."""
    columns: dict[tuple[str, str], Column] = {name: [] for name in blocks[0].names}
    for block in blocks:
        often, count = min(map(len, block.values)), len(block.values)
        for name, raw in zip(block.names, zip(*block.values, strict=False), strict=False):
            columns[name] += _numbers(raw, name, block, rejected)
        whole = [at for at, values in enumerate(block.values) if len(values) > often]
        rest = zip(*(block.values[at][often:] for at in whole), strict=True)
        for name, raw in zip(block.names[often:], rest if whole else repeat(()), strict=False):
            column: Column = [None] * count
            for at, value in zip(whole, _numbers(raw, name, block, rejected), strict=True):
                column[at] = value
            columns[name] += column
    return columns


def _numbers(
    raw: Sequence[bytes], name: tuple[str, str], block: Block, rejected: dict[str, Reject]
) -> Column:
    if not raw:
        return []
    first = raw[0]
    if raw.count(first) == len(raw):  # most error counters never move
        return [_number(first, name, block, rejected)] * len(raw)
    if not b"".join(raw).translate(None, b"0123456789\n") and min(map(len, raw)) > 1:
        values = list(map(int, raw))
        if max(values) <= U64_MAX:
            return values  # type: ignore[return-value]  # a list of int is one of int | None here
    return [_number(one, name, block, rejected) for one in raw]


def _number(
    raw: bytes, name: tuple[str, str], block: Block, rejected: dict[str, Reject]
) -> int | None:
    place = f"{block.about['device']}/ports/{block.about['port']}/{name[0]}/{name[1]}"
    value = counter_value(raw, place)
    if isinstance(value, Reject):
        if raw:  # empty: caught while it was being rewritten, or the driver was busy
            rejected.setdefault(place, value)
        return None
    return value


def _beyond_32_bits(columns: Mapping[tuple[str, str], Column]) -> bool:
    growing = (columns.get(("counters", name), []) for name in GROWING)
    return any(value is not None and value > U32_MAX for value in chain.from_iterable(growing))


def _settle(
    columns: dict[str, Column], wide: bool, unit: int, count: int
) -> list[list[str] | None] | None:
    """Make values that sit at their maximum null; their names row by row, None without any."""
    limits = tops(wide, False, unit)
    saturated: list[list[str] | None] | None = None
    for name, column in columns.items():
        stuck = {limits.get(name, U64_MAX), U64_MAX}
        if stuck.isdisjoint(column):
            continue
        if saturated is None:
            saturated = [None] * count
        for row, value in enumerate(column):
            if value in stuck:
                saturated[row] = [*(saturated[row] or []), name]
        columns[name] = [None if value in stuck else value for value in column]
    return saturated


def _extra(columns: Mapping[str, Column], count: int) -> Any:
    """The map column; unknown values are left out of a row."""
    if not any(None in column for column in columns.values()):
        size = len(columns)
        keys = pa.array(list(columns)).take(pa.array(list(range(size)) * count))
        values = pa.array(
            list(chain.from_iterable(zip(*columns.values(), strict=True))), pa.uint64()
        )
        return pa.MapArray.from_arrays(list(range(0, size * count + 1, size)), keys, values)
    names, size = list(columns), len(columns)
    return [
        [(name, value) for name, value in zip(names, row, strict=True) if value is not None]
        if row.count(None) < size
        else None
        for row in zip(*columns.values(), strict=True)
    ]


def _with_content(
    rows: Rows, columns: Mapping[str, Column], saturated: list[list[str] | None] | None
) -> Rows:
    """Without the rows that say nothing at all."""
    known = [any(v is not None for v in row) for row in zip(*columns.values(), strict=True)]
    said = saturated or [None] * len(known)
    keep = [a or bool(b) for a, b in zip(known, said, strict=True)]
    return Rows(rows.table, rows.batch.filter(pa.array(keep)))
