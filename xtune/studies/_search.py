"""The search: points are drawn in batches, screened, run whole, and kept as trials."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xtune.errors import StudyError
from xtune.studies import _screen
from xtune.studies._base import Point, Study
from xtune.studies._evaluate import Evaluator
from xtune.studies._samplers import REFUSED, Model, Told, arguments
from xtune.studies._space import apply, distributions
from xtune.studies._trials import Outcome, TrialStore

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.studies._work import Job

# Points drawn for each trial that is to be completed, before a search is given up.
MOST_DRAWS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """One point of a search.

    Attributes:
        number: In the order in which points are drawn.
        point: Values of the fields.
        state: ``complete``, ``pruned``, ``infeasible`` or ``failed``.
        reason: Why it is not complete, else "".
        screened: Metrics of each seed on the screening rung.
        searched: Metrics of each seed of its whole runs.
        estimate: Objectives of a pruned one, in proportion to the trial that it lost against.
    """

    number: int
    point: Point
    state: str = "complete"
    reason: str = ""
    screened: Sequence[Mapping[str, float]] = ()
    searched: Sequence[Mapping[str, float]] = ()
    estimate: tuple[float, ...] = ()

    def values(self, study: Study) -> tuple[float, ...]:
        """Means of the objectives, where it ran whole."""
        if not self.searched:
            return ()
        return tuple(mean(self.searched, o.metric) for o in study.objectives)


def mean(runs: Sequence[Mapping[str, float]], metric: str) -> float:
    """Mean of a metric over runs."""
    return math.fsum(run[metric] for run in runs) / len(runs)


def excess(study: Study, runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By how much each constraint is exceeded; at most 0 where it is kept."""
    return {c.metric: mean(runs, c.metric) - c.at_most for c in study.constraints}


def broken(study: Study, runs: Sequence[Mapping[str, float]]) -> str:
    """The first constraint that is not kept, in words; "" where all are."""
    for constraint in study.constraints:
        value = mean(runs, constraint.metric)
        if value > constraint.at_most:
            return f"{constraint.metric} {value:.4g} is above {constraint.at_most:g}"
    return ""


JobOf = Callable[[Point, "Policy", str], "Job"]


