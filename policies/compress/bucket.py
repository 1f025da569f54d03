"""What an exchange gets and gives: one bucket of gradients, and how its reduction went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from .header import Header
    from .layout import LayerTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients of some layers in one flat buffer, which is reduced in place."""

    index: int
    layers: tuple[int, ...]  # into the layer table, in the order of the buffer
    buffer: Tensor  # in host memory, or on the device that the exchange works on


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPower:
    """What is measured of a layer's gradient."""

    squares: float  # sum of the squares of its values
    peaks: float  # sum over its blocks of block * (largest magnitude)^2


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
    spans: tuple[tuple[float, float], ...]  # of payload on the wire: begin and end, seconds
    wait_s: float
    finite: bool
    failed: tuple[int, ...]
    mean_loss: float | None  # of the previous iteration over all ranks
    norm: float  # of the reduced gradients in this bucket
    powers: dict[int, LayerPower] = field(default_factory=dict)  # by layer, where asked for


class Quantiser(Protocol):
    """What an exchange asks of a compressed form of the collective, in this order."""

    @property
    def table(self) -> LayerTable:
        """The layers whose residuals this rank keeps."""

    @property
    def rank(self) -> int:
        """This rank in the table's world."""

    def warm_up(self) -> None:
        """Compile kernels now: no rank should wait for it in the first compressed step."""

    def digest(self, bucket: Bucket, bits: Sequence[int]) -> int:
        """Lay the bucket out; 32 bits that ranks with another layout do not have."""

    def prepare(self, bucket: Bucket) -> bool:
        """Encode this rank's gradients; False if one of them is not finite."""

    def transfer(self, bucket: Bucket, header: Header) -> Outcome:
        """Exchange what all ranks prepared; the bucket is written only if every rank succeeded."""
