"""Gradient dropping: the largest magnitudes of a bucket by all-gather, the rest is lost.

The baseline of fixed-ratio dropping, so without a residual. Its bytes grow with the number of
ranks: with 35 % kept it sends more than a bf16 ring from 5 ranks on.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from .bucket import Bucket, Outcome
from .channel import Channel
from .quantise import OVERFLOW_BITS, magnitude_bits
from .wire import BF16_BYTES, INDEX_BYTES, drop_payload_bytes, kept_elements
from .workspace import Workspace


class Drop:
    """One rank's side of top-k dropping.

    Args:
        channel: collectives.
        keep_share: share of a bucket's elements that is sent.
        workspace: buffers.
    """

    def __init__(self, channel: Channel, *, keep_share: float, workspace: Workspace) -> None:
        self._channel = channel
        self._keep_share = keep_share
        self._space = workspace
        self._bit = 1 << torch.arange(8, dtype=torch.uint8)

    def digest(self, bucket: Bucket) -> int:
        """32 bits that ranks with another bucket or share do not have."""
        self._space.renew()
        described = repr(("drop", bucket.layers, bucket.buffer.numel(), self._keep_share))
        return zlib.crc32(described.encode())

    def prepare(self, bucket: Bucket) -> bool:
        """Choose and pack this rank's values; False if a gradient is not finite."""
        elements = bucket.buffer.numel()
        kept = kept_elements(elements, self._keep_share)
        size = drop_payload_bytes(elements, self._keep_share)
        message = self._space.get("drop", size, torch.uint8)
        self._space.get("dropped", self._channel.world * size, torch.uint8)
        values = self._space.get("values", elements, torch.float32).copy_(bucket.buffer)
        chosen = torch.topk(values.abs(), kept, sorted=False).indices.sort().values
        mask_bytes = size - kept * BF16_BYTES
        if mask_bytes == kept * INDEX_BYTES:
            message[:mask_bytes].view(torch.int32).copy_(chosen)
        else:
            mask = torch.zeros(mask_bytes * 8, dtype=torch.uint8)
            mask[chosen] = 1
            message[:mask_bytes].copy_((mask.view(-1, 8) * self._bit).sum(1, dtype=torch.uint8))
        # A bitmap may have an odd length: bytes are copied, not viewed as bf16.
        message[mask_bytes:] = values[chosen].to(torch.bfloat16).view(torch.uint8)
        return int(magnitude_bits(values).max()) < OVERFLOW_BITS

    def transfer(self, bucket: Bucket) -> Outcome:
        """Gather everyone's values and add them in rank order."""
        elements, world = bucket.buffer.numel(), self._channel.world
        size = drop_payload_bytes(elements, self._keep_share)
        gathered = self._space.get("dropped", world * size, torch.uint8)
        self._channel.all_gather(gathered, self._space.get("drop", size, torch.uint8))
        total = self._space.get("values", elements, torch.float32).zero_()
        for message in gathered.view(world, size):
            chosen, values = self._unpack(message, elements)
            total[chosen] += values
        bucket.buffer.copy_(total.mul_(1.0 / world))
        return Outcome(failed=(), finite=True)

    def _unpack(self, message: Tensor, elements: int) -> tuple[Tensor, Tensor]:
        kept = kept_elements(elements, self._keep_share)
        mask_bytes = message.numel() - kept * BF16_BYTES
        values = message[mask_bytes:].clone().view(torch.bfloat16).to(torch.float32)
        if mask_bytes == kept * INDEX_BYTES:
            return message[:mask_bytes].clone().view(torch.int32).long(), values
        bits = (message[:mask_bytes, None] & self._bit) != 0
        return bits.flatten().nonzero().flatten(), values
