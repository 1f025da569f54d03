"""The collectives of one bucket, with the bytes and the time they cost.

Everything runs on the engine's own groups and from one thread, so that neither the order of
buckets nor a collective of the training loop can interleave differently on two ranks. Headers and
words go over gloo, payload too unless it lies on an accelerator. Bytes are counted from the real
buffers, by what this rank sends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from .device import settle
from .header import Header
from .wire import HEADER_BYTES, broadcast_bytes, ring_bytes, ring_scatter_bytes

_LOG = logging.getLogger("xtune")

# torch 2.13 renamed these collectives, and warns of the old names.
gather_into: Callable[..., object] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
reduce_scatter_into: Callable[..., object] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)


class Carrier(Protocol):
    """What payload travels by; tensors of any shape, in the order of the ranks."""

    def meet(self) -> None:
        """All ranks have just met, and what comes next follows at once."""

    def all_gather(self, out: Tensor, share: Tensor) -> None:
        """Everyone gets everyone's share."""

    def all_to_all(self, received: Tensor, shares: Tensor) -> None:
        """Share ``r`` goes to rank ``r``."""

    def broadcast(self, message: Tensor, source: int) -> None:
        """Everyone gets what rank ``source`` has."""

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum over the ranks."""


class OneGroup:
    """Payload over one process group, as torch does it; see `Carrier`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def meet(self) -> None:
        """Of no matter here."""

    def all_gather(self, out: Tensor, share: Tensor) -> None:
        """See `Carrier.all_gather`."""
        gather_into(out, share, group=self.group)

    def all_to_all(self, received: Tensor, shares: Tensor) -> None:
        """See `Carrier.all_to_all`."""
        dist.all_to_all_single(received, shares, group=self.group)

    def broadcast(self, message: Tensor, source: int) -> None:
        """See `Carrier.broadcast`."""
        dist.broadcast(message, group_src=source, group=self.group)

    def all_reduce(self, buffer: Tensor) -> None:
        """See `Carrier.all_reduce`; sparse ones as well."""
        dist.all_reduce(buffer, group=self.group)


