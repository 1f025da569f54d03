"""Parameters that know their unit, range and meaning, and refuse a wrong value by its name."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")
PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")  # a policy's becomes xtune_policy_<name>


class PolicyError(ValueError):
    """A policy is wrong; the message names the field by its dotted path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """What is known of one parameter; ``path`` is dotted, as in ``routing.hold_ns``."""

    path: str
    kind: str  # int | float | bool | str | rungs
    unit: str  # "1" for a share, a gain or a ratio
    meaning: str
    default: object
    low: float | None = None  # smallest and largest legal value, both included
    high: float | None = None
    choices: tuple[str | int, ...] = ()
    length: int | None = None  # entries of a tuple; None: a scalar


def parameter(
    default: T,
    unit: str,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str | int, ...] = (),
) -> T:
    """A dataclass field with its unit, range and meaning.

    Args:
        default: Default value; a tuple fixes the number of entries.
        unit: Unit, ``"1"`` for a pure number.
        meaning: One line for reports and documentation.
        low: Smallest legal value.
        high: Largest legal value.
        choices: Legal values, where they can be listed.

    Returns:
        The field, typed as its default so that a type checker sees the attribute's type.
    """
    metadata = {"unit": unit, "meaning": meaning, "low": low, "high": high, "choices": choices}
    made: Any = field(default=default, metadata=metadata)
    return made  # type: ignore[no-any-return]


def describe(section: str, cls: type[Any]) -> Iterator[Parameter]:
    """The parameters of one section of a policy.

    Args:
        section: Name of the section, the first part of the path.
        cls: Its dataclass.

    Yields:
        One record a field that was declared with `parameter`.
    """
    for item in fields(cls):
        if not item.metadata:
            continue
        default: Any = item.default
        first = default[0] if isinstance(default, tuple) else default
        kind = type(first).__name__ if isinstance(first, bool | int | float | str) else "rungs"
        scalar = not isinstance(default, tuple) or kind == "rungs"
        yield Parameter(
            path=f"{section}.{item.name}",
            kind=kind,
            default=default,
            length=None if scalar else len(default),
            **item.metadata,
        )


def check_section(section: str, record: Any) -> None:
    """Check and normalise every described field of a frozen record, in place.

    Args:
        section: Name of the section, for messages.
        record: The dataclass instance, inside its ``__post_init__``.

    Raises:
        PolicyError: A value is of a wrong type or out of range.
    """
    for item in fields(record):
        default: Any = item.default
        path = f"{section}.{item.name}"
        value = getattr(record, item.name)
        if not isinstance(default, tuple):
            checked: object = _scalar(path, value, type(default), item)
        elif isinstance(default[0], int | float):
            checked = _entries(path, value, default, item)
        else:
            continue  # records; their section checks them
        object.__setattr__(record, item.name, checked)


def _entries(
    path: str, value: object, default: tuple[Any, ...], item: Field[Any]
) -> tuple[object, ...]:
    if not isinstance(value, tuple | list) or len(value) != len(default):
        raise PolicyError(f"{path}: {show(value)} is not a list of {len(default)} numbers")
    kind = type(default[0])
    return tuple(_scalar(f"{path}[{i}]", v, kind, item) for i, v in enumerate(value))


def _scalar(path: str, value: object, kind: type[Any], item: Field[Any]) -> Any:
    """Return the value as exactly ``kind``, or refuse it."""
    checked = as_kind(path, value, kind)
    low, high, choices = (item.metadata[key] for key in ("low", "high", "choices"))
    if choices and checked not in choices:
        known = ", ".join(str(choice) for choice in choices)
        raise PolicyError(f"{path}: {show(value)} is not one of {known}")
    if low is not None and high is not None and not low <= checked <= high:
        raise PolicyError(f"{path}: {show(value)} is not in {low:g}..{high:g}")
    return checked


def as_kind(path: str, value: object, kind: type[Any]) -> Any:
    """A value as exactly ``bool``, ``int``, ``float`` or ``str``.

    Whole numbers become floats where a float is wanted, and integers of other libraries become
    ``int``; nothing else is converted.

    Args:
        path: Dotted path, for the message.
        value: What was given.
        kind: The type that is wanted.

    Returns:
        The value, of that type.

    Raises:
        PolicyError: It is of another type, or not finite.
    """
    if kind in (bool, str):
        if type(value) is not kind:
            raise PolicyError(f"{path}: {show(value)} is not a {kind.__name__}")
        return value
    if isinstance(value, bool | str) or value is None:
        raise PolicyError(f"{path}: {show(value)} is not a number")
    if kind is int or not isinstance(value, float):
        try:
            whole = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            wanted = "a whole number" if kind is int else "a number"
            raise PolicyError(f"{path}: {show(value)} is not {wanted}") from None
        if kind is int:
            return whole
        value = whole
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise PolicyError(f"{path}: {show(value)} is not a finite number")
    return number


def show(value: object) -> str:
    """A value as it is printed in a message: short, and as JSON would write it."""
    if isinstance(value, str):
        text = repr(value)
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    elif isinstance(value, int) and abs(value) >= 10**40:  # str() refuses the longest
        text = "a very large number"
    else:
        text = str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_below(record: object, section: str, lower: str, upper: str) -> None:
    """Check that one parameter is below another.

    Args:
        record: The dataclass instance.
        section: Name of the section, for messages.
        lower: Name of the smaller one.
        upper: Name of the larger one.

    Raises:
        PolicyError: It is not.
    """
    low, high = getattr(record, lower), getattr(record, upper)
    if low >= high:
        raise PolicyError(f"{section}.{lower}: {low} is not below {section}.{upper} {high}")
