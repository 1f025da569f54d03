"""Damaged inputs of every format, a short run of ``make fuzz``: no error, hang or wrong row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.fuzz import Bench, attempt
from tests.hostile.seeds import SEEDS

INPUTS = 100


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_damaged_inputs(name: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, name, limit_memory=False)  # the process of all tests is larger
    for index in range(INPUTS):
        key = f"0:{name}:{index}"
        try:
            attempt(bench, key)
        except BaseException as error:
            error.add_note(f"input {key}, in {tmp_path}")
            raise
