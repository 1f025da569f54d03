"""``xtune simulate``: one policy on the calibrated simulator, beside the baselines."""

from __future__ import annotations

from pathlib import Path
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
    share,
)
from xtune.console import emit_json, progress, table
from xtune.errors import InputError, UsageError

if TYPE_CHECKING:
    from xtune.policies.spec import Policy


def run(
    policy: Annotated[
        str, typer.Option("--policy", help="A policy.json, or a preset's name.")
    ] = "joint",
    scenario: Annotated[
        str | None,
        typer.Option("--scenario", help="founding-dense, founding-moe, or a SimAI workload."),
    ] = None,
    lake: LakeOption = None,
    seed: SeedOption = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Seeds that are averaged.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Iterations that a run simulates.")
    ] = None,
    workers: WorkersOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Evaluate a policy on the calibrated simulator, or in a scenario, beside the baselines."""
    from xtune.studies import Options, compare, latest_calibration

    settings = config()
    options = Options(
        seed=settings.get("seed", seed).value,
        seeds=settings.get("tune.seeds", seeds).value,
        iterations=settings.get("tune.iterations", iterations).value,
    )
    count = settings.get("workers", workers).value
    if scenario is not None:
        from xtune.cli._scenario import run_named

        if lake is not None:
            raise UsageError("--scenario reads no lake", "leave --lake out")
        run_named(scenario, _load(policy), options, count, json=json)
        return
    store = open_lake(lake)
    calibration = latest_calibration(store)
    with progress("simulate", None) as update:
        rows = compare(
            _load(policy),
            store,
            calibration,
            options,
            workers=count,
            progress=update,
        )
    if json:
        emit_json({"schema": 1, "calibration": calibration.fingerprint, "policies": rows})
        return
    metrics = ("mean_step_s", "jitter_s", "ratio_vs_bf16", "ratio_vs_fp32", "control_changes")
    table(
        f"simulated, calibration {calibration.fingerprint}, {options.seeds} seeds",
        ("policy", "time to target, s", "low", "high", *metrics),
        [
            (r["name"], r["mean"], r["low"], r["high"], *(_shown(r, m) for m in metrics))
            if r["state"] == "complete"
            else (r["name"], r["reason"], None, None, *[None] * len(metrics))
            for r in rows
        ],
    )


def _shown(row: dict[str, Any], metric: str) -> float | str | None:
    """A metric as a table's cell; ratios in per cent."""
    value: float | None = row["metrics"].get(metric)
    return share(value) if metric.startswith("ratio_") else value


def _load(text: str) -> Policy:
    """A preset by name, else a file.

    Raises:
        InputError: The file cannot be read.
        UsageError: It is not a policy.
    """
    from xtune.policies import PolicyError, loads
    from xtune.policies.presets import PRESETS, preset

    if text in PRESETS:
        return preset(text)
    path = Path(text)
    try:
        return loads(path.read_bytes())
    except OSError as error:
        names = ", ".join(PRESETS)
        raise InputError(f"{path}: {error.strerror}", f"presets are: {names}") from error
    except PolicyError as error:
        raise UsageError(f"{path}: {error}") from error
