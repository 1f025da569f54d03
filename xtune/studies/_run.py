"""Runs a study: what is missing of the grid and of the presets, then the result."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xtune.errors import NoDataError, UsageError
from xtune.files import write_atomically
from xtune.studies._base import BASELINES, Study, point_key
from xtune.studies._result import build, summary, write
from xtune.studies._storage import open_storage, repair_journal
from xtune.studies._trials import Outcome, TrialStore
from xtune.studies._work import Job, run_jobs

if TYPE_CHECKING:
    from xtune.lake import Lake
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration

MARK = "calibration.json"  # in a study's folder: which calibration its trials are for
LARGEST_SEED = 2**31 - 1
MOST_SEEDS = 1000
MOST_ITERATIONS = 1_000_000  # a run draws its noise ahead: 100 bytes an iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How a study is run; none of it but ``seed``, ``seeds`` and ``iterations`` changes a number.

    Attributes:
        seed: First seed; the seeds are ``seed .. seed + seeds - 1`` for every trial.
        seeds: Seeds per trial.
        iterations: Iterations that one run simulates.
        trials: Most completed trials in the study; ``None``: the whole grid.
        timeout_s: Stop waiting after that long.
        storage: Optuna storage URL, or "" for a journal in the folder.
    """

    seed: int = 0
    seeds: int = 5
    iterations: int = 3000
    trials: int | None = None
    timeout_s: float = math.inf
    storage: str = ""

    def __post_init__(self) -> None:
        """Refuse what no run can be made of.

        Raises:
            UsageError: A number is out of its range; the message names it.
        """
        for name, low, high in (
            ("seed", 0, LARGEST_SEED),
            ("seeds", 1, MOST_SEEDS),
            ("iterations", 1, MOST_ITERATIONS),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} = {value} is not within {low} .. {high}")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds of every evaluation."""
        return tuple(range(self.seed, self.seed + self.seeds))


@dataclass(frozen=True, slots=True)
class Progress:
    """One finished evaluation, for a progress bar."""

    done: int
    total: int
    failed: int
    text: str


def latest_calibration(lake: Lake) -> Calibration:
    """The calibration written last.

    Raises:
        NoDataError: Nothing is calibrated.
    """
    from xtune.sim import Calibration

    files = sorted(
        (lake.root / "calibrations").glob("*.json"), key=lambda p: (p.stat().st_mtime_ns, p.name)
    )
    if not files:
        raise NoDataError("nothing is calibrated", "run xtune calibrate")
    return Calibration.load(files[-1])


