"""``xtune calibrate``: fits the simulator to the lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xtune.cli._common import DebugOption, JsonOption, LakeOption, open_lake
from xtune.console import emit_json, note, say, table

if TYPE_CHECKING:
    from xtune.sim.calibration import Calibration, Check

HeldOutOption = Annotated[
    int | None,
    typer.Option(
        "--held-out", min=0, show_default="a quarter, at least 1 of 2",
        help="Days at the end that are not fitted on but predicted; 0 for none.",
    ),
]  # fmt: skip
ResponseOption = Annotated[
    Path | None,
    typer.Option(
        "--response",
        help="What your own convergence runs measured of compression; default: the stored runs.",
    ),
]


JobOption = Annotated[
    str | None,
    typer.Option("--job", help="The job to fit.", show_default="the one with most steps"),
]


def run(
    lake: LakeOption = None,
    job: JobOption = None,
    held_out: HeldOutOption = None,
    response: ResponseOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit the simulator; says for each parameter what it rests on."""
    from xtune.sim import calibrate

    store = open_lake(lake)
    calibration = calibrate(
        store, job=job, held_out_days=held_out, response=response,
        cache_dir=store.root / "studies" / ".phases",
    )  # fmt: skip
    path = calibration.save(store.root / "calibrations")
    if json:
        emit_json(calibration.to_json())
        return
    _show(calibration)
    assumed = len(calibration.assumed)
    whose = f" for job {calibration.job}" if calibration.job else ""
    fitted = len(calibration.parameters) - assumed
    say(f"{fitted} parameters fitted{whose}, {assumed} assumed: {path}")


def _show(calibration: Calibration) -> None:
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
        ("parameter", "value", "unit", "why", "would be fitted from"),
        [(p.name, p.value, p.unit, p.why, p.needs) for p in parameters if p.assumed],
    )
    if calibration.validation:
        _show_validation(calibration)
    for text in calibration.notes:
        note(f"note: {text}")


def _show_validation(calibration: Calibration) -> None:
    table(
        f"predicted from the days before, observed on {_days(calibration)}",
        ("figure", "predicted", "low", "high", "observed", "low", "high", "unit", "verdict"),
        [
            (c.name, c.predicted, c.low, c.high, c.observed, c.observed_low, c.observed_high,
             c.unit, _verdict(c))
            for c in calibration.validation
        ],
    )  # fmt: skip
    agree = sum(c.agrees for c in calibration.validation)
    say(f"{agree} of {len(calibration.validation)} figures agree with the held-out days")


def _verdict(check: Check) -> str:
    if check.agrees:
        return "agrees"
    return "differs" if check.error is None else f"differs by {check.error:+.1%}"


def _days(calibration: Calibration) -> str:
    """First and last held-out day, UTC."""
    from datetime import UTC, datetime

    assert calibration.held_out is not None and calibration.held_out.span_ns is not None
    span = calibration.held_out.span_ns
    first, last = (datetime.fromtimestamp(ns / 1e9, UTC).date().isoformat() for ns in span)
    return first if first == last else f"{first} to {last}"
