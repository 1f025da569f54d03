"""What to do with the tuned policy, with the simulator's own error in the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xtune.studies._own_error import OF_STEPS, OwnErrors
from xtune.studies._search import broken
from xtune.studies._stats import recommendation, unsaid

if TYPE_CHECKING:
    from xtune.studies._result import Found, Setting


def recommend(setting: Setting, found: Found) -> dict[str, Any]:
    """On the held-out telemetry, where there is some; else on the fresh seeds.

    A tuned policy that fails there, or breaks a constraint that the default keeps, is worse.
    """
    outcomes, fidelity, where = found.fresh, found.fidelity, "fresh seeds"
    if found.held_out:
        outcomes, fidelity = found.held_out, found.held_out_fidelity
        where = "held-out telemetry"
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
    error = OwnErrors(metric=metric, measured=fidelity).of_difference(setting.default)
    said = recommendation(mine, theirs, setting.objective.direction, where, error)
    if limit:
        said["text"] += f" Neither keeps to the constraints there: {limit}."
    if error is not None:
        said["text"] += (
            f" The interval holds the simulator's own error in such a difference of step times,"
            f" {error[0]:z.2%} with a deviation of {error[1]:.2%}."
        )
    elif metric in OF_STEPS:
        said["text"] += " The simulator's own error is not in it."
    return said
