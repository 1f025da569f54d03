"""A journal with a torn tail, and storages that cannot be opened."""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
import traceback
from pathlib import Path

import pytest

from xtune.errors import StudyError
from xtune.studies._storage import (
    alone,
    file_system,
    network_warning,
    open_storage,
    opened,
    repair_journal,
)
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


DATA = Path(__file__).parent / "data"  # written by Optuna 4.9.0


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_what_optuna_4_9_wrote_is_read_and_goes_on(tmp_path: Path, kind: str) -> None:
    url = ""
    if kind == "journal":
        shutil.copy(DATA / "journal_4.9.log", tmp_path / "journal.log")
    else:
        url = f"sqlite:///{tmp_path}/trials.db"
        base = sqlite3.connect(tmp_path / "trials.db")
        base.executescript((DATA / "sqlite_4.9.sql").read_text())
        base.close()
    name = "period_T@0123456789ab"
    with opened(tmp_path, url) as storage:
        store = TrialStore(storage, name)
        found = store.finished()
        assert {k: (o.state, o.number) for k, o in found.items()} == {
            "a": ("complete", 0), "b": ("complete", 1), "c": ("failed", 2),
        }  # fmt: skip
        assert found["b"].mean("time_to_target_s") == 5.0
        store.add(outcome("c", 9.0), GRID)
    with opened(tmp_path, url) as storage:
        after = TrialStore(storage, name).finished()
        assert after["c"].mean("time_to_target_s") == 9.0


def test_one_process_at_a_time_holds_a_folder(tmp_path: Path) -> None:
    says = r"another xtune tune runs this study \(process \d+"
    with alone(tmp_path), pytest.raises(StudyError, match=says), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


def test_optuna_s_lock_of_a_killed_process_is_not_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "journal.log.lock"
    lock.symlink_to("journal.log")
    store = TrialStore(open_storage(tmp_path, ""), "s")
    store.add(outcome("a", 1.0), GRID)
    assert set(TrialStore(open_storage(tmp_path, ""), "s").finished()) == {"a"}
    assert lock.is_symlink()  # neither broken nor taken


def test_a_file_system_without_locks_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone(tmp_path):
        pass


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
tmpfs /home/me/fast tmpfs rw 0 0
//server/share /mnt/my\\040share cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lake", "ext4"),
        ("/home/me/lake", "nfs4"),
        ("/home/me/fast/lake", "tmpfs"),
        ("/homes/lake", "ext4"),
        ("/mnt/my share/lake", "cifs"),
    ],
)
def test_network_file_systems_are_told_from_local_ones(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind
    warned = kind in ("nfs4", "cifs")
    assert bool(network_warning(Path(path), "", MOUNTS)) is warned
    assert bool(network_warning(Path("/var"), f"sqlite:///{path}/a.db", MOUNTS)) is warned
    assert network_warning(Path(path), "postgresql+psycopg://host/db", MOUNTS) is None
    if warned:
        assert f"network file system ({kind})" in str(network_warning(Path(path), "", MOUNTS))
