"""Ranks in one process: a thread each, with the shipped engine, meeting at a barrier.

`LocalChannel` has the interface and the byte counts of the engine's channel over gloo; everything
above it is the engine itself. A rank that fails breaks the barrier, so that no other rank waits
for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from xtune.policies.compress import wire
from xtune.policies.compress.channel import Channel
from xtune.policies.compress.exchange import Exchange
from xtune.policies.compress.header import Header
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.residual import DTYPES, ResidualStore
from xtune.policies.plan import Layer, residual_decays
from xtune.policies.spec import Compression

_Result = TypeVar("_Result")


class Meeting:
    """Where the ranks of one process hand each other values."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._barrier = threading.Barrier(world)
        self._slots: list[tuple[str, Any]] = [("", None)] * world

    def swap(self, rank: int, what: str, value: Any) -> list[Any]:
        """Everyone's values in rank order, to be read until `leave`.

        Raises:
            RuntimeError: the ranks are in different collectives; raised on all of them.
            threading.BrokenBarrierError: another rank has failed.
        """
        self._slots[rank] = (what, value)
        self._barrier.wait()
        if len({named for named, _ in self._slots}) > 1:
            raise RuntimeError(f"collectives differ: {[named for named, _ in self._slots]}")
        return [given for _, given in self._slots]

    def leave(self) -> None:
        """Wait until everyone has read."""
        self._barrier.wait()

    def abort(self) -> None:
        """Let nobody wait for a rank that has failed."""
        self._barrier.abort()

    def renew(self) -> None:
        """Meet again after a failure."""
        self._barrier.reset()


class LocalChannel(Channel):
    """The engine's collectives between the threads of one process.

    Sums are in rank order. Times are 0, so that no run depends on how busy the machine was.

    Args:
        meeting: shared by the ranks.
        rank: this one.
    """

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self.world = meeting.world
        self._meeting = meeting
        self._per_node = 1
        self.reset()

    def headers(self, header: Header) -> list[Header]:
        """See `Channel.headers`."""
        packed = self._meeting.swap(self.rank, "headers", header.pack())
        everyone = [Header.unpack(data) for data in packed]
        self._meeting.leave()
        self.sent_bytes += (self.world - 1) * wire.HEADER_BYTES
        return everyone

    def all_gather(self, out: Tensor, share: Tensor) -> None:
        """See `Channel.all_gather`."""
        shares = self._meeting.swap(self.rank, f"all_gather {share.nbytes}", share)
        out.view(self.world, -1).copy_(torch.stack(shares).view(self.world, -1))
        self._meeting.leave()
        self.sent_bytes += (self.world - 1) * share.nbytes

    def all_to_all(self, received: Tensor, shares: Tensor) -> None:
        """See `Channel.all_to_all`."""
        given = self._meeting.swap(self.rank, f"all_to_all {shares.nbytes}", shares)
        rows = received.view(self.world, -1)
        for rank, theirs in enumerate(given):
            rows[rank].copy_(theirs.view(self.world, -1)[self.rank])
        self._meeting.leave()
        self.sent_bytes += (self.world - 1) * (shares.nbytes // self.world)

    def all_reduce_mean(self, buffer: Tensor) -> None:
        """See `Channel.all_reduce_mean`; dense buffers only."""
        buffer.mul_(1.0 / self.world)
        self.all_reduce_sum(buffer)

    def all_reduce_sum(self, buffer: Tensor) -> None:
        """The sum over the ranks, in the buffer's own type."""
        given = self._meeting.swap(self.rank, f"all_reduce {buffer.nbytes}", buffer)
        total = given[0].clone()
        for theirs in given[1:]:
            total += theirs
        self._meeting.leave()
        buffer.copy_(total)
        self.sent_bytes += wire.ring_bytes(buffer.nbytes, self.world)

    def broadcast(self, message: Tensor, source: int) -> None:
        """See `Channel.broadcast`."""
        given = self._meeting.swap(self.rank, f"broadcast {source} {message.nbytes}", message)
        if self.rank != source:
            message.copy_(given[source])
        self._meeting.leave()
        self.sent_bytes += wire.broadcast_bytes(message.nbytes, self.world)

    def all_reduce_max(self, values: Tensor) -> None:
        """See `Channel.all_reduce_max`."""
        given = self._meeting.swap(self.rank, f"maximum {values.nbytes}", values)
        largest = torch.stack(given).amax(0)
        self._meeting.leave()
        values.copy_(largest)
        self.sent_bytes += wire.ring_bytes(values.nbytes, self.world)


class Ranks:
    """Threads that run one function as all ranks at the same time.

    Args:
        world: how many.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.meeting = Meeting(world)
        self._threads = ThreadPoolExecutor(world, thread_name_prefix="rank")

    def channels(self) -> list[LocalChannel]:
        """A channel for each rank."""
        return [LocalChannel(self.meeting, rank) for rank in range(self.world)]

    def run(self, work: Callable[[int], _Result]) -> list[_Result]:
        """Call ``work(rank)`` on every rank; results in rank order.

        Raises:
            Exception: the first error of a rank, after all ranks have ended.
        """
        futures = [self._threads.submit(self._guarded, work, rank) for rank in range(self.world)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self.meeting.renew()
            broken = threading.BrokenBarrierError
            raise next((e for e in errors if not isinstance(e, broken)), errors[0])
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _guarded(self, work: Callable[[int], _Result], rank: int) -> _Result:
        try:
            return work(rank)
        except BaseException:
            self.meeting.abort()
            raise


def layers_of(names: Sequence[str], elements: Sequence[int]) -> list[Layer]:
    """The model's layers as `policies.attach` describes them to a controller."""
    last = max(1, len(names) - 1)
    return [
        Layer(name=name, elements=count, depth=place / last)
        for place, (name, count) in enumerate(zip(names, elements, strict=True))
    ]


def layer_table(layers: Sequence[Layer], compression: Compression, world: int) -> LayerTable:
    """The layers as the exchange sees them."""
    return LayerTable(
        names=tuple(layer.name for layer in layers),
        elements=tuple(layer.elements for layer in layers),
        world=world,
        block=compression.block,
        dense_below=compression.dense_below_elements,
    )


def build_exchange(
    channel: Channel, layers: Sequence[Layer], compression: Compression
) -> Exchange:
    """One rank's engine under a policy, built as `policies.attach` builds it."""
    table = layer_table(layers, compression, channel.world)
    store = ResidualStore(
        decay=residual_decays(layers, compression),
        enabled=compression.error_feedback,
        dtype=DTYPES[compression.residual_dtype],
        limit=compression.residual_limit,
    )
    exchange = Exchange(
        channel,
        table,
        store,
        keep_share=compression.drop_keep_share,
        shared_gain=compression.residual_decay_shared,
        seeded=compression.selection == "seeded",
    )
    if compression.mode == "quantise":
        exchange.quantised.warm_up()
    return exchange
