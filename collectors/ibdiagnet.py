"""ibdiagnet's ``ibdiagnet2.db_csv``, plain or gzip: counters, deltas, ports and links.

What it assumes: PM_INFO are the absolute values of the first sample, so their time is the run's;
PM_DELTA is what the second sample added ``--pm_pause_time`` seconds later (1 by default). When it
lies: the run's time has whole seconds and the samples follow it by the length of the discovery.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Rows, Source
from xtune.collectors._cables import readings
from xtune.collectors._ib import WIDTHS, guid, has_counters
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import fallback_time, parse_utc_stamp
from xtune.collectors._ib_topology import End
from xtune.collectors._ib_topology import Fabric as Topology
from xtune.collectors._ibdiagnet_csv import (
    NOT_COUNTERS,
    Fabric,
    Record,
    is_sentinel,
    learn,
    number,
    port_of,
    read_sections,
)
from xtune.collectors._pma_fields import merge, settle_fields
from xtune.collectors._textlines import Rejects

_PAUSE_S = 1.0
_IDENTITY = {"NodeGUID", "PortGUID", "PortNumber"}
_CABLE_IDENTITY = {"NodeGuid", "PortGuid", "PortNum", "NodeGUID", "PortGUID", "PortNumber"}


def pause_s(arguments: str) -> float | None:
    """Seconds between the two samples as the run's arguments give them, else ``None``."""
    match = re.search(r"--pm_pause_time[ =](\d+(?:\.\d+)?)", arguments)
    return float(match[1]) if match else None


def counters(cells: Mapping[str, str]) -> tuple[dict[str, int], set[str], list[str]]:
    """Counters of a row by kernel name.

    Returns:
        Values; the names that come from a 64-bit field, which is preferred where it has a value;
        the header names of cells that are neither a number nor a sentinel.
    """
    fields: dict[str, int] = {}
    bad: list[str] = []
    for header, cell in cells.items():
        if header in _IDENTITY or header in NOT_COUNTERS:
            continue
        value = number(cell)
        if value is not None:
            fields[header] = value
        elif not is_sentinel(cell):
            bad.append(header)
    return *merge(fields), bad


class _Counters:
    """Makes ``link_counters`` rows of PM_INFO and PM_DELTA."""

    def __init__(self, fabric: Fabric, ts: int | None, context: Context) -> None:
        self.fabric = fabric
        self.ts = ts
        self.buffer = RowBuffer("link_counters", context)
        self.deltas = 0
        self._narrow: dict[tuple[str, int], dict[str, int]] = {}
        self.pause = pause_s(fabric.arguments)

    def add(self, record: Record) -> Iterator[Item]:
        """Take one row of PM_INFO or PM_DELTA."""
        key = port_of(record)
        if key is None:
            yield Reject(f"line {record.line}", f"{record.section} row without GUID and port")
            return
        values, wide, bad = counters(record.cells)
        if bad:
            cells = ", ".join(f"{h}={record.cells[h].strip()}" for h in bad)
            reason = f"not a counter: {clip(cells)}"
            yield Reject(f"line {record.line}", reason, "these are unknown, others count")
        row = self._row(record.section, key, values, wide)
        if row is not None:
            self.buffer.add(row)
        if self.buffer.full:
            yield from self.buffer.flush()

    def _row(
        self, section: str, key: tuple[str, int], values: dict[str, int], wide: set[str]
    ) -> dict[str, Any] | None:
        node, port = key
        row = settle_fields(values, wide)
        ts, interval = self.ts, None
        if section == "PM_DELTA":
            self.deltas += 1
            interval = self.pause if self.pause is not None else _PAUSE_S
            ts = None if ts is None else ts + round(interval * 1e9)
            self._unknown_deltas(key, row, values)
        else:
            narrow = {n: v for n, v in values.items() if n not in wide and n in WIDTHS}
            if narrow:
                self._narrow[key] = narrow
        if not has_counters(row):
            return None
        about = self.fabric.ports.get(key)
        return row | {
            "ts": ts,
            "link": f"{node}/{port}",
            "port": port,
            "node_guid": node,
            "rate_gbps": about.rate_gbps if about else None,
            "xmit_wait_tick": self.fabric.tick(node, port),
            "interval_s": interval,
        }

    def _unknown_deltas(
        self, key: tuple[str, int], row: dict[str, Any], values: dict[str, int]
    ) -> None:
        """Take out deltas of fields that reached their maximum: they cannot move beyond it."""
        before = self._narrow.get(key, {})
        stuck = {n for n in before if before[n] + values.get(n, 0) >= 2 ** WIDTHS[n] - 1}
        stuck &= row.keys()
        for name in stuck:
            del row[name]
        row["saturated"] = [*(row["saturated"] or []), *sorted(stuck)] or None


