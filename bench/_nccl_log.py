"""Writes logs as NCCL and RCCL print them, of several ranks in one stream, for benchmark and test.

Source of the lines: INFO calls in src/init.cc and src/enqueue.cc of NCCL 2.4 to 2.30 and RCCL.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_DTYPES = (7, 7, 9, 9, 6, 0, 1, 4)
_NOISE = (
    "Channel 03/0 : 7[7] -> 8[0] [send] via NET/IB/3/GDRDMA",
    "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->3 [2] 1/-1/-1->0->-1 [3] -1/-1/-1->0->3",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.7<0>",
    "threadThresholds 8/8/64 | 128/8/64 | 512 | 512",
    "misc/utils.cc:233 memory stack hunk malloc(65536)",
    "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels",
    "NCCL_IB_HCA set by environment to mlx5",
)
_PRINTS = (
    "Using device: cuda:0, Local Rank: 0",
    "epoch 0 | 1200/5000 batches | 812.4 samples/s | data 0.003 s",
    "[INFO] dataloader: prefetch queue 48/64, shuffle buffer 100%",
    "",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What a log looks like.

    Attributes:
        ranks: How many write into it, eight on a host.
        groups: Sizes of the communicators beside the one of all ranks.
        prefix: What a launcher puts before a line, from the rank and the number of the line.
        init: Whether there are Init lines.
        tuning: Share of a first rank's operations with a TUNING line.
        names: Whether TUNING prints names (2.24 and later), else numbers.
        rccl: Whether the lines are RCCL's.
        noise: Share of other lines of NCCL.
        prints: Share of lines of the training script.
        many: How many operations of one rank follow each other.
    """

    ranks: int = 16
    groups: tuple[int, ...] = (8, 4, 2)
    prefix: Callable[[int, int], str] = field(default=lambda rank, line: "")
    init: bool = True
    tuning: float = 1.0
    names: bool = True
    rccl: bool = False
    noise: float = 0.03
    prints: float = 0.03
    many: int = 1


def lines(shape: Shape, seed: int) -> Iterator[str]:
    """Lines without end, one after the other; the caller stops.

    All ranks make the same calls; within a round their lines come in any order.
    """
    draw = random.Random(seed)
    number = 0
    comms = [(size, 0x5500_0000_0000 + size * 0x10_0000) for size in (shape.ranks, *shape.groups)]

    def say(rank: int, body: str) -> str:
        nonlocal number
        number += 1
        pid = 4000 + rank
        return (
            f"{shape.prefix(rank, number)}node-{rank // 8:02d}:{pid}:{pid + 7}"
            f" [{rank % 8}] NCCL INFO {body}"
        )

    yield "NCCL version 2.27.5+cuda12.9"
    if shape.init:
        for event in ("START", "COMPLETE"):
            for rank in range(shape.ranks):
                for size, pointer in comms:
                    unique = 0xA30F_49AF_CC93_0000 + size * 256 + rank // size
                    yield say(
                        rank,
                        f"ncclCommInitRankConfig comm {pointer + rank * 64:#x} rank {rank % size}"
                        f" nranks {size} cudaDev {rank % 8} nvmlDev {rank % 8} busId 41000"
                        f" commId {unique:#x} - Init {event}",
                    )
    step = 0
    while True:
        size, pointer = draw.choice(comms)
        calls = [_call(draw, size) for _ in range(shape.many)]
        order = list(range(shape.ranks))
        draw.shuffle(order)
        for rank in order:
            for name, count, dtype, redop, root in calls:
                buffer = 0x7F00_0000_0000 + draw.getrandbits(36)
                acc = " acc (nil)" if shape.rccl else ""
                task = f" task {draw.randrange(4)} globalrank {rank}" if shape.rccl else ""
                yield say(
                    rank,
                    f"{name}: opCount {step:x} sendbuff {buffer:#x} recvbuff {buffer:#x}{acc}"
                    f" count {count} datatype {dtype} op {redop} root {root}"
                    f" comm {pointer + rank * 64:#x} [nranks={size}]"
                    f" stream {0x5630_BDB8_0000 + rank * 4096:#x}{task}",
                )
                if rank % size == 0 and name[0] in "AR" and draw.random() < shape.tuning:
                    yield say(rank, _tuning(draw, shape, name, count, dtype, size))
                if draw.random() < shape.noise:
                    yield say(rank, draw.choice(_NOISE))
                if draw.random() < shape.prints:
                    yield draw.choice(_PRINTS)
        step += 1


def _call(draw: random.Random, size: int) -> tuple[str, int, int, int, int]:
    name = draw.choice(
        ("AllReduce", "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv")
    )
    count = draw.choice((1, 3145, 2**20, 9984512, 2359808))
    if name in ("Send", "Recv"):  # between stages of a pipeline
        return name, count, 9, 0, draw.choice((1, size - 1))
    redop = draw.choice((0, 0, 4)) if "Reduce" in name else 0
    root = draw.choice((0, 0, 0, size - 1)) if name == "Broadcast" else 0
    return name, count, draw.choice(_DTYPES), redop, root


def _tuning(
    draw: random.Random, shape: Shape, name: str, count: int, dtype: int, size: int
) -> str:
    width = {0: 1, 1: 1, 4: 8, 6: 2, 7: 4, 9: 2}[dtype]
    factor = size if name in ("AllGather", "ReduceScatter") and draw.random() < 0.5 else 1
    size_bytes = count * width * factor
    if shape.names:
        algorithm, protocol = draw.choice(("RING", "TREE", "NVLS")), draw.choice(("LL", "SIMPLE"))
        rest = "channel{Lo..Hi}={0..23}"
    else:
        algorithm, protocol = str(draw.randrange(6)), str(draw.randrange(3))
        rest = "time 92.100002"
    return f"{name}: {size_bytes} Bytes -> Algo {algorithm} proto {protocol} {rest}"