def claim_folder(lake: Lake, name: str, fingerprint: str) -> tuple[Path, str | None]:
    """The study's folder; one of another calibration is moved to ``<name>@<fingerprint>``.

    Returns:
        The folder, and where the old one went, if it did.
    """
    folder = lake.root / "studies" / name
    moved = None
    mark = folder / MARK
    if mark.is_file():
        old = _marked(mark)
        if old != fingerprint:
            aside = folder.with_name(f"{name}@{old}")
            while aside.exists():
                aside = aside.with_name(aside.name + "~")
            os.replace(folder, aside)
            moved = aside.name
            back = folder.with_name(f"{name}@{fingerprint}")
            if back.is_dir():
                os.replace(back, folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not mark.is_file():
        text = json.dumps({"schema": 1, "fingerprint": fingerprint}) + "\n"
        write_atomically(mark, text.encode())
    return folder, moved


def _marked(mark: Path) -> str:
    """The fingerprint in a study's mark; ``unknown`` where it is not one that we wrote."""
    try:
        found = json.loads(mark.read_text("utf-8"))["fingerprint"]
    except (ValueError, KeyError, TypeError):
        return "unknown"
    return found if isinstance(found, str) and found.isalnum() else "unknown"


def _jobs(study: Study, options: Options) -> tuple[list[Job], dict[str, Job]]:
    from xtune.policies.presets import preset
    from xtune.policies.spec import replace_fields

    seeds = options.all_seeds

    def job(params: dict[str, Any], policy: Policy) -> Job:
        return Job(
            key=point_key(params, seeds, options.iterations, policy.digest()),
            params=params,
            policy=policy,
            seeds=seeds,
            iterations=options.iterations,
        )

    base = preset(study.base)
    grid = [job(point, replace_fields(base, point)) for point in study.points()]
    names = (*study.baselines, *study.ablations)
    return grid, {name: job({"preset": name}, preset(name)) for name in names}


def run_study(
    study: Study,
    lake: Lake,
    calibration: Calibration,
    options: Options,
    *,
    pool: Callable[[], AbstractContextManager[Executor]],
    progress: Callable[[Progress], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run what is missing, then write and return the result document.

    Starts and resumes alike: an evaluation that is stored is never repeated. The result depends on
    study, calibration, seeds and iterations, not on workers, interruptions or order.

    Args:
        study: What to search.
        lake: Where the study's folder is.
        calibration: The simulator's.
        options: How.
        pool: Opens an executor for the evaluations.
        progress: Called after each evaluation.
        note: Called with a line for the user.

    Raises:
        StudyError: The storage cannot be opened.
    """
    folder, moved = claim_folder(lake, study.name, calibration.fingerprint)
    if moved:
        note(f"the calibration is new: the old study is now {moved}")
    torn = repair_journal(folder / "journal.log") if not options.storage else None
    if torn:
        note(f"the journal had a torn tail (a killed process): moved to {torn}")
    storage = open_storage(folder, options.storage)
    name = f"{study.name}@{calibration.fingerprint}"
    grid, presets = _jobs(study, options)
    stores = {"grid": TrialStore(storage, name), "preset": TrialStore(storage, f"{name}#presets")}
    if options.trials is not None:  # what is there already stays in the study
        there = _resume(stores["grid"], grid)
        grid = [job for i, job in enumerate(grid) if i < options.trials or job.key in there]
    deadline = time.monotonic() + options.timeout_s
    lists = {"grid": grid, "preset": list(presets.values())}
    done = {role: _resume(stores[role], lists[role]) for role in lists}
    total = sum(map(len, lists.values()))
    count = sum(map(len, done.values()))
    if count == total:
        note(f"nothing to do: {len(grid)} of {len(grid)} trials are there")
    failed = 0
    work = [(role, job) for role in lists for job in lists[role] if job.key not in done[role]]
    owner = {job.key: role for role, job in work}
    outcomes: Iterator[Outcome] = run_jobs(
        [job for _, job in work],
        calibration,
        pool=pool,
        cache=lake.root / "studies" / ".phases",
        deadline=deadline,
    )
    for outcome in outcomes:
        role = owner[outcome.key]
        stores[role].add(outcome, study.grid)
        count += 1
        failed += not outcome.complete
        progress(Progress(count, total, failed, ", ".join(map(str, outcome.params.values()))))
    if count < total:
        note(f"stopped by --timeout: {count} of {total} evaluations are done, the rest resumes")
    stored = {role: stores[role].finished() for role in stores}
    # Numbered by place: an earlier failure or another seed in the storage must not show.
    trials = [
        replace(stored["grid"][job.key], number=i)
        for i, job in enumerate(grid)
        if job.key in stored["grid"]
    ]
    shown = {n: stored["preset"][j.key] for n, j in presets.items() if j.key in stored["preset"]}
    document = build(
        study,
        calibration,
        seed=options.seed,
        seeds=options.all_seeds,
        iterations=options.iterations,
        trials=trials,
        presets=shown,
        policies={job.key: job.policy for job in grid},
        planned=len(grid),
    )
    write(folder, document)
    return document


def _resume(store: TrialStore, jobs: list[Job]) -> set[str]:
    """Keys of ``jobs`` that are complete; a failed one is tried again."""
    finished = store.finished()
    return {job.key for job in jobs if job.key in finished and finished[job.key].complete}


def compare(
    policy: Policy,
    lake: Lake,
    calibration: Calibration,
    options: Options,
    *,
    workers: int,
    progress: Callable[[int, str], None] = lambda done, text: None,
) -> list[dict[str, Any]]:
    """``policy`` and every baseline on the same seeds, without a study; rows as in a result."""
    from xtune.executor import open_executor
    from xtune.policies.presets import preset

    names = BASELINES
    rivals = [p for p in map(preset, names) if p != policy]
    named = {p.name: p for p in rivals}
    # A file may bear a preset's name: both are shown.
    named[policy.name if policy.name not in named else f"{policy.name} (given)"] = policy
    jobs = [
        Job(
            key=name,
            params={"preset": name},
            policy=p,
            seeds=options.all_seeds,
            iterations=options.iterations,
        )
        for name, p in sorted(named.items(), key=lambda item: item[1] is not policy)
    ]
    rows = []
    outcomes = run_jobs(
        jobs,
        calibration,
        pool=lambda: open_executor("local", workers),
        cache=lake.root / "studies" / ".phases",
    )
    for outcome in outcomes:
        rows.append({"name": outcome.key, **summary(outcome)})
        progress(len(rows), outcome.key)
    return rows
