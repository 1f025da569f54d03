"""Which elements of a gradient are sent: exactly so many, the same on every rank."""

from __future__ import annotations

import numpy as np

from .quantise import MAGNITUDE_MASK

_LOW_BITS = 19  # of a magnitude's 31; the 12 above them hold the exponent and 4 bits of mantissa
_BINS = 1 << (31 - _LOW_BITS)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the largest magnitudes, in rising order.

    One histogram of the upper bits finds the bin that holds the smallest of them, and only that
    bin is sorted out; among equal magnitudes the first are taken. An infinity counts as large,
    and NaN as larger still.

    Args:
        values: fp32 (elements,), contiguous.
        count: how many, 1 to elements.

    Returns:
        int64 (count,).
    """
    magnitudes = values.view(np.int32) & np.int32(MAGNITUDE_MASK)
    bins = magnitudes >> _LOW_BITS
    at_least = np.cumsum(np.bincount(bins, minlength=_BINS)[::-1])[::-1]  # in this bin or above
    edge = int(np.flatnonzero(at_least >= count)[-1])
    above = int(at_least[edge + 1]) if edge + 1 < _BINS else 0
    inside = np.flatnonzero(bins == edge)
    wanted = count - above
    # Stable: of equal magnitudes the first.
    order = np.argsort(-magnitudes[inside].astype(np.int64), kind="stable")[:wanted]
    return np.sort(np.concatenate([np.flatnonzero(bins > edge), inside[order]]))


def drawn(elements: int, count: int, *, step: int, layer: int) -> np.ndarray:
    """Places drawn at random, the same for the same step and layer everywhere, in rising order.

    Args:
        elements: of the layer.
        count: how many.
        step: iteration.
        layer: its place in the layer table.

    Returns:
        int64 (count,).
    """
    generator = np.random.Philox(key=[step & 0xFFFFFFFFFFFFFFFF, layer])
    words = generator.random_raw(-(-elements // 2)).view(np.uint32)[:elements]
    return np.sort(np.argpartition(words, count - 1)[:count])


def pack(places: np.ndarray, elements: int) -> np.ndarray:
    """Places as a bitmap, or as 32-bit numbers where those are shorter: uint8."""
    if places.size * 4 < -(-elements // 8):
        return places.astype("<u4").view(np.uint8)
    chosen = np.zeros(elements, dtype=np.uint8)
    chosen[places] = 1
    return np.packbits(chosen, bitorder="little")


def unpack(message: np.ndarray, elements: int, count: int) -> np.ndarray:
    """Places from what `pack` made.

    Raises:
        ValueError: it does not hold ``count`` places below ``elements``.
    """
    if count * 4 < -(-elements // 8):
        places = message.view("<u4").astype(np.int64)
        if places.size and int(places.max()) >= elements:
            raise ValueError("a place lies outside of the bucket")
    else:
        places = np.flatnonzero(np.unpackbits(message, count=elements, bitorder="little"))
    if places.size != count:
        raise ValueError(f"{places.size} places where there should be {count}")
    return places
