"""Where independent work runs: one seam, ``concurrent.futures.Executor``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from xtune.errors import UsageError

# Time in which a Dask scheduler must answer.
_CONNECT_S = 30


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
def open_executor(engine: str, workers: int, scheduler: str = "") -> Iterator[Executor]:
    """An executor with ``workers`` processes; interrupts are left to the coordinator.

    Args:
        engine: ``local``: spawned processes on this host. ``dask``: the workers of a Dask cluster,
            which see the same files under the same paths and have the same xtune.
        workers: At least 1; a cluster that runs already has its own number.
        scheduler: Address of a cluster that runs, such as ``tcp://head:8786``; empty: a cluster
            of processes on this host, for as long as the executor is open.

    Raises:
        UsageError: An engine that is not known or not installed, no worker, or no cluster there.
    """
    if workers < 1:
        raise UsageError(f"workers = {workers} is below 1", "leave it out for one a core")
    if engine == "local":
        with _processes(workers) as pool:
            yield pool
    elif engine == "dask":
        with _dask(workers, scheduler) as pool:
            yield pool
    else:
        raise UsageError(f"engine {engine!r} is not known", "use --engine local or dask")


def workers_of(executor: Executor) -> int:
    """How many calls an executor of :func:`open_executor` runs at once."""
    own = vars(executor)
    if "_client" not in own:  # of processes or threads here
        return int(own["_max_workers"])
    threads: dict[str, int] = own["_client"].nthreads()
    return max(1, sum(threads.values()))


@contextmanager
def _processes(workers: int) -> Iterator[Executor]:
    pool = ProcessPoolExecutor(
        workers, mp_context=_Workers(), initializer=_end_with_the_coordinator
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _dask(workers: int, scheduler: str) -> Iterator[Executor]:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise UsageError(
            "engine dask is not installed", "pip install 'xtune[dask]', or --engine local"
        ) from error
    with ExitStack() as stack:
        where: str | LocalCluster = scheduler
        if not scheduler:
            where = LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
            )
            stack.callback(where.close)
        try:
            client = Client(where, timeout=_CONNECT_S)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {scheduler}: {str(error).splitlines()[0]}",
                "start one with dask scheduler, or leave the address out",
            ) from error
        stack.callback(client.close)
        # Two calls with the same arguments may find different files: nothing is pure.
        pool = client.get_executor(pure=False)  # type: ignore[no-untyped-call]
        stack.callback(pool.shutdown, wait=False)
        yield pool
