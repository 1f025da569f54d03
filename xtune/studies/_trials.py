"""Finished evaluations in Optuna's storage: added whole, so that a kill leaves none half done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xtune.config import hide_secrets
from xtune.errors import StudyError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.study import Study as OptunaStudy

OBJECTIVE = "time_to_target_s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one evaluation gave.

    Attributes:
        key: Canonical name of the evaluation.
        params: Values of the searched fields; for a preset ``{"preset": name}``, which is no
            parameter to Optuna.
        per_seed: Metrics of each seed, in the order of the seeds; empty where it failed.
        reason: Why it failed, else "".
        number: Optuna's trial number, once stored.
    """

    key: str
    params: Mapping[str, float | int | str]
    per_seed: Sequence[Mapping[str, float]] = ()
    reason: str = ""
    number: int = -1

    @property
    def complete(self) -> bool:
        """Whether every seed gave a finite objective."""
        return not self.reason


def distribution(field: str, values: Sequence[Any]) -> BaseDistribution:
    """Optuna's range of a field: the policy's own range, so that a grid can be extended."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    from xtune.policies.spec import PARAMETERS

    described = PARAMETERS.get(field)
    if described is None or described.low is None or described.high is None:
        # A range of choices may not change, and a grid may grow: all legal ones, where known.
        legal = described.choices if described is not None else ()
        return CategoricalDistribution(list(legal or values))
    if described.kind == "int":
        return IntDistribution(int(described.low), int(described.high))
    return FloatDistribution(float(described.low), float(described.high))


class TrialStore:
    """The trials of one study on one calibration.

    Args:
        storage: From :func:`xtune.studies._storage.open_storage`.
        name: Optuna's study name; carries the calibration's fingerprint.
    """

    def __init__(self, storage: BaseStorage, name: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            self._study: OptunaStudy = optuna.create_study(
                storage=storage, study_name=name, direction="minimize", load_if_exists=True
            )
        except Exception as error:  # each storage's own trees
            text = hide_secrets(f"{type(error).__name__}: {error}".splitlines()[0])
            raise StudyError(
                f"study {name} cannot be opened: {text}", "check --storage"
            ) from error

    def finished(self) -> dict[str, Outcome]:
        """Every stored evaluation by key; a completed one wins over a failed one."""
        found: dict[str, Outcome] = {}
        for trial in self._study.get_trials(deepcopy=False):
            key = trial.user_attrs.get("key")
            if key is None or (key in found and found[key].complete):
                continue
            found[key] = Outcome(
                key=key,
                params=trial.user_attrs.get("params", trial.params),
                per_seed=trial.user_attrs.get("per_seed", ()),
                reason=trial.user_attrs.get("reason", ""),
                number=trial.number,
            )
        return found

    def add(self, outcome: Outcome, grid: Mapping[str, Sequence[Any]]) -> None:
        """Store one evaluation; it is durable when this returns."""
        from optuna.trial import TrialState, create_trial

        values = [m[OBJECTIVE] for m in outcome.per_seed]
        searched = {name: v for name, v in outcome.params.items() if name in grid}
        attributes: dict[str, Any] = {
            "key": outcome.key,
            "params": dict(outcome.params),
            "per_seed": list(outcome.per_seed),
        }
        if outcome.reason:
            attributes["reason"] = outcome.reason
        self._study.add_trial(
            create_trial(
                params=searched,
                distributions={name: distribution(name, grid[name]) for name in searched},
                value=sum(values) / len(values) if outcome.complete else None,
                state=TrialState.COMPLETE if outcome.complete else TrialState.FAIL,
                user_attrs=attributes,
            )
        )
