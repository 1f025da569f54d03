"""What is measured of gradients where bits are allocated by norms: powers and peaks by layer."""

from __future__ import annotations

import torch
from torch import Tensor

from .bucket import Bucket, LayerPower
from .layout import LayerTable


def layer_powers(bucket: Bucket, table: LayerTable) -> dict[int, LayerPower]:
    """Powers and peaks of each layer of a bucket, by its place in the table.

    Args:
        bucket: Gradients, of any floating type.
        table: Sizes, and the block that shares a scale.
    """
    found, offset = {}, 0
    for i in bucket.layers:
        values = bucket.buffer[offset : offset + table.elements[i]]
        offset += table.elements[i]
        found[i] = _power(values.to(torch.float32), table.block)
    return found


def _power(values: Tensor, block: int) -> LayerPower:
    if not values.numel():
        return LayerPower(squares=0.0, peaks=0.0)
    whole = values.numel() // block * block
    peaks = values[:whole].view(-1, block).abs().amax(dim=1).double().square().sum()
    if whole < values.numel():
        peaks = peaks + values[whole:].abs().amax().double().square()
    return LayerPower(
        squares=float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2,
        peaks=float(peaks) * block,
    )
