"""Whether an exporter's data counters are bytes or words of four octets, told by its figures.

treydock/infiniband_exporter published words under the name of bytes before its issue #33. The
same version serves all ports of one exporter, so what one port proves counts for all: a mean
packet beyond any MTU or below any header, else a count that no multiplication by four gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xtune.collectors._ib import WORD_BYTES

#: Largest mean packet: an MTU of 4,096 octets and its headers.
_MAX_PACKET = 4300
#: Smallest packet: local route header, base transport header, check sum.
_MIN_PACKET = 24
_EXACT = 2**53


@dataclass(slots=True)
class Units:
    """What is known of each exporter, by its ``instance``; frozen, it learns no more."""

    by_mean: dict[str, int] = field(default_factory=dict)
    odd: set[str] = field(default_factory=set)
    frozen: bool = False

    def weigh(self, instance: str, data: int | None, packets: int | None) -> None:
        """Take one port's counts of data and packets in one direction."""
        if self.frozen or not data:
            return
        if packets and data * WORD_BYTES / packets > _MAX_PACKET:
            self.by_mean.setdefault(instance, 1)
        elif packets and data / packets < _MIN_PACKET:
            self.by_mean.setdefault(instance, WORD_BYTES)
        if data % WORD_BYTES and data < _EXACT:
            self.odd.add(instance)

    def of(self, instance: str) -> int | None:
        """Bytes of a unit, 1 or 4; ``None`` where both are possible."""
        told = self.by_mean.get(instance)
        return told or (WORD_BYTES if instance in self.odd else None)
