"""Numbers in files are what the file's writer meant by them, not what Python accepts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from xtune.collectors._prometheus_names import count
from xtune.collectors._values import real, whole


@pytest.mark.parametrize("text", ["1_000", "1_0.5", "_1", "9" * 401, ""])
def test_text_that_python_alone_takes_for_a_number_is_none(text: str) -> None:
    assert whole(text) is None and real(text) is None
    with pytest.raises(ValueError):
        count(text)


@pytest.mark.parametrize(
    ("value", "integer", "double"),
    [
        (" 42 ", 42, 42.0),
        ("-7", -7, -7.0),
        ("0." + "3" * 70, None, 1 / 3),  # every digit counts, however many
        ("1" + "0" * 60 + "e5", None, 1e65),
        ("0" * 60 + "12", 12, 12.0),
        (12.0, 12, 12.0),
        (True, None, None),
        ("1e999", None, math.inf),
    ],
)
def test_numbers_are_read_whole(value: Any, integer: int | None, double: float | None) -> None:
    assert whole(value) == integer
    assert real(value) == (None if double is None else pytest.approx(double, rel=1e-15))
