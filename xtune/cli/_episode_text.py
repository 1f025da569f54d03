"""Episodes in words: one line of why, and all that is known of one of them."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xtune.console import say, show, table

Row = Mapping[str, Any]
Naming = Callable[[str | None], str | None]

COLUMNS = (
    "episode", "start (UTC)", "s", "cause", "root", "victims", "jobs", "slowdown", "idle GPU h",
    "why",
)  # fmt: skip
# What a table puts between two columns, and before the first.
_BETWEEN = 3


def evidence_of(row: Row) -> dict[str, Any]:
    """The evidence column as a mapping; empty where it is no JSON object."""
    try:
        found = json.loads(row["evidence"] or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def why(row: Row, named: Naming) -> str:
    """What the verdict rests on, in one line."""
    found = evidence_of(row)
    parts: list[str] = []
    for key, phrase in _PHRASES.items():
        value = found.get(key)
        if value is not None:
            parts.append(phrase(value, found, named))
    return "; ".join(part for part in parts if part)


def listing(episodes: Sequence[Row], victims: Mapping[str, int], named: Naming) -> None:
    """One row each; on a terminal too narrow for that, a line and what belongs to it."""
    rows = [_cells(row, victims.get(row["episode_id"], 0), named) for row in episodes]
    shown = [COLUMNS, *([show(value) for value in row] for row in rows)]
    width = sum(max(map(len, column)) + _BETWEEN for column in zip(*shown, strict=True))
    room = shutil.get_terminal_size().columns
    if rows and sys.stdout.isatty() and width > room:
        for row in rows:
            _narrow(row, room)
        return
    table("", COLUMNS, rows)


def explain(episode: Row, members: Sequence[Row], costs: Sequence[Row], named: Naming) -> None:
    """All that is known of one episode: verdict, evidence, its ports, its jobs."""
    cells = dict(zip(COLUMNS, _cells(episode, 0, named), strict=True))
    say(f"episode {episode['episode_id']}: {episode['cause']}")
    table(
        "", ("what", "value"),
        [
            ("from", episode["start_ts"]),
            ("to", episode["end_ts"]),
            ("seconds", show(cells["s"])),
            ("root", _both(episode["root_link"], named)),
            ("jobs", cells["jobs"]),
            ("collectives", show(episode["collectives"])),
            ("steps affected", show(episode["steps_affected"])),
            ("slowdown", show(cells["slowdown"])),
            ("idle GPU hours", show(cells["idle GPU h"])),
            *(
                (f"evidence: {key}", _plain(value, named))
                for key, value in sorted(evidence_of(episode).items())
            ),
        ],
    )  # fmt: skip
    say("")
    dates = {row["start_ts"][:10] for row in (episode, *members)}
    told = sys.stdout.isatty() and len(dates) == 1  # the date stands above
    table(
        "", ("link", "role", "from (UTC)", "s", "level", "mean wait", "peak utilization", "GB"),
        [
            (
                named(row["link"]),
                row["role"],
                _minute(row["start_ts"])[11 if told else 0 :],
                seconds(row),
                row["peak_level"],
                row["mean_wait_fraction"],
                row["peak_utilization"],
                None if row["bytes"] is None else row["bytes"] / 1e9,
            )
            for row in members
        ],
    )  # fmt: skip
    if costs:
        say("")
        skip = {name for row in costs for name, value in row.items() if isinstance(value, list)}
        shown = [name for name in costs[0] if name not in skip | {"episode_id", "start_ts", "ts"}]
        table("", shown, [[row[name] for name in shown] for row in costs])


def seconds(row: Row) -> float:
    """Length of an episode or of a link's part in it."""
    from datetime import datetime

    def read(text: str) -> datetime:
        return datetime.fromisoformat(text[:26] + "+00:00")

    return round((read(row["end_ts"]) - read(row["start_ts"])).total_seconds(), 1)


def _cells(row: Row, victims: int, named: Naming) -> tuple[Any, ...]:
    return (
        row["episode_id"],
        _minute(row["start_ts"]),
        seconds(row),
        row["cause"],
        named(row["root_link"]),
        victims,
        ", ".join(row["jobs"] or ()) or None,
        row["slowdown"],
        row["idle_gpu_hours"],
        why(row, named) or None,
    )


def _narrow(row: tuple[Any, ...], width: int) -> None:
    cell = {name: show(value) for name, value in zip(COLUMNS, row, strict=True)}
    say(f"{cell['episode']}  {cell['start (UTC)']}  {cell['s']} s  {cell['cause']}")
    for text in (
        f"root {cell['root']}; victims {cell['victims']}; {cell['why']}",
        f"jobs {cell['jobs']}; slowdown {cell['slowdown']}; idle GPU hours {cell['idle GPU h']}",
    ):
        for line in textwrap.wrap(text, max(width - 4, 20), break_on_hyphens=False):
            say(f"    {line}")


def _minute(time: str) -> str:
    return time[:19].replace("T", " ")


def _both(link: str | None, named: Naming) -> str | None:
    name = named(link)
    return name if name == link else f"{name} ({link})"


def _plain(value: Any, named: Naming) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(item, named) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item, named)}" for key, item in value.items())
    return str(named(value)) if isinstance(value, str) else show(value)


def _share(value: Any) -> str:
    return f"{value:.0%}" if isinstance(value, (int, float)) else str(value)


_PHRASES: dict[str, Callable[[Any, Row, Naming], str]] = {
    "errors_per_s": lambda v, e, n: f"{show(v)} errors/s at {n(e.get('errors_counted_by'))}",
    "receiver_utilization": lambda v, e, n: f"receives {_share(v)} of its line",
    "receiver_pause_fraction": lambda v, e, n: f"pauses its neighbour {_share(v)} of the time",
    "root_utilization": lambda v, e, n: f"sends at {_share(v)} of its line",
    "root_wait_fraction": lambda v, e, n: f"waits {_share(v)} of the time" if v >= 0.005 else "",
    "senders": lambda v, e, n: f"{v} senders",
    "siblings_saturated": lambda v, e, n: f"siblings full: {v} of {e.get('siblings')}",
    "seen_from": lambda v, e, n: f"seen from {n(v)}",
    "host": lambda v, e, n: f"host {v}",
    "why": lambda v, e, n: str(v),
    "end_unknown": lambda v, e, n: "its end is unknown" if v else "",
    "shares_victims_with": lambda v, e, n: f"shares victims with {', '.join(v)}",
}
