"""Where independent work runs: one seam, ``concurrent.futures.Executor``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from xtune.errors import UsageError


class _Worker(SpawnProcess):
    """A process that never sees an interrupt: blocked signals are inherited from the start on."""

    def start(self) -> None:
        resource_tracker.ensure_running()  # starting it unblocks the signal again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Workers(SpawnContext):
    Process = _Worker


def _end_with_the_coordinator() -> None:
    """A killed coordinator leaves nobody to work for: end, and do not wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def open_executor(engine: str, workers: int) -> Iterator[Executor]:
    """An executor with ``workers`` processes; interrupts are left to the coordinator.

    Args:
        engine: ``local``: spawned processes on this host.
        workers: At least 1.

    Raises:
        UsageError: An engine that is not known, or no worker.
    """
    if engine != "local":
        raise UsageError(f"engine {engine!r} is not known", "use --engine local")
    if workers < 1:
        raise UsageError(f"workers = {workers} is below 1", "leave it out for one a core")
    pool = ProcessPoolExecutor(
        workers, mp_context=_Workers(), initializer=_end_with_the_coordinator
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
