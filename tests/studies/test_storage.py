"""A journal with a torn tail, and storages that cannot be opened."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from xtune.errors import StudyError
from xtune.studies._storage import open_storage, repair_journal
from xtune.studies._trials import Outcome, TrialStore, grid_distribution

GRID = {"period.iterations": grid_distribution("period.iterations", (10, 20))}


def outcome(key: str, value: float) -> Outcome:
    return Outcome(
        key=key, params={"period.iterations": 10}, per_seed=[{"time_to_target_s": value}]
    )


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_torn_tail_is_cut_and_kept_and_the_journal_goes_on(tmp_path: Path, cut: int) -> None:
    TrialStore(open_storage(tmp_path, ""), "s").add(outcome("a", 1.0), GRID)
    journal = tmp_path / "journal.log"
    whole = journal.read_bytes()
    TrialStore(open_storage(tmp_path, ""), "s").add(outcome("b", 2.0), GRID)
    journal.write_bytes(journal.read_bytes()[:-cut])
    torn = repair_journal(journal)
    assert torn is not None
    assert torn.read_bytes()
    assert journal.read_bytes().startswith(whole)
    store = TrialStore(open_storage(tmp_path, ""), "s")
    assert set(store.finished()) == {"a"}
    store.add(outcome("c", 3.0), GRID)
    assert set(TrialStore(open_storage(tmp_path, ""), "s").finished()) == {"a", "c"}


def test_whole_journal_is_left_alone(tmp_path: Path) -> None:
    TrialStore(open_storage(tmp_path, ""), "s").add(outcome("a", 1.0), GRID)
    before = (tmp_path / "journal.log").read_bytes()
    assert repair_journal(tmp_path / "journal.log") is None
    assert (tmp_path / "journal.log").read_bytes() == before


def test_completed_wins_over_failed(tmp_path: Path) -> None:
    store = TrialStore(open_storage(tmp_path, ""), "s")
    failed = Outcome(key="a", params={"period.iterations": 10}, reason="worker died")
    store.add(failed, GRID)
    store.add(outcome("a", 4.0), GRID)
    store.add(failed, GRID)
    assert store.finished()["a"].complete


@pytest.mark.parametrize(
    "url",
    [
        "nosuch://me:s3cret@host/db",
        "postgresql://me:s3@cret:x@host:1/db",
        "postgresql://me:s3cret",
        "postgresql+nosuch://host/db?user=me&password=s3cret",
        "s3cret",
    ],
)
def test_a_storage_that_cannot_be_opened_is_one_line_without_the_password(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(StudyError) as caught:
        TrialStore(open_storage(tmp_path, url), "s")
    shown = "".join(traceback.format_exception(caught.value))  # what --debug prints
    assert "s3" not in str(caught.value)
    assert url not in shown
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("hello, I am a text file, and longer than a header\n" * 9)
    with pytest.raises(StudyError, match="file is not a database"):
        TrialStore(open_storage(tmp_path, f"sqlite:///{tmp_path}/x.db"), "s")
