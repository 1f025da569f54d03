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
    parameters = sorted(calibration.parameters.values(), key=lambda p: p.name)
    table(
        "fitted",
        ("parameter", "value", "low", "high", "unit", "rows", "tables"),
        [
            (p.name, p.value, p.low, p.high, p.unit, p.n, ", ".join(p.tables))
            for p in parameters
            if not p.assumed
        ],
    )
    table(
        "assumed, since the lake is silent",
        ("parameter", "value", "unit", "why"),
        [(p.name, p.value, p.unit, p.why) for p in parameters if p.assumed],
    )
    for text in calibration.notes:
        note(f"note: {text}")
    assumed = len(calibration.assumed)
    job = f" for job {calibration.job}" if calibration.job else ""
    say(f"{len(parameters) - assumed} parameters fitted{job}, {assumed} assumed: {path}")
