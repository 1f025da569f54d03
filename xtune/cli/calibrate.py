"""``xtune calibrate``: fits the simulator to the lake."""

from __future__ import annotations

from xtune.cli._common import DebugOption, JsonOption, LakeOption, open_lake
from xtune.console import emit_json, note, say, table


def run(lake: LakeOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Fit the simulator; says for each parameter what it rests on."""
    from xtune.sim import calibrate

    store = open_lake(lake)
    calibration = calibrate(store)
    path = calibration.save(store.root / "calibrations")
    if json:
        emit_json(calibration.to_json())
        return
    rows = [
        (
            p.name,
            p.value,
            p.low,
            p.high,
            p.unit,
            p.n,
            "assumed" if p.assumed else ", ".join(p.tables),
            p.why,
        )
        for p in calibration.parameters.values()
    ]
    columns = ("parameter", "value", "low", "high", "unit", "rows", "fitted on", "how")
    table("", columns, sorted(rows, key=lambda row: (row[6] == "assumed", row[0])))
    for text in calibration.notes:
        note(f"note: {text}")
    assumed = len(calibration.assumed)
    say(f"{len(rows) - assumed} parameters fitted, {assumed} assumed: {path}")
