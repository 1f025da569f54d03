"""``rebuild`` on planted telemetry: what it must find, and what it must not report."""

from __future__ import annotations

from pathlib import Path

from tests.pipelines.lakes import new_lake
from tests.planted import Planted, Score, generate, score
from xtune.pipelines import rebuild


def rebuilt(planted: Planted, folder: Path) -> Score:
    """Score of a rebuild of a lake of its own."""
    lake = new_lake(folder / "lake")
    planted.write(lake)
    rebuild(lake, threads=1)
    return score(lake, planted.truth)


def test_a_clean_fabric(tmp_path: Path) -> None:
    result = rebuilt(generate(1), tmp_path)
    print(result.text())
    assert result.recall >= 0.97
    assert result.precision >= 0.97
    assert result.root_right >= 0.95
    assert result.bound_error <= 1.0
    assert result.optional <= 0.1
