"""How much each searched field matters, by two evaluators that do not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xtune.studies._base import Direction

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.importance import BaseImportanceEvaluator
    from optuna.study import Study

FEWEST_TRIALS = 10  # below, either of them gives noise


def importance(
    points: Sequence[Mapping[str, Any]],
    values: Sequence[float],
    ranges: Mapping[str, BaseDistribution],
    direction: Direction,
) -> dict[str, Any] | None:
    """Shares of the fields, by PED-ANOVA and by f-ANOVA.

    They differ: the first asks what tells the best points from the rest, the second what explains
    the variance over all of them. Both are given by name; neither is the truth.

    Args:
        points: Points that ran whole.
        values: The first objective of each.
        ranges: Optuna's ranges of the fields.
        direction: ``minimize`` or ``maximize``.

    Returns:
        ``{evaluator, values, other: {evaluator, values}}``; ``None`` where there are too few
        points, or all are alike.
    """
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator
    from optuna.trial import create_trial

    if len(points) < FEWEST_TRIALS or len(set(values)) < 2:
        return None
    study = optuna.create_study(direction=direction)
    for point, value in zip(points, values, strict=True):
        study.add_trial(create_trial(params=dict(point), distributions=dict(ranges), value=value))
    named = {
        "PED-ANOVA": PedAnovaImportanceEvaluator(),
        "f-ANOVA": FanovaImportanceEvaluator(seed=0),
    }
    first, second = (
        {"evaluator": name, "values": _shares(study, evaluator)}
        for name, evaluator in named.items()
    )
    return {**first, "other": second}


def _shares(study: Study, evaluator: BaseImportanceEvaluator) -> dict[str, float]:
    from optuna.importance import get_param_importances

    found = get_param_importances(study, evaluator=evaluator)
    return {field: float(share) for field, share in found.items()}
