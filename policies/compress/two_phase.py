"""The compressed all-reduce: quantised shares to their owners, summed in fp32, and back to all.

Phase 1 sends each rank the blocks it owns; it sums them in rank order, rounds the mean again and
phase 2 gathers the results, so that every rank decodes the same bytes. Bytes per rank stay those
of a ring all-reduce with fewer bits whatever the number of ranks; layers at 16 bits travel in the
same messages as bf16, still summed in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .bucket import Bucket, Outcome
from .channel import Channel
from .codec import Codec, TorchCodec
from .device import Gradients
from .header import Header, judge
from .layout import LayerTable, Layout, Layouts, Place
from .quantise import OVERFLOW_BITS
from .residual import OWNER, WORKER, Feedback, ResidualStore
from .wire import BF16_BYTES
from .workspace import Workspace

_ALIGNED = 8  # bytes
_HOST = Gradients()


class TwoPhase:
    """One rank's side of the two-phase exchange.

    Args:
        channel: collectives.
        table: the model's layers.
        codec: back-end.
        store: residuals.
        workspace: buffers.
        gradients: what is known of them, to compile what they will need.
    """

    def __init__(
        self,
        channel: Channel,
        table: LayerTable,
        codec: Codec,
        store: ResidualStore,
        workspace: Workspace,
        gradients: Gradients = _HOST,
    ) -> None:
        self._gradients = gradients
        self._channel = channel
        self._codec = codec
        self._reference = TorchCodec(world=table.world, rank=channel.rank, block=table.block)
        self._store = store
        self._space = workspace
        self.table = table  # whose residuals this rank keeps, as `rank` of its world
        self.rank = channel.rank
        self._layouts = Layouts(table)

    def warm_up(self) -> None:
        """Compile the kernels now: no rank should wait for it in the first compressed step."""
        world, block = self.table.world, self.table.block
        table = LayerTable(names=("",), elements=(block,), world=world, block=block, dense_below=0)
        # The kernels of an accelerator differ by how messages and types are aligned.
        distances = (0,) if self._gradients.on is None else (0, 2, 4)
        for bits in self._gradients.bits:
            layout = table.layout((0,), (bits,))
            # Its one block is summed by one rank, and all of them will need the kernel.
            place = replace(layout.places[0], owned=np.ones(world, dtype=np.int64))
            aligned = -(-layout.payload // _ALIGNED) * _ALIGNED
            for dtype in self._gradients.dtypes:
                values = torch.ones(block, dtype=dtype, device=self._gradients.memory)
                for distance in distances:
                    self._try(place, values, aligned + distance)

    def _try(self, place: Place, values: Tensor, stride: int) -> None:
        """Call each kernel once in each form that the store asks for."""
        values = values if self._codec.narrow else values.float()
        world, share = self.table.world, values.new_zeros(stride, dtype=torch.uint8)
        shares = values.new_zeros(world * stride, dtype=torch.uint8)
        residual = values.float()
        forms = [(False, False)]
        if self._store.enabled:
            forms += [(False, True), (True, True)]
        for carry, keep in forms:
            left, new = (residual if carry else None), (residual.clone() if keep else None)
            self._codec.encode(place, values, left, 1.0, new, shares, stride)
            if keep == self._store.enabled:
                self._codec.reduce(place, shares, stride, left, 1.0, new, share, 0)
        self._codec.decode(place, shares, stride, 0, values)

    def digest(self, bucket: Bucket, bits: Sequence[int]) -> int:
        """Lay the bucket out; 32 bits that ranks with another layout do not have."""
        self._space.renew()
        layout = self._layouts.lay_out(bucket.layers, bits)
        held = sum(self.table.elements[i] for i in bucket.layers)
        if held != bucket.buffer.numel():
            raise ValueError(f"{bucket.buffer.numel()} values where its layers have {held}")
        return layout.digest

    def prepare(self, bucket: Bucket) -> bool:
        """Quantise this rank's gradients; False if one of them is not finite."""
        layout = self._layouts.current
        world, stride, lead = layout.world, layout.payload, self._channel.lead
        message = self._space.get("shares", world * stride, torch.uint8)
        self._space.get("received", world * stride, torch.uint8)  # memory is short here or never
        self._space.get("share", lead + stride, torch.uint8)
        self._space.get("gathered", world * (lead + stride), torch.uint8)
        made: list[Feedback] = []

        def gradient(place: Place) -> Tensor:
            return self._values(bucket.buffer[place.offset : place.offset + place.elements])

        def feedback(place: Place) -> Feedback:
            made.append(self._feedback(WORKER, place, place.blocks))
            return made[-1]

        largest = self._codec.encode_all(layout.places, gradient, feedback, message, stride)
        for place, found, own in zip(layout.places, largest, made, strict=True):
            self._store.offer(WORKER, place.name, own, held=found is None)
        finite = max((found or 0 for found in largest), default=0) < OVERFLOW_BITS
        return self._prepare_dense(bucket, layout, message) and finite

    def _feedback(self, kind: str, place: Place, count: int) -> Feedback:
        return self._store.feedback(kind, place.name, count * self.table.block)

    def transfer(
        self,
        bucket: Bucket,
        header: Header,
        *,
        finite: bool = True,
        error: Exception | None = None,
    ) -> Outcome:
        """Run both phases; the bucket is written only if every rank succeeded.

        Residuals are staged, and hold once the caller commits them.

        Args:
            bucket: the gradients, as prepared.
            header: what opened the exchange.
            finite: whether what this rank prepared is, where the header could not say it yet.
            error: why this rank could not prepare it.
        """
        layout = self._layouts.current
        world, stride = layout.world, layout.payload
        received = self._space.get("received", world * stride, torch.uint8)
        shares = self._space.get("shares", world * stride, torch.uint8)
        self._channel.all_to_all(received, shares)
        share = self._space.get("share", self._channel.lead + stride, torch.uint8)
        try:
            finite = self._reduce(layout, received, share) and finite
        except Exception as caught:  # the others must hear of it before anything else happens
            error = caught
        word = replace(header, finite=finite, failed=error is not None, loss=None)
        gathered = self._space.get("gathered", world * share.numel(), torch.uint8)
        verdict = judge(self._channel.all_gather_words(gathered, share, word))
        if verdict.failed or not verdict.finite:
            return Outcome(failed=verdict.failed, finite=verdict.finite, error=error)
        try:
            self._decode(self._codec, layout, gathered, bucket)
        except Exception as caught:  # too late to tell the others; the reference has the same bits
            error = caught
            self._decode(self._reference, layout, gathered, bucket)
        return Outcome(failed=(), finite=True, error=error)

    def _values(self, values: Tensor) -> Tensor:
        """In a type that the codec takes."""
        if values.dtype == torch.float32 or self._codec.narrow:
            return values
        converted = self._space.get("fp32", values.numel(), torch.float32)
        return converted.copy_(values)

    def _prepare_dense(self, bucket: Bucket, layout: Layout, message: Tensor) -> bool:
        """Layers that travel as bf16; what they had as residual goes along, once."""
        if not layout.dense_share:
            return True
        world, share = layout.world, layout.dense_share
        section = self._space.get("dense", world * share, torch.float32)
        for part in layout.dense:
            stretch = section[part.start : part.start + part.elements]
            stretch.copy_(bucket.buffer[part.offset : part.offset + part.elements])
            if self._drain(part.name, stretch):
                self._store.stage(WORKER, part.name, None)
                self._store.stage(OWNER, part.name, None)
        section[layout.dense[-1].start + layout.dense[-1].elements :] = 0
        self._dense_view(message, layout.payload, 0, layout).copy_(section.view(world, share))
        return is_finite(section)

    def _drain(self, name: str, gradient: Tensor) -> bool:
        """Add a layer's residuals to its gradient; False where there is nothing to add."""
        worker, owner = self._store.get(WORKER, name), self._store.get(OWNER, name)
        if (worker is None and owner is None) or not bool((gradient != 0).any()):
            return False
        if worker is not None:
            gradient.add_(worker[: gradient.numel()] * self._store.gain(name))
        if owner is not None:  # in units of the mean: as part of one summand it counts world times
            index = self.table.names.index(name)
            block, world = self.table.block, self.table.world
            first = (self._channel.rank - self.table.bases[index]) % world
            element = torch.arange(owner.numel(), device=owner.device)
            where = (element // block * world + first) * block + element % block
            inside = where < gradient.numel()
            gradient[where[inside]] += owner[inside] * (self._store.gain(name) * world)
        return True

    def _reduce(self, layout: Layout, received: Tensor, share: Tensor) -> bool:
        lead = self._channel.lead

        def feedback(place: Place) -> Feedback:
            own = self._feedback(OWNER, place, int(place.owned[self._channel.rank]))
            self._store.offer(OWNER, place.name, own, held=False)
            return own

        worst = self._codec.reduce_all(
            layout.places, received, layout.payload, feedback, share, lead
        )
        finite = worst < OVERFLOW_BITS
        if layout.dense_share:
            parts = self._dense_view(received, layout.payload, 0, layout)
            total = self._space.get("total", layout.dense_share, torch.float32).zero_()
            for rank in range(layout.world):
                total += parts[rank]
            total *= 1.0 / layout.world
            mine = self._dense_view(share, share.numel(), lead, layout)[0]
            mine.copy_(total)
            finite = is_finite(mine) and finite
        return finite

    def _decode(self, codec: Codec, layout: Layout, gathered: Tensor, bucket: Bucket) -> None:
        lead = self._channel.lead
        stride = lead + layout.payload
        for place in layout.places:
            target = bucket.buffer[place.offset : place.offset + place.elements]
            if target.dtype == torch.float32 or codec.narrow:
                codec.decode(place, gathered, stride, lead, target)
            else:
                values = self._space.get("fp32", place.elements, torch.float32)
                codec.decode(place, gathered, stride, lead, values)
                target.copy_(values)
        if layout.dense_share:
            section = self._space.get("dense", layout.world * layout.dense_share, torch.float32)
            parts = self._dense_view(gathered, stride, lead, layout)
            section.view(layout.world, layout.dense_share).copy_(parts)
            for part in layout.dense:
                stretch = section[part.start : part.start + part.elements]
                bucket.buffer[part.offset : part.offset + part.elements].copy_(stretch)

    def _dense_view(self, message: Tensor, stride: int, lead: int, layout: Layout) -> Tensor:
        """The bf16 section of each share: (ranks, dense_share)."""
        start = lead + layout.dense_offset
        rows = message.view(-1, stride)[:, start : start + layout.dense_share * BF16_BYTES]
        return rows.view(torch.bfloat16)


def is_finite(values: Tensor) -> bool:
    """Whether all values are finite; minimum and maximum carry a NaN."""
    extremes = torch.stack(torch.aminmax(values))
    return bool(torch.isfinite(extremes).all())  # one wait, where it is on an accelerator
