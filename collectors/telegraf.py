"""Telegraf's ``infiniband`` and ``ethtool`` inputs as Influx line protocol.

What it assumes: the fields are the names and raw values of sysfs, data in 4-octet words
(influxdata/telegraf ``plugins/inputs/infiniband``), or those of ``ethtool -S`` (its ``ethtool``
input, names as the driver has them). Counters and hw_counters of one port and time are two lines
there and one row here. When it lies: a line without ``host`` cannot be told
from one of another host of the same device name in the same file.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    RowBuffer,
    Rows,
    Source,
    Unknown,
)
from xtune.collectors._ethtool import counters as ethtool_counters
from xtune.collectors._ib import (
    U64_MAX,
    WORD_BYTES,
    has_counters,
    is_wide,
    link_id,
    settle,
    told_unit,
)
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import content_id, fallback_time, scale_epoch
from xtune.collectors._line_protocol import Point, parse_line
from xtune.collectors._textlines import Lines

MEASUREMENT = "infiniband"
ETHERNET = "ethtool"
#: Ports whose two lines may stand apart: a flush writes a port's lines near each other.
_WINDOW = 4096
#: ``SPEED_UNKNOWN`` of the ethtool input's ``speed`` in Mb/s, as 31 bits or more.
_NO_SPEED = 2**31 - 1
#: Measurements of others that are named; more than a Telegraf has, fewer than noise makes up.
_MOST_OTHERS, _MORE_OTHERS = 1000, "(others)"
#: The cache's age limit in ms; whether the interface is up, and how (of the ethtool input).
_NOT_COUNTERS = {"lifespan", "interface_up", "speed", "duplex", "autoneg", "link"}
#: Of a time in nanoseconds since 2001.
_NS_DIGITS = 19

_Key = tuple[tuple[tuple[str, str], ...], int | None]


def _counter(value: int | float | str) -> int | None:
    if isinstance(value, str) or value < 0 or value > U64_MAX or value != int(value):
        return None
    return int(value)


class _Merger:
    """Joins the lines of one port and time, and makes rows of them."""

    def __init__(self, source: Source, context: Context) -> None:
        self._source = source
        self._context = context
        self._buffer = RowBuffer("link_counters", context)
        self._pending: OrderedDict[_Key, dict[str, int]] = OrderedDict()
        self._unknown = ""
        self._unit = told_unit(context.column_map) or WORD_BYTES
        self._ever_wide: set[tuple[str | None, str]] = set()
        self._fallback = fallback_time(source, context)
        self.notes: Counter[str] = Counter()

    def _time(self, point: Point) -> int | None:
        ts = self._fallback
        if point.time is not None:
            ts, unit = scale_epoch(point.time)
            if ts is None:
                self.notes["time before 1970 or after 2262: null"] += 1
            elif unit != "ns":
                self.notes[f"time taken for {unit} by its size, not ns"] += 1
        elif ts is None:
            self.notes["line without a time: ts is null (--time-from says otherwise)"] += 1
        return ts

    def _link(self, host: str | None, device: str, port: int) -> str:
        if host is None and not self._unknown:
            self._unknown = content_id(self._source)
            text = f"no host: links are {self._unknown}/<device>/<port> (--host names it)"
            self.notes[text] += 1
        return link_id(None, host, device, port, self._unknown)

    def _host(self, tags: dict[str, str]) -> str | None:
        return (tags.pop("host", None) or self._context.host or "").lower() or None

    def ethernet(self, point: Point, values: dict[str, int]) -> Iterator[Rows]:
        """Take a line of the ``ethtool`` input, which is a row as it stands."""
        tags = dict(point.tags)
        host, device = self._host(tags), tags.pop("interface")
        speed = _counter(point.fields.get("speed", -1))
        self._buffer.add(
            {
                **ethtool_counters(values),
                "ts": self._time(point),
                "link": self._link(host, device, 1),
                "host": host,
                "device": device,
                "port": 1,
                "rate_gbps": speed / 1000 if speed and speed < _NO_SPEED else None,
                "labels": tags or None,
            }
        )
        if self._buffer.full:
            yield from self._buffer.flush()

    def add(self, point: Point, values: dict[str, int]) -> Iterator[Rows]:
        ts = self._time(point)
        key = (tuple(sorted(point.tags.items())), ts)
        held = self._pending.get(key)
        if held is not None and (
            ts is None or any(held.get(k, v) != v for k, v in values.items())
        ):
            yield from self._emit(key)
            held = None
        if held is None:
            self._pending[key] = dict(values)
            if len(self._pending) > _WINDOW:
                yield from self._emit(next(iter(self._pending)))
        else:
            held.update(values)

    def finish(self) -> Iterator[Rows]:
        for key in list(self._pending):
            yield from self._emit(key)
        yield from self._buffer.flush()

    def _emit(self, key: _Key) -> Iterator[Rows]:
        values = self._pending.pop(key)
        tags = dict(key[0])
        host = self._host(tags)
        device, port = tags.pop("device"), int(tags.pop("port"))
        if is_wide(values, self._unit):
            self._ever_wide.add((host, device))
        row = settle(values, wide=(host, device) in self._ever_wide, unit=self._unit)
        if not has_counters(row):
            return
        row |= {
            "ts": key[1],
            "link": self._link(host, device, port),
            "host": host,
            "device": device,
            "port": port,
            "labels": tags or None,
        }
        self._buffer.add(row)
        if self._buffer.full:
            yield from self._buffer.flush()


class Telegraf(Collector):
    """Reads measurements ``infiniband`` and ``ethtool``; others are counted and left."""

    name = "telegraf"
    title = "Telegraf infiniband and ethtool inputs, Influx line protocol"
    produce = (
        "[[inputs.infiniband]] or [[inputs.ethtool]] and [[outputs.file]] with data_format influx"
        " in telegraf.conf"
    )
    gives = "counters and hw_counters of each port with host and time, raw"
    lacks = "GUIDs, rate and the wait tick"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where a line of the head is a point of one of our measurements."""
        plausible = 0.0
        lines = head.decode("utf-8", "replace").splitlines()
        for line in lines[:200] if len(lines) > 1 else lines:
            if not line.strip() or line.startswith("#"):
                continue
            point = parse_line(line)
            if isinstance(point, str):
                if line.startswith(f"{MEASUREMENT},device="):
                    plausible = 0.7  # cut or damaged, but nothing else begins like that
                continue
            if point.measurement == MEASUREMENT and "device" in point.tags:
                return 0.95
            if point.measurement == ETHERNET and {"driver", "interface"} <= point.tags.keys():
                return 0.95
            if point.time is not None and point.tags:
                plausible = max(plausible, 0.4)
        return plausible

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield rows of ``link_counters``, in the order of the first line of each."""
        merger = _Merger(source, context)
        others: Counter[str] = Counter()
        lines = Lines(source)
        ours = 0
        digits = _NS_DIGITS
        for line in lines:
            number, text = line.number, line.text
            if not text.strip() or text.startswith("#"):
                continue
            point = parse_line(text)
            if isinstance(point, str):
                yield Reject(f"line {number}", f"{point}: {clip(text)!r}", "not line protocol")
                continue
            if not line.whole and _digits(point) != digits:
                yield Reject(f"line {number}", "the last line is cut", "its time is not whole")
                continue
            digits = _digits(point)
            is_ethernet = point.measurement == ETHERNET and "interface" in point.tags
            if point.measurement != MEASUREMENT and not is_ethernet:
                known = point.measurement in others or len(others) < _MOST_OTHERS
                others[point.measurement if known else _MORE_OTHERS] += 1
                continue
            device, port = point.tags.get("device"), point.tags.get("port", "")
            is_port = port.isascii() and port.isdigit() and len(port) < 4
            if not is_ethernet and not (device and is_port):
                yield Reject(
                    f"line {number}", "no device and port tag", "whose counters are they?"
                )
                continue
            ours += 1
            values = {}
            for name, raw in point.fields.items():
                if name in _NOT_COUNTERS:
                    continue
                value = _counter(raw)
                if value is None:
                    yield Reject(f"line {number}", f"not a counter: {clip(name)}={raw!r}")
                else:
                    values[name] = value
            yield from (merger.ethernet if is_ethernet else merger.add)(point, values)
        yield from merger.finish()
        for said, count in merger.notes.items():
            yield Note(said, count)
        for other, count in others.items():
            yield Unknown(other, count)
        if others and not ours:
            yield Note("no measurement infiniband or ethtool in it")
        yield from lines.rejects


def _digits(point: Point) -> int:
    """Length of a point's time, by which a cut one is told; 0 without a time."""
    return 0 if point.time is None else len(str(point.time))


COLLECTOR = Telegraf()
