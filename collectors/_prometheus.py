"""Rows of ``link_counters`` and ``ports`` made of Prometheus series, one port at a time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, RowBuffer, Rows
from xtune.collectors._ib import (
    DATA,
    LANE_GBPS,
    PORT_STATES,
    WORD_BYTES,
    family_of,
    guid,
    has_counters,
    is_wide,
    link_id,
    settle,
    told_unit,
)
from xtune.collectors._prometheus_names import (
    GAUGES,
    GUILBAULTS,
    NODE,
    NODE_LEGACY,
    RATE,
    SPEED,
    STATE,
    TREYDOCK,
    WIDTH,
    host_of,
)

#: Largest mean packet: an MTU of 4,096 octets and its headers.
_MAX_PACKET = 4300
#: Smallest packet: local route header, base transport header, check sum.
_MIN_PACKET = 24

Samples = dict[int | None, int | float | None]


@dataclass(slots=True)
class Group:
    """All series of one port: the labels they share, and samples by meaning."""

    exporter: str
    labels: dict[str, str]
    series: dict[str, Samples] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Key:
    """What makes series belong together: the exporter and every label but the name."""

    exporter: str
    labels: tuple[tuple[str, str], ...]


def key_of(exporter: str, labels: Mapping[str, str]) -> Key:
    """The key of a series' labels."""
    return Key(exporter, tuple(sorted((k, v) for k, v in labels.items() if k != "__name__")))


@dataclass(slots=True)
class Names:
    """What ``info`` metrics say of a device or node, by the labels that name it."""

    about: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)

    def learn(self, exporter: str, labels: Mapping[str, str]) -> None:
        """Take an info series."""
        if exporter == NODE:
            digits = labels.get("hca_type", "").removeprefix("MT")
            family = family_of(int(digits)) if re.fullmatch(r"\d{1,6}", digits, re.A) else None
            self.about[_device(labels)] = {"device_family": family}
        else:
            name = labels.get("switch") or labels.get("hca") or ""
            self.about[(labels.get("guid", ""),)] = {"node_description": name.strip() or None}


def _device(labels: Mapping[str, str]) -> tuple[str, ...]:
    return labels.get("instance", ""), labels.get("job", ""), labels.get("device", "")


