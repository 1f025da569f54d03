"""How a reduce-scatter is done, and what happens when a rank fails: as in :class:`Exchange`.

Three forms. Where all ranks share one copy of the parameters, they exchange quantised chunks.
Where each node has a copy (``node``), gradients are summed uncompressed inside the node and each
shard is quantised between the nodes. Where torch itself sums over replicas afterwards, chunks are
quantised among the ranks of a replica. Headers go round all ranks in each form, so that all of
them come to one conclusion.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .bucket import Bucket, Outcome, Quantiser, Reduced
from .channel import Channel
from .chunk_codec import best_chunks
from .codec import best_codec
from .exchange import DENSE, Exchange
from .header import Header, Verdict, judge
from .hierarchy import Node
from .layout import LayerTable
from .residual import ResidualStore
from .scatter import Scatter, check_sizes, shards_of
from .two_phase import TwoPhase, is_finite
from .wire import dense_bytes, ring_bytes, ring_scatter_bytes
from .workspace import Workspace


class NodeScatter:
    """One rank's side where each node has a copy: sums inside it, quantised between nodes.

    Args:
        node: where this rank stands.
        table: of this rank's shard, for a world of as many ranks as there are nodes.
        store: residuals.
    """

    def __init__(self, node: Node, table: LayerTable, store: ResidualStore) -> None:
        self._node = node
        self._space = Workspace()
        codec = best_codec(world=table.world, rank=node.across.rank, block=table.block)
        self.table = table
        self.rank = node.across.rank
        self.inner = TwoPhase(node.across, table, codec, store, Workspace())
        self._part: Bucket | None = None

    def warm_up(self) -> None:
        """See :class:`Quantiser`."""
        self.inner.warm_up()

    def digest(self, bucket: Bucket, bits: Sequence[int]) -> int:
        """Lay the shard out; 32 bits that ranks with another layout or other nodes lack."""
        self._space.renew()
        shards = shards_of(bucket)
        check_sizes(shards, self.table, self._node.inside.world)
        values = self._space.get("part", bucket.buffer.numel(), torch.float32)
        self._part = Bucket(index=bucket.index, layers=bucket.layers, buffer=values)
        inner = self.inner.digest(self._part, bits)
        factor = shards.factor(self._node.inside.world)
        return zlib.crc32(repr((self._node.ranks, factor, inner)).encode())

    def prepare(self, bucket: Bucket) -> bool:
        """Whether this rank's gradients are finite."""
        self._received(shards_of(bucket).whole)  # memory is short here or never
        return is_finite(shards_of(bucket).whole)

    def transfer(self, bucket: Bucket, header: Header) -> Outcome:
        """Sum inside the node, then between nodes; written only if every rank succeeded."""
        shards, part, places = shards_of(bucket), self._need_part(), self._node.inside.world
        received = self._received(shards.whole)
        self._node.inside.all_to_all(received, shards.whole)
        finite, error = True, None
        try:
            self._sum(received.view(places, -1), part.buffer, shards.factor(places))
            finite = self.inner.prepare(part)
        except Exception as caught:  # the other nodes must hear of it before anything else happens
            error = caught
        outcome = self.inner.transfer(part, header, finite=finite, error=error)
        word = replace(header, finite=outcome.finite, failed=bool(outcome.failed), loss=None)
        verdict = judge(self._node.inside.headers(word))
        if verdict.failed or not verdict.finite:
            failed = sorted(row[place] for row in self._node.ranks for place in verdict.failed)
            return Outcome(failed=tuple(failed), finite=verdict.finite, error=outcome.error)
        bucket.buffer.copy_(part.buffer)
        return Outcome(failed=(), finite=True, error=outcome.error)

    def _received(self, whole: Tensor) -> Tensor:
        return self._space.get("received", whole.numel(), whole.dtype)

    @staticmethod
    def _sum(rows: Tensor, total: Tensor, factor: float) -> None:
        """In rank order and fp32, whatever the type of the gradients."""
        total.copy_(rows[0])
        for row in rows[1:]:
            total += row
        total *= factor

    def _need_part(self) -> Bucket:
        if self._part is None:
            raise RuntimeError("digest() lays the shard out and comes first")
        return self._part


