"""``xtune episodes``: what the fabric suffered, worst first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xtune.cli._common import (
    DebugOption,
    JsonOption,
    LakeOption,
    SinceOption,
    UntilOption,
    epoch_ns,
    open_lake,
    parse_span,
)
from xtune.console import emit_json, json_rows, note, say, table
from xtune.errors import NoDataError, UsageError

if TYPE_CHECKING:
    from xtune.lake import Lake

_SHOWN = 20


def run(
    lake: LakeOption = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="The N costliest.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Those that hit this job.")] = None,
    link: Annotated[
        str | None, typer.Option("--link", help="Those of this link, by id or name:port.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    explain: Annotated[
        str | None, typer.Option("--explain", help="All that is known of one, by its id.")
    ] = None,
    ports: Annotated[
        bool, typer.Option("--ports", help="Hot ports instead: lost over sent bytes.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List congestion episodes, the costliest first."""
    from xtune.lake import link_names
    from xtune.pipelines import list_episodes
    from xtune.tables import DERIVED_TABLES

    selected = {"--job": job, "--link": link, "--since": since, "--until": until}
    given = [name for name, value in {**selected, "--explain": explain}.items() if value]
    if ports and given:
        raise UsageError(f"{given[0]} selects episodes, --ports lists ports")
    first, last = parse_span(since, until)
    store = open_lake(lake)
    known = link_names(store)
    if ports:
        _ports(store, top, known, json)
        return
    episodes, link_episodes = list_episodes(
        store,
        top=top,
        job=job,
        link=_link(link, known),
        since_ns=None if first is None else epoch_ns(first),
        until_ns=None if last is None else epoch_ns(last),
        episode=explain,
    )
    rows, members = json_rows(episodes), json_rows(link_episodes)
    if explain is not None:
        _one_of(rows, explain)
    if json:
        emit_json({"schema": 1, "episodes": rows, "link_episodes": members})
        return
    from xtune.cli import _episode_text

    def named(name: str | None) -> str | None:
        return None if name is None else known.get(name, name)

    if explain is not None:
        _episode_text.explain(rows[0], members, _costs(store, rows[0]["episode_id"]), named)
        return
    if not any(store.files(name) for name in DERIVED_TABLES):
        note("note: nothing was rebuilt in this lake yet: xtune rebuild")
    victims = Counter(row["episode_id"] for row in members if row["role"] == "victim")
    _episode_text.listing(rows, victims, named)
    say(f"{len(rows)} episodes, {_cost([row['idle_gpu_hours'] for row in rows])}{_shared(rows)}")
    if not rows:
        _what_there_is(store, selected)


def _link(text: str | None, known: dict[str, str]) -> str | None:
    """A link's id, also from the name that tables show.

    Raises:
        UsageError: The name is that of several links.
    """
    if text is None or text in known:
        return text
    found = [link for link, name in known.items() if name == text]
    if len(found) > 1:
        raise UsageError(f"--link: {text} names {len(found)} links", f"one of {', '.join(found)}")
    return found[0] if found else text


def _one_of(rows: list[dict[str, Any]], start: str) -> None:
    if not rows:
        raise NoDataError(f"no episode {start}", "xtune episodes lists them")
    if len(rows) > 1:
        ids = ", ".join(row["episode_id"] for row in rows)
        raise UsageError(f"--explain: {start} begins {len(rows)} ids", f"one of {ids}")


def _what_there_is(store: Lake, selected: dict[str, str | None]) -> None:
    """Where a filter left nothing: what it could have named."""
    if not any(selected.values()):
        return
    rows = json_rows(store.read("derived/episodes", ["jobs", "links"]))
    jobs = sorted({job for row in rows for job in row["jobs"] or ()})
    if selected["--job"] and selected["--job"] not in jobs:
        note(f"note: jobs with episodes: {', '.join(jobs) or 'none'}")
    elif rows:
        note(f"note: {len(rows)} episodes without these filters")


def _costs(store: Lake, episode: str) -> list[dict[str, Any]]:
    """What it cost each job, where the lake has that table."""
    from xtune.tables import TABLES

    if "derived/episode_costs" not in TABLES:
        return []
    rows = json_rows(store.read("derived/episode_costs"))
    return [row for row in rows if row["episode_id"] == episode]


def _ports(store: Lake, top: int | None, known: dict[str, str], json: bool) -> None:
    from xtune.pipelines import list_ports

    if json:
        emit_json({"schema": 1, "ports": json_rows(list_ports(store, top=top))})
        return
    every = list_ports(store)
    rows = json_rows(every.slice(0, top or _SHOWN))
    table(
        "",
        ("port", "as of (UTC)", "lost GB", "sent GB", "lost/sent", "paused s", "errors", "drops"),
        [
            (
                known.get(row["link"], row["link"]),
                None if row["ts"] is None else row["ts"][:19].replace("T", " "),
                _gigabytes(row["lost_bytes"]),
                _gigabytes(row["sent_bytes"]),
                row["lost_to_sent"],
                row["paused_s"],
                row["errors"],
                row["discards"],
            )
            for row in rows
        ],
    )
    say(f"{len(rows)} of {every.num_rows} ports, since their counters were cleared: no rates")


def _gigabytes(count: int | None) -> float | None:
    """Whole ones from a thousand on: a table shows four digits."""
    if count is None:
        return None
    return count / 1e9 if count < 1e12 else round(count / 1e9)


def _shared(rows: list[dict[str, Any]]) -> str:
    """What a sum over episodes is not, where some of them slowed the same steps."""
    from xtune.cli._episode_text import evidence_of

    some = any(evidence_of(row).get("shares_victims_with") for row in rows)
    return "; steps that episodes share count for each (impact_by has them once)" if some else ""


def _cost(hours: list[float | None]) -> str:
    known = [h for h in hours if h is not None]
    if hours and not known:
        return "idle GPU hours unknown: no training job was collected for their time"
    unknown = len(hours) - len(known)
    rest = f" (unknown for {unknown} of them)" if unknown else ""
    return f"{sum(known):.3g} idle GPU hours{rest}"
