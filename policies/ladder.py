"""The compression ladder: from off to the most compression that a policy allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ._fields import PLAIN_NAME, PolicyError, show

LEGAL_BITS = (4, 8, 16)
_PATH = "compression.ladder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One level of compression: bits near the input and at the head; 16 means bf16, as it is."""

    name: str
    bits_input: int
    bits_head: int


DEFAULT_LADDER = (
    Rung(name="off", bits_input=16, bits_head=16),
    Rung(name="q8", bits_input=8, bits_head=8),
    Rung(name="q4_8", bits_input=4, bits_head=8),
    Rung(name="q4", bits_input=4, bits_head=4),
)


def check_ladder(ladder: object) -> tuple[Rung, ...]:
    """A ladder that is one: off first, then never less compression than the rung before.

    Args:
        ladder: What was given.

    Returns:
        The rungs.

    Raises:
        PolicyError: It is no ladder; the message names the rung and the field.
    """
    if not isinstance(ladder, tuple | list) or not 1 <= len(ladder) <= 16:
        raise PolicyError(f"{_PATH}: {show(ladder)} is not a list of 1 to 16 rungs")
    for i, rung in enumerate(ladder):
        if not isinstance(rung, Rung):
            raise PolicyError(f"{_PATH}[{i}]: {show(rung)} is not a rung")
        if not isinstance(rung.name, str) or not PLAIN_NAME.fullmatch(rung.name):
            raise PolicyError(f"{_PATH}[{i}].name: {show(rung.name)} is not a plain name")
        for item in fields(rung)[1:]:
            bits = getattr(rung, item.name)
            if type(bits) is not int or bits not in LEGAL_BITS:
                raise PolicyError(f"{_PATH}[{i}].{item.name}: {show(bits)} is not 4, 8 or 16")
        if rung.bits_head < rung.bits_input:
            raise PolicyError(
                f"{_PATH}[{i}].bits_head: {rung.bits_head} is below bits_input {rung.bits_input}"
            )
    if ladder[0].bits_input != 16:
        raise PolicyError(f"{_PATH}[0]: the first rung must be 16 bits, compression off")
    for i in range(1, len(ladder)):
        before, after = ladder[i - 1], ladder[i]
        if after.bits_input > before.bits_input or after.bits_head > before.bits_head:
            raise PolicyError(f"{_PATH}[{i}]: it compresses less than the rung before it")
    if len({rung.name for rung in ladder}) < len(ladder):
        raise PolicyError(f"{_PATH}: two rungs have one name")
    return tuple(ladder)


def ladder_from_json(value: object) -> object:
    """Objects as rungs; whatever else is wrong is left to `check_ladder`.

    Args:
        value: Part of a parsed document.

    Returns:
        A tuple of rungs, or the value as it is.

    Raises:
        PolicyError: A rung has an unknown field, or lacks one.
    """
    if not isinstance(value, tuple | list):
        return value
    names = [item.name for item in fields(Rung)]
    rungs: list[object] = []
    for i, entry in enumerate(value):
        if isinstance(entry, Mapping):
            for name in entry:
                if name not in names:
                    raise PolicyError(f"{_PATH}[{i}].{name}: unknown field")
            for name in names:
                if name not in entry:
                    raise PolicyError(f"{_PATH}[{i}].{name}: missing")
            rungs.append(Rung(**entry))
        else:
            rungs.append(entry)
    return tuple(rungs)
