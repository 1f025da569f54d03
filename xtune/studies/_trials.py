"""Finished evaluations in Optuna's storage: added whole, so that a kill leaves none half done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xtune.config import hide_secrets
from xtune.errors import StudyError
from xtune.studies._base import Objective

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial, TrialState

REACHES = "time_to_target_s"  # infinite where a policy does not reach the target loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one evaluation gave.

    Attributes:
        key: Canonical name of the evaluation.
        params: Values of the searched fields; for a preset ``{"preset": name}``, which is no
            parameter to Optuna.
        per_seed: Metrics of each seed, in the order of the seeds; empty where it failed.
        reason: Why there are none, else "".
        infeasible: It ran, and what it tried cannot be used; else a reason means that it failed.
        number: Optuna's trial number, once stored.
    """

    key: str
    params: Mapping[str, float | int | str]
    per_seed: Sequence[Mapping[str, float]] = ()
    reason: str = ""
    infeasible: bool = False
    number: int = -1

    @property
    def complete(self) -> bool:
        """Whether every seed gave finite figures."""
        return not self.reason

    @property
    def settled(self) -> bool:
        """Whether another try would give the same: it did not fail."""
        return self.complete or self.infeasible

    @property
    def state(self) -> str:
        """``complete``, ``infeasible`` or ``failed``."""
        return "complete" if self.complete else "infeasible" if self.infeasible else "failed"

    def mean(self, metric: str) -> float:
        """Mean of a metric over the seeds."""
        return sum(run[metric] for run in self.per_seed) / len(self.per_seed)


def grid_distribution(field: str, values: Sequence[Any]) -> BaseDistribution:
    """Optuna's range of a field: the policy's own range, so that a grid can be extended."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    from xtune.policies.spec import PARAMETERS
    from xtune.studies._space import split_field

    described = PARAMETERS.get(split_field(field)[0])
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
        objectives: What a trial's values are; one stands for an evaluation that is none of the
            search.
    """

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        objectives: Sequence[Objective] = (Objective(metric=REACHES),),
    ) -> None:
        import optuna

        self._objectives = objectives
        directions = [objective.direction for objective in objectives]
        try:
            self._study: OptunaStudy = optuna.create_study(
                storage=storage, study_name=name, directions=directions, load_if_exists=True
            )
        except Exception as error:  # each storage's own trees
            text = hide_secrets(f"{type(error).__name__}: {error}".splitlines()[0])
            raise StudyError(
                f"study {name} cannot be opened: {text}", "check --storage"
            ) from error

    @property
    def attributes(self) -> dict[str, Any]:
        """What is kept of the study as a whole."""
        return dict(self._study.user_attrs)

    def describe(self, **attributes: Any) -> None:
        """Keep something of the study as a whole."""
        for name, value in attributes.items():
            self._study.set_user_attr(name, value)

    def records(self) -> list[FrozenTrial]:
        """The stored trials as they are."""
        return self._study.get_trials(deepcopy=False)

    def finished(self) -> dict[str, Outcome]:
        """Every stored evaluation by key; one that did not fail wins over one that did."""
        found: dict[str, Outcome] = {}
        for trial in self.records():
            key = trial.user_attrs.get("key")
            if key is None or (key in found and found[key].settled):
                continue
            found[key] = Outcome(
                key=key,
                params=trial.user_attrs.get("params", trial.params),
                per_seed=trial.user_attrs.get("per_seed", ()),
                reason=trial.user_attrs.get("reason", ""),
                infeasible=trial.user_attrs.get("infeasible", False),
                number=trial.number,
            )
        return found

    def add(
        self,
        outcome: Outcome,
        ranges: Mapping[str, BaseDistribution],
        constraints: Mapping[str, float] | None = None,
    ) -> None:
        """Store one evaluation; it is durable when this returns."""
        from optuna.trial import TrialState

        attributes: dict[str, Any] = {
            "key": outcome.key,
            "params": dict(outcome.params),
            "per_seed": list(outcome.per_seed),
        }
        if outcome.reason:
            attributes["reason"] = outcome.reason
        if outcome.infeasible:
            attributes["infeasible"] = True
        state = TrialState.COMPLETE if outcome.complete else TrialState.FAIL
        values = None
        if outcome.complete:
            values = [outcome.mean(o.metric) for o in self._objectives]
        if outcome.infeasible:  # it has no value that Optuna would take as complete
            state, constraints = TrialState.PRUNED, {"reaches the target": 1.0}
        self.add_record(
            outcome.params, ranges, state, values, attributes=attributes, constraints=constraints
        )

    def add_record(
        self,
        params: Mapping[str, Any],
        ranges: Mapping[str, BaseDistribution],
        state: TrialState,
        values: Sequence[float] | None,
        *,
        attributes: Mapping[str, Any],
        constraints: Mapping[str, float] | None = None,
        screened: float | None = None,
    ) -> None:
        """Store one trial whole.

        Args:
            params: Values of fields; those without a range are no parameters to Optuna.
            ranges: By field.
            state: Optuna's.
            values: One an objective, for a complete one.
            attributes: What else is kept.
            constraints: By name; above 0 is infeasible.
            screened: What the screening rung gave.
        """
        from optuna.trial import create_trial

        searched = {name: value for name, value in params.items() if name in ranges}
        self._study.add_trial(
            create_trial(
                params=searched,
                distributions={name: ranges[name] for name in searched},
                values=values,
                state=state,
                user_attrs=dict(attributes),
                constraints=None if constraints is None else dict(constraints),
                intermediate_values=None if screened is None else {0: screened},
            )
        )
