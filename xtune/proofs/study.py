"""The runs of the study: a process each, in order of importance, resumable at any point."""

from __future__ import annotations

import fcntl
import json
import multiprocessing as mp
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from xtune.errors import StudyError, UsageError
from xtune.files import write_atomically
from xtune.proofs.corpus import Corpus, documents, tokenized
from xtune.proofs.course import Settings
from xtune.proofs.methods import methods
from xtune.proofs.model import Shape
from xtune.proofs.training import branch, warm_start

GUESSED_ITERATION_S = 0.3  # on one core, before anything was measured
_CONTEXT = mp.get_context("spawn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run: the warm start of a seed (no method) or a branch of it."""

    seed: int
    method: str | None = None

    @property
    def name(self) -> str:
        """For people and files."""
        return f"{self.method or 'warm'}.seed{self.seed}"


class Study:
    """A folder with what has been run so far.

    Args:
        folder: made if it is not there.
        settings: of all runs in it.
        source: text to train on, None for the default.

    Raises:
        UsageError: the folder holds runs under other settings.
        InputError: there is no corpus.
    """

    def __init__(self, folder: Path, settings: Settings, source: Path | None = None) -> None:
        self.folder = folder
        self.settings = settings
        for name in ("warm", "runs", "checkpoints"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        about = folder / "settings.json"
        asked = {"settings": settings.to_json(), "corpus": None if source is None else str(source)}
        if about.exists() and json.loads(about.read_text(encoding="utf-8")) != asked:
            raise UsageError(f"{folder}: holds runs with other settings", "choose another --out")
        if not self._corpus_path.exists():
            self._say("reading the corpus")
            tokenized(*documents(source), settings.shape.vocabulary).save(self._corpus_path)
        write_atomically(about, (json.dumps(asked, indent=1) + "\n").encode())
        self.corpus = Corpus.load(self._corpus_path)

    @property
    def _corpus_path(self) -> Path:
        return self.folder / "corpus.npz"

    def warm_path(self, seed: int) -> Path:
        """The warm start of a seed."""
        return self.folder / "warm" / f"seed{seed}.pt"

    def run_path(self, job: Job) -> Path:
        """Where the result of a run lies."""
        return self.folder / "runs" / f"{job.name}.json"

    def is_done(self, job: Job) -> bool:
        """Whether it need not run any more."""
        return (self.warm_path(job.seed) if job.method is None else self.run_path(job)).exists()

    def results(self) -> dict[str, dict[int, dict[str, Any]]]:
        """All finished runs, by method and seed."""
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for path in sorted((self.folder / "runs").glob("*.json")):
            run = json.loads(path.read_text(encoding="utf-8"))
            found.setdefault(run["method"], {})[int(run["seed"])] = run
        return found

    def run(self, names: Sequence[str], seeds: Sequence[int], jobs: int) -> None:
        """Run what is not there yet, warm starts first, then method by method.

        Raises:
            StudyError: a run failed, or another process is at work in the folder.
        """
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StudyError(f"{self.folder}: another process is at work in it") from error
            warm = [Job(seed=seed) for seed in seeds]
            branches = [Job(seed=seed, method=name) for name in names for seed in seeds]
            for part in (warm, branches):
                self._run_all([job for job in part if not self.is_done(job)], jobs)

    def _run_all(self, waiting: list[Job], jobs: int) -> None:
        if not waiting:
            return
        iterations = self.settings.warm if waiting[0].method is None else self.settings.steps
        guess = len(waiting) * iterations * GUESSED_ITERATION_S / jobs
        self._say(f"{len(waiting)} runs of {iterations} iterations: about {_duration(guess)}")
        total, begun = len(waiting), time.monotonic()
        running: dict[Any, tuple[Any, Job]] = {}  # by the process's sentinel
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    job = waiting.pop(0)
                    process = _CONTEXT.Process(target=_work, args=(self.folder, job))
                    process.start()
                    running[process.sentinel] = (process, job)
                for sentinel in wait(list(running)):
                    process, job = running.pop(sentinel)
                    process.join()
                    if process.exitcode or not self.is_done(job):
                        raise StudyError(f"{job.name} failed", "what it said is above")
                    done = total - len(waiting) - len(running)
                    left = (time.monotonic() - begun) / done * (total - done)
                    self._say(f"{job.name} done, {done} of {total}; {_duration(left)} left")
        finally:
            for process, _ in running.values():
                process.terminate()
                process.join()

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def _work(folder: Path, job: Job) -> None:
    """One job, in a process of its own, which ends with the one that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(OSError):
        os.nice(10)
    asked = json.loads((folder / "settings.json").read_text(encoding="utf-8"))["settings"]
    settings = Settings(**{**asked, "shape": Shape(**asked["shape"])})
    corpus = Corpus.load(folder / "corpus.npz")
    begun, cpu = time.monotonic(), time.process_time()

    def say(line: str) -> None:
        took = _duration(time.monotonic() - begun)
        print(f"{job.name}: {line}, {took}", file=sys.stderr, flush=True)

    warm = folder / "warm" / f"seed{job.seed}.pt"
    if job.method is None:
        warm_start(settings, corpus, job.seed, warm, say)
        return
    checkpoint = folder / "checkpoints" / f"{job.name}.pt"
    result = branch(
        settings, corpus, job.seed, methods()[job.method],
        warm=warm, checkpoint=checkpoint, say=say,
    )  # fmt: skip
    result |= {
        "method": job.method,
        "seed": job.seed,
        "cpu_s": time.process_time() - cpu,  # since it was last resumed
    }
    text = json.dumps(result, allow_nan=False) + "\n"
    write_atomically(folder / "runs" / f"{job.name}.json", text.encode())
    checkpoint.unlink(missing_ok=True)


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