def _ports(fabric: Fabric, ts: int | None, context: Context) -> Iterator[Rows]:
    buffer = RowBuffer("ports", context)
    for (node, port), about in fabric.ports.items():
        if port == 0:  # a switch's own management port, no link
            continue
        known = fabric.nodes.get(node)
        buffer.add(
            {
                "ts": ts,
                "port": port,
                "node_guid": node,
                "port_guid": about.port_guid,
                "node_description": known.description if known else None,
                "rate_gbps": about.rate_gbps,
                "width": about.width,
                "link_layer": "InfiniBand",
                "device_family": fabric.family(node),
                "link": f"{node}/{port}",
                "state": about.state,
            }
        )
        if buffer.full:
            yield from buffer.flush()
    yield from buffer.flush()


class Ibdiagnet(Collector):
    """Reads twice: first what the fabric is, then its counters, so sections need no order."""

    name = "ibdiagnet"
    title = "ibdiagnet2.db_csv: counters, deltas, ports, links, cables of a whole fabric"
    produce = (
        "ibdiagnet --get_cable_info --pm_pause_time 10; /var/tmp/ibdiagnet2/ibdiagnet2.db_csv"
    )
    gives = "64-bit counters of all ports twice, wait ticks, topology, cable modules"
    lacks = "a series: two samples a run. Never run it with -pc, which clears the counters"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the head has ibdiagnet's index line or a section it always writes."""
        if re.search(rb"^# INDEX_TABLE offset:", head, re.M):
            return 0.97
        if re.search(rb"^START_(RUN_INFO|NODES|PORTS|LINKS|PM_INFO|PM_DELTA)\s*$", head, re.M):
            return 0.9
        return 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``ports``, ``link_counters``, ``link_signal`` and ``topology_links``."""
        damage = Rejects()
        fabric, topology = Fabric(), Topology()
        rows: Counter[str] = Counter()
        links: list[Record] = []
        for record in read_sections(source, damage):
            rows[record.section] += 1
            if record.section == "RUN_INFO":
                fabric.started_ns = parse_utc_stamp(record.cells.get("Date", ""))
                fabric.arguments = record.cells.get("Args", "")
            elif record.section == "LINKS":
                links.append(record)
            else:
                learn(fabric, record)
        ts = fabric.started_ns
        if ts is None:
            ts = fallback_time(source, context)
            if ts is None and rows:
                yield Note("no run time in the file: ts is null (--time-from says otherwise)")
        yield from _ports(fabric, ts, context)
        counted = _Counters(fabric, ts, context)
        signal = RowBuffer("link_signal", context)
        if rows["PM_INFO"] or rows["PM_DELTA"] or rows["CABLE_INFO"]:
            for record in read_sections(source, Rejects()):
                if record.section in ("PM_INFO", "PM_DELTA"):
                    yield from counted.add(record)
                elif record.section == "CABLE_INFO":
                    yield from _cable(record, ts, signal)
            yield from counted.buffer.flush()
            yield from signal.flush()
        if rows and not rows["PM_INFO"] and not rows["PM_DELTA"]:
            yield Note("no PM_INFO and PM_DELTA: the run left port counters out")
        if counted.deltas and counted.pause is None:
            yield Note("PM_DELTA spans ibdiagnet's default pause of 1 s", counted.deltas)
        for record in links:
            yield from _link(record, fabric, topology)
        yield from topology.rows(ts, context)
        yield from damage
        if not rows and not damage:
            yield Reject("file", "no section with a row in it", "is it an ibdiagnet2.db_csv?")


def _cable(record: Record, ts: int | None, buffer: RowBuffer) -> Iterator[Item]:
    key = port_of(record)
    if key is None:
        yield Reject(f"line {record.line}", "CABLE_INFO row without GUID and port")
        return
    values = {name: cell for name, cell in record.cells.items() if name not in _CABLE_IDENTITY}
    for reading in readings(values, {"ts": ts, "link": f"{key[0]}/{key[1]}"}):
        buffer.add(reading)
    if buffer.full:
        yield from buffer.flush()


def _link(record: Record, fabric: Fabric, topology: Topology) -> Iterator[Reject]:
    cells = record.cells
    ends = []
    for side in ("1", "2"):
        node = guid(cells.get(f"NodeGuid{side}") or cells.get(f"NodeGUID{side}"))
        port = number(cells.get(f"PortNum{side}"))
        if node is None or port is None or port > 254:
            yield Reject(f"line {record.line}", "LINKS row without two GUIDs and ports")
            return
        known = fabric.nodes.get(node)
        topology.node(
            node, known is not None and known.kind == 1, known.description if known else None
        )
        ends.append(End(node, port))
    about = fabric.ports.get((ends[0].guid, ends[0].port or 0))
    width, rate = (about.width, about.rate_gbps) if about else (None, None)
    odd = topology.link(ends[0], ends[1], width, rate)
    if odd:
        yield Reject(f"line {record.line}", odd)


COLLECTOR = Ibdiagnet()
