"""Runs a study, and compares a policy with the baselines without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xtune.files import write_atomically
from xtune.studies._base import BASELINES, Study
from xtune.studies._evaluate import Evaluator, Progress
from xtune.studies._folder import held_folder
from xtune.studies._leases import Leases, NoLeases
from xtune.studies._options import Options
from xtune.studies._result import summary, write
from xtune.studies._space import check
from xtune.studies._stages import Stages
from xtune.studies._storage import network_warning, opened, repair_journal, shared
from xtune.studies._work import Job, Workers, run_jobs

if TYPE_CHECKING:
    from xtune.lake import Lake
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration


def run_study(
    study: Study,
    lake: Lake,
    calibration: Calibration,
    options: Options,
    *,
    pool: Callable[[], AbstractContextManager[Executor]],
    progress: Callable[[Progress], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    folder: Path | None = None,
    base: Policy | None = None,
    files: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    """Run what is missing, then write and return the result document.

    Starts and resumes alike: an evaluation that is stored is never repeated. The result depends on
    study, calibration, seed, seeds, iterations and trials; not on workers, interruptions or order.

    Args:
        study: What to search.
        lake: Where the study's folder is.
        calibration: The simulator's.
        options: How.
        pool: Opens an executor for the evaluations.
        progress: Called after each evaluation.
        note: Called with a line for the user.
        folder: The study's; ``None``: the one of its name, where another calibration's gives way.
        base: The policy whose fields are searched; ``None``: the preset that the study names.
        files: What is kept beside the trials, by name.

    Raises:
        StudyError: The study cannot be run, or the storage cannot be opened or holds another.
    """
    check(study)
    mark, url = calibration.fingerprint, options.storage
    with held_folder(lake, study.name, mark, url, folder) as (folder, moved):
        if moved:
            note(f"the calibration is new: the old study is now {moved}")
        warning = network_warning(folder, url)
        if warning:
            note(warning)
        torn = repair_journal(folder / "journal.log") if not options.storage else None
        if torn:
            note(f"the journal had a torn tail (a killed process): moved to {torn}")
        name = f"{study.name}@{calibration.fingerprint}"
        cache = lake.root / "studies" / ".phases"
        with ExitStack() as stack:
            storage = stack.enter_context(opened(folder, options.storage))
            workers = stack.enter_context(Workers(pool))
            leases: Leases | NoLeases = NoLeases()
            if shared(options.storage):
                leases = stack.enter_context(Leases(storage, f"{name}#leases", note))
            evaluator = Evaluator(
                workers,
                leases,
                cache=cache,
                deadline=time.monotonic() + options.timeout_s,
                progress=progress,
            )
            run = Stages(study, calibration, options, base, evaluator)
            run.stores(storage, name)
            for file, content in (files or {}).items():
                write_atomically(folder / file, content)
            document = run.all(note)
        write(folder, document)
    return document


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

    rivals = [p for p in map(preset, BASELINES) if p != policy]
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
            calibration=calibration,
        )
        for name, p in sorted(named.items(), key=lambda item: item[1] is not policy)
    ]
    rows = []
    with Workers(lambda: open_executor("local", workers)) as pool:
        for outcome in run_jobs(jobs, pool, cache=lake.root / "studies" / ".phases"):
            rows.append({"name": outcome.key, **summary(outcome)})
            progress(len(rows), outcome.key)
    return rows
