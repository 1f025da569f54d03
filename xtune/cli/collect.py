"""``xtune collect``: telemetry into the lake."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xtune.cli._collect_flags import check_flags
from xtune.cli._common import (
    DebugOption,
    DryRunOption,
    JsonOption,
    LakeOption,
    SinceOption,
    StrictOption,
    UntilOption,
    open_lake,
    parse_duration_s,
    parse_pairs,
)
from xtune.console import emit_json, note, progress, say, table
from xtune.errors import UsageError

if TYPE_CHECKING:
    from xtune.collectors import Context
    from xtune.ingest import HostMap, IngestSummary

INTERRUPTED = 130
SHOWN_REJECTS = 10


def run(
    given: typer.Context,
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs or -; none: this host, live.")
    ] = None,
    lake: LakeOption = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Force a format.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the formats.")] = False,
    job: Annotated[str | None, typer.Option("--job", help="Job, where not said.")] = None,
    run_name: Annotated[str | None, typer.Option("--run", help="Run, where not said.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Host, where not said.")] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, max=2**31 - 1, help="Rank, where not said.")
    ] = None,
    tz: Annotated[str | None, typer.Option("--tz", help="Zone of local times, e.g. UTC.")] = None,
    time_from: Annotated[
        str | None, typer.Option("--time-from", help="mtime, name or now, for files without time.")
    ] = None,
    host_map: Annotated[
        Path | None, typer.Option("--host-map", help="File of from=to host names.")
    ] = None,
    map_: Annotated[
        list[str] | None, typer.Option("--map", help="Column map, e.g. loss=train/loss.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="Label k=v.")] = None,
    interval: Annotated[
        str, typer.Option("--interval", help="Live: time between samples.")
    ] = "1s",
    duration: Annotated[
        str | None, typer.Option("--duration", help="Live: how long; until interrupted.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on reading the files as they grow.")
    ] = False,
    fabric: Annotated[
        bool, typer.Option("--fabric", help="Live: the whole InfiniBand fabric.")
    ] = False,
    sysfs: Annotated[Path, typer.Option("--sysfs", help="Live: root of the sysfs tree.")] = Path(
        "/sys"
    ),
    procfs: Annotated[
        Path | None, typer.Option("--procfs", help="Live: root of the proc tree.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="A Prometheus server: http://host:9090.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    step: Annotated[
        str | None, typer.Option("--step", help="--url: between points; the scrape interval.")
    ] = None,
    strict: StrictOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Read telemetry into the lake; each file's format is found by its content."""
    if list_:
        _list(json)
        return
    check_flags(given)
    context = _context(host, job, run_name, rank, tz, time_from, map_, label)
    interval_s = parse_duration_s(interval, "--interval")
    duration_s = None if duration is None else parse_duration_s(duration, "--duration")
    if url is not None:
        from xtune.cli._prometheus import Range, collect_server

        if kind not in (None, "prometheus"):
            raise UsageError("--url reads a Prometheus server: --kind is prometheus")
        with progress("collect", None):
            summary, failure = collect_server(
                open_lake(lake, create=True),
                url,
                Range.parse(since, until, step),
                context=context,
                host_map=_hosts(host_map),
                strict=strict,
                dry_run=dry_run,
                debug=debug,
            )
        _tell(summary, json, "the lake has all of it already")
        if failure is not None:
            raise failure
        raise typer.Exit(summary.exit_code)
    if fabric:
        from xtune.cli._fabric import sample_fabric

        sample_fabric(
            open_lake(lake, create=True),
            context,
            interval_s=interval_s,
            duration_s=duration_s,
            json=json,
        )
        return
    if follow and not paths:
        raise UsageError("--follow reads files as they grow: name them")
    if not paths:
        from xtune.cli._live import sample_host

        sample_host(
            open_lake(lake, create=True),
            sysfs,
            context,
            interval_s=interval_s,
            duration_s=duration_s,
            procfs=procfs,
            json=json,
        )
        return
    if follow:
        from xtune.cli._live_follow import follow as follow_files
        from xtune.ingest import Follower

        follower = Follower(
            open_lake(lake, create=True),
            paths,
            context=context,
            kind=kind,
            host_map=_hosts(host_map),
            strict=strict,
            debug=debug,
            say=note,
        )
        interrupted = follow_files(follower, interval_s=interval_s, duration_s=duration_s)
        summary = follower.summary()
        _tell(summary, json)
        raise typer.Exit(INTERRUPTED if interrupted else summary.exit_code)
    from xtune.ingest import collect

    done = itertools.count(1)
    with progress("collect", None) as update:
        summary = collect(
            open_lake(lake, create=True),
            paths,
            context=context,
            kind=kind,
            host_map=_hosts(host_map),
            strict=strict,
            dry_run=dry_run,
            debug=debug,
            on_file=lambda result: update(next(done), result.path),
        )
    _tell(summary, json)
    raise typer.Exit(summary.exit_code)


