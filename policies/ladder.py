"""The compression ladder: from off to the most compression that a policy allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ._fields import PLAIN_NAME, PolicyError, show

LEGAL_BITS = (2, 3, 4, 5, 6, 7, 8, 16)
_PATH = "compression.ladder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One level of compression: bits near the input and at the head; 16 means bf16, as it is.

    With ``keep_share`` below 1 that share of the elements of each large layer is sent, the same
    elements on every rank, as bf16; the rest stays in the residual.
    """

    name: str
    bits_input: int
    bits_head: int
    keep_share: float = 1.0


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
        for name in ("bits_input", "bits_head"):
            bits = getattr(rung, name)
            if type(bits) is not int or bits not in LEGAL_BITS:
                raise PolicyError(f"{_PATH}[{i}].{name}: {show(bits)} is not 2 to 8 or 16")
        _check_keep_share(i, rung)
        if rung.bits_head < rung.bits_input:
            raise PolicyError(
                f"{_PATH}[{i}].bits_head: {rung.bits_head} is below bits_input {rung.bits_input}"
            )
    if ladder[0].bits_input != 16 or ladder[0].keep_share < 1:
        raise PolicyError(f"{_PATH}[0]: the first rung must be 16 bits, compression off")
    for i in range(1, len(ladder)):
        before, after = ladder[i - 1], ladder[i]
        if after.keep_share > before.keep_share:
            raise PolicyError(f"{_PATH}[{i}]: it sends more elements than the rung before it")
        if after.keep_share < 1:
            continue
        if after.bits_input > before.bits_input or after.bits_head > before.bits_head:
            raise PolicyError(f"{_PATH}[{i}]: it compresses less than the rung before it")
    if len({rung.name for rung in ladder}) < len(ladder):
        raise PolicyError(f"{_PATH}: two rungs have one name")
    return tuple(ladder)


def _check_keep_share(i: int, rung: Rung) -> None:
    share = rung.keep_share
    if isinstance(share, bool) or not isinstance(share, float | int) or not 1e-6 <= share <= 1:
        raise PolicyError(f"{_PATH}[{i}].keep_share: {show(share)} is not in 1e-06..1")
    if share < 1 and (rung.bits_input, rung.bits_head) != (16, 16):
        raise PolicyError(f"{_PATH}[{i}]: with keep_share below 1 values travel in 16 bits")


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
            for name in names[: names.index("keep_share")]:  # what else there is has defaults
                if name not in entry:
                    raise PolicyError(f"{_PATH}[{i}].{name}: missing")
            rungs.append(Rung(**entry))
        else:
            rungs.append(entry)
    return tuple(rungs)
