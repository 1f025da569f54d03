"""Which process may run a study, and that its folder stays where it is meanwhile."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xtune.errors import StudyError
from xtune.studies._folder import held_folder
from xtune.studies._storage import alone

SERVER = "postgresql+psycopg://host/base"
TAKEN = rf"another xtune tune .* \(process {os.getpid()}\)"


def lake(root: Path) -> Any:
    return SimpleNamespace(root=root)


def test_a_new_calibration_leaves_the_folder_of_a_running_study(tmp_path: Path) -> None:
    with held_folder(lake(tmp_path), "s", "old", "") as (folder, _):
        (folder / "journal.log").write_text("kept")
        with (
            pytest.raises(StudyError, match=TAKEN),
            held_folder(lake(tmp_path), "s", "new", ""),
        ):
            pass
        assert (folder / "journal.log").read_text() == "kept"
    with held_folder(lake(tmp_path), "s", "new", "") as (folder, moved):
        assert (moved, folder) == ("s@old", tmp_path / "studies" / "s")
        with pytest.raises(StudyError, match=TAKEN):  # it may be moved back meanwhile
            stack_of(tmp_path, "s", "old", "", tmp_path / "studies" / "s@old")
    assert (tmp_path / "studies" / "s@old" / "journal.log").read_text() == "kept"


def test_what_was_put_aside_before_is_not_written_over(tmp_path: Path) -> None:
    before = tmp_path / "studies" / "s@old"
    before.mkdir(parents=True)
    (before / "journal.log").write_text("first")
    for mark in ("old", "new"):
        with held_folder(lake(tmp_path), "s", mark, "") as (folder, moved):
            (folder / "journal.log").write_text(mark)
    assert moved == "s@old~"
    assert (before / "journal.log").read_text() == "first"
    assert (tmp_path / "studies" / "s@old~" / "journal.log").read_text() == "old"


def stack_of(root: Path, *words: Any) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(held_folder(lake(root), *words))
    return stack


def test_those_that_share_a_database_share_one_calibration(tmp_path: Path) -> None:
    with stack_of(tmp_path, "s", "old", SERVER), stack_of(tmp_path, "s", "old", SERVER):
        with pytest.raises(StudyError, match=TAKEN):
            stack_of(tmp_path, "s", "new", SERVER)
        with pytest.raises(StudyError, match=TAKEN):
            stack_of(tmp_path, "s", "old", "")
    with stack_of(tmp_path, "s", "new", SERVER):
        assert (tmp_path / "studies" / "s@old").is_dir()


def test_a_kept_folder_that_was_moved_is_said(tmp_path: Path) -> None:
    with held_folder(lake(tmp_path), "s", "old", "") as (folder, _):
        pass
    stack_of(tmp_path, "s", "old", "", folder).close()
    stack_of(tmp_path, "s", "new", "").close()
    with pytest.raises(StudyError, match="was moved meanwhile"):
        stack_of(tmp_path, "s", "old", "", folder)


@pytest.mark.parametrize("form", ["sqlite:///{}/one.db", "sqlite:///{}/./one.db?timeout=5"])
def test_one_sqlite_file_has_one_process(tmp_path: Path, form: str) -> None:
    """Of two lakes, or of two names of the file."""
    with (
        alone(tmp_path / "lake1" / "s", f"sqlite:///{tmp_path}/one.db"),
        pytest.raises(StudyError, match=rf"one\.db: {TAKEN}"),
        alone(tmp_path / "lake2" / "s", form.format(tmp_path)),
    ):
        pass
    with (
        alone(tmp_path / "lake2" / "s", form.format(tmp_path)),
        alone(tmp_path / "a", "sqlite://"),
    ):
        pass
