"""``xtune query``: one read-only SELECT over the lake."""

from __future__ import annotations

from typing import Annotated

import typer

from xtune.cli._common import DebugOption, JsonOption, LakeOption, config, open_lake
from xtune.console import emit_json_rows, json_rows, table


def run(
    sql: Annotated[str, typer.Argument(help="One SELECT; tables by their bare names.")],
    lake: LakeOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run one read-only SELECT; every table, raw or derived, by its bare name."""
    from xtune.pipelines.query import answer

    store = open_lake(lake)
    with answer(store, sql, memory=config().get("memory").value) as found:
        rows = (row for batch in found.batches for row in json_rows(batch))
        if json:
            emit_json_rows({"schema": 1, "columns": found.columns}, "rows", rows)
            return
        table("", found.columns, (tuple(row.values()) for row in rows))
