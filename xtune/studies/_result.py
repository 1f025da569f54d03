"""The study's result: one JSON document and one Parquet file, the same for the same trials.

``result.json``, beside what its names say:

* ``trials``: in the order drawn. ``state`` is ``complete`` (its figures are of all seeds),
  ``screened`` (it ran whole, on the search's few seeds: no interval), ``pruned``, ``infeasible``
  or ``failed``, the last three with a ``reason``. ``gain_of_best`` is over the same seeds.
* ``best``: of the complete ones. Its figures, and those of ``default``, ``baselines`` and
  ``ablations``, are of seeds that nothing was picked by (``fresh_seeds``).
* ``counts``: complete (with screened), pruned, infeasible, failed.
* ``pareto``: numbers of the complete trials that no other beats in every objective.
* ``held_out``: the same policies on the telemetry that was not fitted on; ``null`` without.
* ``low`` and ``high``, here, there and in ``recommendation.difference``, hold the simulator's own
  error where it is known: ``own_error`` is its bias and deviation, in the unit of the figure, and
  ``over_seeds`` the interval without it. It was not measured of ``trials`` nor of ``sensitivity``:
  their intervals are over seeds alone. ``fidelity`` is that of the best, relative.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xtune import __version__
from xtune.console import rfc3339
from xtune.errors import StudyError
from xtune.files import write_atomically
from xtune.studies import _screen
from xtune.studies._base import Objective
from xtune.studies._own_error import OwnErrors
from xtune.studies._recommend import recommend
from xtune.studies._search import Drawn, mean
from xtune.studies._stats import Error, against, figures, hold_together
from xtune.studies._trials import REACHES, Outcome

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration
    from xtune.sim.fidelity import Fidelity
    from xtune.studies._base import Study

RESULT = "result.json"
PARTS = {
    "ablations", "assumed", "baselines", "best", "calibration", "founding_document", "notes",
    "objective", "planned", "provenance", "space", "study", "trials",
}  # fmt: skip
TRIALS = "trials.parquet"
BEST = ("mean", "low", "high", "over_seeds", "own_error", "metrics", "per_seed")
UNITS = {"_s": "s", "_per_s": "1/s"}


@dataclass(kw_only=True, slots=True)
class Found:
    """What a run of a study has come by; a part that time did not allow is missing.

    Attributes:
        trials: Of a grid: its outcomes by number. Of a search: those of the finalists.
        drawn: Points of a search.
        fresh: Best, default and presets on the fresh seeds, by name; the best is "".
        held_out: The same on the held-out telemetry.
        sensitivity: Field -> value -> outcome.
        importance: Of the fields.
        fidelity: Of the simulator's fast rung, under what is in ``fresh``.
        held_out_fidelity: The same under what is in ``held_out``.
    """

    trials: dict[int, Outcome] = field(default_factory=dict)
    drawn: list[Drawn] = field(default_factory=list)
    fresh: dict[str, Outcome] = field(default_factory=dict)
    held_out: dict[str, Outcome] = field(default_factory=dict)
    sensitivity: dict[str, list[tuple[Any, Outcome]]] = field(default_factory=dict)
    importance: dict[str, Any] | None = None
    fidelity: dict[str, Fidelity] = field(default_factory=dict)
    held_out_fidelity: dict[str, Fidelity] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a result was made with.

    Attributes:
        study: What was searched.
        calibration: The simulator's.
        base: The policy that was searched from.
        default: Its name.
        seed: First seed.
        seeds: Of the trials.
        fresh_seeds: Of the figures that are expected.
        search_seeds: Of the search's own runs; () for a grid.
        iterations: Of a whole run.
        planned: Trials that were wanted.
        sampler: Its name and what it was made with.
    """

    study: Study
    calibration: Calibration
    base: Policy
    default: str
    seed: int
    seeds: tuple[int, ...]
    fresh_seeds: tuple[int, ...]
    search_seeds: tuple[int, ...]
    iterations: int
    planned: int
    sampler: Mapping[str, Any]

    @property
    def objective(self) -> Objective:
        """The first one, which decides."""
        return self.study.objectives[0]


