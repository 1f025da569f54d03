"""The compressed reduce-scatter, for models whose parameters are sharded over the ranks.

A rank needs the mean of its own shard only, so one phase is enough: each rank quantises the chunk
it has for every other rank, the chunks travel in one all-to-all, and the owner sums them in fp32
in rank order. Nothing is rounded a second time, so the owner keeps no residual. What was rounded
away of a chunk stays with its sender, in one residual a parameter, (destinations, elements of a
chunk): as many elements as the model has, on every rank.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from .bucket import Bucket, Outcome
from .channel import Channel
from .chunk_codec import HELD, ChunkCodec, TorchChunks
from .header import Header
from .layout import DensePart, LayerTable, Layout, Layouts, Place
from .quantise import OVERFLOW_BITS
from .residual import WORKER, Feedback, ResidualStore
from .two_phase import is_finite
from .wire import BF16_BYTES, blocks, scatter_dense_below
from .workspace import Workspace

_CONVERTED = 1 << 18  # elements that are in hand as fp32 where gradients are narrower


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards(Bucket):
    """One reduce-scatter: ``buffer`` receives this rank's shard of the result."""

    whole: Tensor  # a chunk for each rank, each with a shard of every layer; on the CPU
    op: dist.ReduceOp | dist.ReduceOp.RedOpType
    replicas: int = 1  # that torch sums the result over afterwards, uncompressed

    def factor(self, world: int) -> float:
        """What the sum over ``world`` ranks is multiplied by."""
        if self.op == dist.ReduceOp.AVG:
            return 1.0 / world
        if self.op == dist.ReduceOp.PREMUL_SUM:
            return float(self.op.__getstate__()[1])  # type: ignore[index]
        return 1.0


def shards_of(bucket: Bucket) -> Shards:
    """The bucket, which is one of a reduce-scatter."""
    if not isinstance(bucket, Shards):
        raise TypeError(f"a reduce-scatter wants Shards, not {type(bucket).__name__}")
    return bucket


def shard_table(
    names: Sequence[str],
    shards: Sequence[int],
    *,
    spread: int,
    world: int,
    block: int,
    dense_below: int,
) -> LayerTable:
    """The layers of one shard.

    Args:
        names: of the parameters.
        shards: elements of each one's shard, padded.
        spread: ranks that a parameter is spread over.
        world: ranks that sum one shard; 1 for a chunk, which is a message by itself.
        block: elements that share a scale.
        dense_below: smaller parameters travel as bf16, and more; see `scatter_dense_below`.
    """
    return LayerTable(
        names=tuple(names),
        elements=tuple(shards),
        world=world,
        block=block,
        dense_below=scatter_dense_below(dense_below, spread, block),
    )


