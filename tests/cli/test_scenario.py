"""``xtune simulate --scenario`` as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from tests.sim_loop.test_scenarios import SMALL
from xtune.__main__ import main
from xtune.cli._scenario import show
from xtune.sim import scenarios
from xtune.sim.scenarios import experiment


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.argv", ["xtune", "simulate", "--scenario", *options])
    return main()


def test_a_scenario_needs_no_lake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scenarios, "scenario", lambda name: SMALL)
    small = ("small", "--iterations", "20", "--seeds", "2", "--workers", "1", "--json")
    assert run(monkeypatch, *small) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scenario"] == "small" and len(found["policies"]) == 9
    show(found)
    text = capsys.readouterr().out
    assert "the founding document's claim" in text and "+60 %" in text
    assert "needs at least 37.5% exposed communication" in text


def test_what_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "founding") != 0
    err = capsys.readouterr().err
    assert "no scenario 'founding'" in err and "Traceback" not in err
    assert run(monkeypatch, "founding-moe", "--lake", "lake") != 0
    assert "reads no lake" in capsys.readouterr().err


def test_an_interrupt_says_that_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run_scenario", interrupted)
    assert run(monkeypatch, "founding-dense", "--workers", "1") == 130
    err = capsys.readouterr().err
    assert "nothing is kept" in err and "was finished" not in err
