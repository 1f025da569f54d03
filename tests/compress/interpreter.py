"""Two processes that interpret Triton's kernels: they chose to before anything imported triton."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .ranks import LIMIT_S, join


class Interpreters:
    """What runs in them."""

    def __init__(self, processes: ProcessPoolExecutor) -> None:
        self._processes = processes

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Of one process."""
        return self._processes.submit(function, *args).result(LIMIT_S)

    def ranks(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """As `run` with two ranks."""
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            waiting = [
                self._processes.submit(_on_rank, rank, 2, store, function, args)
                for rank in range(2)
            ]
            return [one.result(LIMIT_S) for one in waiting]


@contextmanager
def interpreting() -> Iterator[Interpreters]:
    """Start the processes, and end them."""
    context = multiprocessing.get_context("spawn")  # what is forked here has triton already
    with ProcessPoolExecutor(2, mp_context=context, initializer=_interpret) as processes:
        yield Interpreters(processes)


def _on_rank(
    rank: int, world: int, store: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    join(rank, world, store)
    try:
        return function(rank, world, *args)
    finally:
        dist.destroy_process_group()


def _interpret() -> None:
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before it could be told to interpret")
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
