"""Buffers that live from call to call: a gradient exchange must not allocate each time."""

from __future__ import annotations

import torch
from torch import Tensor


class Workspace:
    """Flat buffers by role, grown when a larger bucket comes and never shrunk.

    Args:
        device: that has them, host memory by default.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def get(self, role: str, elements: int, dtype: torch.dtype) -> Tensor:
        """A buffer of ``elements``; what it held under the same role is overwritten."""
        buffer = self._buffers.get((role, dtype))
        if buffer is None or buffer.numel() < elements:
            buffer = torch.zeros(elements, dtype=dtype, device=self._device)
            self._buffers[role, dtype] = buffer
        return buffer[:elements]
