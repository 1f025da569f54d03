"""The compressed reduce-scatter, for models whose parameters are sharded over the ranks.

A rank needs the mean of its own shard only, so one phase is enough: each rank quantises the chunk
it has for every other rank, the chunks travel in one all-to-all, and the owner sums them in fp32
in rank order. Nothing is rounded a second time, so the owner keeps no residual. What was rounded
away of a chunk stays with its sender, by parameter and destination: as many elements as the model
has, on every rank.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from .bucket import Bucket, Outcome
from .channel import Channel
from .codec import Codec, TorchCodec
from .header import Header
from .layout import DensePart, LayerTable, Layout, Place
from .quantise import OVERFLOW_BITS
from .residual import WORKER, ResidualStore
from .two_phase import is_finite
from .wire import BF16_BYTES, blocks
from .workspace import Workspace

_LAYOUTS_KEPT = 512  # calls times bits tables; older ones are computed again


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
        dense_below: smaller parameters travel as bf16; so do shards of half a block or less,
            which at 8 bits would be the longer for the padding.
    """
    return LayerTable(
        names=tuple(names),
        elements=tuple(shards),
        world=world,
        block=block,
        dense_below=max(block // 2 + 1, -(-dense_below // spread)),
    )


def residual_name(name: str, destination: int) -> str:
    """Under which the residual of a parameter's chunk is kept."""
    return f"{name}/{destination}"


class Scatter:
    """One rank's side of the quantised reduce-scatter.

    Args:
        channel: between the ranks that a parameter is spread over.
        table: of one chunk, from :func:`shard_table`.
        codec: back-end, for a world of one.
        store: residuals.
        workspace: buffers.
    """

    def __init__(
        self,
        channel: Channel,
        table: LayerTable,
        codec: Codec,
        store: ResidualStore,
        workspace: Workspace,
    ) -> None:
        self.table = table
        self.rank = 0  # each message is a world of its own
        self._channel = channel
        self._codec = codec
        self._reference = TorchCodec(world=1, rank=0, block=table.block)
        self._store = store
        self._space = workspace
        self._layouts: dict[tuple[tuple[int, ...], tuple[int, ...]], Layout] = {}
        self._layout: Layout | None = None

    def warm_up(self) -> None:
        """Compile the kernels now: no rank should wait for it in the first compressed step."""
        table = LayerTable(
            names=("",), elements=(self.table.block,), world=1, block=self.table.block,
            dense_below=0,
        )  # fmt: skip
        layout = table.layout((0,), (4,))
        place, stride = layout.places[0], layout.payload
        values, message = torch.ones(layout.block), torch.zeros(stride, dtype=torch.uint8)
        for gradient in (values, torch.zeros_like(values)):
            self._codec.encode(place, gradient, None, 1.0, values.clone(), message, stride)
        self._codec.decode(place, message, stride, 0, values)

    def residual_sizes(self) -> dict[tuple[str, str], int]:
        """Elements of each residual that this rank may keep, by kind and name."""
        return {
            (WORKER, residual_name(name, rank)): blocks(elements, self.table.block)
            * self.table.block
            for name, elements in zip(self.table.names, self.table.elements, strict=True)
            for rank in range(self._channel.world)
        }

    def digest(self, bucket: Bucket, bits: Sequence[int]) -> int:
        """Lay the chunks out; 32 bits that ranks with another layout do not have."""
        self._space.renew()
        key = (bucket.layers, tuple(bits[i] for i in bucket.layers))
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS_KEPT:
                self._layouts.clear()
            layout = self._layouts[key] = self.table.layout(*key)
        shards = shards_of(bucket)
        check_sizes(shards, self.table, self._channel.world)
        self._layout = layout
        return zlib.crc32(repr((layout.digest, shards.factor(self._channel.world))).encode())

    def prepare(self, bucket: Bucket) -> bool:
        """Quantise the chunks; False if one of this rank's gradients is not finite."""
        layout, world = self._need_layout(), self._channel.world
        messages = self._space.get("sent", world * layout.payload, torch.uint8)
        self._space.get("received", world * layout.payload, torch.uint8)  # short here or never
        chunks = shards_of(bucket).whole.view(world, -1)
        worst = 0
        for place in layout.places:
            for rank, message in enumerate(messages.view(world, -1)):
                chunk = chunks[rank, place.offset : place.offset + place.elements]
                worst = max(worst, self._encode(place, chunk, rank, message))
        finite = worst < OVERFLOW_BITS
        return self._prepare_dense(chunks, layout, messages.view(world, -1)) and finite

    def _encode(self, place: Place, chunk: Tensor, rank: int, message: Tensor) -> int:
        """One parameter's chunk for one rank, into its message; the largest magnitude's bits."""
        name, fresh = residual_name(place.name, rank), None
        if self._store.enabled:
            fresh = self._store.fresh(place.blocks * self.table.block)
        residual, gain = self._store.get(WORKER, name), self._store.gain(place.name)
        largest = self._codec.encode(
            place, self._fp32(chunk), residual, gain, fresh, message, message.numel()
        )
        if fresh is not None and largest is None:
            self._store.recycle(fresh)
        elif fresh is not None:
            self._store.stage(WORKER, name, fresh)
        return 0 if largest is None else largest

    def _prepare_dense(self, chunks: Tensor, layout: Layout, messages: Tensor) -> bool:
        """Parameters that travel as bf16; what they had as residual goes along, once."""
        if not layout.dense_share:
            return True
        section = self._space.get("section", layout.dense_share, torch.float32)
        finite = True
        for rank, message in enumerate(messages):
            for part in layout.dense:
                stretch = section[part.start : part.start + part.elements]
                stretch.copy_(chunks[rank, part.offset : part.offset + part.elements])
                self._drain(part, rank, stretch)
            sent = _dense_view(message, layout)
            sent.copy_(section)
            finite = is_finite(sent) and finite
        return finite

    def _drain(self, part: DensePart, rank: int, gradient: Tensor) -> None:
        name = residual_name(part.name, rank)
        residual = self._store.get(WORKER, name)
        if residual is not None and bool((gradient != 0).any()):
            gradient.add_(residual[: gradient.numel()] * self._store.gain(part.name))
            self._store.stage(WORKER, name, None)

    def transfer(self, bucket: Bucket, header: Header) -> Outcome:
        """Exchange the chunks and sum those for this rank.

        Residuals are staged, and hold once the caller commits them.
        """
        layout, world = self._need_layout(), self._channel.world
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

    def _sum(self, codec: Codec, layout: Layout, messages: Tensor, bucket: Shards) -> None:
        """In rank order and fp32, whatever the type of the gradients."""
        factor = bucket.factor(self._channel.world)
        for place in layout.places:
            total = self._space.get("total", place.elements, torch.float32).zero_()
            values = self._space.get("values", place.elements, torch.float32)
            for message in messages:
                codec.decode(place, message, message.numel(), 0, values)
                total += values
            total *= factor
            bucket.buffer[place.offset : place.offset + place.elements].copy_(total)
        if layout.dense_share:
            total = self._space.get("total", layout.dense_share, torch.float32).zero_()
            for message in messages:
                total += _dense_view(message, layout)
            total *= factor
            for part in layout.dense:
                stretch = total[part.start : part.start + part.elements]
                bucket.buffer[part.offset : part.offset + part.elements].copy_(stretch)

    def _fp32(self, values: Tensor) -> Tensor:
        if values.dtype == torch.float32:
            return values
        return self._space.get("fp32", values.numel(), torch.float32).copy_(values)

    def _need_layout(self) -> Layout:
        if self._layout is None:
            raise RuntimeError("digest() lays the chunks out and comes first")
        return self._layout


def check_sizes(bucket: Shards, table: LayerTable, world: int) -> None:
    """Raise ValueError unless the tensors have the sizes of the bucket's layers."""
    held = sum(table.elements[i] for i in bucket.layers)
    if (bucket.buffer.numel(), bucket.whole.numel()) != (held, held * world):
        sizes = f"{bucket.whole.numel()} values and a shard of {bucket.buffer.numel()}"
        raise ValueError(f"{sizes} where the layers have {held} on each of {world} ranks")


def _dense_view(message: Tensor, layout: Layout) -> Tensor:
    """The bf16 section of one message."""
    end = layout.dense_offset + layout.dense_share * BF16_BYTES
    return message[layout.dense_offset : end].view(torch.bfloat16)
