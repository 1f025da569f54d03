"""Runs a function on several real processes joined by gloo, and returns what each returned.

A fork server imports torch and the engine once and every rank is a fork of it: processes start in
milliseconds. Set-up goes by a file, so no port can collide.
"""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

LIMIT_S = 120.0  # a hang must fail its test, on a busy machine too
_CONTEXT = mp.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "tests.compress.preload"])


class Lines(logging.Handler):
    """Keeps what the engine said on this rank; for good, so not for a test's own process."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logger = logging.getLogger("xtune")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def take(self) -> list[str]:
        """What was said since the last call."""
        said, self.lines = self.lines, []
        return said


def join(rank: int, world: int, store: str) -> None:
    """Make this process one rank of a gloo group on the loopback device."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=LIMIT_S / 2),
    )


def _rank(
    rank: int,
    world: int,
    store: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    pipe: Connection,
) -> None:
    try:
        if world == 0:
            pipe.send((function(rank, world, *args), None))
            return
        join(rank, world, store)
        pipe.send((function(rank, world, *args), None))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        pipe.send((None, traceback.format_exc()))


def run(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call ``function(rank, world, *args)`` on ``world`` processes; results in rank order.

    With ``world`` 0 one process runs it without any group.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes, pipes = [], []
        for rank in range(max(1, world)):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_rank, args=(rank, world, store, function, args, theirs), daemon=True
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        deadline = time.monotonic() + LIMIT_S
        results, errors = [], []
        try:
            for rank, pipe in enumerate(pipes):
                try:
                    if not pipe.poll(max(1.0, deadline - time.monotonic())):
                        raise TimeoutError(f"rank {rank} hangs")
                    result, error = pipe.recv()
                except (EOFError, TimeoutError) as ended:
                    result, error = None, repr(ended)
                results.append(result)
                if error is not None:
                    errors.append(f"rank {rank}:\n{error}")
            if errors:
                raise RuntimeError("\n".join(errors))
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
        return results


def leave_alone(rank: int, training: Callable[[], object]) -> None:
    """The last rank ends without a word; on the others, training ends with torch's error."""
    if rank == dist.get_world_size() - 1:
        os._exit(3)
    with pytest.raises(RuntimeError):
        training()


def outlive(world: int, function: Callable[..., Any]) -> None:
    """Assert that all ends soon, and well on all ranks but the last, which `leave_alone` ends."""
    began = time.monotonic()
    with pytest.raises(RuntimeError) as ended:
        run(world, function)
    said = str(ended.value)
    assert f"rank {world - 1}:" in said and "EOFError" in said
    assert not any(f"rank {rank}:" in said for rank in range(world - 1))
    assert time.monotonic() - began < LIMIT_S / 2
