"""From episodes to what they cost: collectives slowed, steps hit, GPU hours idle."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from xtune.lake import Lake
from xtune.pipelines._engine import Session, empty_relation, files_relation
from xtune.pipelines._episodes import Episode
from xtune.pipelines._identity import Identity
from xtune.pipelines._topology import Topology
from xtune.tables import TABLES, list_of

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
_PAIRS = pa.schema([("episode_id", pa.string()), ("job", pa.string())])


def load_episodes(session: Session, episodes: Iterable[Episode]) -> None:
    """Relations ``episode_heads``, ``episode_spans`` and ``episode_members``."""
    episodes = list(episodes)
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
    session.load("episode_heads", pa.Table.from_pylist(heads, schema=_HEADS))
    session.load("episode_members", pa.Table.from_pylist(members, schema=_MEMBERS))
    session.table("episode_spans", "SELECT episode_id, start_ns, end_ns FROM episode_heads")


def run_impact(
    lake: Lake,
    session: Session,
    episodes: list[Episode],
    topology: Topology,
    identity: Identity,
) -> None:
    """Make ``collective_impact``, ``link_episodes`` and ``episodes`` (temporary tables)."""
    load_episodes(session, episodes)
    for table in ("collectives", "steps"):
        files = lake.files(table)
        relation = (
            files_relation(file.path for file in files) if files else empty_relation(TABLES[table])
        )
        session.view(table, f"FROM {relation}")
    session.create("collective_samples")
    pairs = _strangers(session, episodes, topology, identity)
    session.load("episode_jobs", pa.Table.from_pylist(pairs, schema=_PAIRS))
    for name in (
        "collective_episodes",
        "expectations",
        "collective_impact",
        "link_episodes",
        "episodes",
    ):
        session.create(name)


def _strangers(
    session: Session,
    episodes: list[Episode],
    topology: Topology,
    identity: Identity,
) -> list[dict[str, str]]:
    """Pairs of episode and job that have no host in common, where all hosts are known."""
    rows = session.rows(
        "SELECT job, host FROM collective_samples WHERE job IS NOT NULL GROUP BY job, host"
    )
    known = set(identity.host_of_guid.values())
    hosts: dict[str, set[str] | None] = {}
    for job, host in rows:
        name = identity.host(host) if host else None
        so_far = hosts.setdefault(job, set())
        if name is None or name not in known:
            hosts[job] = None
        elif so_far is not None:
            so_far.add(name)
    placed = {job: of_job for job, of_job in hosts.items() if of_job}
    pairs = []
    for episode in episodes if placed else []:
        touched = _hosts_touched(episode, topology, identity)
        pairs += [
            {"episode_id": episode.id, "job": job}
            for job, of_job in sorted(placed.items())
            if touched and not touched & of_job
        ]
    return pairs


def _hosts_touched(episode: Episode, topology: Topology, identity: Identity) -> set[str]:
    """Hosts at the ends of an episode's links, and those of the leaves at their ends."""
    touched = set()
    for member in episode.members:
        hop = topology.hops.get(member.link)
        if hop is None:
            host = identity.host_of_link(member.link)
            touched |= {host} if host else set()
            continue
        for node in (hop.node, hop.next_node):
            near = {topology.hops[link].next_node for link in topology.out_of.get(node, [])}
            for adapter in {node, *near}:
                if topology.is_host(adapter) and adapter in identity.host_of_guid:
                    touched.add(identity.host_of_guid[adapter])
    return touched
