"""``xtune episodes``: what the fabric suffered, worst first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from xtune.cli._common import DebugOption, JsonOption, LakeOption, open_lake
from xtune.console import emit_json, json_rows, say, table


def run(
    lake: LakeOption = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="The N costliest.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Those that hit this job.")] = None,
    link: Annotated[str | None, typer.Option("--link", help="Those of this link.")] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List congestion episodes, the costliest first."""
    from xtune.lake import link_names
    from xtune.pipelines import list_episodes

    store = open_lake(lake)
    episodes, link_episodes = list_episodes(store, top=top, job=job, link=link)
    if json:
        emit_json(
            {
                "schema": 1,
                "episodes": json_rows(episodes),
                "link_episodes": json_rows(link_episodes),
            }
        )
        return
    known = link_names(store)
    rows = [
        (
            r["episode_id"],
            r["start_ts"][:19].replace("T", " "),
            round(r["seconds"], 1),
            r["cause"],
            known.get(r["root_link"], r["root_link"]),
            len(r["links"]),
            r["steps_affected"],
            r["slowdown"],
            r["idle_gpu_hours"],
        )
        for r in map(_with_seconds, json_rows(episodes))
    ]
    names = ("episode", "start (UTC)", "s", "cause", "root", "links", "steps", "slowdown")
    table("", (*names, "idle GPU h"), rows)
    say(f"{len(rows)} episodes, {_cost([r[8] for r in rows])}")


def _cost(hours: list[float | None]) -> str:
    known = [h for h in hours if h is not None]
    if hours and not known:
        return "idle GPU hours unknown: no training job was collected for their time"
    unknown = len(hours) - len(known)
    rest = f" (unknown for {unknown} of them)" if unknown else ""
    return f"{sum(known):.3g} idle GPU hours{rest}"


def _with_seconds(row: dict[str, Any]) -> dict[str, Any]:
    from datetime import datetime

    def read(text: str) -> datetime:
        return datetime.fromisoformat(text[:26] + "+00:00")

    row["seconds"] = (read(row["end_ts"]) - read(row["start_ts"])).total_seconds()
    return row
