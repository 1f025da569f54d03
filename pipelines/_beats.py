"""``link_beats``: which communicators beat on a link, and which of them at the same time.

A communicator crosses a link where some of its hosts are on the lower side of it and some are not.
Where a link is one of several uplinks, it may cross any of them: paths are not known.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from xtune.pipelines._bursts import Beat, communicators
from xtune.pipelines._identity import Identity
from xtune.pipelines._periods import Floats
from xtune.pipelines._tables import DayInput, DayTable
from xtune.pipelines._topology import Topology

# Two periods this near are the same.
_SAME = 0.03
_FOUND = pa.schema(
    [
        ("day_ns", pa.int64()),
        ("link", pa.string()),
        ("job", pa.string()),
        ("comm", pa.string()),
        ("period_s", pa.float64()),
        ("link_period_s", pa.float64()),
        ("other_job", pa.string()),
        ("other_comm", pa.string()),
        ("other_period_s", pa.float64()),
        ("overlap", pa.float64()),
        ("phase", pa.float64()),
    ]
)


def prepare(given: DayInput) -> list[str]:
    """Load what the model ``link_beats`` reads."""
    session = given.session
    hosts: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for job, comm, host in session.rows(
        "SELECT DISTINCT job, comm, host FROM collectives"
        " WHERE comm IS NOT NULL AND host IS NOT NULL"
    ):
        hosts[job, comm].add(given.identity.host(host))
    periods: dict[str, list[float]] = defaultdict(list)
    for link, period in session.rows(
        "SELECT subject, period_s FROM bursts WHERE kind = 'link' AND period_s IS NOT NULL"
        " ORDER BY subject, period_s"
    ):
        periods[link].append(period)
    beats = list(communicators(session, given.start_ns)) if periods else []
    rows = []
    for link, of_link in periods.items():
        below = hosts_below(link, given.topology, given.identity)
        crossing = [
            (beat, match)
            for beat in beats
            if (own := hosts.get((beat.job, beat.comm), set())) & below
            and own - below
            and (match := _match(beat, of_link)) is not None
        ]
        for beat, match in crossing:
            others: list[Beat | None] = [other for other, _ in crossing if other is not beat]
            for other in others or [None]:
                rows.append(_row(given.start_ns, link, beat, match, other))
    session.load("beats_found", pa.Table.from_pylist(rows, schema=_FOUND))
    return []


def hosts_below(link: str, topology: Topology, identity: Identity) -> set[str]:
    """Hosts on the lower side of a link; its own host where the topology does not have it."""
    hop = topology.hops.get(link)
    if hop is None:
        host = identity.host_of_link(link)
        return {host} if host else set()

    @cache
    def under(node: str) -> frozenset[str]:
        height = topology.height.get(node)
        if height == 0:
            host = identity.host_of_guid.get(node)
            return frozenset({host} if host else ())
        found: set[str] = set()
        for onward in topology.out_of.get(node, ()):
            beyond = topology.hops[onward].next_node
            if height is not None and topology.height.get(beyond, height) < height:
                found |= under(beyond)
        return frozenset(found)

    ends = sorted((hop.node, hop.next_node), key=lambda node: topology.height.get(node, 1 << 30))
    return set(under(ends[0]))


def overlap(beat: Beat, other: Beat) -> float:
    """Share of a communicator's burst time in which another one bursts too."""
    total = float(np.sum(beat.ends - beat.begins))
    low = np.maximum(beat.begins, other.begins[0])
    high = np.minimum(beat.ends, other.ends[-1])
    covered = _covered(other.begins, other.ends)
    both = covered(high) - covered(np.minimum(low, high))
    return min(1.0, float(np.sum(both)) / total) if total > 0 else 0.0


def _covered(begins: Floats, ends: Floats) -> Any:
    """Burst time from the first beginning up to a moment."""
    times = np.stack([begins, ends], axis=1).ravel()
    done = np.concatenate([[0.0], np.cumsum(ends - begins)])
    levels = np.stack([done[:-1], done[1:]], axis=1).ravel()
    return lambda at: np.interp(at, times, levels)


def phase(beat: Beat, other: Beat) -> float | None:
    """How much later another one's bursts begin, as a share of the period they have in common.

    None where their periods differ: then it has no fixed value.
    """
    if abs(other.period.period_s / beat.period.period_s - 1) > _SAME:
        return None
    after = np.searchsorted(other.begins, beat.begins)
    known = after < other.begins.size
    if not known.any():
        return None
    late = (other.begins[after[known]] - beat.begins[known]) / beat.period.period_s
    turn = np.exp(2j * np.pi * late).mean()
    return float(np.angle(turn) / (2 * np.pi)) % 1.0


def _match(beat: Beat, periods: list[float]) -> float | None:
    """A link's period that is a communicator's."""
    found = beat.period
    near = [p for p in periods if abs(p / found.period_s - 1) <= _SAME]
    return min(near, key=lambda p: (abs(p - found.period_s), p), default=None)


def _row(day_ns: int, link: str, beat: Beat, match: float, other: Beat | None) -> dict[str, Any]:
    return {
        "day_ns": day_ns,
        "link": link,
        "job": beat.job,
        "comm": beat.comm,
        "period_s": beat.period.period_s,
        "link_period_s": match,
        "other_job": other.job if other else None,
        "other_comm": other.comm if other else None,
        "other_period_s": other.period.period_s if other else None,
        "overlap": overlap(beat, other) if other else None,
        "phase": phase(beat, other) if other else None,
    }


TABLE = DayTable(
    name="link_beats",
    inputs=("collectives", "bursts"),
    prepare=prepare,
    rests_on=("identity", "topology"),
)
