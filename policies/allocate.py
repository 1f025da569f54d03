"""Bits per layer from measured gradients: fewest bytes under the error that a depth rule gives.

Founding document C3 asks for bits by the statistics of the layers' gradient norms, with few bits
near the input and more at the head as its rule. The rule is the prior here: what it would cost in
rounding error, over all layers, is the budget; within it bits go where they buy most (the
allocation of L-GreCo, arXiv 2210.17357, which is convex for a quantiser and so needs no dynamic
programming). A block of ``block`` values with largest magnitude ``m`` is rounded in steps of
``m / qmax``, so its error power is ``block * m^2 / (12 qmax^2)``. It lies at 2 bits, where steps
are as large as the values, by up to a half.
"""

from __future__ import annotations

from collections.abc import Sequence

from .compress.bucket import LayerPower
from .compress.wire import DENSE_BITS

WIDTHS = (2, 3, 4, 5, 6, 7, 8)
# A table in force stays while it errs at most so much more, and sends at most so much more, than
# the best one: tables that change each period would be noise.
ERROR_SLACK, BYTES_SLACK = 1.05, 1.02


def relative_error(power: LayerPower, bits: int) -> float:
    """Expected error power of block quantisation, relative to the gradient's own power.

    Args:
        power: Of the layer.
        bits: 2 to 8; with 16 nothing is rounded to speak of.
    """
    if bits >= DENSE_BITS or not power.squares > 0:
        return 0.0
    largest = (1 << (bits - 1)) - 1
    return power.peaks / (12.0 * largest * largest * power.squares)


def total_error(
    elements: Sequence[int], powers: Sequence[LayerPower | None], bits: Sequence[int]
) -> float:
    """Mean relative error over all elements of layers that were measured, times their number."""
    return sum(
        count * relative_error(power, width)
        for count, power, width in zip(elements, powers, bits, strict=True)
        if power is not None
    )


def allocate_bits(
    elements: Sequence[int],
    powers: Sequence[LayerPower | None],
    prior: Sequence[int],
    *,
    budget: float,
    current: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Bits of each layer.

    Args:
        elements: Of each layer.
        powers: Of each layer, None where it is unknown: such a layer keeps its prior.
        prior: Bits by the depth rule; a layer at 16 stays there.
        budget: Allowed error, in errors of the prior.
        current: The table in force, kept where it is nearly as good.

    Returns:
        The table; where the prior is within the budget, it or one that sends fewer bytes. Where
        even 8 bits err by more than is allowed, 8 bits.
    """
    prior = tuple(prior)
    free = [
        i
        for i, power in enumerate(powers)
        if power is not None and power.squares > 0 and prior[i] < DENSE_BITS
    ]
    allowed = budget * total_error(elements, powers, prior)
    bits = list(prior)
    for i in free:
        bits[i] = WIDTHS[-1]
    left = allowed - total_error(elements, powers, bits)
    # What one bit less adds grows from bit to bit, so in this order a layer's 7 come before its 6.
    steps = sorted((_step(powers[i], width), i, width) for i in free for width in WIDTHS[:-1])
    for _, i, width in steps:
        added = elements[i] * _step(powers[i], width)
        if bits[i] == width + 1 and added <= left:
            bits[i] = width
            left -= added
    found = tuple(bits)
    # The prior is within the budget itself, unless that is below its own error.
    if budget >= 1 and _bits(elements, found) >= _bits(elements, prior):
        found = prior
    if current is None or len(current) != len(found):
        return found
    stays = (
        total_error(elements, powers, current) <= allowed * ERROR_SLACK
        and _bits(elements, current) <= _bits(elements, found) * BYTES_SLACK
        and all(
            (a == DENSE_BITS) == (b == DENSE_BITS) for a, b in zip(current, prior, strict=True)
        )
    )
    return tuple(current) if stays else found


def _step(power: LayerPower | None, width: int) -> float:
    """What the relative error grows by from ``width + 1`` bits to ``width``."""
    if power is None:
        return 0.0
    return relative_error(power, width) - relative_error(power, width + 1)


def _bits(elements: Sequence[int], bits: Sequence[int]) -> int:
    return sum(count * width for count, width in zip(elements, bits, strict=True))
