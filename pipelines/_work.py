"""How the work of a rebuild is done: by whom, with what, and which share of it."""

from __future__ import annotations

import re
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from xtune.errors import UsageError
from xtune.pipelines._engine import Session, connect
from xtune.pipelines.rules import EpisodeRules

Bounds = tuple[str | None, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One of several processes that share the work between them.

    Attributes:
        index: Which, from 0.
        count: Of how many.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``i/n``; i may count from 0 (``sbatch --array=0-3``) or from 1 (``--array=1-4``).

        The shares of an array are the same either way: n/n is another name of 0/n.

        Raises:
            UsageError: It is no such thing.
        """
        left, _, right = text.partition("/")
        if not (left.isdecimal() and right.isdecimal()) or not 0 <= int(left) <= int(right) != 0:
            raise UsageError(
                f"--shard {text} is not i/n",
                "such as --shard $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT with --array=0-3",
            )
        return cls(index=int(left) % int(right), count=int(right))


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """How the work of a rebuild is done.

    Attributes:
        rules: What counts as congestion.
        memory: Most memory that DuckDB uses in this process; None for its default.
        threads: Threads that DuckDB uses in this process; None for its default.
        executor: Where ranges of links run side by side; None runs them here.
        workers: How many run at once.
        worker_memory: As ``memory``, in each worker of the executor.
        worker_threads: As ``threads``, in each worker of the executor.
        shard: The share that this process does; None does all of it.
    """

    rules: EpisodeRules
    memory: str | None = None
    threads: int | None = None
    executor: Executor | None = None
    workers: int = 1
    worker_memory: str | None = None
    worker_threads: int | None = None
    shard: Shard | None = None

    def connect(self, scratch: Path | None = None) -> Session:
        """A session with the rules as its variables.

        Args:
            scratch: Folder for what does not fit into memory.
        """
        session = connect(threads=self.threads, memory=self.memory, scratch=scratch)
        session.set_variables(self.rules.to_json())
        return session


def memory_share(memory: str | None, count: int) -> str | None:
    """A part of an amount of memory such as ``4GB``."""
    if memory is None:
        return None
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?i?B)\s*", memory)
    return memory if found is None else f"{float(found[1]) / count:.3f}{found[2]}"


def cut(links: list[str], count: int) -> list[Bounds]:
    """``count`` contiguous ranges of sorted links, as even as can be; none is without a link."""
    count = max(1, min(count, len(links)))
    edges = [links[len(links) * part // count] for part in range(1, count)]
    return list(zip([None, *edges], [*edges, None], strict=True))


def within(link: str, bounds: Bounds) -> bool:
    """Whether a range has a link."""
    low, high = bounds
    return (low is None or link >= low) and (high is None or link < high)


def tiled(ranges: list[Bounds]) -> list[Bounds]:
    """Ranges that together have every link once: those given, by rising link, and the gaps."""
    found: list[Bounds] = []
    reached: str | None = None
    for low, high in ranges:
        if found and found[-1][1] is None:
            break
        if low != reached:
            if low is None or (reached is not None and low < reached):
                continue
            found.append((reached, low))
        found.append((low, high))
        reached = high
    if not found or found[-1][1] is not None:
        found.append((reached, None))
    return found
