"""What an exchange gets and gives: one bucket of gradients, and how its reduction went."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients of some layers in one flat buffer, which is reduced in place."""

    index: int
    layers: tuple[int, ...]  # into the layer table, in the order of the buffer
    buffer: Tensor  # on the CPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one exchange went; equal on every rank but for ``error``."""

    failed: tuple[int, ...]  # ranks whose engine failed: the bucket is untouched
    finite: bool  # False: some value was not finite, the bucket is untouched
    error: Exception | None = None  # this rank's own


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """One bucket after its reduction, with what it cost this rank."""

    wire_bytes: int
    dense_bytes_bf16: int
    dense_bytes_fp32: int
    transfer_s: float
    wait_s: float
    finite: bool
    failed: tuple[int, ...]
    mean_loss: float | None  # of the previous iteration over all ranks
    norm: float  # of the reduced gradients in this bucket