class Channel:
    """Collectives between some ranks.

    Attributes:
        lead: bytes in front of a share for `all_gather_words`.

    Args:
        group: a gloo group that nobody else uses.
        clock: seconds, monotonic.
        per_node: ranks of a node, which share its way out: of a ring over all ranks that has a
            lane for each, a rank's share of what leaves the node is counted.
        payload: a group of the same ranks whose backend works where the payload lies, which
            nobody else uses either; by default payload goes over ``group``.
    """

    lead = HEADER_BYTES

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        clock: Callable[[], float] = time.perf_counter,
        per_node: int = 1,
        payload: dist.ProcessGroup | None = None,
    ) -> None:
        self.group = group
        self._payload = group
        self._carrier: Carrier = OneGroup(group)
        if payload is not None:
            self.carry_over(payload)
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.sent_bytes = 0  # since `reset`
        self.spans: list[tuple[float, float]] = []  # of collectives that carry payload
        self.wait_s = 0.0  # in header rounds: mostly waiting for the slowest rank
        self._clock = clock
        self._per_node = per_node

    def carry_over(self, payload: dist.ProcessGroup) -> None:
        """Send payload over another group from here on; see ``payload``."""
        self._payload, self.lead = payload, 0
        self._carrier = OneGroup(payload)

    def stripe(self, rails: Carrier) -> None:
        """Send payload over rails from here on, all but what is sparse; headers stay."""
        self._carrier = rails

    def close(self) -> None:
        """End the groups. Nothing may be under way in them, and nothing can be sent any more.

        torch holds on to a group that is not destroyed; its threads and connections end with the
        last reference, and whoever has a channel may live as long as the model does.
        """
        if self._payload is not self.group:
            _end(self._payload)
        _end(self.group)
        del self._payload, self._carrier, self.group

    def connect(self, device: torch.device) -> None:
        """Open the connections for payload on a device now.

        Opened by two lanes at a time, with a collective of each under way, they could wait for
        each other there.
        """
        values = torch.zeros(self.world, device=device)
        self.all_to_all(torch.zeros_like(values), values)
        self.all_gather(torch.zeros_like(values), values[:1])
        self.all_reduce_mean(values)
        self.reset()

    def reset(self) -> None:
        """Start counting anew."""
        self.sent_bytes = 0
        self.wait_s = 0.0
        self.spans = []

    def headers(self, header: Header) -> list[Header]:
        """Exchange the headers of one bucket; its time is waiting, not transfer."""
        mine = torch.frombuffer(bytearray(header.pack()), dtype=torch.uint8)
        everyone = torch.empty(self.world * HEADER_BYTES, dtype=torch.uint8)
        start = self._clock()
        gather_into(everyone, mine, group=self.group)
        self._carrier.meet()
        self.wait_s += self._clock() - start
        self.sent_bytes += (self.world - 1) * mine.nbytes
        return unpack_all(everyone, HEADER_BYTES)

    def all_gather(self, out: Tensor, share: Tensor) -> None:
        """Everyone gets everyone's share, in rank order."""
        self._carry(share, lambda: self._carrier.all_gather(out, share))
        self.sent_bytes += (self.world - 1) * share.nbytes

    def all_gather_words(self, out: Tensor, share: Tensor, word: Header) -> list[Header]:
        """As `all_gather`, with a word of each rank in front of its share; the words of all.

        Beside payload on an accelerator the words travel by themselves, and before it.
        """
        if self.lead == 0:
            words = self.headers(word)
            self.all_gather(out, share)
            return words
        share[:HEADER_BYTES] = torch.frombuffer(bytearray(word.pack()), dtype=torch.uint8)
        self.all_gather(out, share)
        return unpack_all(out, share.numel())

    def all_to_all(self, received: Tensor, shares: Tensor) -> None:
        """Share ``r`` of ``shares`` goes to rank ``r``."""
        self._carry(shares, lambda: self._carrier.all_to_all(received, shares))
        self.sent_bytes += (self.world - 1) * (shares.nbytes // self.world)

    def broadcast(self, message: Tensor, source: int) -> None:
        """Everyone gets what rank ``source`` has; counted as each rank's share of the sending."""
        self._carry(message, lambda: self._carrier.broadcast(message, source))
        self.sent_bytes += broadcast_bytes(message.nbytes, self.world)

    def all_reduce_mean(self, buffer: Tensor) -> None:
        """What DDP does without a hook, to the bit: scaled before the sum, in its own type.

        Over rails the sum is in rank order, whatever the ring's would be.
        """
        buffer.mul_(1.0 / self.world)
        carrier = OneGroup(self._payload) if buffer.is_sparse else self._carrier
        self._carry(buffer, lambda: carrier.all_reduce(buffer))
        if buffer.is_sparse:
            entries = buffer.coalesce()
            size = entries.values().nbytes + entries.indices().nbytes
            self.sent_bytes += (self.world - 1) * size
        else:
            part = -(-buffer.nbytes // self._per_node)
            self.sent_bytes += ring_bytes(part, self.world // self._per_node)

    def reduce_scatter(self, output: Tensor, whole: Tensor, op: Any) -> None:
        """What FSDP does without us, to the bit. Gloo reduces all of it, and keeps a part."""
        self._carry(whole, lambda: reduce_scatter_into(output, whole, op=op, group=self._payload))
        sent = ring_bytes if dist.get_backend(self._payload) == "gloo" else ring_scatter_bytes
        self.sent_bytes += sent(whole.nbytes, self.world)

    def all_reduce_max(self, values: Tensor) -> None:
        """Elementwise maximum over the ranks, the period's side collective."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        self.sent_bytes += ring_bytes(values.nbytes, self.world)

    def _carry(self, payload: Tensor, collective: Callable[[], object]) -> None:
        """Run a collective, and note when it was on the wire.

        On an accelerator it only starts there, behind what was started before it.
        """
        settle(payload)
        start = self._clock()
        collective()
        settle(payload)
        self.spans.append((start, self._clock()))


def _end(group: dist.ProcessGroup) -> None:
    try:
        dist.destroy_process_group(group)
    except ValueError:  # torch has ended them all, with its default group
        return
    except RuntimeError as error:  # of a peer that is gone: nobody is left to wait for
        _LOG.warning("xtune: a process group did not end as it should: %s", error)


def unpack_all(gathered: Tensor, stride: int) -> list[Header]:
    """The headers that open each rank's part of a gathered message."""
    parts = gathered.view(-1, stride)[:, :HEADER_BYTES].contiguous().numpy()
    return [Header.unpack(part.tobytes()) for part in parts]
