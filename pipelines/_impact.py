"""From episodes to what they cost: collectives slowed, steps hit, GPU hours idle.

One UTC day at a time, from what that day and the 24 hours before it hold: no number of a day that
is over changes because another day arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from xtune.lake import Lake
from xtune.pipelines._chunks import NS_PER_DAY, ns_date
from xtune.pipelines._engine import Session
from xtune.pipelines._episodes import Episode
from xtune.pipelines._impact_places import episode_hosts, episode_waits, fabric_hosts
from xtune.pipelines._tables import DayInput
from xtune.tables import list_of

#: Raw tables that :func:`impact_day` reads, from the day before to the day after: the 24 hours
#: before are what is usual; of the day after, what straddles midnight.
IMPACT_INPUTS = ("collectives", "steps", "gpu_busy")
#: Derived tables that :func:`impact_day` makes, each with rows of its day only.
IMPACT_TABLES = ("collective_impact", "episode_costs", "impact_by")

_HOUR_NS = 3600 * 10**9
_MODELS = (
    "collective_samples",
    "collective_groups",
    "job_sizes",
    "step_spans",
    "job_hosts",
    "job_waits",
    "episode_jobs",
    "collective_episodes",
    "clear_collectives",
    "expectations",
    "fit_samples",
)
_MODELS_PRICED = (
    "busy_spans",
    "collective_expected",
    "collective_tails",
    "collective_impact",
    "hit_jobs",
    "step_candidates",
    "step_episodes",
    "step_costs",
    "rank_losses",
    "episode_costs",
    "impact_by",
)
_HEADS = pa.schema(
    [
        ("episode_id", pa.string()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("links", list_of(pa.string())),
        ("root_link", pa.string()),
        ("cause", pa.string()),
        ("evidence", pa.string()),
    ]
)
_MEMBERS = pa.schema(
    [
        ("link_episode_id", pa.string()),
        ("episode_id", pa.string()),
        ("link", pa.string()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("peak_level", pa.int32()),
        ("mean_wait_fraction", pa.float64()),
        ("peak_utilization", pa.float64()),
        ("bytes", pa.float64()),
        ("role", pa.string()),
        ("cause", pa.string()),
        ("evidence", pa.string()),
    ]
)
_CLOCKS = (
    "SELECT NULL::VARCHAR AS host, NULL::BIGINT AS from_ns, NULL::BIGINT AS to_ns,"
    " NULL::BIGINT AS offset_ns WHERE false"
)


def impact_day(
    given: DayInput, episodes: Iterable[Episode], sizes: Mapping[str | None, int] | None = None
) -> None:
    """Make the relations :data:`IMPACT_TABLES` of one day.

    Args:
        given: The session has :data:`IMPACT_INPUTS` of the day and of the days beside it, and
            ``host_clocks`` where offsets are known.
        episodes: Those that overlap the day or the 24 hours before it; others are passed over.
        sizes: Job -> ranks, for jobs whose size the days at hand do not tell.
    """
    from xtune.pipelines._impact_fit import fit_kinds

    session = given.session
    low, high = given.start_ns - NS_PER_DAY, given.end_ns + _HOUR_NS
    near = [e for e in episodes if e.start_ns < high and e.end_ns > low]
    session.set_variables({"impact_from_ns": given.start_ns, "impact_to_ns": given.end_ns})
    _load_heads(session, near)
    session.load("episode_hosts", episode_hosts(near, given.topology, given.identity))
    session.load("episode_waits", episode_waits(near, given.topology, given.identity))
    session.load("fabric_hosts", fabric_hosts(given.identity))
    names = sorted(given.identity.hosts.items())
    session.load(
        "host_names",
        pa.table(
            {
                "host": pa.array([host for host, _ in names], pa.string()),
                "name": pa.array([name for _, name in names], pa.string()),
            }
        ),
    )
    known = list((sizes or {}).items())
    session.load(
        "known_sizes",
        pa.table(
            {
                "job": pa.array([job for job, _ in known], pa.string()),
                "ranks": pa.array([ranks for _, ranks in known], pa.int64()),
            }
        ),
    )
    if not session.rows("FROM duckdb_tables() WHERE table_name = 'host_clocks'"):
        session.table("host_clocks", _CLOCKS)
    for name in _MODELS:
        session.create(name)
    session.load("expectation_fits", fit_kinds(session.arrow("FROM fit_samples")))
    for name in _MODELS_PRICED:
        session.create(name)


def create_episodes(session: Session, episodes: Iterable[Episode]) -> None:
    """Make the relations ``link_episodes`` and ``episodes``.

    Args:
        session: Has ``episode_costs`` and ``impact_by`` of all days of these episodes.
        episodes: Any part of them: each row rests on its episode alone.
    """
    episodes = list(episodes)
    members = [
        {
            "link_episode_id": m.id,
            "episode_id": e.id,
            "link": m.link,
            "start_ns": m.start_ns,
            "end_ns": m.end_ns,
            "peak_level": m.peak_level,
            "mean_wait_fraction": m.mean_wait_fraction,
            "peak_utilization": m.peak_utilization,
            "bytes": m.bytes,
            "role": e.role(m),
            "cause": e.cause,
            "evidence": e.evidence_text(),
        }
        for e in episodes
        for m in e.members
    ]
    _load_heads(session, episodes)
    session.load("episode_members", pa.Table.from_pylist(members, schema=_MEMBERS))
    session.create("link_episodes")
    session.create("episodes")


def _load_heads(session: Session, episodes: list[Episode]) -> None:
    heads = [
        {
            "episode_id": e.id,
            "start_ns": e.start_ns,
            "end_ns": e.end_ns,
            "links": sorted({member.link for member in e.members}),
            "root_link": e.root,
            "cause": e.cause,
            "evidence": e.evidence_text(),
        }
        for e in episodes
    ]
    session.load("episode_heads", pa.Table.from_pylist(heads, schema=_HEADS))


def impact_dates(lake: Lake) -> list[str]:
    """Days that have something to tell: those of collectives and steps.

    An hour around them counts too: on the reference clock a row may be of the day beside.
    """
    days: set[int] = set()
    for table in ("collectives", "steps"):
        for file in lake.files(table):
            if file.min_ts_ns is not None and file.max_ts_ns is not None:
                first = (file.min_ts_ns - _HOUR_NS) // NS_PER_DAY
                days |= {*range(first, (file.max_ts_ns + _HOUR_NS) // NS_PER_DAY + 1)}
    return [ns_date(day * NS_PER_DAY) for day in sorted(days)]
