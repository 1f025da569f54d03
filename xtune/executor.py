"""Where independent work runs: one seam, ``concurrent.futures.Executor``."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from xtune.errors import UsageError


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def open_executor(engine: str, workers: int) -> Iterator[Executor]:
    """An executor with ``workers`` processes; interrupts are left to the coordinator.

    Args:
        engine: ``local``: spawned processes on this host.
        workers: At least 1.

    Raises:
        UsageError: An engine that is not known.
    """
    if engine != "local":
        raise UsageError(f"engine {engine!r} is not known", "use --engine local")
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupt)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
