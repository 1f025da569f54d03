"""``xtune tune``: searches a study on the calibrated simulator."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xtune.cli._common import (
    DebugOption,
    JsonOption,
    LakeOption,
    SeedOption,
    WorkersOption,
    config,
    open_lake,
    parse_duration_s,
    share,
)
from xtune.console import emit_json, note, progress, say, table
from xtune.errors import NoDataError, StudyError

if TYPE_CHECKING:
    from xtune.lake import Lake
    from xtune.sim import Calibration
    from xtune.studies import Progress

LINE_EVERY_S = 30.0
FIGURES = ("mean", "low", "high")
ROUNDING = 1e-6  # of a share: sums of bytes as floats leave as much


def run(
    study: Annotated[str, typer.Option("--study", help="A study's name, or a TOML file.")],
    lake: LakeOption = None,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Completed trials in the study.")
    ] = None,
    timeout: Annotated[str | None, typer.Option("--timeout", help="Stop after, e.g. 10m.")] = None,
    seed: SeedOption = None,
    workers: WorkersOption = None,
    storage: Annotated[str | None, typer.Option("--storage", help="Optuna storage URL.")] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Where trials run: local or dask.")
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Search a study; starts and resumes alike, and never repeats a finished trial."""
    from xtune.executor import open_executor
    from xtune.studies import Options, run_study, select

    settings = config()
    count = settings.get("workers", workers).value
    where = settings.get("engine", engine).value
    options = Options(
        seed=settings.get("seed", seed).value,
        seeds=settings.get("tune.seeds").value,
        iterations=settings.get("tune.iterations").value,
        trials=trials,
        timeout_s=math.inf if timeout is None else parse_duration_s(timeout, "--timeout"),
        storage=settings.get("storage", storage).value,
    )
    store = open_lake(lake)
    selected = select(study, store)
    calibration = selected.calibration or _calibration(store)

    @contextmanager
    def pool() -> Iterator[Executor]:
        with open_executor(where, count, settings.get("dask.scheduler").value) as executor:
            yield executor

    with progress(f"tune {study}", None) as update:
        document = run_study(
            selected.study,
            store,
            calibration,
            options,
            pool=pool,
            progress=_teller(update),
            note=note,
            folder=selected.folder,
            base=selected.own.base,
            files=selected.own.files,
        )
    if json:
        emit_json(document)
    else:
        show_result(document)
    if document["best"] is None and document["trials"]:
        first = document["trials"][0]
        raise StudyError(
            f"no trial can be used: {first['state']}: {first['reason']}",
            "failed ones are tried again by the same command",
        )


def _teller(update: Callable[[int, str], None]) -> Callable[[Progress], None]:
    """Progress on the bar; where there is none, a line on stderr now and then."""
    said = time.monotonic()

    def tell(state: Progress) -> None:
        nonlocal said
        failed = f", {state.failed} failed" if state.failed else ""
        text = f"{state.stage}: {state.done} of {state.total}{failed}"
        update(state.done, f"{text}: {state.text}")
        if not sys.stderr.isatty() and time.monotonic() - said > LINE_EVERY_S:
            said = time.monotonic()
            note(text)

    return tell


def _calibration(lake: Lake) -> Calibration:
    """The latest calibration; fits one where there is none yet."""
    from xtune.sim import calibrate
    from xtune.studies import latest_calibration

    try:
        return latest_calibration(lake)
    except NoDataError:
        calibration = calibrate(lake)
        path = calibration.save(lake.root / "calibrations")
        note(f"nothing was calibrated: fitted the simulator, {path}")
        return calibration


def show_result(document: dict[str, Any]) -> None:
    """The study's result as tables and a verdict."""
    name, unit = document["objective"]["name"], _unit(document)
    named = f"{name},{unit}" if unit else name
    first = "time to target, s" if name == "time_to_target_s" else named
    columns = (first, "low", "high", "ratio vs bf16", "vs fp32", "changes")

    def cells(row: dict[str, Any]) -> tuple[Any, ...]:
        if row["state"] != "complete":
            return (row.get("reason") or row["state"], None, None, None, None, None)
        metrics = row["metrics"]
        return (
            *(_rounded(row[key], unit) for key in FIGURES),
            share(metrics.get("ratio_vs_bf16")),
            share(metrics.get("ratio_vs_fp32")),
            metrics.get("control_changes"),
        )

    fields = list(document["space"])
    grid = document["sampler"]["name"] == "grid"
    shown = [r for r in document["trials"] if grid or r["state"] == "complete"]
    table(
        f"study {document['study']}, simulated, calibration {document['calibration']}",
        ("trial", *fields, *columns),
        [(r["number"], *(r["params"][f] for f in fields), *cells(r)) for r in shown],
    )
    for role, rows in _beside(document).items():
        if rows:
            table(role, ("policy", *columns), [(r["name"], *cells(r)) for r in rows])
    say(", ".join(f"{count} {state}" for state, count in document["counts"].items()))
    _verdict(document, shown)
    for claim in document["founding_document"]:
        say(f"the founding document says ({claim['id']}): {claim['claim']}")


def _beside(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What the best is compared with; the default by itself where it is none of the others."""
    roles = {role: document[role] for role in ("baselines", "ablations")}
    there = {row["name"] for rows in roles.values() for row in rows}
    default = document["default"]
    if default is None or default["name"] in there:
        return roles
    return {"default": [default], **roles}


def _unit(document: dict[str, Any]) -> str:
    """The objective's unit after a blank; "" of a share."""
    unit = document["objective"]["unit"]
    return "" if unit == "1" else f" {unit}"


def _rounded(value: float | None, unit: str) -> float | None:
    """A share without what rounding leaves of 0."""
    tiny = value is not None and not unit and abs(value) < ROUNDING
    return 0.0 if tiny else value


def _verdict(document: dict[str, Any], shown: list[dict[str, Any]]) -> None:
    best, unit = document["best"], _unit(document)
    if best is None:
        say("no trial was completed")
        return
    chosen = ", ".join(f"{name} = {value}" for name, value in best["params"].items())
    mean, low, high = (_rounded(best[key], unit) for key in FIGURES)
    span = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
    drawn = "fresh seeds" if best["fresh"] else "the seeds it was picked by"
    say(f"best: trial {best['number']}: {chosen}; {mean:.4g}{unit}{span} on {drawn}")
    others = [r for r in shown if r["state"] == "complete" and r["number"] != best["number"]]
    own = next((r["mean"] for r in shown if r["number"] == best["number"]), None)
    same = [str(r["number"]) for r in others if r["mean"] == own]
    if same:
        say(f"the same mean as it has: trials {', '.join(same)}; the first drawn is taken")
    alike = [str(r["number"]) for r in others if r["gain_of_best"]["told_apart"] is False]
    seeds = len(document["provenance"]["seeds"])
    if any(r["gain_of_best"]["told_apart"] is None for r in others):
        say(f"{seeds} seeds are too few to tell the others from it (tune.seeds)")
    elif alike:
        say(f"not told apart from it by {seeds} seeds: trials {', '.join(alike)}")
    if document["pareto"]:
        say(f"not beaten in every objective: trials {', '.join(map(str, document['pareto']))}")
    say(document["recommendation"]["text"])
