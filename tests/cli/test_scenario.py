"""``xtune simulate --scenario`` as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sim_loop.test_scenarios import SMALL
from xtune.__main__ import main
from xtune.cli._scenario import _phases, show
from xtune.policies.spec import Policy
from xtune.sim import scenarios
from xtune.sim.evaluation import Evaluation, evaluate
from xtune.sim.scenarios import experiment


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.argv", ["xtune", "simulate", "--scenario", *options])
    return main()


def test_a_scenario_needs_no_lake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(scenarios, "scenario", lambda name: SMALL)
    small = ("small", "--iterations", "20", "--seeds", "2", "--workers", "1", "--json")
    assert run(monkeypatch, *small) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scenario"] == "small" and len(found["policies"]) == 9
    show(found)
    text = capsys.readouterr().out
    assert "the founding document's claim" in text and "+60 %" in text
    assert "needs at least 37.5% exposed communication" in text


@pytest.mark.parametrize("temporary", [True, False])
@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_a_cache_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    variable: str,
    temporary: bool,
) -> None:
    (tmp_path / "file").touch()  # in place of a folder, which stops root too
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("" if temporary else "file")))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    with _phases() as folder:
        assert (folder is not None and folder.is_dir()) is temporary
    assert folder is None or not folder.exists()  # what is made for a run goes with it
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert "sampled phases are kept for this run alone" in err and str(tmp_path / "file") in err
    monkeypatch.setenv(variable, str(tmp_path / "good"))
    with _phases() as folder:
        assert folder is not None
    assert (
        folder.is_dir() and folder.is_relative_to(tmp_path / "good") and not list(folder.iterdir())
    )
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs Linux")
def test_a_cache_that_is_there_but_takes_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "xtune").mkdir()
    (tmp_path / "xtune" / "phases").symlink_to("/proc")  # takes none from root either
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with _phases() as folder:
        assert folder is not None and not folder.is_relative_to(tmp_path / "xtune")
    assert "sampled phases are kept for this run alone" in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_cache_the_figures_are_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(scenarios, "scenario", lambda name: SMALL)
    small = ("small", "--iterations", "20", "--seeds", "1", "--workers", "1", "--json")
    (tmp_path / "file").touch()
    shown = []
    for name in ("good", "file"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        assert run(monkeypatch, *small) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and json.loads(shown[0])["scenario"] == "small"


def test_what_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "founding") != 0
    err = capsys.readouterr().err
    assert "no scenario 'founding'" in err and "Traceback" not in err
    assert run(monkeypatch, "founding-moe", "--lake", "lake") != 0
    assert "reads no lake" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupt_loses_no_phase_that_was_sampled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(scenarios, "scenario", lambda name: SMALL)
    small = ("small", "--iterations", "20", "--seeds", "2", "--workers", "1", "--json")
    whole, sampled = evaluate, tmp_path / "xtune" / "phases"

    def interrupted(policy: Policy, *args: Any, **options: Any) -> Evaluation:
        if policy.name == experiment.OTHERS[1]:
            raise KeyboardInterrupt
        return whole(policy, *args, **options)

    monkeypatch.setattr(experiment, "evaluate", interrupted)
    assert run(monkeypatch, *small) == 130
    assert "the same command goes on" in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in sampled.iterdir()}
    monkeypatch.setattr(experiment, "evaluate", whole)
    assert run(monkeypatch, *small) == 0
    after = {path: path.stat().st_mtime_ns for path in sampled.iterdir()}
    assert before and before.items() < after.items()  # none was sampled again
    again = json.loads(capsys.readouterr().out)
    assert run(monkeypatch, *small) == 0
    assert json.loads(capsys.readouterr().out) == again
    assert {path: path.stat().st_mtime_ns for path in sampled.iterdir()} == after
