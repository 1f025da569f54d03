"""Every collector has a seed, and each seed is a valid input of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.rows import gather
from tests.hostile.seeds import SEEDS
from xtune.collectors import Context, Source, all_collectors, claim_best


def test_every_collector_has_a_seed() -> None:
    ours = {n for n, c in all_collectors().items() if type(c).__module__.startswith("xtune.")}
    assert set(SEEDS) == ours, "tests/hostile/seeds_*.py: one entry a collector"


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_seeds_are_valid(name: str, tmp_path: Path) -> None:
    seed = SEEDS[name]
    for number, data in enumerate(seed.inputs):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = seed.place(folder, data)
        source = Source(path, path.name)
        if seed.claimed:
            best = claim_best(path, source.head())
            assert best is not None and best[0].name == name, (number, best)
        context = Context(now_ns=lambda: 0, **dict(seed.context))
        found = gather(all_collectors()[name].read(source, context))
        assert found.rows and not found.rejects, (number, found.rejects)
