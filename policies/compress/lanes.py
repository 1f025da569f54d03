"""Exchanges side by side: while one bucket is on the wire, the next is encoded.

Each lane reduces every n-th bucket, in order, over process groups of its own and from a thread of
its own; which bucket goes where depends on its index alone, so lanes are alike on all ranks. What
a lane concludes of its own buckets is agreed; what concerns the others is told to them between
iterations, when all ranks have seen the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from .bucket import Quantiser
from .channel import Channel
from .exchange import Exchange
from .layout import LayerTable
from .residual import ResidualStore


class Lanes:
    """What a handle asks of one exchange, of several.

    Args:
        exchanges: of one model, each with channels of its own and a branch of one store.
    """

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self.exchanges = tuple(exchanges)
        first = self.exchanges[0]
        for other in self.exchanges[1:]:
            other.notes = first.notes
        self.channel: Channel = first.channel  # of what happens between iterations
        self.store: ResidualStore = first.store
        self.table: LayerTable = first.table
        self.quantised: Quantiser = first.quantised

    @property
    def disabled(self) -> str | None:
        """Why compression is off for good; between iterations alike on all lanes."""
        return next((e.disabled for e in self.exchanges if e.disabled is not None), None)

    @property
    def broken(self) -> str | None:
        """Why this rank's engine cannot go on."""
        return self.exchanges[0].broken

    @broken.setter
    def broken(self, reason: str | None) -> None:
        for exchange in self.exchanges:
            exchange.broken = reason

    @property
    def failures(self) -> int:
        """Buckets that had to be redone."""
        return sum(exchange.failures for exchange in self.exchanges)

    def disable(self, reason: str) -> None:
        """See :meth:`Exchange.disable`."""
        for exchange in self.exchanges:
            exchange.disable(reason)

    def settle(self) -> None:
        """Between iterations: what ended one lane ends all."""
        reason = self.disabled
        if reason is not None:
            self.disable(reason)

    def combine(self, values: Sequence[float], *, step: int, what: int) -> list[float] | None:
        """See :meth:`Exchange.combine`."""
        combined = self.exchanges[0].combine(values, step=step, what=what)
        self.settle()
        return combined

    def forget(self) -> None:
        """See :meth:`Exchange.forget`."""
        for exchange in self.exchanges:
            exchange.forget()

    def residual_sizes(self) -> dict[tuple[str, str], int]:
        """See :meth:`Exchange.residual_sizes`."""
        return self.exchanges[0].residual_sizes()
