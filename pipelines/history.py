"""What each link of the fabric carried over a span of history, and how the fabric is cabled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xtune.errors import LakeError
from xtune.lake import Lake
from xtune.pipelines._engine import Session, connect, empty_relation, files_relation
from xtune.pipelines._identity import identify
from xtune.pipelines._inventory import _PORTS, _TOPOLOGY
from xtune.pipelines._topology import Topology
from xtune.tables import TABLES

NS = 1_000_000_000
#: A link's high load is what it exceeds in one twentieth of its readings.
HIGH = 0.95

# Busy is sending, or having data that may not be sent; a source that does not count waiting says
# the first alone. Whole nanoseconds add up to the same in any order. The high load is read from
# bins of a thousandth, by their upper ends, and each reading counts once: an interval over a gap
# of hours is a mean, which says nothing of peaks.
_LOADS = """
    WITH parts AS (
        SELECT link, round(interval_s * 1e9)::HUGEINT AS ns,
            -- at an unknown load least() would answer 1
            CASE WHEN utilization IS NOT NULL
                THEN least(utilization + coalesce(wait_fraction, 0), 1) END AS busy
        FROM link_rates
        WHERE epoch_ns(ts) > {since} AND epoch_ns(ts) <= {until}
    ),
    bins AS (
        SELECT link, ceil(busy * 1000)::INTEGER AS bin, count(*) AS readings, sum(ns) AS ns,
            sum(round(busy * ns)::HUGEINT) AS busy_ns
        FROM parts GROUP BY ALL
    ),
    ranked AS (
        SELECT link, bin, ns, busy_ns,
            sum(readings) OVER (PARTITION BY link ORDER BY bin) AS reached,
            sum(readings) OVER (PARTITION BY link) AS readings
        FROM bins WHERE bin IS NOT NULL
    )
    SELECT link, (sum(ns) / 1e9)::DOUBLE AS known_s, (sum(busy_ns) / sum(ns))::DOUBLE AS mean,
        (min(bin) FILTER (reached >= {high} * readings) / 1000)::DOUBLE AS high
    FROM ranked GROUP BY link HAVING sum(ns) > 0 ORDER BY link
"""
_HOSTS = " UNION ".join(
    f"SELECT host FROM {table} WHERE host IS NOT NULL"
    for table in ("collectives", "gpu_samples", "link_counters")
)
_TABLES = (
    "derived/link_rates", "derived/link_episodes", "topology_links", "ports", "collectives",
    "gpu_samples", "link_counters",
)  # fmt: skip
_STRETCHES = """
    SELECT DISTINCT link, role = 'root' AND cause = 'sick_link' AS sick,
        greatest(epoch_ns(start_ts), {since}) AS start_ns,
        least(epoch_ns(end_ts), {until}) AS end_ns
    FROM link_episodes
    WHERE epoch_ns(end_ts) > {since} AND epoch_ns(start_ts) < {until}
    ORDER BY link, start_ns, end_ns
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkHistory:
    """One directed link over a span; times in seconds.

    Attributes:
        known_s: How long its load is known for; 0 where it never is.
        mean: Mean share of that time that it was busy, 0..1; None unknown.
        high: Busy share that a twentieth of the readings exceeded, 0..1; None unknown.
        episode_s: Time in congestion episodes.
        sick_s: Of it, as the root of a sick link's.
    """

    known_s: float = 0.0
    mean: float | None = None
    high: float | None = None
    episode_s: float = 0.0
    sick_s: float = 0.0


class History:
    """The tables that history is read from; made by `open_history`.

    Args:
        session: Where each table is a view by its bare name.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def last_reading_ns(self) -> int | None:
        """Time of the newest rate, nanoseconds since the epoch; None where there is none."""
        newest: int | None = self._rows("SELECT epoch_ns(max(ts)) AS ns FROM link_rates")[0]["ns"]
        return newest

    def links(self, since_ns: int, until_ns: int) -> dict[str, LinkHistory]:
        """History by link, of links with rates or episodes between two instants.

        Args:
            since_ns: From here, nanoseconds since the epoch.
            until_ns: To here.
        """
        span = {"since": since_ns, "until": until_ns}
        loads = {row.pop("link"): row for row in self._rows(_LOADS.format(**span, high=HIGH))}
        every: dict[str, list[tuple[int, int]]] = defaultdict(list)
        sick: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for row in self._rows(_STRETCHES.format(**span)):
            every[row["link"]].append((row["start_ns"], row["end_ns"]))
            if row["sick"]:
                sick[row["link"]].append((row["start_ns"], row["end_ns"]))
        return {
            link: LinkHistory(
                **loads.get(link, {}),
                episode_s=_covered_ns(every[link]) / NS,
                sick_s=_covered_ns(sick[link]) / NS,
            )
            for link in sorted(loads.keys() | every.keys())
        }

    def fabric(self) -> Topology:
        """The fabric as it was discovered last, under the names that derived tables have."""
        topology = self._rows(_TOPOLOGY.format("topology_links"))
        identity = identify(
            self._rows(_PORTS.format("ports")),
            topology,
            {row["host"] for row in self._rows(_HOSTS)},
            {row["link"] for row in self._rows("SELECT DISTINCT link FROM link_rates")},
        )
        return Topology.build([identity.cable(row) for row in topology], identity)

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._session.arrow(sql).to_pylist()
        return rows


@contextmanager
def open_history(lake: Lake) -> Iterator[History]:
    """Read a lake's history; nothing is written.

    Raises:
        LakeError: A live file is missing.
    """
    with connect() as session:
        for name in _TABLES:
            table = TABLES[name]
            paths = [file.path for file in lake.files(name)]
            gone = [path for path in paths if not path.exists()]
            if gone:
                remedy = "run xtune rebuild" if table.derived else "restore it from a backup"
                raise LakeError(f"{table.bare_name}: {gone[0]} is missing", remedy)
            relation = files_relation(paths) if paths else empty_relation(table)
            session.execute(f'CREATE VIEW "{table.bare_name}" AS FROM {relation}')
        yield History(session)


def _covered_ns(stretches: Iterable[tuple[int, int]]) -> int:
    """Length of the union; stretches of one link may repeat or overlap."""
    total = reached = 0
    for start, end in sorted(stretches):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
