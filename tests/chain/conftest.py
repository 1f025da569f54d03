"""One lake of data_samples for all tests of the chain."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from xtune.collectors import Context
from xtune.executor import open_executor
from xtune.ingest import collect
from xtune.lake import Lake
from xtune.pipelines import rebuild
from xtune.sim import calibrate
from xtune.studies import Options, find_study, run_study

SAMPLES = Path(__file__).parents[2] / "data_samples"


def fill(root: Path, samples: Path) -> Lake:
    """Collect and rebuild, as the demo does."""
    lake = Lake.open(root, create=True)
    context = Context(job="pretrain-7b", tz="UTC", now_ns=time.time_ns)
    summary = collect(lake, [str(samples / "cluster")], context=context)
    assert summary.rejects == 0
    rebuild(lake)
    return lake


@pytest.fixture(scope="session")
def samples_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return fill(tmp_path_factory.mktemp("chain") / "lake", SAMPLES)


@pytest.fixture(scope="session")
def truth() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SAMPLES / "truth.json").read_text())
    return document


@pytest.fixture(scope="session")
def samples_study(samples_lake: Lake) -> dict[str, Any]:
    """A short run of the study: fewer iterations and seeds than the demo's."""
    calibration = calibrate(samples_lake)
    calibration.save(samples_lake.root / "calibrations")
    options = Options(seed=0, seeds=2, iterations=300, fidelity=False)
    return run_study(
        find_study("period_T"),
        samples_lake,
        calibration,
        options,
        pool=lambda: open_executor("local", 2),
    )
