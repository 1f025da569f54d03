"""``xtune tune``: searches a study on the calibrated simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator
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


def run(
    study: Annotated[str, typer.Option("--study", help="Name of the study.")],
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
    from xtune.studies import Options, Progress, find_study, run_study

    settings = config()
    searched = find_study(study)
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
    calibration = _calibration(store)

    @contextmanager
    def pool() -> Iterator[Executor]:
        with open_executor(where, count, settings.get("dask.scheduler").value) as executor:
            yield executor

    with progress(f"tune {study}", None) as update:

        def show(state: Progress) -> None:
            failed = f", {state.failed} failed" if state.failed else ""
            update(state.done, f"of {state.total}: {state.text}{failed}")

        document = run_study(
            searched, store, calibration, options, pool=pool, progress=show, note=note
        )
    if json:
        emit_json(document)
    else:
        show_result(document)
    failed = next((t for t in document["trials"] if t["state"] != "complete"), None)
    if document["best"] is None and failed:
        raise StudyError(f"every trial failed: {failed['reason']}", "the same command tries again")


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
    columns = ("time to target, s", "low", "high", "ratio vs bf16", "vs fp32", "changes")

    def cells(row: dict[str, Any]) -> tuple[Any, ...]:
        if row["state"] != "complete":
            return (row.get("reason") or row["state"], None, None, None, None, None)
        metrics = row["metrics"]
        return (
            row["mean"],
            row["low"],
            row["high"],
            share(metrics.get("ratio_vs_bf16")),
            share(metrics.get("ratio_vs_fp32")),
            metrics.get("control_changes"),
        )

    fields = list(document["space"])
    table(
        f"study {document['study']}, simulated, calibration {document['calibration']}",
        (*fields, *columns),
        [(*(row["params"][f] for f in fields), *cells(row)) for row in document["trials"]],
    )
    for role in ("baselines", "ablations"):
        if document[role]:
            table(role, ("policy", *columns), [(r["name"], *cells(r)) for r in document[role]])
    best = document["best"]
    if best is None:
        say("no trial was completed")
        return
    chosen = ", ".join(f"{name} = {value}" for name, value in best["params"].items())
    span = "" if best["low"] is None else f" [{best['low']:.4g}, {best['high']:.4g}]"
    say(f"best: {chosen}; {best['mean']:.4g} s to the target loss{span}")
    others = [
        row
        for row in document["trials"]
        if row["state"] == "complete" and row["number"] != best["number"]
    ]
    alike = [
        ", ".join(str(v) for v in row["params"].values())
        for row in others
        if row["gain_of_best"]["told_apart"] is False
    ]
    seeds = len(document["provenance"]["seeds"])
    if any(row["gain_of_best"]["told_apart"] is None for row in others):
        say(f"{seeds} seeds are too few to tell the others from it (tune.seeds)")
    elif alike:
        say(f"not told apart from it by {seeds} seeds: {'; '.join(alike)}")
    for claim in document["founding_document"]:
        say(f"the founding document says ({claim['id']}): {claim['claim']}")
