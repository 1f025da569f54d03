"""What to do with the tuned policy, with the simulator's own error in the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xtune.studies._search import broken
from xtune.studies._stats import recommendation, unsaid, widen

if TYPE_CHECKING:
    from xtune.studies._result import Found, Setting

#: Metrics that are off by what the step time is off by, relatively; of others that is not known.
OF_STEPS = ("time_to_target_s", "mean_step_s", "steps_per_s")


def recommend(setting: Setting, found: Found) -> dict[str, Any]:
    """On the held-out telemetry, where there is some; else on the fresh seeds.

    A tuned policy that fails there, or breaks a constraint that the default keeps, is worse.
    """
    outcomes, where = found.fresh, "fresh seeds"
    if found.held_out:
        outcomes, where = found.held_out, "held-out telemetry"
    best, default = outcomes.get(""), outcomes.get(setting.default)
    if best is None or default is None:
        return unsaid("the two policies were not run on fresh seeds")
    why = [
        "" if o.complete else f"{o.state}: {o.reason}" for o in (best, default)
    ]  # fmt: skip
    if why[0] and why[1]:
        return unsaid(f"on {where} the tuned policy is {why[0]}; the default is {why[1]}")
    if why[1]:
        return unsaid(f"on {where} the default is {why[1]}; the tuned policy is complete")
    limit = "" if why[0] else broken(setting.study, best.per_seed)
    if limit and not broken(setting.study, default.per_seed):
        why[0] = f"infeasible: {limit}"
    if why[0]:
        text = f"Keep the default: on {where} the tuned policy is {why[0]}."
        return {**unsaid(""), "verdict": "worse", "text": text}
    metric = setting.objective.metric
    mine, theirs = ([run[metric] for run in o.per_seed] for o in (best, default))
    error = own_error(metric, (found.fidelity or {}).get("difference_from_default"))
    said = recommendation(mine, theirs, setting.objective.direction, where, error)
    if limit:
        said["text"] += f" Neither keeps to the constraints there: {limit}."
    if error is not None:
        said["text"] += (
            f" The interval holds the simulator's own error in such a difference of step times,"
            f" {error[0]:.2%} with a deviation of {error[1]:.2%}."
        )
    return said


def own_error(metric: str, fidelity: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Relative bias and sd of a metric; None where they are not known."""
    if metric not in OF_STEPS or fidelity is None:
        return None
    error = (float(fidelity["bias"]), float(fidelity["sd"]))
    return error if all(map(math.isfinite, error)) else None


def widen_figures(
    row: dict[str, Any] | None, metric: str, fidelity: Mapping[str, Any] | None
) -> None:
    """Put the simulator's own error into a row's interval; that over seeds stays beside it."""
    error = own_error(metric, fidelity)
    if row is None or row.get("low") is None or error is None or "over_seeds" in row:
        return
    row["over_seeds"] = {"low": row["low"], "high": row["high"]}
    mean = row["mean"]
    absolute = (error[0] * mean, error[1] * mean)
    row["low"], row["high"] = widen(mean, row["low"], row["high"], absolute)
