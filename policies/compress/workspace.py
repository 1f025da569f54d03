"""Buffers that live from call to call: a gradient exchange must not allocate each time."""

from __future__ import annotations

import torch
from torch import Tensor


class Workspace:
    """Flat buffers by role, grown when a larger bucket comes.

    A buffer that was more than twice as large as needed for `PATIENCE` buckets is given back:
    DDP's first iteration may have the whole model in one bucket.

    Args:
        device: that has them, host memory by default.
    """

    PATIENCE = 64

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._most: dict[tuple[str, torch.dtype], int] = {}  # elements, since the last look
        self._buckets = 0

    def renew(self) -> None:
        """Begin a bucket: nothing that the buffers hold is needed any more."""
        self._buckets += 1
        if self._buckets < self.PATIENCE:
            return
        for key, buffer in list(self._buffers.items()):
            if buffer.numel() > 2 * self._most.get(key, 0):
                del self._buffers[key]
        self._most.clear()
        self._buckets = 0

    def get(self, role: str, elements: int, dtype: torch.dtype) -> Tensor:
        """A buffer of ``elements``; what it held under the same role is overwritten."""
        key = role, dtype
        self._most[key] = max(self._most.get(key, 0), elements)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < elements:
            buffer = torch.zeros(elements, dtype=dtype, device=self._device)
            self._buffers[key] = buffer
        return buffer[:elements]
