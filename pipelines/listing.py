"""``list_episodes``: the two episode tables, the costliest first."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from xtune.lake import Lake


def list_episodes(
    lake: Lake, *, top: int | None = None, job: str | None = None, link: str | None = None
) -> tuple[pa.Table, pa.Table]:
    """Episodes and their link episodes.

    Args:
        lake: Where.
        top: Only this many, the costliest (then the longest).
        job: Only those that hit this job.
        link: Only those with this link.

    Returns:
        Rows of ``derived/episodes``, the costliest first, and those of ``derived/link_episodes``
        that belong to them, by episode in that order, the root first.
    """
    episodes = lake.read("derived/episodes")
    if job is not None:
        episodes = episodes.filter(_holds(episodes["jobs"], job))
    if link is not None:
        episodes = episodes.filter(_holds(episodes["links"], link))
    length = pc.subtract(
        episodes["end_ts"].cast(pa.int64()), episodes["start_ts"].cast(pa.int64())
    )
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


def _holds(lists: pa.ChunkedArray, value: str) -> pa.Array:
    return pa.array([value in (found or ()) for found in lists.to_pylist()], pa.bool_())