class ScatterExchange(Exchange):
    """Reduces and scatters, over all ranks and in order.

    What is measured of gradients, norms among it, is of this rank's shard; regulation combines
    what ranks measured by their maximum.

    Args:
        channel: between all ranks.
        shard: between the ranks that a parameter is spread over; ``channel`` where it is all.
        table: of the whole model and all ranks.
        part: of what a rank quantises at a time; see :class:`Scatter`, :class:`NodeScatter`.
        store: residuals.
        node: where each node has a copy of the parameters, and we sum over nodes.
    """

    def __init__(
        self,
        channel: Channel,
        shard: Channel,
        table: LayerTable,
        part: LayerTable,
        store: ResidualStore,
        *,
        node: Node | None = None,
    ) -> None:
        self._shard = shard
        self._part = part
        super().__init__(channel, table, store, keep_share=1.0, node=node)
        self.table = part  # a rank measures its shard
        if node is None and shard is not channel:
            self._channels.append(shard)

    def reduce(self, bucket: Bucket, *, measure: bool = False, **how: Any) -> Reduced:
        """See :class:`Exchange`."""
        if measure:  # also before the sum, to hold against residuals; there is nothing here yet
            bucket.buffer.zero_()
        return super().reduce(bucket, measure=measure, **how)

    def residual_sizes(self) -> dict[tuple[str, str], int]:
        """See :class:`Exchange`."""
        if isinstance(self.quantised, Scatter):
            return self.quantised.residual_sizes()
        return super().residual_sizes()

    def _quantiser(self, table: LayerTable) -> Quantiser:
        if self._node is not None:
            return NodeScatter(self._node, self._part, self.store)
        codec = best_chunks(block=self._part.block)
        return Scatter(self._shard, self._part, codec, self.store, Workspace())

    def _prepare(self, bucket: Bucket, mode: str) -> bool:
        if mode != DENSE:
            return super()._prepare(bucket, mode)
        # The sum would carry a NaN to one shard only, and all ranks must know of it.
        return self.disabled is not None or is_finite(shards_of(bucket).whole)

    def _dense(self, bucket: Bucket) -> None:
        shards = shards_of(bucket)
        op, factor = shards.op, 1.0
        if op == dist.ReduceOp.PREMUL_SUM:  # gloo has no such thing
            op, factor = dist.ReduceOp.SUM, shards.factor(self._shard.world)
        self._shard.reduce_scatter(shards.buffer, shards.whole, op)
        if factor != 1.0:
            shards.buffer.mul_(factor)
        if self._node is not None:
            self._node.across.all_reduce_mean(shards.buffer)

    def _account(
        self, bucket: Bucket, outcome: Outcome, verdict: Verdict, *, measured: bool
    ) -> Reduced:
        reduced = super()._account(bucket, outcome, verdict, measured=measured)
        wire = reduced.wire_bytes
        if self._node is None and self._shard is not self.channel:
            wire += self._shard.sent_bytes
        # Whether a rank's own shard is finite is no ground for what all must decide alike.
        finite = outcome.finite and verdict.finite
        wire += ring_bytes(bucket.buffer.nbytes, shards_of(bucket).replicas)
        return replace(reduced, wire_bytes=wire, finite=finite)

    def _uncompressed(self, bucket: Bucket, element_bytes: int) -> int:
        shards = shards_of(bucket)
        if self._node is not None:
            return dense_bytes(shards.buffer.numel(), self._node.across.world, element_bytes)
        scattered = ring_scatter_bytes(shards.whole.numel() * element_bytes, self._shard.world)
        return scattered + dense_bytes(shards.buffer.numel(), shards.replicas, element_bytes)
