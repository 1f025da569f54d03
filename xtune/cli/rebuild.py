"""``xtune rebuild``: raw telemetry to rates, levels, episodes and impact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xtune.cli._common import (
    DebugOption,
    DryRunOption,
    JsonOption,
    LakeOption,
    SinceOption,
    UntilOption,
    WorkersOption,
    config,
    open_lake,
    parse_span,
)
from xtune.console import emit_json, note, progress, say, table
from xtune.errors import UsageError

if TYPE_CHECKING:
    from xtune.pipelines import ShardSummary


def run(
    lake: LakeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Where partitions run: local or dask.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="Address of a Dask scheduler.")
    ] = None,
    workers: WorkersOption = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", help="Compute share i/n only; a rebuild then finishes."),
    ] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Rebuild congestion episodes; only what is new is computed."""
    from xtune.pipelines import Engine, EpisodeRules, Shard, plan_rebuild, rebuild, rebuild_shard

    first, last = parse_span(since, until)
    settings = config()
    rules = EpisodeRules(
        min_length_s=settings.get("episodes.min_length_s").value,
        max_gap_s=settings.get("episodes.max_gap_s").value,
    )
    store, memory = open_lake(lake), settings.get("memory").value
    if dry_run:
        if shard is not None:
            raise UsageError("--dry-run says what a whole rebuild would do", "leave --shard out")
        _show(plan_rebuild(store, rules=rules, since=first, until=last), json, "would be computed")
        return
    if shard is not None:
        share = Shard.parse(shard)
        with progress(f"rebuild, share {shard}", None) as update:
            done = rebuild_shard(
                store,
                share,
                rules=rules,
                since=first,
                until=last,
                memory=memory,
                progress=update,
            )
        _show(done, json, "computed; xtune rebuild brings them into the tables")
        return
    name = settings.get("engine", engine).value
    if scheduler is not None and name != "dask":
        raise UsageError("--scheduler is of --engine dask", "add --engine dask")
    # One process with all threads is the fastest on one host, unless told otherwise.
    count = settings.get("workers", workers)
    where = Engine(
        name=name,
        workers=1 if name == "local" and count.origin == "default" else count.value,
        scheduler=settings.get("dask.scheduler", scheduler).value,
    )
    with progress("rebuild", None) as update:
        summary = rebuild(
            store,
            rules=rules,
            since=first,
            until=last,
            memory=memory,
            engine=where,
            progress=update,
        )
    if json:
        emit_json(summary.to_json())
        return
    table("", ("table", "rows", "partitions rebuilt"), summary.rows())
    for text in summary.notes:
        note(f"note: {text}")
    say(f"{summary.episodes} episodes on {summary.links} links")


def _show(done: ShardSummary, json: bool, what: str) -> None:
    if json:
        emit_json(done.to_json())
        return
    for key in done.partitions:
        say(f"link_rates {key}")
    for day in done.days:
        say(day)
    say(f"{len(done.partitions) + len(done.days)} partitions {what}")
