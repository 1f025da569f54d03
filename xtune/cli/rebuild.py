"""``xtune rebuild``: raw telemetry to rates, levels, episodes and impact."""

from __future__ import annotations

from xtune.cli._common import (
    DebugOption,
    JsonOption,
    LakeOption,
    SinceOption,
    UntilOption,
    config,
    open_lake,
    parse_span,
)
from xtune.console import emit_json, note, progress, say, table


def run(
    lake: LakeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Rebuild congestion episodes; only what is new is computed."""
    from xtune.pipelines import EpisodeRules, rebuild

    first, last = parse_span(since, until)
    settings = config()
    rules = EpisodeRules(
        min_length_s=settings.get("episodes.min_length_s").value,
        max_gap_s=settings.get("episodes.max_gap_s").value,
    )
    with progress("rebuild", None) as update:
        summary = rebuild(
            open_lake(lake),
            rules=rules,
            since=first,
            until=last,
            memory=settings.get("memory").value,
            progress=update,
        )
    if json:
        emit_json(summary.to_json())
        return
    table("", ("table", "rows", "partitions rebuilt"), summary.rows())
    for text in summary.notes:
        note(f"note: {text}")
    say(f"{summary.episodes} episodes on {summary.links} links")
