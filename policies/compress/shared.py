"""The exchange for high ratios: few elements of each large layer, the same ones on every rank.

Where every rank sends its own largest elements, indices differ and bytes grow with the number of
ranks. Here one rank in turn selects for all (ScaleCom, Chen et al. 2020), or all draw the same
random places, so that what is sent adds up like a small dense gradient: a two-phase sum in fp32
of bf16 values. What is not sent, and what bf16 rounds away, stays in the residual. Small layers
are sent whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import select
from .bucket import Bucket, Outcome
from .channel import Channel
from .codec import TorchCodec
from .header import Header
from .layout import LayerTable
from .quantise import OVERFLOW_BITS, magnitude_bits
from .residual import WORKER, ResidualStore
from .two_phase import TwoPhase
from .wire import DENSE_BITS, blocks, kept_elements, shared_index_bytes
from .workspace import Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A layer of the bucket, and where its kept values lie among all that is sent."""

    layer: int
    offset: int  # in the bucket
    elements: int
    start: int  # in what is sent
    kept: int  # elements: all of them for a small layer
    place: int  # first element in the bitmap; -1 for a small layer


class SharedIndex:
    """One rank's side; stands in for :class:`TwoPhase`.

    Args:
        channel: collectives.
        table: the model's layers.
        store: residuals.
        gain: share of a residual that is carried into the next round.
        seeded: all ranks draw the same random places, in place of one selecting for all.
    """

    def __init__(
        self,
        channel: Channel,
        table: LayerTable,
        store: ResidualStore,
        *,
        gain: float = 1.0,
        seeded: bool = False,
    ) -> None:
        self._channel = channel
        self._store = store
        self._gain = gain
        self._seeded = seeded
        self._space = Workspace()
        self.table = table
        self.rank = channel.rank
        self._step, self._keep_share = 0, 1.0
        self._inner: TwoPhase | None = None
        self._inner_share = 0.0
        self._parts: tuple[_Part, ...] = ()
        self._compact: Bucket | None = None
        self._sums: dict[str, Tensor] = {}  # gradient and residual of each large layer
        self._selection: np.ndarray | None = None  # where each rank draws it by itself

    def warm_up(self) -> None:
        """Nothing is compiled for it."""

    def begin(self, *, step: int, keep_share: float) -> None:
        """Say of which iteration the next bucket is, and what share of elements is sent."""
        self._step, self._keep_share = step, keep_share

    def digest(self, bucket: Bucket, bits: Sequence[int]) -> int:
        """Lay the bucket out; 32 bits that ranks with another layout or selection do not have."""
        self._space.renew()
        held = sum(self.table.elements[i] for i in bucket.layers)
        if held != bucket.buffer.numel():
            raise ValueError(f"{bucket.buffer.numel()} values where its layers have {held}")
        inner = self._values_exchange()
        self._parts = self._lay_out(bucket)
        count = sum(part.kept for part in self._parts)
        values = self._space.get("compact", count, torch.float32)
        self._compact = Bucket(index=bucket.index, layers=bucket.layers, buffer=values)
        dense = (DENSE_BITS,) * len(self.table.names)
        how = (self._seeded, self._keep_share, inner.digest(self._compact, dense))
        return zlib.crc32(repr(how).encode())

    def prepare(self, bucket: Bucket) -> bool:
        """Add residuals and, where it is this rank's turn, select; False if not all is finite."""
        for left in self._sums.values():  # of a bucket that some rank could not send
            self._store.recycle(left)
        self._sums.clear()
        self._selection = None
        worst = 0
        for part in self._large():
            gradient = bucket.buffer[part.offset : part.offset + part.elements]
            total = self._total(part, gradient)
            worst = max(worst, int(magnitude_bits(total).max()))
        large = self._large()
        if large:  # packed here: after the headers nothing may fail before all have the message
            message = self._space.get("selection", self._selection_bytes(), torch.uint8)
            if self._seeded:
                self._selection = self._joined(
                    [
                        select.drawn(part.elements, part.kept, step=self._step, layer=part.layer)
                        for part in large
                    ]
                )
            elif self._leader() == self.rank:
                selection = self._joined(
                    [select.largest(self._sums[self._name(p)].numpy(), p.kept) for p in large]
                )
                elements = sum(part.elements for part in large)
                message.copy_(torch.from_numpy(select.pack(selection, elements)))
        return worst < OVERFLOW_BITS

    def transfer(
        self,
        bucket: Bucket,
        header: Header,
        *,
        finite: bool = True,
        error: Exception | None = None,
    ) -> Outcome:
        """Agree on the selection, sum what is selected, and write the bucket.

        Arguments as of :meth:`TwoPhase.transfer`.
        """
        compact = self._need_compact()
        selection: np.ndarray | None = None
        self._tell()
        try:
            selection = self._chosen()
            self._gather(bucket, selection, compact.buffer)
            finite = self._values_exchange().prepare(compact) and finite
            self._keep_rest(selection)
        except Exception as caught:  # the others must hear of it before anything else happens
            error = caught
        outcome = self._values_exchange().transfer(compact, header, finite=finite, error=error)
        if not outcome.failed and outcome.finite and selection is not None:
            self._scatter(bucket, selection, compact.buffer)
        return outcome

    def _lay_out(self, bucket: Bucket) -> tuple[_Part, ...]:
        parts, offset, start, place = [], 0, 0, 0
        for i in bucket.layers:
            elements = self.table.elements[i]
            large = 0 < elements >= self.table.dense_below
            kept = kept_elements(elements, self._keep_share) if large else elements
            parts.append(
                _Part(
                    layer=i,
                    offset=offset,
                    elements=elements,
                    start=start,
                    kept=kept,
                    place=place if large else -1,
                )
            )
            offset, start = offset + elements, start + kept
            place += elements if large else 0
        return tuple(parts)

    def _values_exchange(self) -> TwoPhase:
        """The dense two-phase sum of what is selected.

        A large layer goes by another name there: its residual is this exchange's own business.
        """
        if self._inner is None or self._inner_share != self._keep_share:
            table, small = self.table, self.table.dense_below
            large = [0 < count >= small for count in table.elements]
            inner = LayerTable(
                names=tuple(
                    f"kept:{name}" if big else name
                    for name, big in zip(table.names, large, strict=True)
                ),
                elements=tuple(
                    kept_elements(count, self._keep_share) if big else count
                    for count, big in zip(table.elements, large, strict=True)
                ),
                world=table.world,
                block=table.block,
                dense_below=1 + max(table.elements, default=0),
            )
            codec = TorchCodec(world=table.world, rank=self.rank, block=table.block)
            self._inner = TwoPhase(self._channel, inner, codec, self._store, Workspace())
            self._inner_share = self._keep_share
        return self._inner

    def _total(self, part: _Part, gradient: Tensor) -> Tensor:
        """A layer's gradient and residual; an unused layer's residual waits."""
        name = self._name(part)
        padded = blocks(part.elements, self.table.block) * self.table.block
        total = self._store.fresh(padded)
        self._sums[name] = total
        total[part.elements :] = 0
        values = total[: part.elements]
        values.copy_(gradient)
        residual = self._store.get(WORKER, name) if self._store.enabled else None
        if residual is not None and bool((gradient != 0).any()):
            values.add_(residual[: part.elements], alpha=self._gain * self._store.shrink(name))
        return values

    def _tell(self) -> None:
        """The selecting rank's message to all."""
        if self._large() and not self._seeded:
            message = self._space.get("selection", self._selection_bytes(), torch.uint8)
            self._channel.broadcast(message, self._leader())

    def _chosen(self) -> np.ndarray:
        """The selection over all large layers."""
        large = self._large()
        if not large:
            return np.empty(0, dtype=np.int64)
        if self._selection is not None:
            return self._selection
        message = self._space.get("selection", self._selection_bytes(), torch.uint8)
        elements, kept = sum(p.elements for p in large), sum(p.kept for p in large)
        return select.unpack(message.numpy(), elements, kept)

    def _gather(self, bucket: Bucket, selection: np.ndarray, out: Tensor) -> None:
        """What is sent: the selected values, and small layers whole."""
        for part, places in self._by_part(selection):
            target = out[part.start : part.start + part.kept]
            if part.place < 0:
                target.copy_(bucket.buffer[part.offset : part.offset + part.elements])
            else:
                target.copy_(self._sums[self._name(part)][torch.from_numpy(places)])

    def _keep_rest(self, selection: np.ndarray) -> None:
        """Stage what is not sent, and what bf16 rounds away of what is."""
        for part, places in self._by_part(selection):
            if part.place < 0:
                continue
            name = self._name(part)
            rest = self._sums.pop(name)
            if not self._store.enabled or not bool((rest != 0).any()):
                self._store.recycle(rest)  # an unused layer's residual waits
                continue
            at = torch.from_numpy(places)
            values = rest[at]
            rest[at] = values - values.to(torch.bfloat16).to(torch.float32)
            self._store.stage(WORKER, name, rest, share=self._gain)

    def _scatter(self, bucket: Bucket, selection: np.ndarray, mean: Tensor) -> None:
        for part, places in self._by_part(selection):
            target = bucket.buffer[part.offset : part.offset + part.elements]
            values = mean[part.start : part.start + part.kept]
            if part.place < 0:
                target.copy_(values)
            else:
                target.zero_()
                target[torch.from_numpy(places)] = values.to(target.dtype)

    def _by_part(self, selection: np.ndarray) -> list[tuple[_Part, np.ndarray]]:
        """Each layer with its selected places, from its own start."""
        rows, at = [], 0
        for part in self._parts:
            count = part.kept if part.place >= 0 else 0
            rows.append((part, selection[at : at + count] - part.place))
            at += count
        return rows

    def _joined(self, places: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(
            [part.place + own for part, own in zip(self._large(), places, strict=True)]
        )

    def _selection_bytes(self) -> int:
        large = self._large()
        return shared_index_bytes(
            sum(part.elements for part in large), sum(part.kept for part in large)
        )

    def _large(self) -> list[_Part]:
        return [part for part in self._parts if part.place >= 0]

    def _name(self, part: _Part) -> str:
        return self.table.names[part.layer]

    def _leader(self) -> int:
        """Who selects: one rank an iteration, whatever the buckets are."""
        return self._step % self.table.world

    def _need_compact(self) -> Bucket:
        if self._compact is None:
            raise RuntimeError("digest() lays the bucket out and comes first")
        return self._compact
