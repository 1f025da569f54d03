"""``list_episodes``: the two episode tables, the costliest first; ``list_ports``: hot ports."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from xtune.lake import Lake


def list_episodes(
    lake: Lake,
    *,
    top: int | None = None,
    job: str | None = None,
    link: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    episode: str | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Episodes and their link episodes.

    Args:
        lake: Where.
        top: Only this many, the costliest (then the longest).
        job: Only those that hit this job.
        link: Only those with this link.
        since_ns: Only those that end after this instant, nanoseconds since the epoch.
        until_ns: Only those that begin before it.
        episode: Only those whose id begins with this.

    Returns:
        Rows of ``derived/episodes``, the costliest first, and those of ``derived/link_episodes``
        that belong to them, by episode in that order, the root first.
    """
    episodes = lake.read("derived/episodes")
    if job is not None:
        episodes = episodes.filter(_holds(episodes["jobs"], job))
    if link is not None:
        episodes = episodes.filter(_holds(episodes["links"], link))
    if since_ns is not None:
        episodes = episodes.filter(pc.greater(_ns(episodes["end_ts"]), since_ns))
    if until_ns is not None:
        episodes = episodes.filter(pc.less(_ns(episodes["start_ts"]), until_ns))
    if episode is not None:
        episodes = episodes.filter(pc.starts_with(episodes["episode_id"], episode))
    length = pc.subtract(_ns(episodes["end_ts"]), _ns(episodes["start_ts"]))
    ranked = episodes.append_column("length", length).sort_by(
        [
            ("idle_gpu_hours", "descending"),
            ("length", "descending"),
            ("start_ts", "ascending"),
            ("episode_id", "ascending"),
        ]
    )
    episodes = ranked.drop_columns("length")
    if top is not None:
        episodes = episodes.slice(0, top)
    place = {name: i for i, name in enumerate(episodes["episode_id"].to_pylist())}
    members = lake.read("derived/link_episodes")
    order = sorted(
        (
            (place[row["episode_id"]], row["role"] != "root", index)
            for index, row in enumerate(members.select(["episode_id", "role"]).to_pylist())
            if row["episode_id"] in place
        )
    )
    return episodes, members.take(pa.array([index for *_, index in order], pa.int64()))


def list_ports(lake: Lake, *, top: int | None = None) -> pa.Table:
    """Rows of ``derived/link_totals``: most lost bytes for those sent first, unknown last."""
    ports = lake.read("derived/link_totals").sort_by(
        [("lost_to_sent", "descending"), ("lost_bytes", "descending"), ("link", "ascending")]
    )
    return ports if top is None else ports.slice(0, top)


def _ns(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return times.cast(pa.int64())


def _holds(lists: pa.ChunkedArray, value: str) -> pa.Array:
    return pa.array([value in (found or ()) for found in lists.to_pylist()], pa.bool_())
