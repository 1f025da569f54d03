"""A study's result depends on what is searched, not on workers, interruptions or order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xtune.errors import StudyError, UsageError
from xtune.executor import open_executor
from xtune.lake import Lake
from xtune.policies.presets import preset
from xtune.policies.spec import replace_fields
from xtune.sim import Calibration, simulate
from xtune.studies import Options, Study, load_result, run_study
from xtune.studies._base import all_studies
from xtune.studies._space import METRICS, apply, check
from xtune.studies._stats import against
from xtune.studies._work import Job, Workers, run_jobs

ROOT = Path(__file__).parents[2]
OPTIONS = Options(seed=3, seeds=2, iterations=150, fidelity=False)
STUDY = Study(
    name="short",
    title="for tests",
    base="joint",
    grid={"period.iterations": (10, 50)},
    baselines=("static_dense",),
    ablations=("compression_only",),
)
POOLS: dict[int, Executor] = {}


@pytest.fixture
def lake(small: tuple[Lake, Calibration], tmp_path: Path) -> Lake:
    """A copy that a test may write its study to."""
    shutil.copytree(small[0].root, tmp_path / "lake")
    return Lake.open(tmp_path / "lake")


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    """One process for all studies here: it takes seconds to start, and keeps nothing of them."""
    with open_executor("local", 1) as pool:
        POOLS[1] = pool
        yield
        del POOLS[1]


def run(lake: Lake, calibration: Calibration, study: Study = STUDY, **how: Any) -> dict[str, Any]:
    workers = how.pop("workers", 1)

    def pool() -> AbstractContextManager[Executor]:
        kept = POOLS.get(workers)
        return open_executor("local", workers) if kept is None else nullcontext(kept)

    return run_study(study, lake, calibration, how.pop("options", OPTIONS), pool=pool, **how)


def test_workers_and_resumption_change_nothing(
    small: tuple[Lake, Calibration], lake: Lake, tmp_path: Path
) -> None:
    calibration = small[1]
    one = run(lake, calibration, workers=1)
    folder = lake.root / "studies" / "short"
    first = (folder / "result.json").read_bytes()
    said: list[str] = []
    again = run(lake, calibration, note=said.append)
    assert said == ["nothing to do: 2 of 2 trials are there"]
    assert again == one
    assert (folder / "result.json").read_bytes() == first
    shutil.rmtree(lake.root / "studies")
    run(lake, calibration, workers=2)
    assert (folder / "result.json").read_bytes() == first


def test_extending_the_grid_runs_only_the_new_points(
    small: tuple[Lake, Calibration], lake: Lake
) -> None:
    calibration = small[1]
    before = run(lake, calibration)
    wider = replace(STUDY, grid={"period.iterations": (10, 25, 50)})
    done: list[str] = []
    after = run(lake, calibration, wider, progress=lambda p: done.append(p.stage))
    assert done.count("trials") == 1
    kept = [t for t in after["trials"] if t["params"]["period.iterations"] != 25]
    assert [t["mean"] for t in kept] == [t["mean"] for t in before["trials"]]


def test_trials_is_the_total_in_the_study(small: tuple[Lake, Calibration], lake: Lake) -> None:
    calibration = small[1]
    few = run(lake, calibration, options=replace(OPTIONS, trials=1))
    assert [t["params"]["period.iterations"] for t in few["trials"]] == [10]
    whole = run(lake, calibration)
    assert len(whole["trials"]) == 2
    # Asking for fewer later takes nothing away.
    assert run(lake, calibration, options=replace(OPTIONS, trials=1)) == whole


def test_numbers_do_not_tell_what_was_run_before(
    small: tuple[Lake, Calibration], lake: Lake
) -> None:
    calibration, options = small[1], replace(OPTIONS, seeds=1, iterations=50)
    fresh = run(lake, calibration, options=options)
    shutil.rmtree(lake.root / "studies")
    run(lake, calibration, options=replace(options, seed=99))
    assert run(lake, calibration, options=options) == fresh
    assert [t["number"] for t in fresh["trials"]] == [0, 1]


def test_a_database_gives_what_the_journal_gives(
    small: tuple[Lake, Calibration], lake: Lake, tmp_path: Path
) -> None:
    calibration, options = small[1], replace(OPTIONS, seeds=1, iterations=50)
    study = replace(STUDY, baselines=("static_dense", "power_of_two"))
    journal = run(lake, calibration, study, options=options)
    shutil.rmtree(lake.root / "studies")
    options = replace(options, storage=f"sqlite:///{tmp_path}/trials.db")
    said: list[str] = []
    for _ in range(2):
        assert run(lake, calibration, study, options=options, note=said.append) == journal
    assert said == ["nothing to do: 2 of 2 trials are there"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 9}', '{"fingerprint": "../x"}'])
def test_a_spoilt_mark_moves_the_folder_aside(
    small: tuple[Lake, Calibration], lake: Lake, text: str
) -> None:
    options = replace(OPTIONS, trials=1, seeds=1, iterations=20)
    folder = lake.root / "studies" / "short"
    folder.mkdir(parents=True)
    (folder / "calibration.json").write_text(text)
    said: list[str] = []
    assert run(lake, small[1], options=options, note=said.append)["best"]
    assert said == ["the calibration is new: the old study is now short@unknown"]


@pytest.mark.parametrize(
    "wrong", [{"seeds": 0}, {"seeds": -1}, {"iterations": 0}, {"iterations": 10**12}, {"seed": -1}]
)
def test_numbers_that_make_no_run_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"{name} = "):
        replace(OPTIONS, **wrong)


def test_few_seeds_tell_no_points_apart() -> None:
    """By hand: differences of 10 % on each seed are a verdict from five seeds on, not before."""
    best, other = [0.9] * 5, [1.0] * 5
    gain = against(best, other)
    assert [gain[k] for k in ("mean", "low", "high")] == pytest.approx([0.1] * 3)
    assert gain["told_apart"] is True
    assert against(other, best)["told_apart"] is True
    assert against(best[:4], other[:4])["told_apart"] is None
    assert against(best[:1], other[:1])["low"] is None
    # One regulation's charge on each seed, and one seed that got lucky, are no verdict.
    lucky = [1000.0, 1000.0, 1000.0, 1000.0, 990.0]
    assert against(lucky, [1000.00004] * 5)["told_apart"] is False
    assert against([1.0, 1.0, 1.0, 1.0, 1.0], [0.9, 1.1, 1.0, 0.9, 1.1])["told_apart"] is False


def test_any_failure_is_one_evaluation_s(small: tuple[Lake, Calibration]) -> None:
    broken: Any = "no policy"
    jobs = [
        Job(key=str(i), params={}, policy=p, seeds=(0,), iterations=20, calibration=small[1])
        for i, p in enumerate([broken, preset("static_dense")])
    ]
    with Workers(lambda: open_executor("local", 1)) as workers:
        outcomes = list(run_jobs(jobs, workers, cache=None))
    assert [o.complete for o in outcomes] == [False, True]
    assert outcomes[0].reason.startswith("AttributeError")


def test_workers_end_with_a_killed_coordinator() -> None:
    code = (
        "import time\n"
        "from xtune.executor import open_executor\n"
        "from tests.studies.test_run import own_id\n"
        "with open_executor('local', 2) as pool:\n"
        "    ids = {pool.submit(own_id).result()}\n"
        "    print(*ids, flush=True)\n"
        "    time.sleep(100)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as coordinator:
        assert coordinator.stdout is not None
        worker = int(coordinator.stdout.readline())
        os.kill(worker, signal.SIGINT)  # a terminal's Ctrl-C reaches workers too: not their thing
        os.kill(worker, 0)
        coordinator.kill()
        coordinator.wait()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and _runs(worker):
            time.sleep(0.05)
    assert not _runs(worker)


def own_id() -> int:
    """Run in a worker."""
    return os.getpid()


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_no_worker_is_refused() -> None:
    with pytest.raises(UsageError, match="workers = 0"), open_executor("local", 0):
        pass


def test_a_new_calibration_moves_the_study_aside_and_an_old_one_brings_it_back(
    small: tuple[Lake, Calibration], lake: Lake
) -> None:
    calibration = small[1]
    options = replace(OPTIONS, trials=1)
    run(lake, calibration, options=options)
    other = calibration.with_values(change_s=0.5)
    run(lake, other, options=options)
    aside = f"short@{calibration.fingerprint}"
    assert load_result(lake.root, aside)["calibration"] == calibration.fingerprint
    assert load_result(lake.root, "short")["calibration"] == other.fingerprint
    said: list[str] = []
    run(lake, calibration, options=options, note=said.append)
    assert said[-1].startswith("nothing to do")


def test_best_is_the_least_mean_and_gains_are_paired(
    small: tuple[Lake, Calibration], lake: Lake
) -> None:
    """Its figures are those of fresh seeds, on which the baselines run too."""
    document = run(lake, small[1])
    means = [t["mean"] for t in document["trials"]]
    best = document["best"]
    assert means[best["number"]] == min(means)
    for trial in document["trials"]:
        assert trial["mean"] == pytest.approx(sum(trial["per_seed"]) / 2)
        assert trial["low"] <= trial["mean"] <= trial["high"]
    assert document["provenance"]["fresh_seeds"] == [1003, 1004]
    policy = replace_fields(preset("joint"), best["params"])
    runs = [simulate(policy, small[1], seed=s, iterations=150) for s in (1003, 1004)]
    fresh = [run.metrics["time_to_target_s"] for run in runs]
    assert best["fresh"] is True
    assert best["per_seed"] == pytest.approx(fresh)
    base = document["baselines"][0]
    shares = [(b - a) / b for a, b in zip(fresh, base["per_seed"], strict=True)]
    assert base["gain_of_best"]["mean"] == pytest.approx(sum(shares) / 2)
    assert document["policy"]["provenance"]["calibration"] == small[1].fingerprint
    assert set(METRICS) <= set(best["metrics"])  # what a study may ask for, a run gives


def test_a_worker_that_dies_costs_its_evaluation_only(small: tuple[Lake, Calibration]) -> None:
    """The policy kills its worker when it is unpickled; the other evaluation is done all the
    same."""

    def job(policy: Any, key: str) -> Job:
        return Job(
            key=key,
            params={"preset": key},
            policy=policy,
            seeds=(0,),
            iterations=50,
            calibration=small[1],
        )

    jobs = [job(Deadly(), "deadly"), job(preset("static_dense"), "sound")]
    with Workers(lambda: open_executor("local", 1)) as workers:
        outcomes = list(run_jobs(jobs, workers, cache=None))
    assert [(o.key, o.complete) for o in outcomes] == [("deadly", False), ("sound", True)]
    assert outcomes[0].reason == "worker processes died on it"


class Deadly:
    """Unpickling it ends the process as ``kill -9`` does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _die, (os.getpid(),)


def _die(parent: int) -> None:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def test_every_study_names_fields_of_the_policy() -> None:
    for study in all_studies().values():
        check(study)
        for point in study.points():
            apply(preset(study.base), point)


@pytest.mark.parametrize(
    "text", ["[]", '"x"', "{", '{"schema": 1}', '{"schema": 2}', '{"schema": 1, "best": {}}']
)
def test_a_result_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "studies" / "s" / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(StudyError, match="run xtune tune --study s again"):
        load_result(tmp_path, "s")


def test_every_result_has_the_parts_that_readers_ask_for(
    small: tuple[Lake, Calibration], lake: Lake
) -> None:
    options = replace(OPTIONS, trials=1, seeds=1, iterations=20)
    document = run(lake, small[1], options=options)
    assert load_result(lake.root, "short") == document
