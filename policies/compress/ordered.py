"""One thread that runs what it is given in the order it was given.

DDP hands over buckets in the order of their index on every rank. Running all collectives of all
buckets on this one thread keeps that order; launched from callbacks of futures they interleave
differently from rank to rank, and gloo aborts the process.
"""

from __future__ import annotations

import queue
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_Result = torch.Tensor | Exception
_Jobs = queue.SimpleQueue[Callable[[], None] | None]

# A thread that is inside a collective whose peer is gone must not keep the process.
EXIT_WAIT_S = 5.0


class OrderedQueue:
    """Runs jobs one by one; started by the first job, ends with `close` or before the process.

    The interpreter kills a daemon thread that it finds in C++ at its end, which ends the process
    with an abort; so the thread is told to end, and waited for, before that.
    """

    def __init__(self) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._at_exit: weakref.finalize[[_Jobs, threading.Thread], OrderedQueue] | None = None

    def submit(
        self,
        job: Callable[[], torch.Tensor],
        devices: list[int | str | torch.device] | None = None,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> torch.futures.Future[torch.Tensor]:
        """Run ``job`` after all earlier ones.

        Args:
            job: returns the tensor that the future is to hold.
            devices: accelerators the tensor may be on.
            within: what the job runs in, and its result is given in: a future waits for what is
                under way on the stream that is current then.

        Returns:
            A future of the job's result; its error is raised where the future is waited for,
            also by DDP's reducer, which does not know Python exceptions as results.
        """
        future: torch.futures.Future[_Result] = torch.futures.Future(devices=devices or [])

        def run() -> None:
            with within():
                try:
                    outcome: _Result = job()
                except Exception as error:  # it belongs to whoever waits for the bucket
                    _let_go(error)
                    outcome = error
                future.set_result(outcome)

        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name="xtune", daemon=True
            )
            self._thread.start()
            self._at_exit = weakref.finalize(self, _end, self._jobs, self._thread)
        self._jobs.put(run)
        return future.then(_unwrap)

    def close(self) -> None:
        """Let the jobs that were given finish and end the thread."""
        if self._thread is not None and self._at_exit is not None:
            self._at_exit.detach()
            self._jobs.put(None)
            self._thread.join()
            self._thread = None


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds tensors


def _end(jobs: _Jobs, thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(EXIT_WAIT_S)


def _let_go(error: BaseException | None) -> None:
    """Clear what the frames of an error hold, process groups and tensors, but not where it was.

    DDP keeps a failed bucket's future, and with it the error, as long as the model lives.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _unwrap(future: torch.futures.Future[_Result]) -> torch.Tensor:
    outcome = future.value()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