class Search:
    """Draws and evaluates points until enough trials are complete.

    Args:
        study: What is searched.
        base: The policy whose fields are searched.
        seed: Of the search.
        evaluator: Runs evaluations.
        trials: Where trials are kept.
        evaluations: Where their evaluations are kept.
        job: Makes the evaluation of a point for the rung ``screen`` or ``search``.
    """

    def __init__(
        self,
        study: Study,
        base: Policy,
        seed: int,
        *,
        evaluator: Evaluator,
        trials: TrialStore,
        evaluations: TrialStore,
        job: JobOf,
    ) -> None:
        self._study, self._base = study, base
        self._evaluator, self._trials, self._evaluations = evaluator, trials, evaluations
        self._job = job
        self._model = Model(study, base, seed)
        self._ranges = distributions(study)
        self.drawn: list[Drawn] = []

    def run(self, wanted: int) -> list[Drawn]:
        """Draw until ``wanted`` trials are complete; what is stored is not done again.

        Points of a batch are taken in their order, and only as many as are needed: a search that
        is extended later goes on as if it had been longer from the start.

        Raises:
            TimeUp: The time is over; ``drawn`` has what there is.
        """
        stored = self._stored()
        size, batch = self._study.batch, 0
        while self._complete() < wanted and len(self.drawn) < MOST_DRAWS * wanted:
            first = batch * size
            # A failure is tried again while nothing has been drawn that knows of it.
            last = all(number < first + size for number in stored)
            kept = [stored.get(first + i) for i in range(size)]
            if last:
                kept = [None if d is None or d.state == "failed" else d for d in kept]
            whole = [drawn for drawn in kept if drawn is not None]
            if len(whole) == size and not self._model.keeps_state:
                done = self._batch({}, kept, first, wanted)
                tell = self._model.add
            else:
                points = self._model.ask(batch)
                self._same(points, kept, first)
                done = self._batch(dict(enumerate(points)), kept, first, wanted)
                tell = self._model.tell
            if len(done) < size:
                break
            tell([self._told(drawn) for drawn in done])
            batch += 1
        return self.drawn

    def _batch(
        self,
        points: Mapping[int, Point],
        kept: Sequence[Drawn | None],
        first: int,
        wanted: int,
    ) -> list[Drawn]:
        """Evaluate a batch's points from its start until enough trials are complete."""
        before = {d.number: d for d in self.drawn if d.state == "complete"}
        done: list[Drawn] = []
        while len(done) < len(kept) and self._complete() < wanted:
            part = range(len(done), min(len(kept), len(done) + wanted - self._complete()))
            new = self._evaluated({first + i: points[i] for i in part if kept[i] is None}, before)
            for i in part:
                drawn = kept[i] or new[first + i]
                done.append(drawn)
                self.drawn.append(drawn)
        return done

    def _complete(self) -> int:
        return sum(drawn.state == "complete" for drawn in self.drawn)

    def _evaluated(
        self, points: Mapping[int, Point], before: Mapping[int, Drawn]
    ) -> dict[int, Drawn]:
        from xtune.policies import PolicyError

        policies: dict[int, Policy] = {}
        done: dict[int, Drawn] = {}
        for number, point in points.items():
            try:
                policies[number] = apply(self._base, point)
            except PolicyError as error:
                done[number] = Drawn(
                    number=number, point=point, state="infeasible", reason=str(error)
                )
        screened = self._rung("screen", {n: points[n] for n in policies}, policies)
        todo: dict[int, Point] = {}
        for number, outcome in screened.items():
            if not outcome.complete:
                done[number] = _unfinished(number, points[number], outcome)
                continue
            winner = _screen.pruned_by(
                outcome.per_seed, {n: d.screened for n, d in before.items()},
                self._study.objectives,
            )  # fmt: skip
            if winner is None:
                todo[number] = points[number]
            else:
                done[number] = self._pruned(
                    number, points[number], outcome.per_seed, before[winner]
                )
        for number, outcome in self._rung("search", todo, policies).items():
            runs = screened[number].per_seed
            done[number] = self._judged(number, points[number], outcome, runs)
        for number in sorted(done):
            self._store(done[number])
        return done

    def _rung(
        self, name: str, points: Mapping[int, Point], policies: Mapping[int, Policy]
    ) -> dict[int, Outcome]:
        jobs = {n: self._job(point, policies[n], name) for n, point in points.items()}
        outcomes = self._evaluator.run(name, list(jobs.values()), self._evaluations)
        return {number: outcomes[job.key] for number, job in jobs.items()}

    def _judged(
        self,
        number: int,
        point: Point,
        outcome: Outcome,
        screened: Sequence[Mapping[str, float]],
    ) -> Drawn:
        if not outcome.complete:
            return _unfinished(number, point, outcome)
        reason = broken(self._study, outcome.per_seed)
        return Drawn(
            number=number,
            point=point,
            state="infeasible" if reason else "complete",
            reason=reason,
            screened=screened,
            searched=outcome.per_seed,
        )

    def _pruned(
        self, number: int, point: Point, runs: Sequence[Mapping[str, float]], winner: Drawn
    ) -> Drawn:
        estimate = []
        for objective in self._study.objectives:
            metric = objective.metric
            base = mean(winner.screened, metric)
            share = mean(runs, metric) / base if base else 1.0
            estimate.append(share * mean(winner.searched, metric))
        return Drawn(
            number=number,
            point=point,
            state="pruned",
            reason=f"clearly worse than trial {winner.number} on the screening rung",
            screened=runs,
            estimate=tuple(estimate),
        )

    def _told(self, drawn: Drawn) -> Told:
        return Told(
            point=drawn.point,
            state=drawn.state,
            values=drawn.values(self._study) or drawn.estimate,
            constraints=excess(self._study, drawn.searched) if drawn.searched else None,
        )

    def _store(self, drawn: Drawn) -> None:
        """Keep one trial; another process may have stored it already."""

        def there() -> bool:
            old = self._stored().get(drawn.number)
            return old is not None and old.state != "failed"

        self._evaluator.once(f"trial {drawn.number}", there, lambda: self._add(drawn))

    def _add(self, drawn: Drawn) -> None:
        """One trial in Optuna's storage, whole."""
        from optuna.trial import TrialState

        state = {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL}.get(
            drawn.state, TrialState.COMPLETE if drawn.searched else TrialState.PRUNED
        )
        single = drawn.screened and len(self._study.objectives) == 1
        constraints = excess(self._study, drawn.searched) if drawn.searched else {}
        if drawn.state == "infeasible" and not drawn.searched:
            constraints = {REFUSED: 1.0}
        self._trials.add_record(
            drawn.point,
            self._ranges,
            state,
            drawn.values(self._study) or None,
            attributes={
                "number": drawn.number,
                "state": drawn.state,
                "reason": drawn.reason,
                "screened": list(drawn.screened),
                "searched": list(drawn.searched),
                "estimate": list(drawn.estimate),
            },
            constraints=constraints,
            screened=mean(drawn.screened, self._study.objectives[0].metric) if single else None,
        )

    def _stored(self) -> dict[int, Drawn]:
        """Stored trials by number; one that did not fail wins over one that did."""
        found: dict[int, Drawn] = {}
        for trial in self._trials.records():
            kept = trial.user_attrs
            number = kept.get("number")
            if number is None or (number in found and found[number].state != "failed"):
                continue
            found[number] = Drawn(
                number=number,
                point=dict(trial.params),
                state=kept["state"],
                reason=kept["reason"],
                screened=kept["screened"],
                searched=kept["searched"],
                estimate=tuple(kept["estimate"]),
            )
        return found

    def _same(self, points: Sequence[Point], kept: Sequence[Drawn | None], first: int) -> None:
        """Refuse to go on where the sampler draws other points than it did.

        Raises:
            StudyError: It is that of another version, or the storage was changed.
        """
        import optuna

        for i, (point, drawn) in enumerate(zip(points, kept, strict=True)):
            if drawn is not None and drawn.point != point:
                raise StudyError(
                    f"trial {first + i} was {drawn.point}, and Optuna {optuna.__version__} "
                    f"draws {point} there",
                    "go on with the Optuna that the study was begun with, or rename the study",
                )


