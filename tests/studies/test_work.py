"""Which evaluation is blamed where worker processes die: real processes, calls of our own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from xtune.studies import _work
from xtune.studies._work import Job, Workers, run_jobs

DIED = "worker processes died on it"


def act(policy: Any, calibration: Any, seed: int, iterations: int, cache: Any) -> dict[str, float]:
    """Stands for a simulated run: the policy says what becomes of it."""
    log = Path(calibration)
    with log.open("a") as stream:
        stream.write(f"{policy} {seed}\n")
    deaths = {"poison": 99, "unlucky": 1, "cursed": 2}.get(str(policy), 0)
    if log.read_text().count(str(policy)) <= deaths:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    if policy == "slow":
        time.sleep(0.1)
    return {"time_to_target_s": 1.0 + seed}


@contextmanager
def four() -> Iterator[Executor]:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as pool:
        yield pool


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(_work, "run_seed", act)
    with Workers(four) as opened:
        yield opened


def jobs(log: Path, *policies: str, seeds: tuple[int, ...] = (0,)) -> list[Job]:
    made: list[Any] = [
        {"key": str(i), "params": {}, "policy": p, "seeds": seeds, "iterations": 1,
         "calibration": str(log)} for i, p in enumerate(policies)
    ]  # fmt: skip
    return [Job(**job) for job in made]


def test_only_the_evaluation_that_kills_workers_has_failed(
    workers: Workers, tmp_path: Path
) -> None:
    """It is the fourth of what runs at once, and the fifth; the others are sound."""
    log = tmp_path / "log"
    policies = ("slow", "slow", "slow", "poison", "poison", "slow")
    outcomes = list(run_jobs(jobs(log, *policies, seeds=(0, 1)), workers, cache=None))
    assert [o.key for o in outcomes] == [str(i) for i in range(len(policies))]
    assert [o.reason for o in outcomes] == [DIED if p == "poison" else "" for p in policies]
    assert outcomes[-1].per_seed == [{"time_to_target_s": 1.0}, {"time_to_target_s": 2.0}]


def test_an_evaluation_whose_worker_dies_once_is_done(workers: Workers, tmp_path: Path) -> None:
    log = tmp_path / "log"
    outcomes = list(run_jobs(jobs(log, "quick", "unlucky", "slow"), workers, cache=None))
    assert [o.complete for o in outcomes] == [True] * 3


def test_two_deaths_alone_are_a_failure_and_one_in_company_is_none(
    workers: Workers, tmp_path: Path
) -> None:
    """The first death may have been another's doing: it counts against nobody."""
    log = tmp_path / "log"
    for policy, reason in (("cursed", ""), ("poison", DIED)):
        outcomes = list(run_jobs(jobs(log, policy), workers, cache=None))
        assert [o.reason for o in outcomes] == [reason]
        assert log.read_text().count(policy) == 3


def test_what_was_finished_before_a_worker_died_is_not_run_again(
    workers: Workers, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    policies = (*["quick"] * 30, "unlucky")
    list(run_jobs(jobs(log, *policies), workers, cache=None))
    assert log.read_text().count("quick") <= 30 + 4  # once more where it was under way
    assert log.read_text().count("unlucky") == 2


def test_a_worker_that_dies_idle_costs_nothing(workers: Workers, tmp_path: Path) -> None:
    """Before the pool has seen it, and after."""
    log = tmp_path / "log"
    for wait_s in (0.0, 0.3):
        list(run_jobs(jobs(log, "quick"), workers, cache=None))
        pool: Any = workers.executor
        os.kill(next(iter(pool._processes)), signal.SIGKILL)
        time.sleep(wait_s)
        outcomes = list(run_jobs(jobs(log, "quick", "quick"), workers, cache=None))
        assert [o.reason for o in outcomes] == ["", ""]
