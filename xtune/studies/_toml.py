"""A user's own study, from a TOML file."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from xtune.errors import StudyError
from xtune.studies._base import Constraint, Dimension, Objective, Study, all_studies
from xtune.studies._space import check, near

if TYPE_CHECKING:
    from xtune.policies.spec import Policy

STUDY_FILE = "study.toml"
BASE_FILE = "base.json"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
KEYS = {
    "name": str, "title": str, "base": str, "sampler": str, "trials": int, "batch": int,
    "finalists": int, "grid": dict, "space": dict, "objectives": list, "constraints": list,
    "start": list, "baselines": list, "ablations": list,
}  # fmt: skip
NEEDED = ("name", "base")
_KINDS = {str: "text", int: "a whole number", dict: "a table", list: "a list"}
_Record = TypeVar("_Record", Objective, Constraint, Dimension)


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """A study of a user.

    Attributes:
        study: The study.
        base: The policy that it starts from; ``None``: the preset that the study names.
        files: What is kept beside its trials, by name: enough to run it again by name.
    """

    study: Study
    base: Policy | None
    files: Mapping[str, bytes] = field(default_factory=dict)


def load_study(path: Path) -> Own:
    """Read and check a study.

    Raises:
        StudyError: One line that names the file and the field.
    """
    try:
        text = path.read_bytes()
        document = tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}", "give a study's name or a file") from error
    except ValueError as error:
        raise StudyError(f"{path}: no TOML: {error}") from error
    try:
        study, base, policy = _study(document, path.parent)
        check(study)
    except StudyError as error:
        raise StudyError(f"{path}: {error.message}", error.hint) from error
    files = {STUDY_FILE: text} | ({BASE_FILE: policy} if policy is not None else {})
    return Own(study=study, base=base, files=files)


def _study(document: Mapping[str, Any], folder: Path) -> tuple[Study, Policy | None, bytes | None]:
    for key, value in document.items():
        if key not in KEYS:
            raise StudyError(f"{key}: no such key", near(key, KEYS))
        if not isinstance(value, KEYS[key]) or isinstance(value, bool):
            raise StudyError(f"{key}: {value!r} is not {_KINDS[KEYS[key]]}")
    for key in NEEDED:
        if key not in document:
            raise StudyError(f"{key}: is missing")
    name = document["name"]
    if not NAME.fullmatch(name):
        raise StudyError(f"name: {name!r} is not of letters, digits and underscores")
    if name in all_studies():
        raise StudyError(f"name: {name} is a study that comes with xtune", "choose another")
    base, policy = _base(document["base"], folder)
    given: dict[str, Any] = {k: document[k] for k in ("trials", "batch", "finalists")
                             if k in document}  # fmt: skip
    for key in ("baselines", "ablations"):
        if key in document:
            given[key] = tuple(str(item) for item in document[key])
    if "objectives" in document:
        given["objectives"] = tuple(
            _record("objectives", item, Objective) for item in document["objectives"]
        )
    if "constraints" in document:
        given["constraints"] = tuple(
            _record("constraints", item, Constraint) for item in document["constraints"]
        )
    space = {f: _dimension(f, value) for f, value in document.get("space", {}).items()}
    for point in document.get("start", ()):
        if not isinstance(point, dict):
            raise StudyError(f"start: {point!r} is not a table of fields")
    study = Study(
        name=name,
        title=document.get("title", name),
        base=document["base"],
        grid={f: _values(f, value) for f, value in document.get("grid", {}).items()},
        space=space,
        sampler=document.get("sampler", "tpe" if space else "grid"),
        start=tuple(document.get("start", ())),
        **given,
    )
    return study, base, policy


def _base(text: str, folder: Path) -> tuple[Policy | None, bytes | None]:
    """A preset is ``None``; else the policy of a file beside the study, and its text."""
    from xtune.policies import PolicyError, loads
    from xtune.policies.presets import PRESETS

    if text in PRESETS:
        return None, None
    kept = folder / BASE_FILE
    path = kept if (folder / STUDY_FILE).is_file() and kept.is_file() else folder / text
    try:
        content = path.read_bytes()
        return loads(content), content
    except OSError as error:
        raise StudyError(
            f"base: {text!r} is neither a preset nor a file", near(text, PRESETS)
        ) from error
    except PolicyError as error:
        raise StudyError(f"base: {path}: {error}") from error


def _values(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise StudyError(f"grid: {name}: {value!r} is not a list")
    return tuple(value)


def _dimension(name: str, value: object) -> Dimension:
    """A list is the choices, a table a range."""
    if isinstance(value, list):
        _kinds(f"space: {name}", {"choices": value})
        return Dimension(choices=tuple(value))
    return _record(f"space: {name}", value, Dimension)


def _record(place: str, value: Any, kind: type[_Record]) -> _Record:
    """A record from a table; of an objective, its metric's name will do."""
    if isinstance(value, str) and kind is Objective:
        value = {"metric": value}
    if not isinstance(value, dict):
        raise StudyError(f"{place}: {value!r} is not a table")
    known = [entry.name for entry in fields(kind)]
    for key in value:
        if key not in known:
            raise StudyError(f"{place}: {key}: no such key", near(key, known))
    _kinds(place, value)
    content: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    try:
        return kind(**content)
    except TypeError as error:
        missing = [k for k in ("metric", "at_most") if k in known and k not in value]
        raise StudyError(f"{place}: {', '.join(missing)}: is missing") from error


def _kinds(place: str, value: Mapping[str, Any]) -> None:
    """Refuse entries of a record that are of another kind than it has."""
    for key, entry in value.items():
        if key in ("low", "high", "step", "at_most"):
            if not isinstance(entry, int | float) or isinstance(entry, bool):
                raise StudyError(f"{place}: {key}: {entry!r} is not a number")
            if not math.isfinite(entry):
                raise StudyError(f"{place}: {key}: {entry!r} is not a finite number")
        elif key in ("metric", "direction") and not isinstance(entry, str):
            raise StudyError(f"{place}: {key}: {entry!r} is not text")
        elif key == "log" and not isinstance(entry, bool):
            raise StudyError(f"{place}: log: {entry!r} is neither true nor false")
        elif key == "choices" and not (isinstance(entry, list) and entry):
            raise StudyError(f"{place}: choices: {entry!r} is not a list of values")