class Writer:
    """Makes ``link_counters`` and ``ports`` rows of groups."""

    def __init__(self, context: Context, names: Names, unknown: str) -> None:
        self.counted = RowBuffer("link_counters", context)
        self.seen = RowBuffer("ports", context)
        self.notes: Counter[str] = Counter()
        self._context = context
        self._names = names
        self._unknown = unknown

    def add(self, group: Group) -> Iterator[Rows]:
        """Take all series of one port."""
        same = self._identity(group)
        if same is None:
            self.notes["series without a port that can be told: left"] += len(group.series)
            return
        identity, about, labels = same
        rates, states = (_Steps(gauge) for gauge in self._gauges(group))
        series = {k: v for k, v in group.series.items() if k not in GAUGES}
        unit = self._unit(group)
        wide = group.exporter != NODE or any(
            is_wide({k: int(v)}, unit)
            for k, samples in series.items()
            for v in samples.values()
            if v is not None
        )
        if group.exporter == NODE:
            series, wide = _legacy(series, wide)
        times = {t for samples in series.values() for t in samples}
        for ts in sorted(times, key=_first_null):
            values = {}
            for name, samples in series.items():
                value = samples.get(ts)
                if value is not None:
                    values[name] = int(value)
            row = settle(values, wide=wide, wide_errors=group.exporter == TREYDOCK, unit=unit)
            if has_counters(row):
                rate = rates.at(ts)
                self.counted.add(
                    {**identity, **row, "ts": ts, "rate_gbps": rate, "labels": labels}
                )
            if self.counted.full:
                yield from self.counted.flush()
        yield from self._port_rows({**identity, **about}, rates, states, labels)

    def finish(self) -> Iterator[Rows]:
        """Yield what is left."""
        yield from self.seen.flush()
        yield from self.counted.flush()

    def _port_rows(
        self,
        identity: dict[str, Any],
        rates: _Steps,
        states: _Steps,
        labels: dict[str, str] | None,
    ) -> Iterator[Rows]:
        """A row where a port is first seen, and where its rate or state changes."""
        before: tuple[float | None, str | None] | None = None
        times = rates.by_time.keys() | states.by_time.keys()
        for ts in sorted(times, key=_first_null):
            now = rates.at(ts), states.at(ts)
            if now != before:
                row = {**identity, "ts": ts, "rate_gbps": now[0], "state": now[1]}
                self.seen.add({**row, "labels": labels})
            before = now
        if before is None:
            self.seen.add({**identity, "labels": labels})
        if self.seen.full:
            yield from self.seen.flush()

    def _identity(
        self, group: Group
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, str] | None] | None:
        """Columns that name the port, further columns of ``ports``, labels that are left."""
        labels = dict(group.labels)
        if group.exporter == NODE:
            device, port = labels.pop("device", ""), _port(labels.pop("port", ""))
            host = host_of(labels.get("instance", "")) or self._context.host
            if not device or port is None:
                return None
            host = host.lower() if host else None
            row = {"host": host, "device": device, "port": port}
            row["link"] = link_id(None, host, device, port, self._unknown)
            return row, self._names.about.get(_device(group.labels), {}), labels or None
        if group.exporter == TREYDOCK:
            text, port = labels.pop("guid", ""), _port(labels.pop("port", ""))
            about = dict(self._names.about.get((text,), {}))
        else:
            text, port = labels.pop("local_guid", ""), _port(labels.pop("local_port", ""))
            about = {"node_description": labels.pop("local_name", "").strip() or None}
        node = guid(text)
        if node is None or port is None:
            return None
        row = {"port": port, "node_guid": node, "link": link_id(node, None, "", port, "")}
        return row, {**about, "link_layer": "InfiniBand"}, labels or None

    def _gauges(
        self, group: Group
    ) -> tuple[dict[int | None, float | None], dict[int | None, str | None]]:
        """Rate in Gb/s and state by time."""
        rates: dict[int | None, float | None] = {}
        for ts, value in group.series.get(RATE, {}).items():
            rates[ts] = value * 8 / 1e9 if value else None
        widths = group.series.get(WIDTH, {})
        for ts, value in group.series.get(SPEED, {}).items():
            lanes, lane = widths.get(ts), _lane(value)
            rates[ts] = lanes * lane if lanes and lane else None
        states: dict[int | None, str | None] = {}
        for ts, value in group.series.get(STATE, {}).items():
            states[ts] = PORT_STATES.get(int(value)) if value is not None else None
        return rates, states

    def _unit(self, group: Group) -> int:
        """Bytes of a unit of the data counters of a port."""
        told = told_unit(self._context.column_map)
        if told is not None:
            return told
        if group.exporter == GUILBAULTS:
            return WORD_BYTES
        if group.exporter == NODE:
            return 1
        for data, packets in (
            ("port_xmit_data", "port_xmit_packets"),
            ("port_rcv_data", "port_rcv_packets"),
        ):
            total = max((v for v in group.series.get(data, {}).values() if v), default=0)
            number = max((v for v in group.series.get(packets, {}).values() if v), default=0)
            if number and total * WORD_BYTES / number > _MAX_PACKET:
                return 1
            if number and 0 < total / number < _MIN_PACKET:
                return WORD_BYTES
        if any(name in group.series for name in DATA):
            self.notes[
                "data taken as bytes; versions before treydock/infiniband_exporter#33 exported "
                "words (--map data_unit_bytes=4)"
            ] += 1
        return 1


def _legacy(series: dict[str, Samples], wide: bool) -> tuple[dict[str, Samples], bool]:
    """Let the extended set stand in for a 32-bit one; beside a 64-bit one it is ``extra``."""
    extended = {k: v for k, v in series.items() if k in NODE_LEGACY}
    if wide or not extended:
        return series, wide
    plain = {k: v for k, v in series.items() if k not in NODE_LEGACY}
    return {**plain, **{NODE_LEGACY[k]: v for k, v in extended.items()}}, True


def _first_null(ts: int | None) -> int:
    return -1 if ts is None else ts


def _port(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,3}", text, re.A) else None


def _lane(gbps: int | float | None) -> float | None:
    """The kernel's rate of a lane (25) where the line rate is printed (25.78125)."""
    near = [lane for lane in LANE_GBPS.values() if gbps and lane <= gbps * 1.001 < lane * 1.07]
    return max(near, default=None)


class _Steps:
    """A gauge over time: its value at a time, or the last before it."""

    def __init__(self, by_time: Mapping[int | None, Any]) -> None:
        self.by_time = by_time
        self._known = sorted(t for t in by_time if t is not None)

    def at(self, ts: int | None) -> Any:
        """The value in force at ``ts``."""
        if ts in self.by_time or ts is None:
            return self.by_time.get(ts)
        index = bisect_right(self._known, ts)
        return self.by_time[self._known[index - 1]] if index else None
