"""A file that ends anywhere near its end gives no value that it did not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.fuzz import Bench
from tests.hostile.seeds import SEEDS

LAST = 60  # bytes: the last line of most formats, and what follows its last number
FILES = sorted(name for name, seed in SEEDS.items() if seed.form != "tree")


@pytest.mark.parametrize("name", FILES)
def test_no_cut_makes_a_value(name: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, name, limit_memory=False)
    for data in SEEDS[name].inputs:
        for at in range(max(0, len(data) - LAST), len(data)):
            bench.cut(data, at)