class Scatter:
    """One rank's side of the quantised reduce-scatter.

    Args:
        channel: between the ranks that a parameter is spread over.
        table: of one chunk, from :func:`shard_table`.
        codec: back-end.
        store: residuals.
        workspace: buffers.
    """

    def __init__(
        self,
        channel: Channel,
        table: LayerTable,
        codec: ChunkCodec,
        store: ResidualStore,
        workspace: Workspace,
    ) -> None:
        self.table = table
        self.rank = 0  # each message is a world of its own
        self._channel = channel
        self._codec = codec
        self._reference = TorchChunks(block=table.block)
        self._store = store
        self._space = workspace
        self._layouts = Layouts(table)

    def warm_up(self) -> None:
        """Compile the kernels now: no rank should wait for it in the first compressed step."""
        block = self.table.block
        table = LayerTable(names=("",), elements=(block,), world=1, block=block, dense_below=0)
        layout = table.layout((0,), (4,))
        values, message = torch.ones(1, block), torch.zeros(1, layout.payload, dtype=torch.uint8)
        own = Feedback(residual=None, gain=1.0, fresh=None)
        self._codec.encode(layout.places, values, 0, (own,), message, 0)
        self._codec.sum(layout.places, message, 1.0, values.view(-1))
        self._codec.sum_bf16(message, 0, 1.0, values.view(-1)[:1])

    def residual_sizes(self) -> dict[tuple[str, str], int]:
        """Elements of each residual that this rank may keep, by kind and name."""
        return {
            (WORKER, name): self._padded(elements) * self._channel.world
            for name, elements in zip(self.table.names, self.table.elements, strict=True)
        }

    def _padded(self, elements: int) -> int:
        """Elements of a chunk in whole blocks."""
        return blocks(elements, self.table.block) * self.table.block

    def digest(self, bucket: Bucket, bits: Sequence[int]) -> int:
        """Lay the chunks out; 32 bits that ranks with another layout do not have."""
        self._space.renew()
        layout = self._layouts.lay_out(bucket.layers, bits)
        shards = shards_of(bucket)
        check_sizes(shards, self.table, self._channel.world)
        return zlib.crc32(repr((layout.digest, shards.factor(self._channel.world))).encode())

    def prepare(self, bucket: Bucket) -> bool:
        """Quantise the chunks; False if one of this rank's gradients is not finite."""
        layout, world = self._layouts.current, self._channel.world
        messages = self._space.get("sent", world * layout.payload, torch.uint8).view(world, -1)
        self._space.get("received", messages.numel(), torch.uint8)  # short here or never
        chunks, places = shards_of(bucket).whole.view(world, -1), layout.places
        # A store that converts has one residual at a time, which costs a call for each layer.
        parts = [(place,) for place in places] if self._store.narrow else [places]
        worst = max((self._encode(part, chunks, messages) for part in parts if part), default=0)
        finite = worst < OVERFLOW_BITS
        return self._prepare_dense(chunks, layout, messages) and finite

    def _encode(self, places: Sequence[Place], chunks: Tensor, messages: Tensor) -> int:
        """Some parameters' chunks into the messages; the bits of the largest magnitude."""
        made = [
            self._store.feedback(WORKER, place.name, self._padded(place.elements) * len(chunks))
            for place in places
        ]
        origin, worst = 0, [HELD] * len(places)
        if chunks.dtype != torch.float32:  # of what lies beside them nothing need be converted
            origin = places[0].offset
            chunks = chunks[:, origin : places[-1].offset + places[-1].elements]
        for first, rows in self._fp32(chunks):
            sent = messages[first : first + len(rows)]
            found = self._codec.encode(places, rows, origin, made, sent, first)
            worst = [max(pair) for pair in zip(worst, found, strict=True)]
        for place, own, found_bits in zip(places, made, worst, strict=True):
            self._store.offer(WORKER, place.name, own, held=found_bits == HELD)
        return max(worst)

    def _fp32(self, chunks: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Contiguous rows in fp32, as many at a time as fit, each with the number of the first."""
        if chunks.dtype == torch.float32:
            yield 0, chunks
            return
        world, width = chunks.shape
        step = max(1, _CONVERTED // width)
        buffer = self._space.get("fp32", min(step, world) * width, torch.float32).view(-1, width)
        for first in range(0, world, step):
            some = chunks[first : first + step]
            yield first, buffer[: len(some)].copy_(some)

    def _prepare_dense(self, chunks: Tensor, layout: Layout, messages: Tensor) -> bool:
        """Parameters that travel as bf16; what they had as residual goes along, once."""
        if not layout.dense_share:
            return True
        sent = _dense_view(messages, layout)
        for run in _runs(layout.dense):
            mine = chunks[:, run.offset : run.offset + run.elements]
            sent[:, run.start : run.start + run.elements].copy_(mine)
        for part in layout.dense:
            residual = self._store.get(WORKER, part.name)
            if residual is not None:
                mine = chunks[:, part.offset : part.offset + part.elements]
                self._drain(part, residual, mine, sent[:, part.start : part.start + part.elements])
        return is_finite(sent)

    def _drain(self, part: DensePart, residual: Tensor, gradient: Tensor, sent: Tensor) -> None:
        """Send the residual along to those for whom there is a gradient; the others' waits."""
        moved = (gradient != 0).any(dim=1)
        if not bool(moved.any()):
            return
        waits = residual.view(len(gradient), -1)
        gain = self._store.gain(part.name)
        sent[moved] = (gradient[moved].float() + waits[moved, : part.elements] * gain).to(sent)
        if bool(moved.all()):
            self._store.stage(WORKER, part.name, None)
            return
        fresh = self._store.fresh(residual.numel())
        fresh.view_as(waits).copy_(waits).masked_fill_(moved[:, None], 0.0)
        self._store.stage(WORKER, part.name, fresh)

    def transfer(self, bucket: Bucket, header: Header) -> Outcome:
        """Exchange the chunks and sum those for this rank.

        Residuals are staged, and hold once the caller commits them.
        """
        layout, world = self._layouts.current, self._channel.world
        received = self._space.get("received", world * layout.payload, torch.uint8)
        sent = self._space.get("sent", world * layout.payload, torch.uint8)
        self._channel.all_to_all(received, sent)
        messages, error = received.view(world, -1), None
        try:
            self._sum(self._codec, layout, messages, shards_of(bucket))
        except Exception as caught:  # too late to tell the others; the reference has the same bits
            error = caught
            self._sum(self._reference, layout, messages, shards_of(bucket))
        return Outcome(failed=(), finite=True, error=error)

    def _sum(self, codec: ChunkCodec, layout: Layout, messages: Tensor, bucket: Shards) -> None:
        """In rank order and fp32, whatever the type of the gradients."""
        factor, total = bucket.factor(self._channel.world), bucket.buffer
        if total.dtype != torch.float32:
            total = self._space.get("fp32", total.numel(), torch.float32)
        if layout.places:
            codec.sum(layout.places, messages, factor, total)
        if layout.dense_share:
            dense = self._space.get("total", layout.dense_share, torch.float32)
            codec.sum_bf16(messages, layout.dense_offset, factor, dense)
            for run in _runs(layout.dense):
                stretch = dense[run.start : run.start + run.elements]
                total[run.offset : run.offset + run.elements].copy_(stretch)
        if total is not bucket.buffer:
            bucket.buffer.copy_(total)


def check_sizes(bucket: Shards, table: LayerTable, world: int) -> None:
    """Raise ValueError unless the tensors have the sizes of the bucket's layers."""
    held = sum(table.elements[i] for i in bucket.layers)
    if (bucket.buffer.numel(), bucket.whole.numel()) != (held, held * world):
        sizes = f"{bucket.whole.numel()} values and a shard of {bucket.buffer.numel()}"
        raise ValueError(f"{sizes} where the layers have {held} on each of {world} ranks")


def _runs(parts: Sequence[DensePart]) -> list[DensePart]:
    """Parts that follow each other in the buffer as one: a copy for each costs more than it."""
    joined: list[DensePart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and last.offset + last.elements == part.offset:
            joined[-1] = replace(last, elements=last.elements + part.elements)
        else:
            joined.append(part)
    return joined


def _dense_view(messages: Tensor, layout: Layout) -> Tensor:
    """The bf16 section of each message: (ranks, dense_share)."""
    end = layout.dense_offset + layout.dense_share * BF16_BYTES
    return messages[:, layout.dense_offset : end].view(torch.bfloat16)
