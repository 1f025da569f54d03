"""What a study is: which fields of the policy it searches, and from where it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from xtune.errors import StudyError

#: Today's remedies (founding document, section 1) and two that need no forecast.
BASELINES = ("static_dense", "priority", "fixed_drop", "oblivious_spray", "power_of_two")

Point = dict[str, float | int | str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A search over fields of the policy.

    A study is one module of this package that defines ``STUDY``; its name is the module's.

    Attributes:
        name: Name on the command line.
        title: One line for a person.
        base: Preset whose fields are searched.
        grid: Dotted field -> the values to try, in the order they are reported.
        claims: What the founding document says of the answer: id -> claim.
        baselines: Presets shown beside it.
        ablations: Presets that leave a half of the policy out.
    """

    name: str
    title: str
    base: str
    grid: Mapping[str, Sequence[float | int | str]]
    claims: Mapping[str, str] = field(default_factory=dict)
    baselines: tuple[str, ...] = BASELINES
    ablations: tuple[str, ...] = ("routing_only", "compression_only", "joint")

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
