"""Finds ports that a host and the fabric's collector both sampled, and compares their clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from xtune.lake import Lake
from xtune.pipelines._clock_counters import Counter, Lag, find_lag
from xtune.pipelines._engine import literal
from xtune.pipelines._tables import DayInput

# Collectors whose times are a server's, not the clock of the host that a row is about.
_SHARED_CLOCK = ("prometheus", "prometheus_text", "ufm")
# Ports of a host that are tried until one tells.
_TRIES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """A host's port that was sampled from both sides, by raw names of its links.

    Attributes:
        own: Names in the host's rows.
        far: Names of the port at the other end in the fabric's rows: it receives what this sends.
        same: Names of the port itself in the fabric's rows.
    """

    own: tuple[str, ...]
    far: tuple[str, ...]
    same: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class Sampled:
    """Who sampled what on a day: hosts with rows by their own clock, and ports seen twice.

    Attributes:
        hosts: One name -> names as read, of hosts whose own clock stamped counters.
        ports: Host -> its ports that the fabric's collector saw too, at either end.
    """

    hosts: dict[str, set[str]] = field(default_factory=dict)
    ports: dict[str, list[Port]] = field(default_factory=dict)


def shared_sources(lake: Lake) -> list[str]:
    """Inputs whose times are a server's, sorted."""
    return sorted(id for id, record in lake.inputs().items() if record.parser in _SHARED_CLOCK)


def find_ports(given: DayInput) -> Sampled:
    """Look through the day's counters; nothing where no topology tells what faces what."""
    found = Sampled()
    if not given.topology.hops:
        return found
    identity = given.identity
    hosts: dict[str, set[str]] = defaultdict(set)
    own: dict[tuple[str, str], set[str]] = defaultdict(set)
    fabric: dict[str, set[str]] = defaultdict(set)
    for link, host in given.session.rows(
        f"SELECT DISTINCT link, CASE WHEN {_by_host(given.lake)} THEN host END"
        f" FROM link_counters WHERE {_within(given)} AND (host IS NULL OR {_by_host(given.lake)})"
    ):
        if host is None:
            fabric[identity.link(link)].add(link)
        else:
            hosts[identity.host(host)].add(host)
            own[identity.host(host), identity.link(link)].add(link)
    found.hosts = dict(hosts)
    for (host, link), names in sorted(own.items()):
        hop = given.topology.hops.get(link)
        far = fabric.get(hop.receiver, set()) if hop is not None else set()
        same = fabric.get(link, set())
        if far or same:
            port = Port(own=tuple(sorted(names)), far=tuple(sorted(far)), same=tuple(sorted(same)))
            found.ports.setdefault(host, []).append(port)
    return found


def find_lags(given: DayInput, sampled: Sampled, hosts: Iterable[str]) -> dict[str, Lag]:
    """How far the clocks of hosts are ahead of the fabric's, where their counters tell."""
    lags: dict[str, Lag] = {}
    for host in hosts:
        names = sampled.hosts[host]
        for port in sampled.ports[host][:_TRIES]:
            lag = _compare(given, port, names)
            if lag is not None:
                lags[host] = lag
                break
    return lags


def sampling_ns(given: DayInput, hosts: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Shortest usual time between two samples of a port, by host (one name -> names as read)."""
    found: dict[str, int] = {}
    for host, names in sorted(hosts.items()):
        [(step,)] = given.session.rows(
            "SELECT min(step) FROM ("
            " SELECT quantile_disc(passed, 0.5) AS step FROM ("
            "  SELECT link, epoch_ns(ts) - lag(epoch_ns(ts)) OVER (PARTITION BY link ORDER BY ts)"
            f"  AS passed FROM link_counters WHERE host IN {_list(names)} AND {_within(given)}"
            " ) WHERE passed > 0 GROUP BY link)"
        )
        if step is not None:
            found[host] = int(step)
    return found


def _compare(given: DayInput, port: Port, names: Collection[str]) -> Lag | None:
    """The clearest of the ways to compare a port: what it sends and receives, at either end."""
    by_host = f"host IN {_list(names)} AND {_by_host(given.lake)}"
    own = _counters(given, port.own, by_host)
    pairs: list[tuple[Counter, Counter]] = []
    if port.far:
        sent, received = _counters(given, port.far, "host IS NULL")
        pairs += [(own[0], received), (own[1], sent)]
    if port.same:
        sent, received = _counters(given, port.same, "host IS NULL")
        pairs += [(own[0], sent), (own[1], received)]
    lags = [lag for pair in pairs if (lag := find_lag(*pair)) is not None]
    if not lags:
        return None
    best = max(lags, key=lambda lag: lag.correlation)
    apart = max(abs(lag.offset_ns - best.offset_ns) for lag in lags)
    return best if apart <= 2 * best.half_ns else None


def _counters(given: DayInput, links: Collection[str], where: str) -> tuple[Counter, Counter]:
    """What was sent and received by a port, by the rows of one side."""
    rows = given.session.arrow(
        "SELECT epoch_ns(ts) AS ts,"
        " max(coalesce(octets(port_xmit_data, 'port_xmit_data', saturated, data_unit_bytes), -1))"
        " AS sent,"
        " max(coalesce(octets(port_rcv_data, 'port_rcv_data', saturated, data_unit_bytes), -1))"
        " AS received"
        f" FROM link_counters WHERE link IN {_list(links)} AND {where} AND {_within(given)}"
        " GROUP BY ts ORDER BY ts"
    )
    times, sent, received = (
        rows[name].to_numpy().astype(np.int64) for name in ("ts", "sent", "received")
    )
    return Counter(times, sent), Counter(times, received)


def _by_host(lake: Lake) -> str:
    """Condition that a row's time is of its host's clock."""
    shared = _list(["-", *shared_sources(lake)])
    return f"host IS NOT NULL AND coalesce(source, '') NOT IN {shared}"


def _within(given: DayInput) -> str:
    return (
        "link IS NOT NULL AND interval_s IS NULL"
        f" AND epoch_ns(ts) >= {given.start_ns} AND epoch_ns(ts) < {given.end_ns}"
    )


def _list(names: Iterable[str]) -> str:
    return "(" + ", ".join(literal(name) for name in sorted(names)) + ")"
