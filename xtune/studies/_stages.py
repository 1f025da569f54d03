"""The stages of a study: search, finalists, fresh seeds, held-out days, around the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xtune.errors import StudyError
from xtune.studies import _screen
from xtune.studies._around import neighbours
from xtune.studies._base import Point, Study, Value, point_key
from xtune.studies._evaluate import Evaluator, TimeUp
from xtune.studies._importance import importance
from xtune.studies._options import Options
from xtune.studies._own_error import OF_STEPS
from xtune.studies._result import Found, Setting, build, trial_rows, winner
from xtune.studies._samplers import arguments
from xtune.studies._search import Search, broken, changes, definition, excess
from xtune.studies._space import apply, distributions
from xtune.studies._trials import REACHES, Outcome, TrialStore, grid_distribution
from xtune.studies._work import Job

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration

DEFAULT_TRIALS = 40


class Stages:
    """One run of a study, stage by stage."""

    def __init__(
        self,
        study: Study,
        calibration: Calibration,
        options: Options,
        base: Policy | None,
        evaluator: Evaluator,
    ) -> None:
        from xtune.policies.presets import preset

        self.study, self.calibration, self.options = study, calibration, options
        self.base = preset(study.base) if base is None else base
        self.default = study.base if base is None else "default"
        self.evaluator = evaluator
        self.found = Found()
        self.broken: dict[int, str] = {}
        metrics = [o.metric for o in study.objectives] + [c.metric for c in study.constraints]
        self.metrics = tuple(dict.fromkeys([REACHES, *metrics]))
        if study.grid:
            self.ranges = {f: grid_distribution(f, values) for f, values in study.grid.items()}
        else:
            self.ranges = distributions(study)

    def stores(self, storage: Any, name: str) -> None:
        """Open what the study keeps; a search's is of one seed and one length of run.

        Raises:
            StudyError: Another search is kept under this name.
        """
        if self.study.space:
            trials = f"{name}#seed{self.options.seed}-iterations{self.options.iterations}"
        else:
            trials = name
        self.trials = TrialStore(storage, trials, self.study.objectives)
        self.others = TrialStore(storage, f"{name}#presets")
        if not self.study.space:
            return
        new = definition(self.study, self.base)
        old = self.trials.attributes.get("definition")
        if old is None:
            self.trials.describe(definition=new)
        elif old != new:
            raise StudyError(
                f"study {self.study.name} is another search than the one that is kept: "
                + "; ".join(changes(old, new)),
                "undo that, or give the changed study another name; evaluations are not mixed",
            )

    def all(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Every stage, as far as time allows, and the result."""
        planned = 0
        try:
            planned = self.grid() if self.study.grid else self.search()
            self.compare()
            self.sensitivity()
            for name, reason in self.own_errors():
                note(f"the simulator's own error is not known under {name}: {reason}")
            done = sum(o.complete for o in self.found.trials.values()) if self.study.grid else sum(
                d.state == "complete" for d in self.found.drawn
            )  # fmt: skip
            if self.evaluator.ran == 0:
                note(f"nothing to do: {done} of {planned} trials are there")
            elif done < planned and self.study.space:
                note(f"given up: {len(self.found.drawn)} points gave {done} trials that complete")
        except TimeUp:
            planned = planned or self.wanted()
            note(f"stopped by --timeout after {self.evaluator.ran} evaluations: the rest resumes")
        setting = self.setting(planned)
        rows = trial_rows(setting, self.found, self.broken)
        best = winner(setting, rows)
        policy = None if best is None else apply(self.base, self.point(best))
        self.found.importance = self.weigh()
        return build(setting, self.found, rows, policy)

    def setting(self, planned: int) -> Setting:
        """What the result is made with."""
        study, options = self.study, self.options
        return Setting(
            study=study,
            calibration=self.calibration,
            base=self.base,
            default=self.default,
            seed=options.seed,
            seeds=options.all_seeds,
            fresh_seeds=options.fresh_seeds,
            search_seeds=() if study.grid else options.block(2, _screen.SEEDS),
            iterations=options.iterations,
            planned=planned,
            sampler={"name": study.sampler, "arguments": arguments(study)},
        )

    def job(
        self,
        point: Mapping[str, Value],
        policy: Policy,
        seeds: Sequence[int],
        iterations: int | None = None,
        calibration: Calibration | None = None,
    ) -> Job:
        """One evaluation."""
        length = self.options.iterations if iterations is None else iterations
        key = point_key(point, seeds, length, policy.digest())
        if calibration is not None:
            key = f"{calibration.fingerprint} {key}"
        return Job(
            key=key,
            params=dict(point),
            policy=policy,
            seeds=tuple(seeds),
            iterations=length,
            calibration=calibration or self.calibration,
            metrics=self.metrics,
        )

    def wanted(self) -> int:
        """Trials that are to be completed."""
        points = len(self.study.points()) if self.study.grid else DEFAULT_TRIALS
        return self.options.trials or self.study.trials or points

    def grid(self) -> int:
        """Every point of the grid on all seeds; as many as are wanted, and all that are there."""
        from xtune.policies import PolicyError

        seeds, there = self.options.all_seeds, self.trials.finished()
        jobs: dict[int, Job] = {}
        for number, point in enumerate(self.study.points()):
            try:
                job = self.job(point, apply(self.base, point), seeds)
            except PolicyError as error:
                self.found.trials[number] = Outcome(
                    key="", params=point, reason=str(error), infeasible=True
                )
                continue
            if number < self.wanted() or (job.key in there and there[job.key].settled):
                jobs[number] = job
        try:
            self.evaluator.run(
                "trials", list(jobs.values()), self.trials, self.ranges, constraints=self.excess
            )
        finally:  # where time is over: what is there
            there = self.trials.finished()
            self.trial_outcomes({n: there[j.key] for n, j in jobs.items() if j.key in there})
        return len(jobs)

    def excess(self, outcome: Outcome) -> dict[str, float]:
        """By how much an outcome exceeds the constraints, for Optuna's eyes."""
        return excess(self.study, outcome.per_seed) if outcome.complete else {}

    def trial_outcomes(self, outcomes: Mapping[int, Outcome]) -> None:
        """Keep what trials gave on all seeds."""
        for number, outcome in outcomes.items():
            self.found.trials[number] = outcome
            reason = broken(self.study, outcome.per_seed) if outcome.complete else ""
            if reason:
                self.broken[number] = reason

    def search(self) -> int:
        """Draw points, then run the most promising again on all seeds."""
        rungs = {
            "screen": _screen.iterations(self.options.iterations),
            "search": self.options.iterations,
        }
        seeds = self.options.block(2, _screen.SEEDS)
        search = Search(
            self.study,
            self.base,
            self.options.seed,
            evaluator=self.evaluator,
            trials=self.trials,
            evaluations=self.others,
            job=lambda point, policy, rung: self.job(point, policy, seeds, rungs[rung]),
        )
        self.found.drawn = search.drawn
        search.run(self.wanted())
        points: dict[str, int] = {}
        values = {}
        for drawn in search.drawn:  # a point that was drawn twice is one finalist
            if drawn.state == "complete" and points.setdefault(repr(drawn.point), -1) < 0:
                points[repr(drawn.point)] = drawn.number
                values[drawn.number] = drawn.values(self.study)
        finalists = _screen.ranked(values, self.study.objectives)[: self.study.finalists]
        jobs = {
            n: self.job(self.point(n), apply(self.base, self.point(n)), self.options.all_seeds)
            for n in finalists
        }
        outcomes = self.evaluator.run("finalists", list(jobs.values()), self.others)
        self.trial_outcomes({n: outcomes[job.key] for n, job in jobs.items()})
        return self.wanted()

    def point(self, number: int) -> Point:
        """Values of a trial's fields."""
        outcome = self.found.trials.get(number)
        if outcome is not None:
            return dict(outcome.params)
        return dict(next(d.point for d in self.found.drawn if d.number == number))

    def best(self) -> int | None:
        """Number of the best trial."""
        setting = self.setting(0)
        return winner(setting, trial_rows(setting, self.found, self.broken))

    def policies(self) -> dict[str, tuple[Point, Policy]]:
        """What is compared, by name: baselines, ablations, the default, and the best as ""."""
        from xtune.policies.presets import preset

        policies: dict[str, tuple[Point, Policy]] = {
            name: ({"preset": name}, preset(name))
            for name in (*self.study.baselines, *self.study.ablations)
        }
        policies.setdefault(self.default, ({"preset": self.default}, self.base))
        best = self.best()
        if best is not None:
            policies[""] = (self.point(best), apply(self.base, self.point(best)))
        return policies

    def compare(self) -> None:
        """Run them on fresh seeds and on held-out days."""
        policies = self.policies()
        for stage, calibration, kept in (
            ("fresh seeds", None, self.found.fresh),
            ("held out", self.calibration.held_out, self.found.held_out),
        ):
            if stage == "held out" and calibration is None:
                continue
            jobs = {
                name: self.job(
                    point, policy, self.options.fresh_seeds, calibration=calibration
                )
                for name, (point, policy) in policies.items()
            }  # fmt: skip
            outcomes = self.evaluator.run(stage, list(jobs.values()), self.others)
            kept |= {name: outcomes[job.key] for name, job in jobs.items()}

    def sensitivity(self) -> None:
        """One field at a time around the best; of a grid, what its own points say."""
        best = self.best()
        if best is None:
            return
        point = self.point(best)
        if self.study.grid:
            for field in self.study.grid:
                self.found.sensitivity[field] = [
                    (outcome.params[field], outcome)
                    for outcome in self.found.trials.values()
                    if all(outcome.params[f] == v for f, v in point.items() if f != field)
                ]
            return
        around = neighbours(self.base, point, self.ranges)
        seeds = self.options.fresh_seeds
        jobs = {
            field: [
                (value, self.job(other, policy, seeds)) for value, other, policy in others
            ]
            for field, others in around.items()
        }  # fmt: skip
        todo = [job for pairs in jobs.values() for _, job in pairs]
        outcomes = self.evaluator.run("sensitivity", todo, self.others)
        for field, pairs in jobs.items():
            values = [(value, outcomes[job.key]) for value, job in pairs]
            self.found.sensitivity[field] = [*values, (point[field], self.found.fresh[""])]
            if not isinstance(point[field], str):
                self.found.sensitivity[field].sort(key=lambda pair: pair[0])

    def own_errors(self) -> list[tuple[str, str]]:
        """What the simulator is off by under each policy that is compared.

        Not measured where the objective does not follow the step time: no figure would carry it.

        Returns:
            The policies of which it is not known, and why.
        """
        follows = self.study.objectives[0].metric in OF_STEPS
        if self.best() is None or not self.options.fidelity or not follows:
            return []
        unknown: list[tuple[str, str]] = []
        policies = {name: policy for name, (_, policy) in self.policies().items()}
        for calibration, kept in (
            (self.calibration, self.found.fidelity),
            (self.calibration.held_out, self.found.held_out_fidelity),
        ):
            if calibration is not None:
                found, reasons = self.evaluator.own_errors(
                    "own errors", policies, calibration, self.options.seed
                )
                kept |= found
                unknown += [(name or "the best", reason) for name, reason in reasons.items()]
        return unknown

    def weigh(self) -> dict[str, Any] | None:
        """Importance of the fields, from every trial that ran whole."""
        objective = self.study.objectives[0]
        if self.study.grid:
            done = [o for o in self.found.trials.values() if o.complete]
            pairs = [(o.params, o.mean(objective.metric)) for o in done]
        else:
            whole = [d for d in self.found.drawn if d.state == "complete"]
            pairs = [(d.point, d.values(self.study)[0]) for d in whole]
        points = [p for p, _ in pairs]
        return importance(points, [v for _, v in pairs], self.ranges, objective.direction)
