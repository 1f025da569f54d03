"""The searched fields: from a point to a policy, and to Optuna's ranges."""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from xtune.errors import StudyError
from xtune.studies._base import DIRECTIONS, SAMPLERS, Dimension, Point, Study, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from xtune.policies._fields import Parameter
    from xtune.policies.spec import Policy

#: What a run of the simulator gives (:func:`xtune.sim.simulate`).
METRICS = (
    "time_to_target_s", "mean_step_s", "steps_per_s", "steps_to_target", "extra_steps",
    "mean_comm_s", "exposed_share", "perplexity_penalty", "ratio_vs_bf16", "ratio_vs_fp32",
    "jitter_s", "retreats", "control_changes", "regulations",
)  # fmt: skip
MOST = 100_000  # trials, points of a batch, finalists
POPULATION = 4  # of two parents: of one, cmaes divides by 0
_ENTRY = re.compile(r"(.+)\[(\d+)\]")


def near(word: str, known: Iterable[str]) -> str:
    """A hint: the nearest of what is known, or all of it."""
    names = list(known)
    found = difflib.get_close_matches(word, names, 1)
    return f"did you mean {found[0]}?" if found else f"there are: {', '.join(names)}"


def split_field(field: str) -> tuple[str, int | None]:
    """``bus.enter_slowdown[0]`` as the parameter and the place of the entry."""
    match = _ENTRY.fullmatch(field)
    return (match[1], int(match[2])) if match else (field, None)


def parameter_of(field: str) -> Parameter:
    """What the policy knows of a searched field.

    Raises:
        StudyError: It is none, or cannot be searched.
    """
    from xtune.policies.spec import PARAMETERS

    path, place = split_field(field)
    if path not in PARAMETERS:
        raise StudyError(f"{field}: the policy has no such field", near(path, PARAMETERS))
    found = PARAMETERS[path]
    if found.kind == "rungs":
        raise StudyError(f"{field}: a ladder cannot be searched", "search what uses it")
    if place is None and found.length is not None:
        raise StudyError(f"{field}: it has {found.length} entries", f"say {path}[0]")
    if place is not None and (found.length is None or place >= found.length):
        have = "is one value" if found.length is None else f"has {found.length} entries, from 0"
        raise StudyError(f"{field}: {path} {have}")
    return found


def base_value(policy: Policy, field: str) -> Value:
    """What a policy has for a field."""
    path, place = split_field(field)
    section, _, name = path.partition(".")
    value: Any = getattr(getattr(policy, section), name)
    found: Value = value if place is None else value[place]
    return found


def apply(policy: Policy, point: Mapping[str, Value]) -> Policy:
    """The policy with a point's values in place.

    Raises:
        PolicyError: The policy refuses them.
    """
    from xtune.policies.spec import replace_fields

    changes: dict[str, Any] = {}
    for field, value in point.items():
        path, place = split_field(field)
        if place is None:
            changes[path] = value
            continue
        section, _, name = path.partition(".")
        entries = changes.setdefault(path, list(getattr(getattr(policy, section), name)))
        entries[place] = value
    return replace_fields(policy, changes)


def distribution(field: str, dimension: Dimension) -> BaseDistribution:
    """Optuna's range of a dimension.

    Raises:
        StudyError: It is no range, or not within the policy's own.
    """
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    known = parameter_of(field)
    choices = dimension.choices
    if not choices and dimension.low is None and dimension.high is None:
        choices = (False, True) if known.kind == "bool" else known.choices
    if choices:
        return CategoricalDistribution(list(choices))
    low = known.low if dimension.low is None else dimension.low
    high = known.high if dimension.high is None else dimension.high
    if known.kind not in ("int", "float") or low is None or high is None:
        raise StudyError(f"{field}: it has no range", "give choices")
    _check_range(field, dimension, known, low, high)
    step = dimension.step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a high end between two steps is moved to the lower
        if known.kind == "int":
            return IntDistribution(int(low), int(high), log=dimension.log, step=int(step or 1))
        return FloatDistribution(low, high, log=dimension.log, step=step)


def _check_range(
    field: str, dimension: Dimension, known: Parameter, low: float, high: float
) -> None:
    for name, end in (("low", low), ("high", high), ("step", dimension.step or 1)):
        if not math.isfinite(end):
            raise StudyError(f"{field}: {name} {end} is not a finite number")
    if known.low is not None and low < known.low:
        raise StudyError(f"{field}: low {low:g} is below the policy's {known.low:g}")
    if known.high is not None and high > known.high:
        raise StudyError(f"{field}: high {high:g} is above the policy's {known.high:g}")
    if low >= high:
        raise StudyError(f"{field}: low {low:g} is not below high {high:g}")
    if dimension.log and low <= 0:
        raise StudyError(f"{field}: log needs a low above 0, not {low:g}")
    if dimension.log and dimension.step is not None:
        raise StudyError(f"{field}: log and step exclude each other")
    if dimension.step is not None and not 0 < dimension.step <= high - low:
        raise StudyError(f"{field}: step {dimension.step:g} is not within its range")
    whole = [v for v in (low, high, dimension.step or 1) if v != int(v)]
    if known.kind == "int" and whole:
        raise StudyError(f"{field}: {whole[0]:g} is not a whole number")


def distributions(study: Study) -> dict[str, BaseDistribution]:
    """Optuna's range of every dimension, in the order of the study."""
    return {field: distribution(field, d) for field, d in study.space.items()}


