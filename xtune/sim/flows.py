"""Flows of one phase and the builders of collective traffic.

The collectives are those of ``bench/reference`` (made for a packet simulator), so that figures can
be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.sim.fabric import Fabric, Routes

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

DRAW = -1  # a spine that the phase draws from its random seed


def _edges() -> I32:
    return np.empty((0, 2), dtype=np.int32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Flows:
    """A set of flows, one array element a flow.

    Attributes:
        src: Sending host, int32.
        dst: Receiving host, int32.
        size: Payload bytes, int64, at least 1.
        start_ns: Earliest release from the start of the phase, int64.
        spine: Primary path, int32: the spine, or the number among the equal-cost paths of the
            two hosts; ``DRAW`` lets the phase draw it (ECMP).
        alternative: Second path, int32; ``DRAW`` lets the phase draw one that differs.
        lane: 0 upper, 1 lower; only used when the policy has two lanes. uint8.
        background: True for flows the phase does not wait for, bool.
        after: Edges (before, then), int32 of shape (edges, 2): ``then`` is released when all its
            ``before`` are delivered, ``release_ns`` later.
        release_ns: Delay of a dependent flow after its last predecessor, int64.
    """

    src: I32
    dst: I32
    size: I64
    start_ns: I64
    spine: I32
    alternative: I32
    lane: NDArray[np.uint8]
    background: NDArray[np.bool_]
    release_ns: I64
    after: I32 = field(default_factory=_edges)

    def __len__(self) -> int:
        return len(self.src)

    def with_paths(
        self, spine: Sequence[int] | I32, alternative: Sequence[int] | I32 | None = None
    ) -> Flows:
        """The same flows on given spines.

        Args:
            spine: Primary spine of each flow.
            alternative: Second spine of each flow; None lets the phase draw it.
        """
        second = self.alternative if alternative is None else np.asarray(alternative, np.int32)
        return replace(self, spine=np.asarray(spine, np.int32), alternative=second)

    def in_background(self, lane: int = 1) -> Flows:
        """The same flows as background traffic, in ``lane``."""
        n = len(self)
        return replace(
            self, background=np.ones(n, dtype=np.bool_), lane=np.full(n, lane, dtype=np.uint8)
        )

    def check(self, fabric: Fabric) -> None:
        """Check that the flows fit the fabric.

        Raises:
            UsageError: a host, size, time or edge that does not exist or is not possible.
        """
        n = len(self)
        columns = (self.dst, self.size, self.start_ns, self.spine, self.alternative, self.lane)
        if any(len(c) != n for c in (*columns, self.background, self.release_ns)):
            raise UsageError("the columns of a flow set differ in length", "use build_flows")
        problems = (
            (_outside(self.src, 0, fabric.hosts), f"src outside 0..{fabric.hosts - 1}"),
            (_outside(self.dst, 0, fabric.hosts), f"dst outside 0..{fabric.hosts - 1}"),
            (self.src == self.dst, "src and dst are the same host"),
            (self.size < 1, "size under 1 byte"),
            (self.start_ns < 0, "start_ns below 0"),
            (self.release_ns < 0, "release_ns below 0"),
            (_outside(self.lane, 0, 2), "lane is neither 0 nor 1"),
        )
        _refuse(problems)
        if len(self.after) and (self.after.min() < 0 or self.after.max() >= n):
            raise UsageError("an edge names a flow that is not there", f"flows are 0..{n - 1}")

    def check_paths(self, routes: Routes) -> None:
        """Check that each flow has the paths it names. Below one leaf any number will do.

        Args:
            routes: Those of the flows.

        Raises:
            UsageError: a path that does not exist, or no path at all.
        """
        near = routes.links == 2
        problems = (
            (routes.count == 0, "no path from src to dst"),
            (~near & _outside(self.spine, DRAW, routes.count), "no such spine or path"),
            (~near & _outside(self.alternative, DRAW, routes.count), "no such alternative"),
        )
        _refuse(problems)


def _refuse(problems: Iterable[tuple[NDArray[np.bool_], str]]) -> None:
    for wrong, text in problems:
        if wrong.any():
            raise UsageError(f"flow {int(np.flatnonzero(wrong)[0])}: {text}", "see Flows")


def _outside(values: NDArray[np.generic], low: int, high: int | I64) -> NDArray[np.bool_]:
    wide = values.astype(np.int64)
    return np.asarray((wide < low) | (wide >= high))


def build_flows(
    src: Sequence[int] | I32,
    dst: Sequence[int] | I32,
    size: int | Sequence[int] | I64,
    *,
    start_ns: int | Sequence[int] | I64 = 0,
    after: Sequence[tuple[int, int]] | I32 = (),
    release_ns: int = 0,
    lane: int = 0,
) -> Flows:
    """Flows from plain columns; single numbers stand for all flows.

    Args:
        src: Sending hosts.
        dst: Receiving hosts.
        size: Payload bytes.
        start_ns: Earliest release.
        after: Edges (before, then).
        release_ns: Delay of dependent flows.
        lane: Lane of all flows.
    """
    n = len(src)
    return Flows(
        src=np.asarray(src, dtype=np.int32),
        dst=np.asarray(dst, dtype=np.int32),
        size=np.array(np.broadcast_to(np.asarray(size, dtype=np.int64), n)),
        start_ns=np.array(np.broadcast_to(np.asarray(start_ns, dtype=np.int64), n)),
        spine=np.full(n, DRAW, dtype=np.int32),
        alternative=np.full(n, DRAW, dtype=np.int32),
        lane=np.full(n, lane, dtype=np.uint8),
        background=np.zeros(n, dtype=np.bool_),
        after=np.asarray(after, dtype=np.int32).reshape(-1, 2),
        release_ns=np.full(n, release_ns, dtype=np.int64),
    )


def join_flows(*parts: Flows) -> Flows:
    """One flow set of several; edges are renumbered."""
    offsets = np.cumsum([0, *(len(p) for p in parts)])
    after = [p.after + np.int32(o) for p, o in zip(parts, offsets, strict=False)]

    def column(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(p, name) for p in parts])

    names = [f.name for f in fields(Flows) if f.name != "after"]
    return Flows(
        after=np.concatenate(after).astype(np.int32),
        **{name: column(name) for name in names},  # type: ignore[arg-type]
    )


def permutation(
    fabric: Fabric, size: int = 8_000_000, *, seed: int = 1, leave_leaf: bool = True
) -> Flows:
    """Each host sends to one other host and receives from one.

    Args:
        fabric: The fabric.
        size: Bytes of each flow.
        seed: Random seed of the permutation.
        leave_leaf: Every flow crosses a spine (the worst case for the uplinks).

    Raises:
        UsageError: no such permutation exists.
    """
    n = fabric.hosts
    own = fabric.leaves_of(np.arange(n)) if leave_leaf else np.arange(n)
    if n < 2 * np.bincount(own).max() or n < 2:
        raise UsageError("a permutation needs at least two leaves", "or leave_leaf=False")
    rng = np.random.default_rng(seed)
    target = rng.permutation(n)
    while True:
        wrong = np.flatnonzero(own[target] == own)
        if not len(wrong):
            return build_flows(np.arange(n, dtype=np.int32), target.astype(np.int32), size)
        for i in wrong:
            j = int(rng.integers(n))
            target[i], target[j] = target[j], target[i]


def shift(fabric: Fabric, size: int = 8_000_000, *, by: int | None = None) -> Flows:
    """Host i sends to host i + ``by``; by default to its peer below the next leaf.

    Args:
        fabric: The fabric.
        size: Bytes of each flow.
        by: Distance; None means one leaf further.
    """
    hosts = np.arange(fabric.hosts, dtype=np.int32)
    distance = fabric.hosts_per_leaf if by is None else by
    return build_flows(hosts, (hosts + np.int32(distance)) % np.int32(fabric.hosts), size)


def ranks_on(fabric: Fabric, hosts: Sequence[int] | I32 | None, seed: int | None = None) -> I32:
    """The hosts of a job's ranks in rank order, int32.

    Args:
        fabric: The fabric.
        hosts: Host of each rank; None puts one rank on every host of the fabric.
        seed: Shuffles the order of the ranks.

    Raises:
        UsageError: fewer than two ranks, or two of them on one host.
    """
    order = np.arange(fabric.hosts, dtype=np.int32)
    if hosts is not None:
        order = np.asarray(hosts, dtype=np.int32)
    if len(order) < 2 or len(np.unique(order)) < len(order):
        raise UsageError("a job needs two hosts or more, each once", "give one host a rank")
    return order if seed is None else np.random.default_rng(seed).permutation(order)


def ring(
    fabric: Fabric,
    size: int = 8 << 20,
    *,
    seed: int | None = None,
    hosts: Sequence[int] | I32 | None = None,
) -> Flows:
    """A ring all-reduce in steady state: one flow of 2(n-1)/n * size to the next rank.

    Args:
        fabric: The fabric.
        size: Bytes that are reduced.
        seed: Shuffles the order of the ranks; None keeps neighbours below one leaf.
        hosts: Host of each rank; None takes every host.
    """
    order = ranks_on(fabric, hosts, seed)
    n = len(order)
    return build_flows(order, np.roll(order, -1), 2 * (n - 1) * size // n)


def ring_steps(
    fabric: Fabric,
    size: int = 8 << 20,
    *,
    seed: int | None = None,
    wait_for_data: bool = False,
    release_ns: int | None = None,
    hosts: Sequence[int] | I32 | None = None,
) -> Flows:
    """The 2(n-1) real steps of a ring all-reduce, in chunks of size / n.

    Args:
        fabric: The fabric.
        size: Bytes that are reduced.
        seed: Shuffles the order of the ranks.
        wait_for_data: A rank also waits for the chunk of the rank before it (as a real ring does);
            else only for its own last send (as the reference does).
        release_ns: Delay between a delivery and the send that waits for it; None means an
            acknowledgement's way back when waiting for the own send alone.
        hosts: Host of each rank; None takes every host.
    """
    order = ranks_on(fabric, hosts, seed)
    n, steps = len(order), 2 * (len(order) - 1)
    src = np.repeat(order, steps)
    dst = np.repeat(np.roll(order, -1), steps)
    ids = np.arange(n * steps, dtype=np.int32).reshape(n, steps)
    own = np.stack([ids[:, :-1].ravel(), ids[:, 1:].ravel()], axis=1)
    edges = [own]
    if wait_for_data:
        before = np.roll(ids, 1, axis=0)
        edges.append(np.stack([before[:, :-1].ravel(), ids[:, 1:].ravel()], axis=1))
    delay = _ack_ns(fabric) if release_ns is None else release_ns
    return build_flows(src, dst, max(1, size // n), after=np.concatenate(edges), release_ns=delay)


def _ack_ns(fabric: Fabric) -> int:
    """Way back of an acknowledgement that never waits: on the longest path, four links or more."""
    return (len(fabric.stage_first) - 1) * fabric.link_latency_ns


def halving_doubling(
    fabric: Fabric,
    size: int = 8 << 20,
    *,
    release_ns: int | None = None,
    hosts: Sequence[int] | I32 | None = None,
) -> Flows:
    """Recursive halving reduce-scatter, then doubling all-gather; a rank waits for its own send.

    Args:
        fabric: The fabric.
        size: Bytes that are reduced.
        release_ns: Delay before the next step; None means an acknowledgement's way back.
        hosts: Host of each rank, a power of two; None takes every host.

    Raises:
        UsageError: the number of ranks is not a power of two.
    """
    order = ranks_on(fabric, hosts)
    n = len(order)
    levels = n.bit_length() - 1
    if n != 1 << levels:
        raise UsageError(f"halving-doubling needs a power of two, not {n} hosts", "use ring")
    half = np.array([[n >> (k + 1), max(1, size >> (k + 1))] for k in range(levels)])
    steps = np.concatenate([half, half[::-1]])
    ranks = np.arange(n)[:, None]
    ids = np.arange(n * len(steps), dtype=np.int32).reshape(n, -1)
    return build_flows(
        np.repeat(order, len(steps)),
        order[(ranks ^ steps[:, 0]).ravel()],
        np.tile(steps[:, 1], n).astype(np.int64),
        after=np.stack([ids[:, :-1].ravel(), ids[:, 1:].ravel()], axis=1),
        release_ns=_ack_ns(fabric) if release_ns is None else release_ns,
    )


def all_to_all(
    fabric: Fabric,
    group: int = 64,
    bytes_per_pair: int = 128 << 10,
    *,
    chains: int = 8,
    spread: bool = True,
    release_ns: int | None = None,
    hosts: Sequence[int] | I32 | None = None,
) -> Flows:
    """All-to-all inside groups; each source visits its peers in shifted order.

    Args:
        fabric: The fabric.
        group: Ranks of a group; must divide the number of ranks.
        bytes_per_pair: Bytes from each rank to each other of its group.
        chains: Sends of a rank that run at once.
        spread: A group takes every k-th rank (over all leaves), else neighbours.
        release_ns: Delay before the next send of a chain; None means an acknowledgement's way.
        hosts: Host of each rank; None takes every host.

    Raises:
        UsageError: the groups do not fit.
    """
    order = ranks_on(fabric, hosts)
    n = len(order)
    if group < 2 or n % group or chains < 1:
        raise UsageError(f"groups of {group} do not fill {n} hosts", "group must divide hosts")
    groups = n // group
    member = order.reshape(group, groups).T if spread else order.reshape(groups, group)
    rank = np.arange(group)
    hop = np.arange(1, group)
    src = np.broadcast_to(member[:, :, None], (groups, group, group - 1))
    dst = member[:, (rank[:, None] + hop[None, :]) % group]
    ids = np.arange(src.size, dtype=np.int32).reshape(groups * group, group - 1)
    after = np.stack([ids[:, :-chains].ravel(), ids[:, chains:].ravel()], axis=1)
    return build_flows(
        src.ravel(),
        dst.ravel().astype(np.int32),
        bytes_per_pair,
        after=after,
        release_ns=_ack_ns(fabric) if release_ns is None else release_ns,
    )


def incast(fabric: Fabric, fan: int, size: int = 1 << 20, *, dst: int = 0) -> Flows:
    """``fan`` hosts, the last ones first, send to one host at once.

    Args:
        fabric: The fabric.
        fan: Number of senders.
        size: Bytes of each.
        dst: The receiving host.

    Raises:
        UsageError: more senders than other hosts.
    """
    senders = [h for h in range(fabric.hosts - 1, -1, -1) if h != dst][:fan]
    if not 0 < fan <= len(senders):
        raise UsageError(f"{fan} senders are not in the fabric", f"1..{fabric.hosts - 1}")
    return build_flows(senders, [dst] * fan, size)


def random_pairs(
    fabric: Fabric, count: int, size: int = 1 << 40, *, seed: int = 0, lane: int = 1
) -> Flows:
    """Background jobs: flows between random hosts below different leaves, each host in one pair.

    Args:
        fabric: The fabric.
        count: Number of flows; more than half the hosts makes hosts serve in several.
        size: Bytes of each; the default never ends within a phase.
        seed: Random seed of the pairs.
        lane: Lane of the background when the policy has two.

    Raises:
        UsageError: the fabric has a single leaf.
    """
    if fabric.leaves < 2:
        raise UsageError("random pairs need at least two leaves", "or use permutation")
    rng = np.random.default_rng(seed)
    src: list[int] = []
    dst: list[int] = []
    while len(src) < count:
        mixed = rng.permutation(fabric.hosts)
        for a, b in zip(mixed[0::2], mixed[1::2], strict=False):
            if fabric.leaf_of(int(a)) != fabric.leaf_of(int(b)):
                src.append(int(a))
                dst.append(int(b))
    return build_flows(src[:count], dst[:count], size).in_background(lane)
