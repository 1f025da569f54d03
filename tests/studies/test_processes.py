"""Searches on the real simulator: workers, kills, interrupts, and workers of a Dask cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from tests.studies.postgres import server
from xtune.executor import open_executor
from xtune.lake import Lake
from xtune.sim import Calibration
from xtune.studies import Options, run_study
from xtune.studies._storage import alone, opened
from xtune.studies._toml import load_study

pytestmark = pytest.mark.slow

OWN = """
name = "own"
base = "joint"
sampler = "tpe"
trials = 6
batch = 4
finalists = 2
baselines = ["static_dense"]
ablations = []

[space]
"period.iterations" = {low = 5, high = 1000, log = true}
"bus.enter_slowdown[0]" = {low = 1.02, high = 1.4}
"""
ENVIRONMENT = {**os.environ, "XTUNE_TUNE_ITERATIONS": "150", "XTUNE_TUNE_SEEDS": "2"}


@pytest.fixture
def root(small: tuple[Lake, Calibration], tmp_path: Path) -> Path:
    """A lake that a test may write its study to."""
    return copied(small, tmp_path / "lake")


def copied(small: tuple[Lake, Calibration], to: Path) -> Path:
    """A lake without a study; sampled phases are shared, since they change no number."""
    source = small[0].root
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("studies"))
    (source / "studies" / ".phases").mkdir(parents=True, exist_ok=True)
    (to / "studies").mkdir()
    (to / "studies" / ".phases").symlink_to(source / "studies" / ".phases")
    (to / "own.toml").write_text(OWN)
    return to


def start(root: Path, *words: str, env: dict[str, str] = ENVIRONMENT) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "xtune", "tune", "--study", str(root / "own.toml"), "--json",
               "--lake", str(root), *words]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, error = process.communicate(timeout=400)
    assert process.returncode == 0, error
    document: dict[str, Any] = json.loads(out)
    return document


def wait_for(process: subprocess.Popen[str], root: Path, evaluations: int) -> None:
    """Until the journal holds so many evaluations."""
    journal = root / "studies" / "own" / "journal.log"
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if journal.is_file() and journal.read_bytes().count(b"per_seed") >= evaluations:
            return
        time.sleep(0.01)


def test_workers_and_engines_change_nothing(
    small: tuple[Lake, Calibration], tmp_path: Path
) -> None:
    """1, 2 and 4 processes here, and 2 of a Dask cluster."""
    documents = []
    for engine, workers in (("local", 1), ("local", 2), ("local", 4), ("dask", 2)):
        root = copied(small, tmp_path / f"{engine}{workers}")
        own = load_study(root / "own.toml")
        documents.append(
            run_study(
                own.study,
                Lake.open(root),
                small[1],
                Options(seeds=2, iterations=150, fidelity=False),
                pool=lambda engine=engine, workers=workers: open_executor(engine, workers),  # type: ignore[misc]
            )
        )
    assert documents[0]["counts"]["complete"] == 6
    assert documents[1:] == documents[:1] * 3


def test_kill_and_interrupt_of_the_coordinator_lose_nothing_reported(
    small: tuple[Lake, Calibration], root: Path, tmp_path: Path
) -> None:
    expected = finish(start(copied(small, tmp_path / "other")))
    victim = start(root)
    wait_for(victim, root, 5)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    second = start(root)
    wait_for(second, root, 12)
    os.kill(second.pid, signal.SIGINT)
    out, error = second.communicate(timeout=200)
    assert second.returncode == 130, error
    assert out == ""
    assert "interrupted: what was finished is kept; the same command goes on" in error
    assert finish(start(root)) == expected


def test_a_second_coordinator_on_a_journal_is_refused(root: Path) -> None:
    """This process stands for the first."""
    folder = root / "studies" / "own"
    folder.mkdir()
    with alone(folder):
        other = start(root)
        out, error = other.communicate(timeout=200)
    assert (other.returncode, out) == (1, "")
    assert f"another xtune tune runs this study (process {os.getpid()})" in error


def test_of_two_on_one_database_one_is_killed_and_the_other_does_the_rest(
    small: tuple[Lake, Calibration], root: Path, tmp_path: Path
) -> None:
    """Nothing is done twice but what the killed one was at; the result is the undisturbed one."""
    # Long enough that each evaluation takes a while.
    longer = {**ENVIRONMENT, "XTUNE_TUNE_ITERATIONS": "2000"}
    expected = finish(start(copied(small, tmp_path / "other"), env=longer))
    with server() as (url, _), opened(Path(), url) as storage:
        words = ("--storage", url, "--workers", "1")
        victim, other = both = [start(root, *words, env=longer) for _ in range(2)]
        wait_until_shared(both, storage)
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
        out, error = other.communicate(timeout=400)
        assert other.returncode == 0, error
        assert json.loads(out) == expected
        again = start(root, *words, env=longer)
        out, says = again.communicate(timeout=200)
        assert "nothing to do: 6 of 6 trials are there" in says
        assert json.loads(out) == expected
        kept = of(storage)
    lost = 0
    for name, records in kept.items():
        if name.endswith("#leases"):
            lost = sum(t.state == TrialState.FAIL for t in records)
            assert all(t.state != TrialState.RUNNING for t in records)
            continue
        known = "key" if name.endswith("#presets") else "number"
        keys = [t.user_attrs[known] for t in records]
        assert len(keys) == len(set(keys)) > 0
    assert error.count("a process that held an evaluation is gone") == lost <= 1


def of(storage: BaseStorage) -> dict[str, list[FrozenTrial]]:
    """What a database holds, by the name of Optuna's study."""
    studies = storage.get_all_studies()
    return {s.study_name: storage.get_all_trials(s._study_id, deepcopy=False) for s in studies}


def wait_until_shared(both: list[subprocess.Popen[str]], storage: BaseStorage) -> None:
    """Until some evaluations are stored, and each of two processes is at another."""
    deadline = time.monotonic() + 200
    while all(process.poll() is None for process in both):
        assert time.monotonic() < deadline
        for name, records in of(storage).items():
            states = [t.state for t in records]
            done, under_way = map(states.count, (TrialState.COMPLETE, TrialState.RUNNING))
            if name.endswith("#leases") and done >= 3 and under_way == 2:
                return
        time.sleep(0.01)
    ended = next(process for process in both if process.poll() is not None)
    raise AssertionError(f"one ended before both were at work: {ended.communicate()[1]}")
