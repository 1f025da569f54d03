"""``xtune query``: one read-only SELECT over the lake."""

from __future__ import annotations

from typing import Annotated

import typer

from xtune.cli._common import DebugOption, JsonOption, LakeOption, config, open_lake
from xtune.console import emit_json, json_rows, table


def run(
    sql: Annotated[str, typer.Argument(help="One SELECT; tables by their bare names.")],
    lake: LakeOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run one read-only SELECT; every table, raw or derived, by its bare name."""
    from xtune.pipelines import query

    result = query(open_lake(lake), sql, memory=config().get("memory").value)
    rows = json_rows(result)
    if json:
        emit_json({"schema": 1, "columns": result.column_names, "rows": rows})
        return
    table("", result.column_names, (tuple(row.values()) for row in rows))
