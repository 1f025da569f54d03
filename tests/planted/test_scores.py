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
    result = score(lake, planted.truth)
    print(result.text())
    return result


def test_a_clean_fabric(tmp_path: Path) -> None:
    planted = generate(4)
    assert all(step.plants for step in planted.history.steps if step.lost_s > 0.01)
    result = rebuilt(planted, tmp_path)
    assert result.recall >= 0.97
    assert result.precision >= 0.97
    assert result.root_right >= 0.95
    assert result.bound_error <= 1.0
    assert result.optional <= 0.05
    assert result.unseen == 0.0
    assert abs(result.gpu_hours_error) <= 0.1
    assert abs(result.lost_hours_error) <= 0.03


def test_with_all_that_goes_wrong(tmp_path: Path) -> None:
    result = rebuilt(generate(4, mess=True), tmp_path)
    assert result.recall >= 0.93
    assert result.precision >= 0.93
    assert result.root_right >= 0.95
    assert result.bound_error <= 1.0
    assert result.optional <= 0.25
    assert abs(result.gpu_hours_error) <= 0.1
    assert abs(result.lost_hours_error) <= 0.03
