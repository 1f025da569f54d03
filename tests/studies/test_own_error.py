"""Of whom the simulator's own error is not known where measuring fails: real processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.studies.analytic import OPTIONS, STUDY, Runs, lake_in, search
from xtune.policies.presets import preset
from xtune.reports._figures import intervals_hold
from xtune.studies import Objective, _own_error
from xtune.studies._own_error import measure
from xtune.studies._work import Workers


def act(policy: Any, calibration: Any, seed: int, cache: Path) -> str:
    """Stands for a measurement: the policy says what becomes of it."""
    if policy == "wrong":
        raise ValueError("no phase")
    log = cache / str(policy)
    with log.open("a") as stream:
        stream.write("x")
    if log.stat().st_size <= {"poison": 99, "unlucky": 1}.get(str(policy), 0):
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    return f"of {policy}"


@contextmanager
def two() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        yield pool


def outcome(
    folder: Path, *names: str, deadline: float = math.inf
) -> tuple[dict[str, Any], dict[str, str], list[int]]:
    told: list[int] = []
    policies: dict[str, Any] = {name: name for name in names}
    calibration: Any = None
    with Workers(two) as workers:
        found, reasons = measure(
            policies, calibration, workers, seed=0, cache=folder, deadline=deadline,
            progress=lambda done, _: told.append(done),
        )  # fmt: skip
    return found, reasons, told


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_own_error, "measured", act)


@pytest.mark.usefixtures("acted")
def test_one_that_kills_workers_takes_no_other_with_it(tmp_path: Path) -> None:
    found, reasons, told = outcome(tmp_path, "a", "poison", "b", "unlucky", "c")
    assert found == {name: f"of {name}" for name in ("a", "b", "unlucky", "c")}
    assert reasons == {"poison": "worker processes died on it"}
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("acted")
def test_one_that_raises_is_not_known_and_says_why(tmp_path: Path) -> None:
    found, reasons, told = outcome(tmp_path, "a", "wrong", "b")
    assert found == {"a": "of a", "b": "of b"}
    assert reasons == {"wrong": "ValueError: no phase"}
    assert told == [1, 2, 3]


@pytest.mark.usefixtures("acted")
def test_a_deadline_ends_it(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        outcome(tmp_path, "a", deadline=time.monotonic() - 1.0)


@pytest.mark.parametrize(("metric", "measured"), [("mean_step_s", True), ("jitter_s", False)])
def test_it_is_measured_only_where_a_figure_carries_it(
    tmp_path: Path, metric: str, measured: bool
) -> None:
    stages: set[str] = set()
    document = search(
        lake_in(tmp_path),
        Runs(rule=lambda _, metrics: metrics.update(mean_step_s=metrics["time_to_target_s"])),
        study=replace(STUDY, objectives=(Objective(metric=metric),)),
        options=replace(OPTIONS, fidelity=True),
        progress=lambda state: stages.add(state.stage),
    )
    assert ("own errors" in stages) is measured
    assert (document["fidelity"] is not None) is measured
    assert (document["best"]["own_error"] is not None) is measured


def test_what_is_not_known_is_said_wherever_figures_stand(tmp_path: Path) -> None:
    """Of `joint`, the default, nothing is known: its difference from the best holds none."""
    unknown = preset("joint").digest()

    class Partly(Runs):
        def submit(self, function: Any, /, *args: Any, **named: Any) -> Future[Any]:
            if len(args) == 4 and args[0].digest() == unknown:
                failed: Future[Any] = Future()
                failed.set_exception(ValueError("no phase"))
                return failed
            return super().submit(function, *args, **named)

    notes: list[str] = []
    document = search(
        lake_in(tmp_path), Partly(), options=replace(OPTIONS, fidelity=True), note=notes.append
    )
    assert "the simulator's own error is not known under joint: ValueError: no phase" in notes
    rows = [*document["baselines"], *document["ablations"]]
    named = {row["name"] for row in rows if row["own_error"] is None}
    assert document["recommendation"]["text"].endswith("own error is not in it.")
    said = intervals_hold([*rows, {**document["default"], "name": "joint"}])
    assert "Not so of" in said and "joint" in said
    assert all(name in said for name in named) and "static_dense" not in said
