"""Training jobs that hang, and the Flight Recorder dumps they leave.

Ranks run a program of collectives, sends and receives on a grid of tensor, pipeline and data
parallel groups until a fault stops some of them, and the others run into it. An operation runs
once it is at its turn on all its ranks: on each, when all before it but sends are done. A host
enqueues ahead of its device, by a limit.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

BEGIN_NS = 1_772_445_600_000_000_000
_SHAPES = {"all_reduce": [[256]], "_all_gather_base": [[64]], "_reduce_scatter_base": [[256]]}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation of a program; ``key`` is the same on all ranks that take part in it."""

    comm: str
    op: str
    peer: int | None
    key: tuple[Any, ...]
    number: int  # collective_seq_id or p2p_seq_id
    collectives: int


@dataclass(kw_only=True)
class Rank:
    """One rank: its program, and how far it has come."""

    rank: int
    program: list[Step] = field(default_factory=list)
    enqueued: int = 0
    done: set[int] = field(default_factory=set)
    times: list[int] = field(default_factory=list)
    host_stops: int | None = None  # at this place of its program
    seen: int | None = None  # completions that the watchdog saw before it stopped too


class Job:
    """A job of ``tp`` x ``pp`` x ``dp`` ranks."""

    def __init__(
        self, *, tp: int, pp: int, dp: int, steps: int, batches: int, ahead: int, seed: int
    ) -> None:
        self._random = random.Random(seed)
        self._ahead = ahead
        self.groups: dict[str, list[int]] = {}
        self.ranks = [Rank(rank=r) for r in range(tp * pp * dp)]
        self._counts: dict[int, Counter[Any]] = defaultdict(Counter)
        grid = {(t, d, p): t + tp * (d + dp * p)
                for p in range(pp) for d in range(dp) for t in range(tp)}  # fmt: skip
        world = self._add(list(range(tp * pp * dp)))
        tensor = self._split(grid, 0)
        data = self._split(grid, 1)
        pipe = self._split(grid, 2)
        for (t, d, p), rank in grid.items():
            for _ in range(steps):
                for _ in range(batches):  # forward
                    if p > 0:
                        self._say(rank, pipe[rank], "recv", grid[t, d, p - 1])
                    self._say(rank, tensor[rank], "_all_gather_base")
                    self._say(rank, tensor[rank], "_reduce_scatter_base")
                    if p < pp - 1:
                        self._say(rank, pipe[rank], "send", grid[t, d, p + 1])
                for _ in range(batches):  # backward
                    if p < pp - 1:
                        self._say(rank, pipe[rank], "recv", grid[t, d, p + 1])
                    self._say(rank, tensor[rank], "all_reduce")
                    if p > 0:
                        self._say(rank, pipe[rank], "send", grid[t, d, p - 1])
                self._say(rank, data[rank], "all_reduce")
                self._say(rank, world, "all_reduce")

    def run(self) -> None:
        """Until nothing moves any more."""
        now, moved = BEGIN_NS, True
        while moved:
            moved = False
            for rank in self._random.sample(self.ranks, len(self.ranks)):
                limit = len(rank.program) if rank.host_stops is None else rank.host_stops
                while rank.enqueued < limit and rank.enqueued - len(rank.done) < self._ahead:
                    now += 1000
                    rank.times.append(now)
                    rank.enqueued += 1
                    moved = True
            ready: Counter[tuple[Any, ...]] = Counter()
            at: dict[tuple[Any, ...], list[tuple[Rank, int]]] = defaultdict(list)
            for rank in self.ranks:
                for place in self._turns(rank):
                    key = rank.program[place].key
                    ready[key] += 1
                    at[key].append((rank, place))
            for key, count in ready.items():
                size = len(self.groups[key[0]]) if key[1] == "collective" else 2
                if count == size:
                    moved = True
                    for rank, place in at[key]:
                        rank.done.add(place)

    def dumps(self, *, ring: int | None = None) -> dict[int, dict[str, Any]]:
        """Rank -> dump: what is under way, or the last ``ring`` operations."""
        return {rank.rank: self._dump(rank, ring) for rank in self.ranks}

    def _turns(self, rank: Rank) -> list[int]:
        found = []
        for place in range(rank.enqueued):
            if place not in rank.done:
                found.append(place)
                if rank.program[place].op != "send":
                    break
        return found

    def _dump(self, rank: Rank, ring: int | None) -> dict[str, Any]:
        done = rank.done if rank.seen is None else {p for p in rank.done if p < rank.seen}
        names = sorted((n for n, ranks in self.groups.items() if rank.rank in ranks), key=int)
        places = range(rank.enqueued) if ring is None else range(rank.enqueued)[-ring:]
        last: dict[str, dict[str, int]] = {
            name: dict.fromkeys(
                ("last_enqueued_collective", "last_started_collective",
                 "last_completed_collective"), -1)
            for name in names
        }  # fmt: skip
        for place in range(rank.enqueued):
            step = rank.program[place]
            last[step.comm]["last_enqueued_collective"] = step.number
            if place in done:
                last[step.comm]["last_completed_collective"] = step.number
        return {
            "version": "2.9",
            "nccl_version": "2.27.3",
            "pg_config": {
                name: {"name": name, "desc": f"g{name}", "ranks": json.dumps(self.groups[name])}
                for name in names
            },
            # Numbers of groups within a process leave out what it is no part of.
            "pg_status": {str(3 * i): last[name] for i, name in enumerate(names)},
            "entries": [
                self._entry(rank, place, names, place in done)
                for place in places
                if ring is not None or place not in done
            ],
        }

    def _entry(self, rank: Rank, place: int, names: list[str], done: bool) -> dict[str, Any]:
        step = rank.program[place]
        pair = step.peer is not None
        group = self.groups[step.comm]
        ends = ""
        if step.peer is not None:
            arrow = "->" if step.op == "send" else "<-"
            ends = f" {group.index(rank.rank)}{arrow}{group.index(step.peer)}"
        return {
            "record_id": place,
            "pg_id": 3 * names.index(step.comm),
            "process_group": (step.comm, f"g{step.comm}"),
            "collective_seq_id": step.collectives if pair else step.number,
            "p2p_seq_id": step.number if pair else 0,
            "profiling_name": f"nccl:{step.op}{ends}",
            "time_created_ns": rank.times[place],
            "input_sizes": _SHAPES.get(step.op, [[128]]),
            "input_dtypes": ["BFloat16"],
            "output_sizes": _SHAPES.get(step.op, [[128]]),
            "output_dtypes": ["BFloat16"],
            "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": done,
            "timeout_ms": 600_000,
            "is_p2p": pair,
        }

    def _add(self, ranks: list[int]) -> str:
        name = str(2 * len(self.groups))
        self.groups[name] = ranks
        return name

    def _split(self, grid: dict[tuple[int, int, int], int], axis: int) -> dict[int, str]:
        """Groups along one axis: rank -> its group."""
        along: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, rank in grid.items():
            along[place[:axis] + place[axis + 1 :]].append(rank)
        names = {key: self._add(ranks) for key, ranks in along.items()}
        return {r: names[place[:axis] + place[axis + 1 :]] for place, r in grid.items()}

    def _say(self, rank: int, comm: str, op: str, peer: int | None = None) -> None:
        counts = self._counts[rank]
        if peer is None:
            counts[comm] += 1
            key: tuple[Any, ...] = (comm, "collective", counts[comm])
            number = counts[comm]
        else:
            ends = (rank, peer) if op == "send" else (peer, rank)
            counts[comm, "pairs"] += 1
            counts[comm, ends] += 1
            key = (comm, *ends, counts[comm, ends])
            number = counts[comm, "pairs"]
        self.ranks[rank].program.append(
            Step(comm=comm, op=op, peer=peer, key=key, number=number, collectives=counts[comm])
        )
