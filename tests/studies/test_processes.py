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

from xtune.executor import open_executor
from xtune.lake import Lake
from xtune.sim import Calibration
from xtune.studies import Options, run_study
from xtune.studies._storage import alone
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


def start(root: Path, *words: str, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "xtune", "tune", "--study", str(root / "own.toml"), "--json",
               "--lake", str(root), *words]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        start_new_session=True, **how,
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
