"""A value that is thousands of characters long costs no more than its length."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hostile.fuzz import Bench
from tests.hostile.seeds import SEEDS

RUN = 60_000
TEXT = sorted(name for name, seed in SEEDS.items() if seed.form in ("text", "json", "jsonl"))


@pytest.mark.parametrize("name", TEXT)
def test_long_values_are_read_in_linear_time(name: str, tmp_path: Path) -> None:
    """Patterns that try each way to cut a run took minutes for what is now a millisecond.

    What ends a read that takes too long is the fuzzer's own watch.
    """
    bench = Bench(tmp_path, name, limit_memory=False)
    data = SEEDS[name].inputs[0]
    numbers = list(re.finditer(rb"\d+", data))
    for place in numbers[:: max(1, len(numbers) // 6)]:
        for run in (b"9" * RUN + b"x", b" " * RUN + b"x", b"a" * RUN, b"9." * (RUN // 2)):
            bench.read(data[: place.start()] + run + data[place.end() :])