def _unfinished(number: int, point: Point, outcome: Outcome) -> Drawn:
    return Drawn(number=number, point=point, state=outcome.state, reason=outcome.reason)


def definition(study: Study, base: Policy) -> dict[str, Any]:
    """What a search's points depend on; a stored search goes on only under the same."""
    whole: dict[str, Any] = json.loads(
        json.dumps(
            {
                "base": base.digest(),
                "batch": study.batch,
                "constraints": {c.metric: c.at_most for c in study.constraints},
                "objectives": {o.metric: o.direction for o in study.objectives},
                "sampler": {"name": study.sampler, **arguments(study)},
                "screening": {
                    "margin": _screen.MARGIN, "seeds": _screen.SEEDS, "share": _screen.SHARE
                },
                "space": {field: repr(d) for field, d in distributions(study).items()},
                "start": [dict(point) for point in study.start],
            }
        )
    )  # fmt: skip
    return whole


def changes(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[str]:
    """What differs between two definitions, one line each."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        where = f"{path}{name}"
        if isinstance(before, dict) and isinstance(after, dict):
            lines += changes(before, after, f"{where} ")
        elif before != after:
            lines.append(f"{where}: {'-' if before is None else before} -> "
                         f"{'-' if after is None else after}")  # fmt: skip
    return lines
