"""``xtune config``: each setting with its origin."""

from __future__ import annotations

from xtune.cli._common import DebugOption, JsonOption, config
from xtune.config import SETTINGS
from xtune.console import emit_json, table


def run(json: JsonOption = False, debug: DebugOption = False) -> None:
    """Print each setting, its value and where it comes from."""
    values = config().all()
    if json:
        settings = [{"name": v.name, "value": v.value, "origin": v.origin} for v in values]
        emit_json({"schema": 1, "settings": settings})
        return
    table(
        "",
        ("setting", "value", "origin", "meaning"),
        ((v.name, v.value, v.origin, SETTINGS[v.name].meaning) for v in values),
    )
