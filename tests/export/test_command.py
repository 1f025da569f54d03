"""``xtune export``: which policy it takes from a study, and whose names go with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sim_loop.made import made
from xtune.cli import export
from xtune.errors import ExportError, UsageError, XtuneError
from xtune.lake import Lake
from xtune.policies.presets import preset
from xtune.studies._result import PARTS


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with a study of one calibration and, written later, another job's calibration."""
    root = tmp_path / "lake"
    with Lake.open(root, create=True).begin() as transaction:
        transaction.commit()
    old, new = made(), made(change_s=9.0)
    object.__setattr__(new, "job", "other-job")
    for calibration in (old, new):
        calibration.save(root / "calibrations")
    policy = preset("joint").to_json()
    policy["provenance"] = {"study": "s", "calibration": old.fingerprint}
    row = {"mean": 1.0, "low": 0.9, "high": 1.1}
    document: dict[str, Any] = {
        **dict.fromkeys(PARTS),
        "schema": 1,
        "best": {"number": 0},
        "objective": {"name": "time_to_target_s"},
        "policy": policy,
        "trials": [
            {"number": 0, "params": {"period.iterations": 10}, "state": "complete", **row},
            {"number": 1, "params": {"period.iterations": 20}, "state": "complete", **row},
            {"number": 2, "params": {}, "state": "failed", "reason": "no memory"},
        ],
    }
    folder = root / "studies" / "s"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(document))
    return root


def exported(lake: Path, out: Path, **options: Any) -> dict[str, Any]:
    settings = {"study": "s", "lake": str(lake), "trial": "best", "name": None, "out": out}
    export.run(**{**settings, "with_names": False, "dry_run": False, "json": False, **options})
    document: dict[str, Any] = json.loads((out / "xtune_policy_s" / "policy.json").read_text())
    return document


def test_the_job_is_the_study_s_and_only_where_asked(lake: Path, tmp_path: Path) -> None:
    assert "job" not in exported(lake, tmp_path / "a")["provenance"]
    assert exported(lake, tmp_path / "b", with_names=True)["provenance"]["job"] == "train"


def test_another_trial_says_so(lake: Path, tmp_path: Path) -> None:
    policy = exported(lake, tmp_path / "a", trial="1")
    assert policy["period"]["iterations"] == 20
    assert policy["provenance"]["trial"] == 1


@pytest.mark.parametrize(
    ("trial", "error"),
    [("2", ExportError), ("9", ExportError), ("-1", UsageError), ("²", UsageError)],
)
def test_what_is_no_trial_is_refused(
    lake: Path, tmp_path: Path, trial: str, error: type[XtuneError]
) -> None:
    with pytest.raises(error):
        exported(lake, tmp_path / "a", trial=trial)
    assert not (tmp_path / "a").exists()


def test_a_policy_of_another_version_is_refused(lake: Path, tmp_path: Path) -> None:
    path = lake / "studies" / "s" / "result.json"
    document = json.loads(path.read_text())
    document["policy"]["period"]["weeks"] = 3
    path.write_text(json.dumps(document))
    with pytest.raises(ExportError, match=r"period\.weeks"):
        exported(lake, tmp_path / "a")


def test_a_dry_run_in_json_is_json_and_writes_nothing(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"study": "s", "lake": str(lake), "out": tmp_path / "a"}
    export.run(**settings, dry_run=True, json=True, trial="best", name=None)  # type: ignore[arg-type]
    assert json.loads(capsys.readouterr().out)["sha256"] is None
    assert not (tmp_path / "a").exists()
