"""One rank's share of the work in a compressed reduce-scatter, against a copy of the gradient.

A module of 300 parameters and 16 MB in fp32, for each of as many ranks: chunks are encoded with a
residual kept, and as many arrive and are summed. The network is a copy within the process, which
is counted. With 1024 ranks a parameter's chunk is 14 elements: at a block of 256 it travels as
bf16, while one of 16 quantises each of the 307,200 chunks by itself and shows what one costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from xtune.policies.compress.chunk_codec import best_chunks
from xtune.policies.compress.header import Header
from xtune.policies.compress.residual import ResidualStore
from xtune.policies.compress.scatter import Scatter, Shards, shard_table
from xtune.policies.compress.workspace import Workspace

RUNS = 9
PARAMETERS = 300
ELEMENTS = 14 * 1024  # of each parameter, over all ranks
BITS = 4
CASES = {  # ranks, elements of a block
    "scatter_1024": (1024, 16, "every chunk quantised by itself, block 16"),
    "scatter_1024_bf16": (1024, 256, "block 256, at which chunks of 14 travel as bf16"),
    "scatter_8": (8, 256, "block 256"),
}
NAMES = tuple(f"policies.{case}_vs_copy" for case in CASES)


class _Loopback:
    """What a rank sends comes back to it."""

    rank = 0

    def __init__(self, world: int) -> None:
        self.world = world

    def all_to_all(self, received: Tensor, sent: Tensor) -> None:
        received.copy_(sent)


def _step(world: int, block: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A copy of the gradient, and one iteration's work on it."""
    shard = ELEMENTS // world
    table = shard_table(
        [f"layer{i}" for i in range(PARAMETERS)], [shard] * PARAMETERS, spread=world, world=1,
        block=block, dense_below=1,
    )  # fmt: skip
    store = ResidualStore(decay=0.5, enabled=True)
    codec = best_chunks(block=block)
    scatter = Scatter(_Loopback(world), table, codec, store, Workspace())  # type: ignore[arg-type]
    whole = torch.randn(PARAMETERS * ELEMENTS, generator=torch.Generator().manual_seed(0))
    out, copied = torch.zeros(PARAMETERS * shard), torch.zeros_like(whole)
    bucket = Shards(
        index=0, layers=tuple(range(PARAMETERS)), buffer=out, whole=whole, op=dist.ReduceOp.AVG
    )
    header = Header(step=0, bucket=0, digest=0)

    def step() -> None:
        scatter.digest(bucket, (BITS,) * PARAMETERS)
        scatter.prepare(bucket)
        scatter.transfer(bucket, header)
        store.commit()
        store.end(finite=True)

    return lambda: copied.copy_(whole), step


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _row(case: str) -> dict[str, object]:
    world, block, what = CASES[case]
    copy, step = _step(world, block)
    for _ in range(2):  # the second has residuals to carry
        copy(), step()
    pairs = [(_seconds(copy), _seconds(step)) for _ in range(RUNS)]
    copied, taken = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {
        "name": f"policies.{case}_vs_copy",
        "ratio": taken / copied,
        "goal": None,
        "better": "lower",
        "value": taken / (PARAMETERS * world) * 1e9,
        "unit": "ns/chunk",
        "against": f"copy of the same fp32 gradient, one thread; {world} ranks, {what}",
        "runs": RUNS,
    }


def run() -> list[dict[str, object]]:
    """Medians of single iterations and copies in turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(case) for case in CASES]
    finally:
        torch.set_num_threads(threads)
