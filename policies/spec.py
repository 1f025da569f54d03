"""The policy: every parameter of routing, compression, period, safety and bus, with its unit.

A policy is data (``policy.json``); :mod:`.presets` names some. Validation is strict: an unknown
field, a wrong type or a value out of range is refused, naming the field. `PARAMETERS` is the
table of all of them, for reports and documentation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ._fields import (
    PLAIN_NAME,
    Parameter,
    check_section,
    describe,
    parameter,
    show,
)
from ._fields import PolicyError as PolicyError
from .ladder import DEFAULT_LADDER, check_ladder, ladder_from_json
from .ladder import Rung as Rung
from .learned_ratio import WEIGHTS
from .routing_parameters import Routing as Routing

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """What is sent in place of the gradient."""

    mode: str = parameter(
        "quantise",
        "1",
        "off: never; drop: the largest share of elements, the rest is lost",
        choices=("off", "quantise", "drop"),
    )
    ladder: tuple[Rung, ...] = parameter(
        DEFAULT_LADDER, "bits", "bits near the input and at the head, least compression first"
    )
    rung_by_level: tuple[int, int, int, int] = parameter(
        (1, 2, 2, 3), "rung", "ladder index wanted at congestion level 0..3", low=0, high=15
    )
    ratio_rule: str = parameter(
        "levels",
        "1",
        "what wants a rung: rung_by_level alone, or with it a network of learned_weights",
        choices=("levels", "learned"),
    )
    learned_weights: tuple[float, ...] = parameter(
        (0.0,) * WEIGHTS,
        "1",
        "ratio_rule learned: weights of the network; all 0 is the rule by level",
        low=-100,
        high=100,
    )
    head_share: float = parameter(
        0.35, "1", "share of elements, from the head down, that get bits_head", low=0, high=1
    )
    block: int = parameter(256, "elements", "elements that share a scale", low=16, high=65536)
    warmup_iterations: int = parameter(
        200, "iterations", "nothing is compressed before this iteration", low=0, high=10**9
    )
    curvature_gain: float = parameter(
        1.0, "1", "factor on the gradient's relative change; 0 ignores it", low=0, high=1000
    )
    curvature_limit: float = parameter(
        1.0, "1", "a change times gain above it holds one rung back", low=0, high=1000
    )
    least_gain: float = parameter(
        0.02, "1", "compression that saves less time than this share is turned off", low=0, high=1
    )
    error_feedback: bool = parameter(True, "1", "what was cut is added to the next round")
    residual_decay: float = parameter(
        0.5, "1", "share of the residual carried into the next round (beta)", low=0, high=1
    )
    residual_decay_head: float = parameter(
        0.5, "1", "the same for layers that get bits_head", low=0, high=1
    )
    residual_decay_shared: float = parameter(
        1.0, "1", "the same where a shared selection of elements is sent", low=0, high=1
    )
    residual_limit: float = parameter(
        5.0, "1", "residual norm in gradient norms above which less is carried", low=0.1, high=1e6
    )
    residual_dtype: str = parameter(
        "float32", "1", "type residuals are kept in", choices=("float32", "bfloat16")
    )
    residual_reset_iterations: int = parameter(
        0, "iterations", "residuals are dropped every so often; 0: never", low=0, high=10**9
    )
    allocation: str = parameter(
        "depth",
        "1",
        "bits by depth, or by measured norms within the error that depth would give",
        choices=("depth", "norms"),
    )
    error_budget: float = parameter(
        1.0,
        "1",
        "allocation by norms: allowed error, in errors of the depth rule",
        low=0.01,
        high=100,
    )
    selection: str = parameter(
        "leader",
        "1",
        "who selects what a rung with keep_share sends: a rank in turn, or a random number",
        choices=("leader", "seeded"),
    )
    dense_below_elements: int = parameter(
        4096, "elements", "smaller tensors travel in bf16", low=0, high=10**12
    )
    drop_keep_share: float = parameter(
        0.35, "1", "mode drop: share of elements kept, largest magnitude", low=1e-6, high=1
    )

    def __post_init__(self) -> None:
        check_section("compression", self)
        if self.block & (self.block - 1):
            raise PolicyError(f"compression.block: {self.block} is not a power of two")
        object.__setattr__(self, "ladder", check_ladder(self.ladder))
        path = "compression.rung_by_level"
        for i, rung in enumerate(self.rung_by_level):
            if rung >= len(self.ladder):
                raise PolicyError(f"{path}[{i}]: {rung} is not in 0..{len(self.ladder) - 1}")
        if list(self.rung_by_level) != sorted(self.rung_by_level):
            raise PolicyError(f"{path}: {list(self.rung_by_level)} falls where congestion rises")


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """The regulation period T."""

    iterations: int = parameter(  # founding document L3: 200
        200, "iterations", "T, iterations between two regulations", low=1, high=10**6
    )

    def __post_init__(self) -> None:
        check_section("period", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Safety:
    """Safety retreat (founding document L4)."""

    iterations: int = parameter(
        10, "iterations", "in a row under the gate that force a retreat", low=1, high=10**4
    )
    gate: float = parameter(
        0.0, "1/iteration", "least relative decrease of the smoothed loss", low=-1, high=1
    )
    smoothing: float = parameter(0.2, "1", "weight of the newest loss", low=0.001, high=1)
    watch_iterations: int = parameter(
        100,
        "iterations",
        "how long after a rise of the ratio the loss is watched",
        low=1,
        high=10**6,
    )
    hold_periods: int = parameter(
        2, "periods", "regulations before the ratio may rise again", low=0, high=10**4
    )
    reserve_step: float = parameter(
        0.1, "1", "bandwidth share that routing is asked to reserve more", low=0, high=0.5
    )

    def __post_init__(self) -> None:
        check_section("safety", self)
        if self.watch_iterations < self.iterations:
            raise PolicyError(
                f"safety.watch_iterations: {self.watch_iterations} is below "
                f"safety.iterations {self.iterations}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bus:
    """What routing and compression tell each other, and how it becomes a congestion level."""

    enter_slowdown: tuple[float, float, float] = parameter(
        (1.15, 1.5, 2.5), "1", "measured / modelled time that enters level 1..3", low=1, high=1000
    )
    exit_slowdown: tuple[float, float, float] = parameter(
        (1.05, 1.3, 2.0), "1", "the level is left below it (hysteresis)", low=1, high=1000
    )
    smoothing: float = parameter(
        0.3, "1", "weight of the newest communication time", low=0.001, high=1
    )
    bandwidth_margin: float = parameter(
        0.9, "1", "share of the bandwidth estimate that may be planned with", low=0.01, high=1
    )

    def __post_init__(self) -> None:
        check_section("bus", self)
        for name in ("enter_slowdown", "exit_slowdown"):
            values = getattr(self, name)
            if not values[0] < values[1] < values[2]:
                raise PolicyError(f"bus.{name}: {list(values)} does not rise")
        for i, (leave, enter) in enumerate(
            zip(self.exit_slowdown, self.enter_slowdown, strict=True)
        ):
            if leave >= enter:
                raise PolicyError(
                    f"bus.exit_slowdown[{i}]: {leave} is not below bus.enter_slowdown[{i}] {enter}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A whole policy. ``provenance`` says where it is from and what it is expected to give."""

    name: str = "joint"
    routing: Routing = field(default_factory=Routing)
    compression: Compression = field(default_factory=Compression)
    period: Period = field(default_factory=Period)
    safety: Safety = field(default_factory=Safety)
    bus: Bus = field(default_factory=Bus)
    provenance: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not PLAIN_NAME.fullmatch(self.name):
            raise PolicyError(
                f"name: {show(self.name)} is not lower-case letters, digits and underscores"
            )
        if not isinstance(self.provenance, dict):
            raise PolicyError(f"provenance: {show(self.provenance)} is not an object")
        for section, cls in SECTIONS.items():
            if not isinstance(getattr(self, section), cls):
                raise PolicyError(f"{section}: {show(getattr(self, section))} is not a {section}")

    def to_json(self) -> dict[str, Any]:
        """The policy as one JSON document, with the unit of every parameter beside it."""
        units = {path: entry.unit for path, entry in PARAMETERS.items() if entry.unit != "1"}
        return {
            "schema": SCHEMA_VERSION,
            "name": self.name,
            **self._parameters(),
            "units": units,
            "provenance": self.provenance,
        }

    @classmethod
    def from_json(cls, document: object) -> Policy:
        """A policy from `to_json`'s document; what it does not name keeps its default.

        Args:
            document: The parsed document; `loads` parses and reads in one go.

        Returns:
            The policy.

        Raises:
            PolicyError: Another schema version, an unknown field, a value that is wrong.
        """
        content = dict(_object("policy", document))
        schema = content.pop("schema", None)
        if type(schema) is not int or schema != SCHEMA_VERSION:
            raise PolicyError(
                f"schema: {show(schema)} is not {SCHEMA_VERSION}, the version this engine reads"
            )
        for path, unit in _object("units", content.pop("units", {})).items():
            if path not in PARAMETERS or PARAMETERS[path].unit != unit:
                known = PARAMETERS[path].unit if path in PARAMETERS else "a known parameter's"
                raise PolicyError(f"units.{path}: {show(unit)} is not {known}")
        made: dict[str, Any] = {}
        for name, value in content.items():
            if name in SECTIONS:
                made[name] = _section_from_json(name, value)
            elif name in ("name", "provenance"):
                made[name] = value
            else:
                raise PolicyError(f"{name}: unknown field")
        return cls(**made)

    def digest(self) -> str:
        """SHA-256 (hex) over all parameters; neither name nor provenance change it."""
        text = json.dumps(self._parameters(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _parameters(self) -> dict[str, Any]:
        return {section: _plain(asdict(getattr(self, section))) for section in SECTIONS}


def dumps(policy: Policy) -> str:
    """The text of ``policy.json``: the same policy gives the same bytes."""
    return json.dumps(policy.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def loads(text: str | bytes) -> Policy:
    """Read the text of a ``policy.json``.

    Args:
        text: The text.

    Returns:
        The policy.

    Raises:
        PolicyError: It is not JSON, names a field twice, or is not a legal policy.
    """
    try:
        document = json.loads(text, object_pairs_hook=_no_duplicates)
    except PolicyError:
        raise
    except (ValueError, RecursionError) as error:  # also bad UTF-8, and numbers of 4300 digits
        raise PolicyError(f"policy: not JSON: {error}") from None
    return Policy.from_json(document)


def replace_fields(policy: Policy, changes: Mapping[str, object]) -> Policy:
    """The policy with some parameters changed, as a study's trial does it.

    Args:
        policy: Where the others come from.
        changes: Dotted name to value, such as ``{"period.iterations": 50}``; also ``name``.
            Fields of one section are changed together, so that their order does not matter.

    Returns:
        A new, checked policy.

    Raises:
        PolicyError: An unknown name, or a value that is wrong.
    """
    by_section: dict[str, dict[str, object]] = {}
    top: dict[str, Any] = {}
    for path, value in changes.items():
        section, dot, name = path.partition(".")
        if path in PARAMETERS:
            by_section.setdefault(section, {})[name] = value
        elif path == "name" and not dot:
            top[path] = value
        else:
            raise PolicyError(f"{path}: unknown field")
    for section, values in by_section.items():
        if "ladder" in values:
            values["ladder"] = ladder_from_json(values["ladder"])
        top[section] = replace(getattr(policy, section), **values)
    return replace(policy, **top)


SECTIONS: dict[str, type[Routing | Compression | Period | Safety | Bus]] = {
    "routing": Routing,
    "compression": Compression,
    "period": Period,
    "safety": Safety,
    "bus": Bus,
}

PARAMETERS: dict[str, Parameter] = {
    entry.path: entry for section, cls in SECTIONS.items() for entry in describe(section, cls)
}


def _object(path: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PolicyError(f"{path}: {show(value)} is not an object")
    for key in value:
        if not isinstance(key, str):
            raise PolicyError(f"{path}: {show(key)} is not a field name")
    return value


def _section_from_json(section: str, value: object) -> Any:
    cls = SECTIONS[section]
    content = dict(_object(section, value))
    for name in content:
        if f"{section}.{name}" not in PARAMETERS:
            raise PolicyError(f"{section}.{name}: unknown field")
    if "ladder" in content:
        content["ladder"] = ladder_from_json(content["ladder"])
    return cls(**content)


def _plain(value: Any) -> Any:
    """Tuples as lists, all the way down, as a JSON parser gives them back."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise PolicyError(f"{twice}: given twice")
    return made
