"""A calibration of a small synthetic lake, fitted once."""

from __future__ import annotations

import pytest

from tests.sim_loop.lakes import Truth, make_lake
from xtune.lake import Lake
from xtune.sim import Calibration, calibrate


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Calibration]:
    lake = make_lake(tmp_path_factory.mktemp("studies") / "lake", Truth())
    calibration = calibrate(lake)
    calibration.save(lake.root / "calibrations")
    return lake, calibration
