"""What the raw tables name: links, hosts, ports, topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq

from xtune.lake import DataFile, Lake
from xtune.pipelines._clocks import Clocks
from xtune.pipelines._engine import Session, files_relation
from xtune.pipelines._identity import Identity, PortFacts, identify
from xtune.pipelines._state import RawRecord, State

# Tables that name hosts, beside the counters.
_HOSTED = ("collectives", "gpu_samples")
_PORTS = """
    SELECT host, device, port, node_guid, port_guid, link, node_description, rate_gbps, width,
        link_layer, device_family, epoch_ns(max(ts)) AS seen
    FROM {} GROUP BY ALL
    ORDER BY seen NULLS FIRST, link, host, device, port, node_guid, port_guid, node_description,
        rate_gbps, width, link_layer, device_family
"""
_TOPOLOGY = """
    SELECT * EXCLUDE (seen)
    FROM (
        SELECT src_guid, src_name, src_port, dst_guid, dst_name, dst_port, rate_gbps, tier,
            max(ts) AS seen
        FROM {} WHERE src_guid IS NOT NULL AND src_port IS NOT NULL GROUP BY ALL
    )
    QUALIFY row_number() OVER (
        PARTITION BY src_guid, src_port
        ORDER BY seen DESC NULLS LAST, dst_guid NULLS LAST, dst_port, rate_gbps NULLS LAST
    ) = 1
    ORDER BY src_guid, src_port
"""


class Inventory:
    """Links of each raw counter file, and the identity of all ports.

    Attributes:
        topology: Directed links, the latest discovery of each sending port.
        identity: One name for each port and host.
        clocks: Which hosts' clocks are off, and when; known once ``clock_offsets`` is made.
    """

    def __init__(self, lake: Lake, session: Session, state: State) -> None:
        self._lake = lake
        self._state = state
        self._links: dict[str, list[tuple[str, str | None]]] = {}
        self._look_through(session)
        self.topology = _rows(session, lake, "topology_links", _TOPOLOGY)
        ports = _rows(session, lake, "ports", _PORTS)
        hosts = self._hosts_beside(session)
        links = {
            pair for name in {r.links for r in state.raw.values()} for pair in self._set(name)
        }
        hosts |= {host for _, host in links if host}
        self.identity: Identity = identify(
            ports, self.topology, hosts, {link for link, _ in links}
        )
        self.topology = [self.identity.cable(row) for row in self.topology]
        self.clocks = Clocks()

    def port(self, raw: str, start_ns: int, end_ns: int) -> PortFacts:
        """Facts of a port under any of its names, and how its host's clock is off in a span."""
        port = self.identity.port(raw)
        shifts = self.clocks.within(self.identity.host_of_link(port.link), start_ns, end_ns)
        return replace(port, shifts=shifts) if shifts else port

    def record(self, file: DataFile) -> RawRecord:
        """What one raw file holds."""
        return self._state.raw[self._lake.name_of(file)]

    def links(self, file: DataFile) -> list[str]:
        """Links of one raw file, sorted."""
        return [link for link, _ in self._set(self.record(file).links)]

    def _look_through(self, session: Session) -> None:
        files = {self._lake.name_of(f): f for f in self._lake.files("link_counters")}
        known = self._state.raw
        for name in known.keys() - files.keys():
            del known[name]
        for name, file in files.items():
            if name in known and self._state.has([known[name].links]):
                continue
            found = session.arrow(
                "SELECT link, any_value(host) AS host, bool_or(rate_gbps IS NULL) AS null_rate,"
                " bool_or(interval_s IS NOT NULL) AS deltas"
                f" FROM {files_relation([file.path])} WHERE link IS NOT NULL"
                " GROUP BY link ORDER BY link"
            )
            known[name] = RawRecord(
                links=self._state.keep_table("links", found.select(["link", "host"])),
                null_rate=any(found["null_rate"].to_pylist()),
                deltas=any(found["deltas"].to_pylist()),
            )

    def _hosts_beside(self, session: Session) -> set[str]:
        """Hosts that other raw tables name; each file is read once."""
        files = {self._lake.name_of(f): f for table in _HOSTED for f in self._lake.files(table)}
        known = self._state.hosts
        for name in known.keys() - files.keys():
            del known[name]
        for name, file in files.items():
            if name in known and self._state.has([known[name]]):
                continue
            found = session.arrow(
                f"SELECT DISTINCT host FROM {files_relation([file.path])}"
                " WHERE host IS NOT NULL ORDER BY host"
            )
            known[name] = self._state.keep_table("hosts", found)
        sets = [pq.read_table(self._state.path(name)) for name in sorted({*known.values()})]
        return {host for found in sets for host in found["host"].to_pylist()}

    def _set(self, name: str) -> list[tuple[str, str | None]]:
        if name not in self._links:
            rows = pq.read_table(self._state.path(name)).to_pylist()
            self._links[name] = [(row["link"], row["host"]) for row in rows]
        return self._links[name]


def _rows(session: Session, lake: Lake, table: str, query: str) -> list[Mapping[str, Any]]:
    files = lake.files(table)
    if not files:
        return []
    relation = files_relation(file.path for file in files)
    found = session.arrow(query.format(relation))
    rows: list[Mapping[str, Any]] = found.to_pylist()
    return rows
