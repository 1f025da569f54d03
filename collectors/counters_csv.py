"""Tables of port counters as CSV: one sample a row, or one counter a row.

What it assumes: columns are named as the kernel, perfquery or ``ethtool -S`` name the counters;
``port_*_data`` is in words of 4 octets unless its name ends in ``_bytes``. A header may stand in
a comment. A time since some start is no time: ``ts`` is null and ``extra`` has ``offset_ns``.
When it lies: a table without a device column holds one port a side, or all of them mixed.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, OrderedDict
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
from xtune.collectors._counter_columns import HEADERLESS, Layout, counter_of, is_headerless
from xtune.collectors._ethtool import counters as ethtool_counters
from xtune.collectors._ib import (
    U64_MAX,
    WORD_BYTES,
    guid,
    is_wide,
    link_id,
    settle,
    told_unit,
)
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import content_id, fallback_time, held, scale_epoch
from xtune.collectors._rate_cells import LIKE, read_rate
from xtune.collectors._stamps import StampReader
from xtune.collectors._textlines import Lines
from xtune.collectors._values import small, text, whole

_SCALE = {"ns": 1, "us": 1000, "ms": 10**6, "s": 10**9}
_NUMBER = re.compile(r"(-?\d{1,20})(?:\.(\d{1,12}))?", re.ASCII)
#: Of ``/proc/net/dev`` and the like: what the host's IP stack sent and got.
_NETDEV = re.compile(r"[rt]x_(?:\w+_)?(?:bytes|packets|dropped|errors|discards)")
_NOTHING = {"", "na", "n/a", "nan", "none", "null", "-"}
#: Seconds below this are no time of an epoch, but since some start.
_FIRST_EPOCH = 10**9
#: 2005: no counters that are read today were there. Nanoseconds since a boot look like that.
_FIRST_SENSIBLE_NS = 1_104_537_600 * 10**9
_LINKS = 65536
_LEAVE = {"lifespan"}  # the cache's age limit in ms, not a counter


class _Table:
    """Makes rows of cells under a layout."""

    def __init__(self, source: Source, context: Context) -> None:
        self._source, self._context = source, context
        self._fallback = fallback_time(source, context)
        self._unit = told_unit(context.column_map)
        self._unknown = ""
        self._wide: OrderedDict[str, None] = OrderedDict()
        self._last: OrderedDict[str, int] = OrderedDict()
        self._held: list[tuple[dict[str, Any], dict[str, int], dict[str, int]]] = []
        self.stamps = StampReader(context)
        self.buffer = RowBuffer("link_counters", context)
        self.notes: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.group: dict[str, str] = {}
        self._no_rates: dict[str, str] = {}  # column -> the first cell of it that is no rate

    def take(self, layout: Layout, cells: list[str]) -> str | None:
        """Take a row of the table; what is wrong with it, or ``None``."""
        about: dict[str, Any] = {"labels": dict(self.group), "extra": {}}
        kernel: dict[str, int] = {}
        driver: dict[str, int] = {}
        differences: dict[str, int] = {}
        told: dict[str, str] = {}
        unit, bad = WORD_BYTES, []
        for known, raw in zip(layout.columns, cells, strict=True):
            cell = raw.strip()
            if cell.lower() in _NOTHING:
                continue
            if known.role == "time":
                self._time(known.name, cell, about)
            elif known.role == "offset":
                self._offset(known.name, cell, about)
            elif known.role == "rate":
                self._rate(known.name, cell, about)
            elif known.role in ("kernel", "ethtool"):
                value = whole(cell, low=0, high=U64_MAX)
                if value is None:
                    bad.append(f"{known.name}={cell}")
                    continue
                into = kernel if known.role == "kernel" else driver
                (differences if known.delta else into)[known.name] = value
                unit = known.unit if known.name.endswith("_data") else unit
            elif known.role == "other":
                value = whole(cell, low=0, high=U64_MAX)
                if value is not None and not layout.long:
                    about["extra"][known.name] = value
                else:
                    about["labels"][known.name] = text(cell) or ""
            else:
                told[known.role] = cell
        self._identify(told, about)
        if layout.long:
            return self._long(told, about, layout.timed)
        if differences:
            # Apart: a row's values are all differences or none is.
            ts = about.get("ts", self._fallback)
            interval = self._interval(about["link"], ts, told.get("interval"))
            if interval is not None:
                self._emit({**about, "extra": {}, "interval_s": interval}, differences, {}, unit)
            else:
                self.notes["differences over an unknown time: left out"] += 1
        self._emit(about, kernel, driver, unit)
        return f"not a counter: {clip(', '.join(bad))}" if bad else None

    def _time(self, name: str, cell: str, about: dict[str, Any]) -> None:
        match = _NUMBER.fullmatch(cell)
        if match is None:
            zoned = (
                f"{cell}Z" if name.endswith("utc") and re.fullmatch(r"[\d .:T-]+", cell) else cell
            )
            about["ts"] = self.stamps.last(zoned)
            return
        number = int(match[1])
        suffix = name.rpartition("_")[2]
        per_second = _SCALE["s"] // _SCALE.get(suffix, _SCALE["s"])
        if abs(number) < _FIRST_EPOCH * per_second:
            self._offset(name, cell, about)
            return
        nanoseconds, unit = scale_epoch(number)
        if nanoseconds is not None:
            # What the number's size says it counts holds for its decimals too.
            nanoseconds = held(nanoseconds + _fraction(match[2] or "", 10**9 // _SCALE[unit]))
            early = nanoseconds is not None and nanoseconds < _FIRST_SENSIBLE_NS
            self.notes[
                "times before 2005: where they count since some start,"
                f" --map elapsed_ns={name} (or _us, _ms, _s) says so"
            ] += early
        self.notes["times before 1970 or after 2262: null"] += nanoseconds is None
        about["ts"] = nanoseconds

    def _offset(self, name: str, cell: str, about: dict[str, Any]) -> None:
        match = _NUMBER.fullmatch(cell)
        if match is None:
            return
        scale = _SCALE.get(name.rpartition("_")[2], _SCALE["s"])
        nanoseconds = abs(int(match[1])) * scale + _fraction(match[2] or "", 10**9 // scale)
        if cell.startswith("-") or nanoseconds > U64_MAX:
            self.notes["times before the start: in labels"] += 1
            about["labels"][name] = cell
        else:
            about["extra"]["offset_ns"] = nanoseconds

    def rate_notes(self, layout: Layout) -> Iterator[Note]:
        """What a user should know about columns that may give the port's rate."""
        for name, cell in self._no_rates.items():
            yield Note(
                f"column {clip(name)} has no known unit in cells such as {clip(cell)!r}: no rate"
                f" (--map rate_gbps={clip(name)} where it is in Gb/s)"
            )
        if any(column.role == "rate" for column in layout.columns):
            return
        for column in layout.columns:
            if column.role == "other" and LIKE.fullmatch(column.name):
                yield Note(
                    f"column {clip(column.name)} is not taken for the port's rate"
                    f" (--map rate_gbps={clip(column.name)} where it is that, in Gb/s)"
                )

    def _rate(self, name: str, cell: str, about: dict[str, Any]) -> None:
        rate, read = read_rate(name, cell)
        about["rate_gbps"] = rate if rate is not None else about.get("rate_gbps")
        if not read:
            about["labels"][name] = cell
            self._no_rates.setdefault(name, cell)

    def _identify(self, told: dict[str, str], about: dict[str, Any]) -> None:
        host = (told.get("host") or self._context.host or "").lower() or None
        device, port = told.get("device"), told.get("port", "1")
        if "/" in port and device is None:  # mlx5_0/1
            device, _, port = port.rpartition("/")
        number = small(port)
        node = guid(told.get("node_guid"))
        side = told.get("side")
        if side:
            about["labels"]["side"] = side
        if node is None and (host is None or device is None) and not self._unknown:
            self._unknown = content_id(self._source)
        if node is None and device is None:
            self.notes["rows without a device (--label device=mlx5_0 names it)"] += 1
            device = self._context.labels.get("device")
        about |= {
            "host": host,
            "device": device,
            "port": number,
            "node_guid": node,
            "link": link_id(
                node, host, device or side or self._unknown, number or 1, self._unknown
            ),
            "rate_gbps": about.get("rate_gbps"),
        }

    def _long(self, told: dict[str, str], about: dict[str, Any], timed: bool) -> str | None:
        name = told.get("counter", "")
        if name in _LEAVE:
            return None
        before = whole(told.get("before"), low=0, high=U64_MAX)
        after = whole(told.get("after"), low=0, high=U64_MAX)
        known = counter_of(name)
        if known is None and not re.fullmatch(r"[a-z][\w.]*", name):
            self.unknown[clip(name) or "a row without a counter"] += 1
            return None
        if after is None:
            return f"not a counter: {clip(name)}={clip(told.get('after', ''))}"
        if timed or "before" not in told:
            # An event: what one counter became at that moment.
            self.flush()
            self._held.append((about, {}, {name: after}))
            self.flush()
            return None
        if self._held:
            last, values, _ = self._held[0]
            if (
                last["link"] != about["link"]
                or last["labels"] != about["labels"]
                or name in values
            ):
                self.flush()
        if not self._held:
            self._held.append((about, {}, {}))
        if before is not None:
            self._held[0][1][name] = before
        self._held[0][2][name] = after
        return None

    def flush(self) -> None:
        """End a group of a long table: a row of what was before, and one of what was after."""
        for about, before, after in self._held:
            for moment, values in (("before", before), ("after", after)):
                if not values:
                    continue
                labels = {**about["labels"], **({"moment": moment} if before else {})}
                kernel = {counter_of(n) or n: v for n, v in values.items() if counter_of(n)}
                driver = {n: v for n, v in values.items() if not counter_of(n)}
                copy = {**about, "labels": labels, "extra": dict(about["extra"])}
                self._emit(copy, kernel, driver, WORD_BYTES)
        self._held = []

    def _emit(
        self,
        about: dict[str, Any],
        kernel: dict[str, int],
        driver: dict[str, int],
        unit: int,
    ) -> None:
        ts = about.get("ts")
        if ts is None:
            ts = self._fallback
            without = (
                "times since some start, not since 1970: ts is null, extra has offset_ns"
                if "offset_ns" in about["extra"]
                else "rows without a time: ts is null (--time-from says otherwise)"
            )
            self.notes[without] += ts is None
        about["ts"] = ts
        unit = self._unit or unit
        link = about["link"]
        if is_wide(kernel, unit):
            _remember(self._wide, link, None)
        extra = about.pop("extra")
        row = settle(kernel, wide=link in self._wide, wide_errors=link in self._wide, unit=unit)
        if driver:
            theirs = ethtool_counters(driver)
            extra |= theirs.pop("extra") or {}
            stuck = [*(row["saturated"] or []), *(theirs.pop("saturated") or [])]
            bytes_of = theirs.pop("data_unit_bytes")
            if not kernel.keys() & {"port_xmit_data", "port_rcv_data"}:
                row["data_unit_bytes"] = bytes_of
                row |= theirs
            else:
                # Beside the port's own counters, the netdev's say nothing of RDMA traffic.
                port = {n: v for n, v in driver.items() if not _NETDEV.fullmatch(n)}
                told = ethtool_counters(port)
                row |= {n: v for n, v in told.items() if not n.endswith("_data")} | row
            row["saturated"] = stuck or None
        row["extra"] = {**extra, **(row["extra"] or {})} or None
        if kernel or driver:
            self.buffer.add({**row, **about, "labels": about["labels"] or None})

    def _interval(self, link: str, ts: int | None, told: str | None) -> float | None:
        match = _NUMBER.fullmatch(told or "")
        before = self._last.get(link)
        if ts is not None:
            _remember(self._last, link, ts)
        if match and float(match[0]) > 0:
            return float(match[0])
        return (
            (ts - before) / 1e9 if ts is not None and before is not None and ts > before else None
        )


