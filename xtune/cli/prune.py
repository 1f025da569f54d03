"""``xtune prune``: drops old raw data, keeps derived tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from xtune.cli._common import (
    DebugOption,
    DryRunOption,
    JsonOption,
    LakeOption,
    open_lake,
    parse_duration_s,
)
from xtune.console import emit_json, say


def run(
    keep: Annotated[str, typer.Option("--keep", help="Age of raw data to keep, e.g. 30d.")],
    lake: LakeOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Drop raw data of whole days older than --keep; derived tables stay."""
    from xtune.lake import prune

    age = timedelta(seconds=parse_duration_s(keep, "--keep"))
    pruned = prune(open_lake(lake), age, dry_run=dry_run)
    if json:
        emit_json(
            {
                "schema": 1,
                "dry_run": dry_run,
                "files": pruned.files,
                "rows": pruned.rows,
                "bytes": pruned.bytes,
                "undated_files": pruned.undated_files,
            }
        )
        return
    verb = "would drop" if dry_run else "dropped"
    say(f"{verb} {pruned.files} files, {pruned.rows} rows, {pruned.bytes / 1e6:.1f} MB")
    if pruned.undated_files:
        say(f"{pruned.undated_files} raw files have no time in them and were kept")
