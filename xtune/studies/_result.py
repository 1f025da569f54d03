"""The study's result: one JSON document and one Parquet file, the same for the same trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xtune import __version__
from xtune.console import rfc3339
from xtune.errors import StudyError
from xtune.files import write_atomically
from xtune.studies._trials import OBJECTIVE, Outcome

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration
    from xtune.studies._base import Study

# With n seeds on the same side, chance alone puts them there in 2 of 2**n cases: 6 % at five.
FEWEST_SEEDS = 5
# Share of the time that a difference must exceed: with common seeds two points may differ by the
# charge of one regulation on every seed alike, far below what a calibration knows of a step.
RESOLUTION = 1e-3
RESULT = "result.json"
PARTS = {
    "ablations", "assumed", "baselines", "best", "calibration", "founding_document", "notes",
    "objective", "planned", "provenance", "space", "study", "trials",
}  # fmt: skip
TRIALS = "trials.parquet"


def summary(outcome: Outcome) -> dict[str, Any]:
    """Mean and bootstrap interval over seeds of the objective, and the mean of each metric."""
    if not outcome.complete:
        return {"state": "failed", "reason": outcome.reason, "mean": None, "per_seed": []}
    values = [m[OBJECTIVE] for m in outcome.per_seed]
    mean, low, high = _interval(values)
    metrics = {
        name: sum(m[name] for m in outcome.per_seed) / len(values) for name in outcome.per_seed[0]
    }
    return {
        "state": "complete",
        "mean": mean,
        "low": low,
        "high": high,
        "per_seed": values,
        "metrics": metrics,
    }


def _interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and interval; one seed tells nothing of the others, so its interval is unknown."""
    from xtune.sim import mean_interval

    mean, low, high = mean_interval(values)
    return (mean, low, high) if len(values) > 1 else (mean, None, None)


