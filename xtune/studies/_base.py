"""What a study is: which fields of the policy it searches, and from where it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from xtune.errors import StudyError

#: Today's remedies (founding document, section 1) and two that need no forecast.
BASELINES = ("static_dense", "priority", "fixed_drop", "oblivious_spray", "power_of_two")

Value = float | int | str
Point = dict[str, Value]

SAMPLERS = ("grid", "tpe", "gp", "cmaes")
Direction = Literal["minimize", "maximize"]
DIRECTIONS = ("minimize", "maximize")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """What may be tried of one field of the policy.

    Attributes:
        low: Smallest value; ``None``: the policy's own range.
        high: Largest value; ``None``: the policy's own range.
        log: Equal ratios count as equal distances.
        step: Distance of the values that are tried, counted from ``low``.
        choices: The values themselves, in place of a range; () for a range or, where the policy
            lists the field's values, for all of these.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: tuple[Value, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A metric of the simulator that is made small or large."""

    metric: str
    direction: Direction = "minimize"


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """A metric whose mean over the seeds must not exceed a limit."""

    metric: str
    at_most: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A search over fields of the policy.

    A study is one module of this package that defines ``STUDY``; its name is the module's. A field
    is dotted, ``period.iterations``; ``bus.enter_slowdown[0]`` is the first entry of one that has
    several. A point that the policy refuses is infeasible.

    Attributes:
        name: Name on the command line.
        title: One line for a person.
        base: Preset whose fields are searched.
        grid: Field -> the values to try, in the order they are reported; sampler ``grid``.
        space: Field -> what may be tried; the other samplers.
        sampler: ``grid``, ``tpe``, ``gp`` or ``cmaes`` (numbers and one objective only).
        objectives: The first one decides which point is exported; with several, all that no
            other point beats in every one are reported.
        constraints: What a point must keep to.
        trials: Trials to complete, where no ``--trials`` says so; ``None``: the whole grid.
        batch: Points that are drawn together, knowing nothing of each other's results.
        finalists: Points that are run again with all seeds, of those that were drawn.
        start: Points tried before any that is drawn; a field left out has the base's value.
        claims: What the founding document says of the answer: id -> claim.
        baselines: Presets shown beside it.
        ablations: Presets that leave a half of the policy out.
    """

    name: str
    title: str
    base: str
    grid: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    space: Mapping[str, Dimension] = field(default_factory=dict)
    sampler: str = "grid"
    objectives: tuple[Objective, ...] = (Objective(metric="time_to_target_s"),)
    constraints: tuple[Constraint, ...] = ()
    trials: int | None = None
    batch: int = 8
    finalists: int = 5
    start: tuple[Mapping[str, Value], ...] = ()
    claims: Mapping[str, str] = field(default_factory=dict)
    baselines: tuple[str, ...] = BASELINES
    ablations: tuple[str, ...] = ("routing_only", "compression_only", "joint")

    @property
    def fields(self) -> tuple[str, ...]:
        """The searched fields."""
        return tuple(self.grid or self.space)

    def points(self) -> list[Point]:
        """Every point of the grid, in the order of the grid."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())
        ]


def point_key(
    point: Mapping[str, float | int | str], seeds: Sequence[int], iterations: int, digest: str
) -> str:
    """The canonical name of one evaluation: what it depends on, and nothing else.

    Args:
        point: Values of the searched fields.
        seeds: Seeds it is run with.
        iterations: Length of each run.
        digest: Digest of the whole policy that the point gives.
    """
    return json.dumps(
        {
            "digest": digest,
            "iterations": iterations,
            "point": dict(sorted(point.items())),
            "seeds": list(seeds),
        },
        separators=(",", ":"),
        sort_keys=True,
    )


def find_study(name: str) -> Study:
    """The study of that name.

    Raises:
        StudyError: There is none; the message lists what there is.
    """
    studies = all_studies()
    if name not in studies:
        raise StudyError(f"there is no study {name!r}", f"there are: {', '.join(studies)}")
    return studies[name]


def all_studies() -> dict[str, Study]:
    """Every study by name: each module of this package without an underscore."""
    import importlib
    import pkgutil
    from pathlib import Path

    found = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not info.name.startswith("_"):
            found[info.name] = importlib.import_module(f"xtune.studies.{info.name}").STUDY
    return found