def _remember(known: OrderedDict[str, Any], key: str, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _LINKS:
        known.popitem(last=False)


def _fraction(digits: str, per_second: int) -> int:
    """Nanoseconds of the decimals of a number of which ``per_second`` make a second."""
    return int(digits.ljust(12, "0")[:12] or 0) * (10**9 // per_second) // 10**12 if digits else 0


def _cells(plain: str) -> list[str]:
    delimiter = max(",\t;", key=plain.count)
    try:
        return next(csv.reader([plain], delimiter=delimiter), [])
    except (csv.Error, ValueError):
        return []


def _layout(lines: list[str], context: Context | None) -> tuple[Layout | None, bool]:
    """The layout that the first lines of a table tell, and whether a line of its own does."""
    column_map = context.column_map if context else {}
    comment: list[str] = []
    for line in lines:
        if line.startswith("#"):
            cells = _cells(line.lstrip("# "))
            comment = cells if len(cells) > 2 else comment
            continue
        cells = _cells(line)
        if len(cells) < 2:  # no row of any table
            continue
        named = not any(_NUMBER.fullmatch(cell.strip()) for cell in cells)
        layout = Layout.of(cells, column_map) if named else None
        if layout is not None:
            return layout, True
        if is_headerless(cells):
            return Layout.of(HEADERLESS, {}), False
        if len(comment) == len(cells):
            return Layout.of(comment, column_map), False
        return None, False
    return None, False


class CountersCsv(Collector):
    """Reads row by row."""

    name = "counters_csv"
    title = "port counters in CSV: columns named as the kernel or ethtool names them"
    produce = (
        "a loop over /sys/class/infiniband/*/ports/*/{counters,hw_counters}; --map NAME=COLUMN"
    )
    gives = "counters by time, host, device and port, as far as there are columns for them"
    lacks = "what has no column: mostly the wait tick, often the device"

    def claim(self, path: Path, head: bytes) -> float:
        """Plausible where the header, or the first rows, name counters."""
        lines = [line.strip() for line in head.decode("utf-8", "replace").splitlines()[:200]]
        lines = [line.lstrip("\ufeff") for line in lines if line]
        if not lines or max(map(len, lines[:3])) > 16384 or lines[0][:1] in "{[<":
            return 0.0
        layout, _ = _layout(lines, None)
        if layout is None:
            about = any(line.startswith("#") and "counter" in line.lower() for line in lines[:3])
            rows = [line for line in lines if not line.startswith("#")]
            return 0.2 if about and rows and len(_cells(rows[0])) > 3 else 0.0
        if not layout.long:
            wanted = [c for c in layout.columns if c.role in ("kernel", "ethtool")]
            told = {c.role for c in layout.columns} & {"time", "offset", "device", "port", "host"}
            return 0.75 if told and len(wanted) > 1 else 0.5 if len(wanted) > 1 else 0.0
        place = [c.role for c in layout.columns].index("counter")
        table = [_cells(line) for line in lines[:64] if not line.startswith("#")]
        return 0.75 if any(len(r) > place and counter_of(r[place]) for r in table) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``link_counters``: a row a sample, or a pair of rows before and after."""
        first = source.head().decode("utf-8", "replace").lstrip("\ufeff").splitlines()[:200]
        layout, has_header = _layout([line.strip() for line in first if line.strip()], context)
        if layout is None:
            yield Reject(
                "line 1",
                "no column has a counter's name",
                "--map port_xmit_data=COLUMN, --map time=COLUMN, ... name them",
            )
            return
        table = _Table(source, context)
        header = ""
        lines = Lines(source)
        for line in lines:
            plain = line.text.strip()
            if plain.startswith("#"):
                table.flush()
                pairs = (part.partition("=") for part in plain.lstrip("# ").split(","))
                table.group = {k.strip(): v.strip() for k, eq, v in pairs if eq and len(k) < 64}
                continue
            if not plain:
                continue
            cells = _cells(plain)
            if has_header and not header and Layout.of(cells, context.column_map) == layout:
                header = plain
            if header and plain == header:
                continue  # once, or again where tables were appended
            if len(cells) != len(layout.columns):
                width = len(layout.columns)
                yield Reject(line.place, f"{len(cells)} cells under {width} columns")
                continue
            if not line.whole:
                yield Reject(line.place, "row without an end: it may be cut")
                continue
            wrong = table.take(layout, cells)
            if wrong:
                yield Reject(line.place, wrong)
            if table.buffer.full:
                yield from table.buffer.flush()
        table.flush()
        yield from table.buffer.flush()
        for name, count in table.unknown.items():
            yield Unknown(name, count)
        for note, count in table.notes.items():
            if count:
                yield Note(note, count)
        yield from table.rate_notes(layout)
        yield from table.stamps.notes()
        yield from lines.rejects


COLLECTOR = CountersCsv()