def against(best: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Paired difference ``other - best`` over common seeds, as a share of ``other``.

    Positive: the best is faster by that share. The interval is a bootstrap over seeds.
    ``told_apart`` is whether it lies beyond ``RESOLUTION`` on one side of 0; ``None`` where there
    are too few seeds to say.
    """
    mean, low, high = _interval([(o - b) / o for b, o in zip(best, other, strict=True)])
    apart = None
    if low is not None and high is not None and len(best) >= FEWEST_SEEDS:
        apart = low > RESOLUTION or high < -RESOLUTION
    return {"mean": mean, "low": low, "high": high, "told_apart": apart}


def build(
    study: Study,
    calibration: Calibration,
    *,
    seed: int,
    seeds: Sequence[int],
    iterations: int,
    trials: Sequence[Outcome],
    presets: Mapping[str, Outcome],
    policies: Mapping[str, Policy],
    planned: int,
) -> dict[str, Any]:
    """The document that reports and exports read; ``policies`` are by the trials' keys."""
    from xtune.sim import scope_notes

    rows = [
        {"number": t.number, "params": dict(t.params), "key": t.key, **summary(t)} for t in trials
    ]
    complete = [row for row in rows if row["state"] == "complete"]
    best = min(complete, key=lambda row: row["mean"]) if complete else None
    if best is not None:
        for row in complete:
            row["gain_of_best"] = against(best["per_seed"], row["per_seed"])
    named = {name: {"name": name, **summary(outcome)} for name, outcome in presets.items()}
    if best is not None:
        for row in named.values():
            if row["state"] == "complete":
                row["gain_of_best"] = against(best["per_seed"], row["per_seed"])
    document: dict[str, Any] = {
        "schema": 1,
        "study": study.name,
        "title": study.title,
        "seed": seed,
        "calibration": calibration.fingerprint,
        "objective": {"name": OBJECTIVE, "unit": "s", "direction": "minimize"},
        "space": {name: list(values) for name, values in study.grid.items()},
        "planned": planned,
        "trials": rows,
        "best": None
        if best is None
        else {k: best[k] for k in ("number", "params", "mean", "low", "high", "metrics")},
        "baselines": [named[n] for n in study.baselines if n in named],
        "ablations": [named[n] for n in study.ablations if n in named],
        "assumed": [
            {"name": p.name, "value": p.value, "unit": p.unit, "why": p.why}
            for p in calibration.assumed
        ],
        "notes": [*calibration.notes, *scope_notes(calibration)],
        "founding_document": [{"id": i, "claim": c} for i, c in study.claims.items()],
        "telemetry": _span(calibration),
        "provenance": {
            "xtune": __version__,
            "seeds": list(seeds),
            "iterations": iterations,
            "simulated": True,
        },
    }
    if best is not None:
        document["policy"] = with_provenance(policies[best["key"]], document).to_json()
    return document


def _span(calibration: Calibration) -> dict[str, str | None]:
    """The telemetry that the calibration rests on, from first to last time."""
    if calibration.span_ns is None:
        return {"from": None, "to": None}
    first, last = calibration.span_ns
    return {"from": rfc3339(first), "to": rfc3339(last)}


def with_provenance(policy: Policy, document: Mapping[str, Any]) -> Policy:
    """The policy with where it is from and what it is expected to give."""
    best = document["best"]
    gains = {
        row["name"]: row["gain_of_best"]
        for row in (*document["baselines"], *document["ablations"])
        if "gain_of_best" in row
    }
    return replace(
        policy,
        provenance={
            "study": document["study"],
            "trial": best["number"],
            "seed": document["seed"],
            "seeds": document["provenance"]["seeds"],
            "iterations": document["provenance"]["iterations"],
            "calibration": document["calibration"],
            "telemetry": document["telemetry"],
            "expected": {
                "source": "simulator",
                OBJECTIVE: {k: best[k] for k in ("mean", "low", "high")},
                "gain_over": gains,
            },
            "assumed": [a["name"] for a in document["assumed"]],
            "xtune": __version__,
        },
    )


def write(folder: Path, document: Mapping[str, Any]) -> None:
    """Write ``trials.parquet``, then ``result.json``, each whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for role in ("trials", "baselines", "ablations"):
        for row in document[role]:
            name = row.get("name")
            values = row.get("per_seed", [])
            for seed, value in zip(document["provenance"]["seeds"], values, strict=False):
                rows.append(
                    {
                        "role": role.removesuffix("s"),
                        "name": name,
                        "number": row.get("number"),
                        "params": json.dumps(row.get("params", {}), sort_keys=True),
                        "seed": seed,
                        OBJECTIVE: value,
                    }
                )
    schema = pa.schema(
        [
            ("role", pa.string()),
            ("name", pa.string()),
            ("number", pa.int64()),
            ("params", pa.string()),
            ("seed", pa.int64()),
            (OBJECTIVE, pa.float64()),
        ],
        metadata={"xtune.schema": "1", "xtune.version": __version__},
    )
    parquet = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), parquet, compression="zstd")
    write_atomically(folder / TRIALS, parquet.getvalue().to_pybytes())
    text = json.dumps(document, indent=1, allow_nan=False)
    write_atomically(folder / RESULT, (text + "\n").encode())


def load_result(lake_root: Path, name: str) -> dict[str, Any]:
    """``result.json`` of a study.

    Raises:
        StudyError: There is none, or it cannot be read.
    """
    path = lake_root / "studies" / name / RESULT
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        known = sorted(p.parent.name for p in path.parent.parent.glob(f"*/{RESULT}"))
        have = f"there are: {', '.join(known)}" if known else f"run xtune tune --study {name}"
        raise StudyError(f"study {name!r} has no result", have) from error
    except (OSError, ValueError) as error:
        raise StudyError(f"{path}: {error}", f"run xtune tune --study {name} again") from error
    again = f"run xtune tune --study {name} again"
    if not isinstance(document, dict):
        raise StudyError(f"{path}: it is no JSON object", again)
    if document.get("schema") != 1:
        raise StudyError(f"{path}: schema {document.get('schema')!r}, this version reads 1", again)
    missing = sorted(PARTS - document.keys())
    if missing or (document["best"] is not None and "policy" not in document):
        raise StudyError(f"{path}: without {', '.join(missing) or 'policy'}", again)
    loaded: dict[str, Any] = document
    return loaded
