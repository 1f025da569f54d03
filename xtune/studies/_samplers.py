"""Points drawn by Optuna's samplers, batch by batch, the same whoever draws them, and when.

The model is a study in memory, filled from the trials that are kept. Each batch has a sampler of
its own, seeded by the study's seed and the batch's number: nothing of a sampler outlives a batch,
so a resumed search draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xtune.studies._base import Point, Study
from xtune.studies._space import distributions, start_points

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial, Trial

    from xtune.policies.spec import Policy

REFUSED = "refused"  # by the policy: a constraint of the model


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the model learns of a point.

    Attributes:
        point: The point.
        state: ``complete``, ``pruned``, ``infeasible`` or ``failed``.
        values: One an objective, of a pruned point estimated; () where it has none.
        constraints: By name; above 0 is infeasible.
    """

    point: Mapping[str, Any]
    state: str
    values: tuple[float, ...] = ()
    constraints: Mapping[str, float] | None = None


def arguments(study: Study) -> dict[str, Any]:
    """What the study's sampler is made with, but its seed: pinned, and stored with the study."""
    if study.sampler == "tpe":
        return {
            "n_startup_trials": 10,
            "n_ei_candidates": 24,
            "multivariate": True,
            "group": False,
            "constant_liar": True,
        }
    if study.sampler == "gp":
        return {"n_startup_trials": 10}
    if study.sampler == "cmaes":
        return {"n_startup_trials": 1, "popsize": study.batch, "with_margin": False}
    return {}


def make_sampler(name: str, pinned: Mapping[str, Any], seed: int) -> BaseSampler:
    """A sampler of a batch."""
    from optuna.samplers import CmaEsSampler, GPSampler, TPESampler

    if name == "gp":
        import torch

        torch.set_num_threads(1)  # more threads are slower here, and their sums are not the same
    made: dict[str, Callable[..., BaseSampler]] = {
        "tpe": TPESampler,
        "gp": GPSampler,
        "cmaes": CmaEsSampler,
    }
    return made[name](seed=seed, **pinned)


class Model:
    """The sampler's view of a study.

    Args:
        study: What is searched.
        base: The policy whose fields are searched.
        seed: Of the search.
    """

    def __init__(self, study: Study, base: Policy, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._spec, self._seed = study, seed
        self._ranges = distributions(study)
        self._pinned = arguments(study)
        self._study: OptunaStudy = optuna.create_study(
            directions=[objective.direction for objective in study.objectives]
        )
        self._start = start_points(study, base)
        self._asked: list[Trial] = []

    def ask(self, batch: int) -> list[Point]:
        """The points of a batch; all before it are told."""
        size = self._spec.batch
        for point in self._start[batch * size : (batch + 1) * size]:
            self._study.enqueue_trial(point)
        seed = int(np.random.SeedSequence([self._seed, batch]).generate_state(1)[0])
        self._study.sampler = make_sampler(self._spec.sampler, self._pinned, seed)
        self._asked = [self._study.ask(self._ranges) for _ in range(size)]
        return [dict(trial.params) for trial in self._asked]

    def tell(self, outcomes: Sequence[Told]) -> None:
        """What became of the points of the batch asked last, in their order."""
        for trial, told in zip(self._asked, outcomes, strict=True):
            state, values = self._as_optuna(told)
            for name, value in self._constraints(told).items():
                trial.set_constraint(name, value)
            self._study.tell(trial, values, state=state)

    def add(self, outcomes: Sequence[Told]) -> None:
        """The next batch, which was asked and told by another process or an earlier one."""
        from optuna.trial import create_trial

        for told in outcomes:
            state, values = self._as_optuna(told)
            self._study.add_trial(
                create_trial(
                    params=dict(told.point),
                    distributions=self._ranges,
                    state=state,
                    values=values,
                    constraints=self._constraints(told),
                )
            )

    @property
    def keeps_state(self) -> bool:
        """Whether the sampler keeps more than trials, so that only asking anew restores it."""
        return self._spec.sampler == "cmaes"

    def _as_optuna(self, told: Told) -> tuple[Any, list[float] | None]:
        """State and values for the model, which are not all stored or shown.

        A sampler that knew nothing of a point without a value would draw its like again: such a
        one counts as the worst so far.
        """
        from optuna.trial import TrialState

        if told.state == "failed":
            return TrialState.FAIL, None
        blind = told.state == "infeasible" and self._spec.sampler == "cmaes"  # to constraints
        if told.values and not blind:
            return TrialState.COMPLETE, list(told.values)
        worst = self._worst()
        return (TrialState.COMPLETE, worst) if worst else (TrialState.PRUNED, None)

    def _worst(self) -> list[float]:
        done = _complete(self._study)
        return [
            (max if objective.direction == "minimize" else min)(t.values[i] for t in done)
            for i, objective in enumerate(self._spec.objectives)
            if done
        ]

    def _constraints(self, told: Told) -> dict[str, float]:
        """All of them for every trial: some samplers need as many for each; one takes none."""
        if self._spec.sampler == "cmaes":
            return {}
        refused = told.state == "infeasible" and not told.values
        given = told.constraints or {}
        names = [c.metric for c in self._spec.constraints]
        return {REFUSED: 1.0 if refused else -1.0, **{n: given.get(n, 0.0) for n in names}}


def _complete(study: OptunaStudy) -> list[FrozenTrial]:
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
