"""What the studies' command lines share: a file that cannot be is one line, and soon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from xtune.errors import UsageError
from xtune.proofs import concurrency, forecast_quality, jitter, mixed, slices
from xtune.proofs.command import Report, run_study


@pytest.mark.parametrize(
    "main",
    [concurrency.main, forecast_quality.main, jitter.main, mixed.main, slices.main],
    ids=["concurrency", "forecast_quality", "jitter", "mixed", "slices"],
)
@pytest.mark.parametrize("place", ["none/x.json", "."])
def test_a_file_that_cannot_be_is_told_before_the_study(
    main: Callable[[list[str]], int],
    place: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With their defaults all of these take minutes."""
    assert main(["--out", str(tmp_path / place)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    [line] = told.err.splitlines()
    assert str(tmp_path / place) in line


def test_figures_are_kept_as_they_are_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.json"
    assert run_study("some", lambda: {"a": 1}, lambda report: f"a is {report['a']}", out)
    assert json.loads(out.read_text()) == {"a": 1}
    assert capsys.readouterr().out == "a is 1\n"


def test_a_study_that_cannot_be_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def study() -> Report:
        raise UsageError("no such thing", "name another")

    assert run_study("some", study, str, tmp_path / "x.json") is None
    assert capsys.readouterr() == ("", "some: no such thing (name another)\n")
    assert list(tmp_path.iterdir()) == []