def _hosts(path: Path | None) -> HostMap | None:
    from xtune.ingest import HostMap

    return None if path is None else HostMap.load(path)


def _tell(
    summary: IngestSummary, json: bool, none: str = "there is no file below the paths"
) -> None:
    """Show what was read; ``none`` says why it may be nothing."""
    if json:
        emit_json(summary.to_json())
    else:
        _show(summary, none)


def _context(
    host: str | None,
    job: str | None,
    run_name: str | None,
    rank: int | None,
    tz: str | None,
    time_from: str | None,
    map_: list[str] | None,
    label: list[str] | None,
) -> Context:
    from zoneinfo import ZoneInfo

    from xtune.collectors import Context
    from xtune.collectors._mapping import unknown_columns

    if tz is not None:
        try:
            ZoneInfo(tz)
        except (OSError, KeyError, ValueError) as error:
            raise UsageError(f"--tz: {tz!r} is not a time zone", "e.g. Europe/Berlin") from error
    if time_from not in (None, "mtime", "name", "now"):
        raise UsageError(f"--time-from: {time_from!r} is not mtime, name or now")
    column_map = parse_pairs(map_, "--map")
    if unknown := unknown_columns(column_map):
        raise UsageError(
            f"--map: xtune has no column {unknown[0]!r}", "its name stands first: loss=train/loss"
        )
    return Context(
        host=None if host is None else host.lower(),
        job=job,
        run=run_name,
        rank=rank,
        tz=tz,
        time_from=time_from,
        column_map=column_map,
        labels=parse_pairs(label, "--label"),
        now_ns=time.time_ns,
    )


def _list(json: bool) -> None:
    from xtune.collectors import all_collectors

    columns = ("format", "what it reads", "how to produce it", "gives", "cannot give")
    rows = [(name, c.title, c.produce, c.gives, c.lacks) for name, c in all_collectors().items()]
    if json:
        keys = ("name", "title", "produce", "gives", "lacks")
        formats = [dict(zip(keys, row, strict=True)) for row in rows]
        emit_json({"schema": 1, "formats": formats})
        return
    table("", columns, rows, text=True)


def _show(summary: IngestSummary, none: str) -> None:
    states = {state: n for state, n in summary.states.items() if n}
    verb = "would be read" if summary.dry_run else "read"
    counted = ", ".join(f"{n} {state}" for state, n in states.items())
    say(f"{len(summary.files)} inputs: {counted or none}")
    if summary.rows:
        table(f"rows {verb}", ("table", "rows"), summary.rows.items())
    notes: dict[str, int] = dict(summary.notes)
    for result in summary.files:
        for text, count in result.notes.items():
            notes[text] = notes.get(text, 0) + count
    for text, count in notes.items():
        note(f"note: {text}" + (f" ({count} times)" if count > 1 else ""))
    shown = 0
    for result in summary.files:
        for reason in result.reasons:
            if shown < SHOWN_REJECTS:
                hint = f": {reason.hint}" if reason.hint else ""
                note(f"rejected: {result.path}, {reason.offset}: {reason.reason}{hint}")
            shown += 1
    if summary.rejects > min(shown, SHOWN_REJECTS):
        listed = "" if summary.dry_run else '; xtune query "FROM rejected" lists them'
        note(f"{summary.rejects} pieces were rejected in all{listed}")
