"""What ``xtune calibrate`` says of its fit, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sim_loop.lakes import Truth, rows_of
from tests.sim_loop.test_refit import own
from tests.sim_loop.test_validation import lake_of
from xtune.cli import app
from xtune.errors import CalibrationError

TRUTH = Truth(hours=0.2, rate_per_h=30.0, length_s=20.0)


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lake")
    lake_of(root, rows_of(TRUTH), rows_of(TRUTH))
    return root


def run(*words: str, lake: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["calibrate", "--lake", str(lake), *words])
    return done.exit_code, done.stdout


def test_it_shows_what_was_predicted_and_what_came(two_days: Path) -> None:
    status, out = run(lake=two_days)
    assert status == 0
    assert "predicted from the days before, observed on 2026-03-03" in out
    assert "step_s_mean" in out and "agree with the held-out days" in out
    assert "would be fitted from" in out


def test_the_document_holds_fit_check_and_response(two_days: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(own()))
    status, out = run("--json", "--response", str(path), lake=two_days)
    document = json.loads(out)
    assert status == 0 and document["schema"] == 1
    assert document["held_out"]["fingerprint"] != document["fingerprint"]
    assert {"predicted", "low", "high", "observed", "error", "agrees"} <= set(
        document["validation"][0]
    )
    assert document["response"] == own()["provenance"]
    kept = two_days / "calibrations" / f"{document['fingerprint']}.json"
    assert json.loads(kept.read_text()) == document


def test_no_day_held_out_checks_nothing(two_days: Path) -> None:
    status, out = run("--held-out", "0", "--json", lake=two_days)
    document = json.loads(out)
    assert (status, document["held_out"], document["validation"]) == (0, None, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--held-out", "2"), "2 days held out leave none to fit"),
        (("--job", "other"), "no training steps of job 'other'"),
        (("--response", "none.json"), "none.json: cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(two_days: Path, words: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["calibrate", "--lake", str(two_days), *words])
    assert isinstance(done.exception, CalibrationError)
    assert message in str(done.exception) and "\n" not in str(done.exception)
