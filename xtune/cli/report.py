"""``xtune report``: one self-contained HTML file for engineers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xtune.cli._common import (
    DebugOption,
    JsonOption,
    LakeOption,
    SinceOption,
    StrictOption,
    UntilOption,
    config,
    open_lake,
    parse_span,
)
from xtune.console import emit_json, note, say
from xtune.errors import UsageError


def run(
    lake: LakeOption = None,
    study: Annotated[
        str | None, typer.Option("--study", help="Study to show; period_T where it was run.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    out: Annotated[Path, typer.Option("--out", help="The HTML file.")] = Path("report.html"),
    lang: Annotated[str | None, typer.Option("--lang", help="en or zh.")] = None,
    strict: StrictOption = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write one HTML file, and report.json with the same numbers."""
    from xtune.reports import build_report
    from xtune.studies import load_result

    first, last = parse_span(since, until)
    store = open_lake(lake)
    language = config().get("lang", lang).value
    if language not in ("en", "zh"):
        raise UsageError(f"--lang: {language!r} is not en or zh")
    default = (store.root / "studies" / "period_T" / "result.json").is_file()
    name = study or ("period_T" if default else None)
    written = build_report(
        store,
        out,
        study=None if name is None else load_result(store.root, name),
        since=first,
        until=last,
        language=language,
        command="xtune report" + (f" --study {name}" if name else ""),
    )
    if json:
        emit_json(
            {
                "schema": 1,
                "html": str(written.html),
                "json": str(written.json),
                "bytes": written.bytes,
                "failed": list(written.failed),
            }
        )
    else:
        say(f"{written.html} ({written.bytes / 1e6:.1f} MB), {written.json.name}")
    for panel in written.failed:
        note(f"panel {panel} failed; the page says why")
    if strict and written.failed:
        raise typer.Exit(3)
