"""Narrow untrusted values to what an Arrow column holds: the value or null, no exception."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
_DIGITS = 400  # of the longest double, written out


def whole(value: Any, *, low: int = -INT64_MAX, high: int = INT64_MAX) -> int | None:
    """``value`` as an integer within ``low..high``; accepts integral floats and decimal text."""
    if isinstance(value, str):
        try:
            value = int(_number(value))
        except ValueError:
            return None
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if low <= value <= high else None


def _number(value: str) -> str:
    """``value``, empty where Python alone takes it for a number (``1_000``) or none is so long."""
    return "" if "_" in value or len(value) > _DIGITS else value


def small(value: Any) -> int | None:
    """``value`` as a non-negative 32-bit integer: ranks and sizes of communicators."""
    return whole(value, low=0, high=INT32_MAX)


def member(rank: Any, size: int | None) -> int | None:
    """``rank`` as one of a communicator of ``size`` ranks, which may be unknown."""
    found = small(rank)
    return None if found is not None and size is not None and found >= size else found


def natural(value: Any) -> int | None:
    """``value`` as a non-negative 64-bit integer: bytes, counts, sequence numbers."""
    return whole(value, low=0)


def positive(value: Any) -> int | None:
    """``value`` above zero: times and durations, of which many sources write 0 for unknown."""
    return whole(value, low=1)


def real(value: Any) -> float | None:
    """``value`` as a float. NaN and infinities, also as text, stay what they are."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(_number(value) if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None


def scaled(value: Any, factor: int) -> int | None:
    """``value * factor`` rounded, above zero and within 64 bits: ms or us to ns."""
    if isinstance(value, int) and not isinstance(value, bool):
        return positive(value * factor) if abs(value) <= INT64_MAX else None
    number = real(value)
    if number is None or not math.isfinite(number) or abs(number * factor) > INT64_MAX:
        return None
    whole_part = int(number)  # apart, so that the product adds no rounding to a time of today
    return positive(whole_part * factor + round((number - whole_part) * factor))


def text(value: Any, limit: int = 4096) -> str | None:
    """``value`` as text that UTF-8 can hold (lone surrogates replaced), at most ``limit`` long."""
    if not isinstance(value, str):
        return None
    return value[:limit].encode("utf-8", "replace").decode("utf-8")


#: What a document read whole may take.
MAX_HELD_BYTES = 1 << 28


def held_bytes(data: bytes) -> int:
    """About how much memory the values of a JSON text take, before they do.

    CPython's sizes: an object of a few keys 232 bytes, an empty list 56, a number 24 and 8.
    """
    return 240 * data.count(b"{") + 72 * data.count(b"[") + 40 * data.count(b",")


def as_extra(values: Mapping[str, Any]) -> dict[str, str]:
    """Map for an ``extra`` column: null left out, the rest as text."""
    return {
        key: text(value if isinstance(value, str) else str(value)) or ""
        for key, value in values.items()
        if value is not None
    }