def summary(outcome: Outcome, metric: str = REACHES, error: Error | None = None) -> dict[str, Any]:
    """Mean and interval of the objective, and the mean of each metric.

    Args:
        outcome: What was run.
        metric: The objective.
        error: The simulator's own, relative; None where it is not known.
    """
    if not outcome.complete:
        return {"state": outcome.state, "reason": outcome.reason, "mean": None, "per_seed": []}
    values = [run[metric] for run in outcome.per_seed]
    if error is not None:
        size = outcome.mean(metric)
        error = size * error[0], size * error[1]
    return {
        "state": "complete",
        **figures(values, error),
        "per_seed": values,
        "metrics": _means(outcome.per_seed),
    }


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Mean of each metric; None where one is not finite, as a share of a target not reached."""
    means = {name: sum(run[name] for run in runs) / len(runs) for name in runs[0]}
    return {name: value if math.isfinite(value) else None for name, value in means.items()}


def trial_rows(setting: Setting, found: Found, broken: Mapping[int, str]) -> list[dict[str, Any]]:
    """A row for each trial; ``broken`` says which constraint one does not keep to."""
    metric = setting.objective.metric
    rows = []
    for number in sorted({*found.trials, *(d.number for d in found.drawn)}):
        outcome = found.trials.get(number)
        row: dict[str, Any] = {"number": number}
        if outcome is None:
            drawn = next(d for d in found.drawn if d.number == number)
            row |= {"params": dict(drawn.point), **_drawn_row(drawn, metric)}
        else:
            row |= {"params": dict(outcome.params), "key": outcome.key, **summary(outcome, metric)}
            if number in broken:
                row |= {"state": "infeasible", "reason": broken[number]}
        rows.append(row)
    return rows


def _drawn_row(drawn: Drawn, metric: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "state": "screened" if drawn.state == "complete" else drawn.state,
        "reason": drawn.reason or "run on the search's seeds alone",
        "mean": None,
        "low": None,
        "high": None,
        "per_seed": [],
    }
    if drawn.state == "complete":
        row |= {"mean": mean(drawn.searched, metric), "metrics": _means(drawn.searched)}
    elif drawn.screened:
        row["screened_mean"] = mean(drawn.screened, metric)
    return row


def winner(setting: Setting, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Number of the complete trial that is best in the first objective."""
    sign = 1.0 if setting.objective.direction == "minimize" else -1.0
    done = [row for row in rows if row["state"] == "complete"]
    return min(done, key=lambda row: sign * row["mean"])["number"] if done else None


def build(
    setting: Setting, found: Found, rows: list[dict[str, Any]], policy: Policy | None
) -> dict[str, Any]:
    """The document that reports and exports read.

    Args:
        setting: What it was made with.
        found: What was found.
        rows: Of :func:`trial_rows`.
        policy: That of the best trial.
    """
    from xtune.sim import scope_notes

    study, calibration, objective = setting.study, setting.calibration, setting.objective
    number = winner(setting, rows)
    best = next((row for row in rows if row["number"] == number), None)
    complete = [row for row in rows if row["state"] == "complete"]
    if best is not None:
        for row in complete:
            row["gain_of_best"] = against(best["per_seed"], row["per_seed"], objective.direction)
        hold_together([row for row in complete if row is not best])
    own = OwnErrors(metric=objective.metric, measured=found.fidelity)
    measured = found.fidelity.get("")
    document: dict[str, Any] = {
        "schema": 1,
        "study": study.name,
        "title": study.title,
        "seed": setting.seed,
        "calibration": calibration.fingerprint,
        "objective": _objective(objective),
        "objectives": [{"metric": o.metric, **_objective(o)} for o in study.objectives],
        "constraints": [{"metric": c.metric, "at_most": c.at_most} for c in study.constraints],
        "sampler": dict(setting.sampler),
        "space": _space(study),
        "planned": setting.planned,
        "counts": _counts(rows),
        "trials": rows,
        "best": None if best is None else _best(best, found, own),
        "pareto": _pareto(setting, complete),
        **_compared(setting, found.fresh, own),
        "held_out": _held_out(setting, found),
        "recommendation": recommend(setting, found),
        "sensitivity": [
            {
                "field": name,
                "values": [{"value": v, **_over_seeds(o, objective.metric)} for v, o in values],
            }
            for name, values in found.sensitivity.items()
        ],
        "importance": found.importance,
        "fidelity": None if measured is None else measured.to_json(),
        "assumed": [
            {"name": p.name, "value": p.value, "unit": p.unit, "why": p.why}
            for p in calibration.assumed
        ],
        "notes": [*calibration.notes, *scope_notes(calibration)],
        "founding_document": [{"id": i, "claim": c} for i, c in study.claims.items()],
        "telemetry": _span(calibration),
        "provenance": {
            "xtune": __version__,
            "seeds": list(setting.seeds),
            "fresh_seeds": list(setting.fresh_seeds),
            "search_seeds": list(setting.search_seeds),
            "iterations": setting.iterations,
            "simulated": True,
        },
    }
    if policy is not None and best is not None:
        document["policy"] = with_provenance(policy, document).to_json()
    return document


def _objective(objective: Objective) -> dict[str, Any]:
    ends = [unit for end, unit in UNITS.items() if objective.metric.endswith(end)]
    return {
        "name": objective.metric,
        "unit": ends[-1] if ends else "1",
        "direction": objective.direction,
    }


def _space(study: Study) -> dict[str, Any]:
    """Values of a grid, or ranges of a search, by field."""
    if study.grid:
        return {name: list(values) for name, values in study.grid.items()}
    from xtune.studies._space import described

    return {name: described(name, dimension) for name, dimension in study.space.items()}


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    states = ["complete" if row["state"] == "screened" else row["state"] for row in rows]
    return {name: states.count(name) for name in ("complete", "pruned", "infeasible", "failed")}


