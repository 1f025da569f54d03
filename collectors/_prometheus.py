"""Rows of ``link_counters``, ``ports`` and ``topology_links`` made of Prometheus series."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, Item, Reject, RowBuffer
from xtune.collectors._ib import (
    LANE_GBPS,
    PORT_STATES,
    WORD_BYTES,
    family_of_hca,
    guid,
    link_id,
    told_unit,
)
from xtune.collectors._ib_topology import End, Fabric
from xtune.collectors._prometheus_counters import PortFacts, counter_rows, weigh_block
from xtune.collectors._prometheus_names import (
    GUILBAULTS,
    NODE,
    PHYSICAL,
    RATE,
    SPEED,
    STATE,
    TREYDOCK,
    UPLINK,
    WIDTH,
    host_of,
)
from xtune.collectors._prometheus_samples import NO_TIME, Samples
from xtune.collectors._prometheus_unit import Units

Gauge = dict[int, int | float]
AMBIGUOUS = (
    "data taken as bytes; versions before treydock/infiniband_exporter#33 exported words "
    "(--map data_unit_bytes=4)"
)
_REPEATED = "an exposition is one scrape, a response holds each sample once"


@dataclass(slots=True)
class Group:
    """All series of one port, GPU or kind of operation: the labels they share, and gauges.

    ``gauges``: by meaning, then by time (nanoseconds since the epoch or NO_TIME).
    """

    exporter: str
    labels: dict[str, str]
    gauges: dict[str, Gauge] = field(default_factory=dict)


@dataclass(slots=True)
class Names:
    """What labels with the value 1 say of a device, node or cable."""

    about: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    fabric: Fabric = field(default_factory=Fabric)

    def learn(self, exporter: str, meaning: str, labels: Mapping[str, str]) -> None:
        """Take an info series."""
        if meaning == UPLINK:
            name = (labels.get("switch") or labels.get("hca"), labels.get("uplink"))
            far = (labels.get("uplink_guid"), labels.get("uplink_port"))
            near = (labels.get("guid"), labels.get("port"))
            kinds = ("hca" in labels, labels.get("uplink_type") == "CA")
            self.cable(near, far, name, kinds)
        elif exporter == NODE:
            family = family_of_hca(labels.get("hca_type"))
            self.about[_device(labels)] = {"device_family": family}
        else:
            name_of = labels.get("switch") or labels.get("hca") or ""
            self.about[(labels.get("guid", ""),)] = {"node_description": name_of.strip() or None}

    def cable(
        self,
        near: tuple[str | None, str | None],
        far: tuple[str | None, str | None],
        names: tuple[str | None, str | None],
        adapters: tuple[bool, bool],
    ) -> None:
        """Note a link: GUID and port of both ends, their descriptions, which are adapters."""
        ends = []
        for (text, port), name, adapter in zip((near, far), names, adapters, strict=True):
            node, number = guid(text), _port(port or "")
            if node is None or number is None:
                return
            self.fabric.node(node, adapter, (name or "").strip() or None)
            ends.append(End(node, number))
        self.fabric.link(ends[0], ends[1], None, None)


def _device(labels: Mapping[str, str]) -> tuple[str, ...]:
    return labels.get("instance", ""), labels.get("job", ""), labels.get("device", "")


class Ports:
    """Makes rows of the series of ports, a block of whole ports at a time.

    Args:
        context: What the user says.
        names: What info series say; filled before the first :meth:`flush`.
        unknown: Stands for the host of ports where nothing tells it.
    """

    def __init__(self, context: Context, names: Names, unknown: str) -> None:
        self.samples = Samples()
        self.notes: Counter[str] = Counter()
        self.names = names
        self.unknown = unknown
        self.units = Units()
        self._told = told_unit(context.column_map)
        self._context = context
        self._groups: list[Group] = []
        self._seen = RowBuffer("ports", context)
        self._warned: set[str] = set()

    def group(self, exporter: str, labels: Mapping[str, str]) -> tuple[int, Group]:
        """A new group of the block: its index, and where gauges go."""
        self._groups.append(Group(exporter, {k: v for k, v in labels.items() if k != "__name__"}))
        return len(self._groups) - 1, self._groups[-1]

    def __len__(self) -> int:
        return len(self._groups)

    def flush(self, place: str) -> Iterator[Item]:
        """Rows of all groups since the last flush; ``place`` names what rejects count in."""
        facts: list[PortFacts | None] = []
        for group in self._groups:
            same = self._identity(group)
            if same is None:
                self.notes["series without a port that can be told: left"] += 1
                facts.append(None)
                continue
            identity, about, labels = same
            rates, states, physical = self._gauges(group, identity)
            yield from self._port_rows({**identity, **about}, rates, states, physical, labels)
            facts.append(PortFacts(group.exporter, group.labels, identity, labels, rates))
        if any(group.exporter == TREYDOCK for group in self._groups) and not self.units.frozen:
            labels_of = [g.labels if g.exporter == TREYDOCK else None for g in self._groups]
            for instance, data, packets in weigh_block(self.samples, labels_of):
                self.units.weigh(instance, data, packets)
        self._groups = []
        rows, conflicts = counter_rows(self.samples, facts, self._unit, self._context)
        yield from rows
        for (where, name), count in Counter(conflicts).items():
            times = f" ({count} times)" if count > 1 else ""
            reason = f"{self.samples.names[name]}: said before, with another value{times}"
            yield Reject(f"{place} {where}", reason, _REPEATED)
        yield from self._seen.flush()

    def finish(self) -> Iterator[Item]:
        """Yield what the whole input says: the cables."""
        if self.names.fabric.links:
            yield from self.names.fabric.rows(None, self._context)

    def _port_rows(
        self,
        identity: dict[str, Any],
        rates: Steps,
        states: Gauge,
        physical: Gauge,
        labels: dict[str, str] | None,
    ) -> Iterator[Item]:
        """A row where a port is first seen, and where its rate or state changes."""
        before: tuple[Any, ...] | None = None
        state_steps, physical_steps = Steps(states), Steps(physical)
        for ts in sorted(rates.by_time.keys() | states.keys() | physical.keys()):
            number = state_steps.at(ts)
            code = physical_steps.at(ts)
            state = None if number is None else PORT_STATES.get(int(number))
            now = rates.at(ts), state, code
            if now != before:
                extra = None if code is None else {"physical_state_id": str(int(code))}
                row = {**identity, "ts": None if ts == NO_TIME else ts}
                row |= {"rate_gbps": now[0], "state": state, "extra": extra, "labels": labels}
                self._seen.add(row)
            before = now
        if before is None:
            self._seen.add({**identity, "labels": labels})
        if self._seen.full:
            yield from self._seen.flush()

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
            row["link"] = link_id(None, host, device, port, self.unknown)
            return row, self.names.about.get(_device(group.labels), {}), labels or None
        if group.exporter == TREYDOCK:
            text, port = labels.pop("guid", ""), _port(labels.pop("port", ""))
            about = dict(self.names.about.get((text,), {}))
        else:
            text, port = labels.pop("local_guid", ""), _port(labels.pop("local_port", ""))
            name = labels.pop("local_name", "").strip() or None
            about = {"node_description": name}
            self.names.cable(
                (text, group.labels.get("local_port")),
                (labels.get("remote_guid"), labels.get("remote_port")),
                (name, labels.get("remote_name")),
                (labels.get("component") == "ca", _is_adapter(labels.get("remote_name"))),
            )
        node = guid(text)
        if node is None or port is None:
            return None
        row = {"port": port, "node_guid": node, "link": link_id(node, None, "", port, "")}
        return row, {**about, "link_layer": "InfiniBand"}, labels or None

    def _gauges(self, group: Group, identity: dict[str, Any]) -> tuple[Steps, Gauge, Gauge]:
        """Rate in Gb/s, logical and physical state, by time."""
        rates: dict[int, Any] = {}
        for ts, value in group.gauges.get(RATE, {}).items():
            rates[ts] = value * 8 / 1e9 if value and value > 0 else None
        widths = group.gauges.get(WIDTH, {})
        for ts, value in group.gauges.get(SPEED, {}).items():
            lanes, lane = widths.get(ts), _lane(value)
            rates[ts] = lanes * lane if lanes and lane else None
        node = identity.get("node_guid")
        if not rates and node in self.names.rates:
            rates[NO_TIME] = self.names.rates[node]
        return Steps(rates), group.gauges.get(STATE, {}), group.gauges.get(PHYSICAL, {})

    def learn_rate(self, labels: Mapping[str, str], value: float) -> None:
        """Take the rate of all ports of an adapter, in bytes per second."""
        node = guid(labels.get("guid"))
        if node and value > 0:
            self.names.rates[node] = value * 8 / 1e9

    def _unit(self, exporter: str, labels: Mapping[str, str], has_data: bool) -> int:
        """Bytes of a unit of the data counters of a port."""
        if self._told is not None:
            return self._told
        if exporter == GUILBAULTS:
            return WORD_BYTES
        if exporter == NODE:
            return 1
        instance = labels.get("instance", "")
        known = self.units.of(instance)
        if known is None and has_data and instance not in self._warned:
            self._warned.add(instance)
            self.notes[AMBIGUOUS] += 1
        return known or 1


def _is_adapter(description: str | None) -> bool:
    """Whether a node calls itself as hosts' adapters do: ``node17 HCA-1``, ``node17 mlx5_0``."""
    return bool(re.search(r"\b(HCA-\d|mlx[45]_\d)", description or ""))


def _port(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,3}", text, re.A) else None


def _lane(gbps: int | float | None) -> float | None:
    """The kernel's rate of a lane (25) where the line rate is printed (25.78125)."""
    near = [lane for lane in LANE_GBPS.values() if gbps and lane <= gbps * 1.001 < lane * 1.07]
    return max(near, default=None)


class Steps:
    """A gauge over time: its value at a time, or the last before it."""

    def __init__(self, by_time: Mapping[int, Any]) -> None:
        self.by_time = by_time
        self._known = sorted(by_time)

    def at(self, ts: int) -> Any:
        """The value in force at ``ts``; one without a time counts for all."""
        if ts in self.by_time:
            return self.by_time[ts]
        index = bisect_right(self._known, ts)
        return self.by_time[self._known[index - 1]] if index else None

    def only(self) -> tuple[bool, Any]:
        """Whether all values are one, from before any time, and that value."""
        values = set(self.by_time.values())
        return not values or (len(values) == 1), next(iter(values), None)
