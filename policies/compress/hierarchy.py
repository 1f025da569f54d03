"""The exchange of many nodes: sums inside a node, quantised between nodes, shared out inside.

Each rank of a node owns an equal part of every layer. The node's gradients of a part are summed
uncompressed by its owner (the links inside a node are fast); the owners of one part, one a node,
run the two-phase exchange on it; then the node's ranks hand their parts to each other. Between
1,024 ranks on 128 nodes a message goes to 127 peers instead of 1,023, residuals take an eighth of
the memory, and the noise of eight ranks is averaged before it is rounded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from .bucket import Bucket, Outcome
from .channel import Channel
from .header import Header, judge
from .layout import LayerTable
from .shared import SharedIndex
from .two_phase import TwoPhase, is_finite
from .workspace import Workspace

Inner = TypeVar("Inner", TwoPhase, SharedIndex)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """Where a rank stands among the nodes.

    Attributes:
        inside: collectives between the ranks of its node.
        across: collectives between the ranks at its place on every node.
        ranks: of every node, in the order of places; ranks of the whole group.
    """

    inside: Channel
    across: Channel
    ranks: tuple[tuple[int, ...], ...]


def part_table(table: LayerTable, *, places: int, nodes: int) -> LayerTable:
    """The layers of one part: each rank of a node has the same share of every layer, padded.

    Args:
        table: the model's layers.
        places: ranks of a node.
        nodes: number of them.
    """
    return LayerTable(
        names=table.names,
        elements=tuple(-(-count // places) for count in table.elements),
        world=nodes,
        block=table.block,
        dense_below=-(-table.dense_below // places),
    )


class Hierarchy(Generic[Inner]):
    """One rank's side of the exchange; stands in for the one between nodes.

    Args:
        node: where this rank stands.
        table: the model's layers.
        make: the exchange between nodes, from its channel and the layers of a part.
        workspace: buffers.
    """

    def __init__(
        self,
        node: Node,
        table: LayerTable,
        make: Callable[[Channel, LayerTable], Inner],
        workspace: Workspace,
    ) -> None:
        self._node = node
        self._whole = table
        self._space = workspace
        places, nodes = node.inside.world, node.across.world
        self.table = part_table(table, places=places, nodes=nodes)
        self.rank = node.across.rank
        self.inner: Inner = make(node.across, self.table)
        self._part: Bucket | None = None

    def warm_up(self) -> None:
        """See :class:`Quantiser`."""
        self.inner.warm_up()

    def begin(self, *, step: int, keep_share: float) -> None:
        """See :meth:`SharedIndex.begin`."""
        if isinstance(self.inner, SharedIndex):
            self.inner.begin(step=step, keep_share=keep_share)

    def digest(self, bucket: Bucket, bits: Sequence[int]) -> int:
        """Lay the bucket out; 32 bits that ranks with another layout or other nodes lack."""
        self._space.renew()
        held = sum(self._whole.elements[i] for i in bucket.layers)
        if held != bucket.buffer.numel():
            raise ValueError(f"{bucket.buffer.numel()} values where its layers have {held}")
        elements = sum(self.table.elements[i] for i in bucket.layers)
        values = self._space.get("part", elements, torch.float32)
        self._part = Bucket(index=bucket.index, layers=bucket.layers, buffer=values)
        inner = self.inner.digest(self._part, bits)
        return zlib.crc32(repr((self._node.ranks, inner)).encode())

    def prepare(self, bucket: Bucket) -> bool:
        """Sort this rank's gradients by their owners; False if one of them is not finite."""
        part, places = self._need_part(), self._node.inside.world
        count, kind = part.buffer.numel(), bucket.buffer.dtype
        self._space.get("received", places * count, kind)  # memory is short here or never
        self._space.get("gathered", places * self._stride(bucket), torch.uint8)
        sent = self._space.get("sent", places * count, kind).view(places, count)
        for offset, size, start, share in self._stretches(bucket):
            values = bucket.buffer[offset : offset + size]
            whole = size // share if share else 0
            target = sent[:, start : start + share]
            target[:whole].copy_(values[: whole * share].view(whole, share))
            if whole < places:
                target[whole:] = 0
                target[whole, : size - whole * share].copy_(values[whole * share :])
        return is_finite(bucket.buffer)

    def transfer(self, bucket: Bucket, header: Header) -> Outcome:
        """Run all three steps; the bucket is written only if every rank succeeded."""
        part, places = self._need_part(), self._node.inside.world
        count, kind = part.buffer.numel(), bucket.buffer.dtype
        received = self._space.get("received", places * count, kind)
        self._node.inside.all_to_all(received, self._space.get("sent", places * count, kind))
        finite, error = True, None
        try:
            finite = self._average(received.view(places, count), part)
        except Exception as caught:  # the other nodes must hear of it before anything else happens
            error = caught
        outcome = self.inner.transfer(part, header, finite=finite, error=error)
        stride = self._stride(bucket)
        share = self._space.get("share", stride, torch.uint8)
        word = replace(header, finite=outcome.finite, failed=bool(outcome.failed), loss=None)
        share[self._node.inside.lead :].view(kind).copy_(part.buffer)
        gathered = self._space.get("gathered", places * stride, torch.uint8)
        verdict = judge(self._node.inside.all_gather_words(gathered, share, word))
        if verdict.failed or not verdict.finite:
            failed = sorted(row[place] for row in self._node.ranks for place in verdict.failed)
            return Outcome(failed=tuple(failed), finite=verdict.finite, error=outcome.error)
        parts = gathered.view(places, stride)[:, self._node.inside.lead :].view(kind)
        for offset, size, start, width in self._stretches(bucket):
            values = parts[:, start : start + width].reshape(-1)[:size]
            bucket.buffer[offset : offset + size].copy_(values)
        return Outcome(failed=(), finite=True, error=outcome.error)

    def _average(self, received: Tensor, part: Bucket) -> bool:
        """Mean of the node's ranks in rank order, quantised; False if it is not finite."""
        mean = part.buffer
        mean.copy_(received[0])
        for row in received[1:]:
            mean += row
        mean *= 1.0 / received.shape[0]
        return self.inner.prepare(part)

    def _stretches(self, bucket: Bucket) -> list[tuple[int, int, int, int]]:
        """Of each layer: its offset and size in the bucket, and those of its share in a part."""
        found, offset, start = [], 0, 0
        for i in bucket.layers:
            size, share = self._whole.elements[i], self.table.elements[i]
            found.append((offset, size, start, share))
            offset, start = offset + size, start + share
        return found

    def _stride(self, bucket: Bucket) -> int:
        size = self._need_part().buffer.numel() * bucket.buffer.element_size()
        return self._node.inside.lead + size

    def _need_part(self) -> Bucket:
        if self._part is None:
            raise RuntimeError("digest() lays the bucket out and comes first")
        return self._part