def described(field: str, dimension: Dimension) -> dict[str, Any]:
    """A dimension as a reader sees it: its choices, or its range."""
    allowed = distribution(field, dimension)
    choices = getattr(allowed, "choices", None)
    if choices is not None:
        return {"choices": list(choices)}
    return {name: getattr(allowed, name) for name in ("low", "high", "log", "step")}


def start_points(study: Study, base: Policy) -> list[Point]:
    """The study's start points, whole.

    Raises:
        StudyError: What the base has for a field that one leaves out is outside its range.
    """
    own = {field: base_value(base, field) for field in study.space}
    ranges = distributions(study) if study.start else {}
    for field in {f for point in study.start for f in own if f not in point}:
        if not _contains(ranges[field], own[field]):
            raise StudyError(
                f"start: {field} = {own[field]!r}, the base's, is outside its range",
                "give each start point a value of its own",
            )
    return [{**own, **point} for point in study.start]


def check(study: Study) -> None:
    """Refuse a study that cannot be run as it stands.

    Raises:
        StudyError: One line that names the field.
    """
    if bool(study.grid) == bool(study.space):
        raise StudyError(f"study {study.name}: it needs either a grid or a space")
    if study.sampler not in SAMPLERS:
        raise StudyError(f"sampler {study.sampler!r} is not known", near(study.sampler, SAMPLERS))
    if (study.sampler == "grid") != bool(study.grid):
        raise StudyError(f"sampler {study.sampler} does not fit: a grid is for sampler grid")
    for name in ("batch", "finalists", "trials"):
        count = getattr(study, name)
        if count is not None and count < 1:
            raise StudyError(f"{name}: {count} is below 1")
        if count is not None and count > MOST:
            raise StudyError(f"{name}: {count} is above {MOST}")
    _check_metrics(study)
    _check_presets(study)
    for field, values in study.grid.items():
        if not values:
            raise StudyError(f"{field}: no value to try")
        for value in values:
            _check_value(field, value)
        if len(set(values)) < len(values):
            raise StudyError(f"{field}: a value is there twice")
    if study.space:
        _check_space(study)


def _check_value(field: str, value: Value) -> None:
    """Refuse a value that is none of the field, whatever the others are."""
    from xtune.policies._fields import PolicyError, as_kind

    known = parameter_of(field)
    kinds = {"int": int, "float": float, "bool": bool, "str": str}
    try:
        checked = as_kind(field, value, kinds[known.kind])
    except PolicyError as error:
        raise StudyError(str(error)) from error
    if known.choices and checked not in known.choices:
        raise StudyError(
            f"{field}: {value!r} is not known", near(str(value), map(str, known.choices))
        )
    if known.low is None or known.high is None:
        return
    if not known.low <= checked <= known.high:
        raise StudyError(f"{field}: {value} is not in {known.low:g}..{known.high:g}")


def _check_metrics(study: Study) -> None:
    if not study.objectives:
        raise StudyError("objectives: there is none")
    metrics = [o.metric for o in study.objectives]
    for metric in (*metrics, *(c.metric for c in study.constraints)):
        if metric not in METRICS:
            raise StudyError(f"metric {metric!r} is not known", near(metric, METRICS))
    if len(set(metrics)) < len(metrics):
        raise StudyError("objectives: a metric is there twice")
    limits = [c.metric for c in study.constraints]
    if len(set(limits)) < len(limits):
        raise StudyError("constraints: a metric is there twice")
    for constraint in study.constraints:
        if not math.isfinite(constraint.at_most):
            raise StudyError(f"constraints: at_most: {constraint.at_most} is not a finite number")
    for objective in study.objectives:
        if objective.direction not in DIRECTIONS:
            raise StudyError(
                f"direction {objective.direction!r} is not known",
                near(objective.direction, DIRECTIONS),
            )


def _check_presets(study: Study) -> None:
    from xtune.policies.presets import PRESETS

    for name in (*study.baselines, *study.ablations):
        if name not in PRESETS:
            raise StudyError(f"preset {name!r} is not known", near(name, PRESETS))


def _check_space(study: Study) -> None:
    from optuna.distributions import CategoricalDistribution

    for field, dimension in study.space.items():
        _check_choices(field, dimension)
    ranges = distributions(study)
    categorical = [f for f, d in ranges.items() if isinstance(d, CategoricalDistribution)]
    if study.sampler == "cmaes" and categorical:
        raise StudyError(f"{categorical[0]}: cmaes takes ranges of numbers, not choices")
    if study.sampler == "cmaes" and len(study.objectives) > 1:
        raise StudyError("cmaes takes one objective", "tpe and gp take several")
    if study.sampler == "cmaes" and study.batch < POPULATION:
        raise StudyError(f"batch: {study.batch} is below {POPULATION}, which cmaes needs")
    for point in study.start:
        for field, value in point.items():
            if field not in ranges:
                raise StudyError(f"start: {field} is not searched", near(field, ranges))
            if not _contains(ranges[field], value):
                raise StudyError(f"start: {field} = {value!r} is outside its range")


def _check_choices(field: str, dimension: Dimension) -> None:
    for value in dimension.choices:
        _check_value(field, value)
    if len(set(dimension.choices)) < len(dimension.choices):
        raise StudyError(f"{field}: a choice is there twice")
    ends = (dimension.low, dimension.high, dimension.step)
    if dimension.choices and (dimension.log or any(end is not None for end in ends)):
        raise StudyError(f"{field}: choices and a range exclude each other")


def _contains(allowed: BaseDistribution, value: Value) -> bool:
    try:
        return allowed._contains(allowed.to_internal_repr(value))
    except ValueError:
        return False