def _pareto(setting: Setting, complete: Sequence[Mapping[str, Any]]) -> list[int]:
    """Of several objectives: one has its best, and needs no front."""
    objectives = setting.study.objectives
    if len(objectives) < 2:
        return []
    values = {row["number"]: [row["metrics"][o.metric] for o in objectives] for row in complete}
    return _screen.front(values, objectives)


def _best(row: Mapping[str, Any], found: Found, own: OwnErrors) -> dict[str, Any]:
    """Figures of the best on fresh seeds; on its own where time did not allow that."""
    outcome = found.fresh.get("")
    fresh = outcome is not None and outcome.complete
    shown = row
    if fresh and outcome is not None:
        shown = summary(outcome, own.metric, own.absolute(""))
    return {
        "number": row["number"],
        "params": row["params"],
        **{k: shown[k] for k in BEST},
        "fresh": fresh,
    }


def _compared(setting: Setting, outcomes: Mapping[str, Outcome], own: OwnErrors) -> dict[str, Any]:
    """Default, baselines and ablations beside the best on the same seeds."""
    objective = setting.objective
    best = outcomes.get("")
    rows: dict[str, dict[str, Any]] = {}
    for name, outcome in outcomes.items():
        if name == "":
            continue
        rows[name] = {"name": name, **summary(outcome, objective.metric, own.absolute(name))}
        if best is not None and best.complete and outcome.complete:
            mine, theirs = ([run[objective.metric] for run in o.per_seed] for o in (best, outcome))
            rows[name]["gain_of_best"] = against(
                mine, theirs, objective.direction, own.of_difference(name)
            )
    hold_together(list(rows.values()))
    study = setting.study
    return {
        "default": rows.get(setting.default),
        "baselines": [rows[n] for n in study.baselines if n in rows],
        "ablations": [rows[n] for n in study.ablations if n in rows],
    }


def _held_out(setting: Setting, found: Found) -> dict[str, Any] | None:
    held = setting.calibration.held_out
    if held is None or "" not in found.held_out:
        return None
    own = OwnErrors(metric=setting.objective.metric, measured=found.held_out_fidelity)
    return {
        "calibration": held.fingerprint,
        "span": _span(held),
        "best": summary(found.held_out[""], own.metric, own.absolute("")),
        **_compared(setting, found.held_out, own),
    }


def _over_seeds(outcome: Outcome, metric: str) -> dict[str, Any]:
    row = summary(outcome, metric)
    return {k: row.get(k) for k in ("mean", "low", "high")}


def _span(calibration: Calibration) -> dict[str, str | None]:
    """The telemetry that the calibration rests on, from first to last time."""
    if calibration.span_ns is None:
        return {"from": None, "to": None}
    first, last = calibration.span_ns
    return {"from": rfc3339(first), "to": rfc3339(last)}


def with_provenance(policy: Policy, document: Mapping[str, Any]) -> Policy:
    """The policy with where it is from and what it is expected to give."""
    best, held = document["best"], document["held_out"]
    gains, held_out = (
        {
            row["name"]: row["gain_of_best"]
            for row in (*part["baselines"], *part["ablations"])
            if "gain_of_best" in row
        }
        if part
        else {}
        for part in (document, held)
    )
    return replace(
        policy,
        provenance={
            "study": document["study"],
            "trial": best["number"],
            "seed": document["seed"],
            "seeds": document["provenance"]["fresh_seeds" if best["fresh"] else "seeds"],
            "iterations": document["provenance"]["iterations"],
            "calibration": document["calibration"],
            "telemetry": document["telemetry"],
            "expected": {
                "source": "simulator",
                document["objective"]["name"]: {k: best[k] for k in ("mean", "low", "high")},
                "gain_over": gains,
                "held_out_gain_over": held_out,
            },
            "assumed": [a["name"] for a in document["assumed"]],
            "xtune": __version__,
        },
    )


def write(folder: Path, document: Mapping[str, Any]) -> None:
    """Write ``trials.parquet``, then ``result.json``, each whole or not at all.

    A row of the former is one seed of a trial; one without seeds of its own has a single row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    metric = document["objective"]["name"]
    seeds = document["provenance"]
    rows = []
    for role in ("trials", "baselines", "ablations"):
        drawn = seeds["seeds"] if role == "trials" else seeds["fresh_seeds"]
        for row in document[role]:
            values = row["per_seed"]
            same = {
                "role": role.removesuffix("s"),
                "name": row.get("name"),
                "number": row.get("number"),
                "state": row["state"],
                "params": json.dumps(row.get("params", {}), sort_keys=True),
            }
            pairs = list(zip(drawn, values, strict=True)) if values else [(None, row["mean"])]
            rows += [{**same, "seed": seed, metric: value} for seed, value in pairs]
    schema = pa.schema(
        [
            ("role", pa.string()),
            ("name", pa.string()),
            ("number", pa.int64()),
            ("state", pa.string()),
            ("params", pa.string()),
            ("seed", pa.int64()),
            (metric, pa.float64()),
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
