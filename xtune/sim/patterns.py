"""More traffic patterns of jobs: NCCL's double binary tree, and a pipeline of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from xtune.errors import UsageError
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import I32, Flows, build_flows, ranks_on

IN_FLIGHT = 8  # chunks on one edge of a tree at once: NCCL_STEPS


def tree_parent(rank: int, ranks: int) -> int:
    """The rank above in a binary tree whose leaves are the odd ranks; -1 above rank 0.

    As ``ncclGetBtree`` in NCCL's src/graph/trees.cc.
    """
    if rank == 0:
        return -1
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    return up if up < ranks else rank ^ bit


def double_tree(ranks: int) -> tuple[list[int], list[int]]:
    """The rank above each rank in NCCL's two trees.

    The second is the first one mirrored, or shifted by one where ``ranks`` is odd, so that hardly
    any rank forwards in both (``ncclGetDtree``).
    """
    first = [tree_parent(rank, ranks) for rank in range(ranks)]
    second = [-1] * ranks
    for rank, up in enumerate(first):
        if ranks % 2 == 0:
            second[ranks - 1 - rank] = -1 if up < 0 else ranks - 1 - up
        else:
            second[(rank + 1) % ranks] = -1 if up < 0 else (up + 1) % ranks
    return first, second


def tree(
    fabric: LeafSpine,
    size: int = 8 << 20,
    *,
    chunks: int = 16,
    hosts: Sequence[int] | I32 | None = None,
) -> Flows:
    """An all-reduce over a double binary tree: half of the bytes up and down each tree.

    A rank sends a chunk up when it has those of its children, and down when it has it from above.

    Args:
        fabric: The fabric.
        size: Bytes that are reduced.
        chunks: Parts of each half that follow each other through the tree.
        hosts: Host of each rank; None takes every host.

    Raises:
        UsageError: no chunk.
    """
    order = ranks_on(fabric, hosts)
    if chunks < 1:
        raise UsageError(f"{chunks} chunks carry nothing", "take 1 or more")
    n = len(order)
    trees = double_tree(n)
    # Flow numbers: (tree, up or down, child rank, chunk); the root's are left out at the end.
    ids = np.arange(2 * 2 * n * chunks).reshape(2, 2, n, chunks)
    src, dst = np.zeros((2, ids.size), dtype=np.int64)
    kept = np.ones(ids.size, dtype=np.bool_)
    edges = []
    for number, parents in enumerate(trees):
        up, down = ids[number]
        for child, parent in enumerate(parents):
            if parent < 0:
                kept[up[child]] = kept[down[child]] = False
                continue
            src[up[child]], dst[up[child]] = child, parent
            src[down[child]], dst[down[child]] = parent, child
            above = parents[parent]
            # The chunk goes on up, or at the root turns round to every child.
            onward = [up[parent]] if above >= 0 else _down_to(parents, parent, down)
            edges += [np.stack([up[child], then]) for then in onward]
            if above >= 0:
                edges.append(np.stack([down[parent], down[child]]))
            for one in (up[child], down[child]):
                edges.append(np.stack([one[:-IN_FLIGHT], one[IN_FLIGHT:]]))
    number_of = np.cumsum(kept) - 1
    after = number_of[np.concatenate(edges, axis=1).T].astype(np.int32)
    part = max(1, size // (2 * chunks))
    return build_flows(order[src[kept]], order[dst[kept]], part, after=after)


def _down_to(
    parents: Sequence[int], root: int, down: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    return [down[child] for child, parent in enumerate(parents) if parent == root]


@dataclass(slots=True)
class _Stage:
    """What a stage of a pipeline has done so far, and what its next send has to wait for."""

    last: int = -1  # number of its last send
    inputs: list[int] = field(default_factory=list)  # arrivals it has used since
    compute_ns: int = 0  # that it has computed since


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Passes of one stage in the order of Megatron's schedule: ("forward", 0) ...

    As many forward passes first as stages follow, then one backward pass after each, then the rest
    (PipeDream-flush, section 2.2 of Narayanan et al., SC 2021).
    """
    ahead = min(stages - 1 - stage, micro_batches)
    passes = [("forward", k) for k in range(ahead)]
    for k in range(micro_batches - ahead):
        passes += [("forward", ahead + k), ("backward", k)]
    return passes + [("backward", k) for k in range(micro_batches - ahead, micro_batches)]


def pipeline(
    fabric: LeafSpine,
    stages: Sequence[int],
    micro_batches: int,
    size: int,
    *,
    forward_ns: int,
    backward_ns: int,
) -> Flows:
    """One iteration of a pipeline: activations to the next stage, their gradients back.

    A stage computes one pass at a time and waits for its send to be delivered, as Megatron's
    schedule without interleaving does. The first stage's last backward pass sends nothing, so it
    is not in here.

    Args:
        fabric: The fabric.
        stages: Host of each stage.
        micro_batches: Micro-batches of the iteration.
        size: Bytes of the activations of one micro-batch between two stages.
        forward_ns: Time of one forward pass of a stage.
        backward_ns: Time of one backward pass.

    Raises:
        UsageError: no micro-batch.
    """
    hosts = ranks_on(fabric, stages)
    if micro_batches < 1:
        raise UsageError(f"{micro_batches} micro-batches are no iteration", "take 1 or more")
    count = len(hosts)
    sends = [
        (stage, kind, k)
        for stage in range(count)
        for kind, k in one_forward_one_backward(stage, count, micro_batches)
        if _target(stage, kind, count) is not None
    ]
    number = {send: i for i, send in enumerate(sends)}
    after: list[tuple[int, int]] = []
    release = np.zeros(len(sends), dtype=np.int64)
    for stage in range(count):
        state = _Stage()
        for kind, k in one_forward_one_backward(stage, count, micro_batches):
            source = stage - 1 if kind == "forward" else stage + 1
            if (source, kind, k) in number:
                state.inputs.append(number[source, kind, k])
            state.compute_ns += forward_ns if kind == "forward" else backward_ns
            own = number.get((stage, kind, k))
            if own is None:
                continue
            waits = [*state.inputs, *([state.last] if state.last >= 0 else [])]
            after += [(before, own) for before in waits]
            release[own] = state.compute_ns
            state = _Stage(last=own)
    flows = build_flows(
        hosts[[stage for stage, _, _ in sends]],
        hosts[[_target(stage, kind, count) or 0 for stage, kind, _ in sends]],
        size, after=after,
    )  # fmt: skip
    return _computed_first(replace(flows, release_ns=release))


def _target(stage: int, kind: str, stages: int) -> int | None:
    """The stage that a pass sends to; None where it sends nothing."""
    target = stage + 1 if kind == "forward" else stage - 1
    return target if 0 <= target < stages else None


def _computed_first(flows: Flows) -> Flows:
    """Flows that wait for no other start after their release time: they were computed as well."""
    waiting = np.zeros(len(flows), dtype=np.bool_)
    waiting[flows.after[:, 1]] = True
    return replace(flows, start_ns=np.where(waiting, flows.start_ns, flows.release_ns))
