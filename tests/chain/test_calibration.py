"""Calibration recovers what the generator planted, and follows when that changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chain.conftest import SAMPLES, fill
from xtune.lake import Lake
from xtune.sim import calibrate

pytestmark = pytest.mark.xdist_group("chain")


def check(lake: Lake, truth: dict[str, Any]) -> None:
    scenario = truth["scenario"]
    fitted = calibrate(lake)
    assert fitted["compute_s"] == pytest.approx(scenario["compute_s"], rel=0.10)
    assert len(fitted.buckets) == scenario["buckets"]
    for size in fitted.buckets:
        assert size == pytest.approx(scenario["bucket_bytes"], rel=0.10)
    assert fitted["episode_rate_per_h"] == pytest.approx(scenario["episodes_per_hour"], rel=0.25)
    assert fitted["episode_length_s"] == pytest.approx(scenario["episode_mean_s"], rel=0.25)


def test_recovers_the_planted_values(samples_lake: Lake, truth: dict[str, Any]) -> None:
    check(samples_lake, truth)


@pytest.mark.slow
def test_follows_when_the_generator_changes(tmp_path: Path) -> None:
    changes = {
        "compute_s": 2.4,
        "bucket_bytes": 2_000_000_000,
        "episodes_per_hour": 10,
        "episode_mean_s": 110,
        "seed": 11,
    }
    words = [f"--set={name}={value}" for name, value in changes.items()]
    subprocess.run(
        [sys.executable, str(SAMPLES / "generate.py"), "--out", str(tmp_path / "made"), *words],
        check=True,
    )
    truth = json.loads((tmp_path / "made" / "truth.json").read_text())
    check(fill(tmp_path / "lake", tmp_path / "made"), truth)
