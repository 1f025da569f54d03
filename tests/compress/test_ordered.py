"""The engine's thread: order, errors, and an end before the interpreter's own."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest
import torch

from xtune.policies.compress.ordered import OrderedQueue


def engine_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "xtune"]


def test_jobs_run_in_the_order_given_and_errors_reach_who_waits() -> None:
    queue, seen = OrderedQueue(), []

    def job(index: int) -> torch.Tensor:
        seen.append(index)
        if index == 2:
            raise ValueError("two")
        return torch.tensor(float(index))

    futures = [queue.submit(lambda i=i: job(i)) for i in range(5)]  # type: ignore[misc]
    with pytest.raises(RuntimeError, match="ValueError: two"):
        futures[2].wait()
    assert [float(f.wait()) for i, f in enumerate(futures) if i != 2] == [0.0, 1.0, 3.0, 4.0]
    assert seen == [0, 1, 2, 3, 4]
    queue.close()
    assert engine_threads() == []


class Held:
    """What a job needs."""


def test_an_error_that_is_kept_keeps_nothing_of_the_job() -> None:
    queue, found = OrderedQueue(), []

    def job() -> torch.Tensor:
        needed = Held()
        found.append(weakref.ref(needed))
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    future = queue.submit(job)
    with pytest.raises(RuntimeError, match="second"):
        future.wait()
    queue.close()
    assert found[0]() is None
    del future


def test_a_queue_that_is_forgotten_ends_its_thread() -> None:
    queue = OrderedQueue()
    queue.submit(lambda: torch.zeros(1)).wait()
    assert len(engine_threads()) == 1
    del queue
    gc.collect()
    assert engine_threads() == []


def test_the_thread_ends_before_the_interpreter() -> None:
    """A handler registered earlier runs later, and finds the thread gone."""
    code = (
        "import atexit, threading\n"
        "names = lambda: [t.name for t in threading.enumerate()]\n"
        "atexit.register(lambda: print('left:', 'xtune' in names()))\n"
        "import torch\n"
        "from xtune.policies.compress.ordered import OrderedQueue\n"
        "queue = OrderedQueue()\n"
        "queue.submit(lambda: torch.zeros(1)).wait()\n"
        "print('before:', 'xtune' in names())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["before: True", "left: False"]
