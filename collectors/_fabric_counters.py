"""What the management tools call port counters, and one port's values from several attributes.

Names: infiniband-diags prints ``libibmad``'s field names (``src/fields.c``): today those of the
specification (``PortXmitDiscards``), before 2011 short ones (``XmtDiscards``). The 32-bit and the
64-bit set are two attributes, read one after the other, so their values need not agree: the
64-bit one counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from xtune.collectors._ib import ALWAYS_64, GROWING, U64_MAX, WIDTHS, is_wide, kernel_name, settle

#: Names of before 2011, and spellings in between.
_OLD = {
    "SymbolErrors": "symbol_error",
    "LinkRecovers": "link_error_recovery",
    "LinkErrorRecovers": "link_error_recovery",
    "RcvErrors": "port_rcv_errors",
    "RcvRemotePhysErrors": "port_rcv_remote_physical_errors",
    "RcvSwRelayErrors": "port_rcv_switch_relay_errors",
    "XmtDiscards": "port_xmit_discards",
    "XmtConstraintErrors": "port_xmit_constraint_errors",
    "RcvConstraintErrors": "port_rcv_constraint_errors",
    "LinkIntegrityErrors": "local_link_integrity_errors",
    "ExcBufOverrunErrors": "excessive_buffer_overrun_errors",
    "XmtData": "port_xmit_data",
    "RcvData": "port_rcv_data",
    "XmtBytes": "port_xmit_data",  # so called, yet words of 4 octets like its successor
    "RcvBytes": "port_rcv_data",
    "XmtPkts": "port_xmit_packets",
    "RcvPkts": "port_rcv_packets",
    "XmtWait": "port_xmit_wait",
}
#: 16 bits of PortCounters that the kernel has no name for.
QP1_DROPPED = "qp1_dropped"
_KNOWN = {*WIDTHS, *ALWAYS_64, QP1_DROPPED}
#: What the tools check for errors, so that with thresholds of 0 their silence means 0
#: (ibqueryerrors.c, ``print_results``).
CHECKED = tuple(n for n in WIDTHS if n not in GROWING)

#: Fields of PortRcvErrorDetails and PortXmitDiscardDetails in the order of the attribute.
RCV_DETAILS = (
    "PortLocalPhysicalErrors",
    "PortMalformedPktErrors",
    "PortBufferOverrunErrors",
    "PortDLIDMappingErrors",
    "PortVLMappingErrors",
    "PortLoopingErrors",
)
DISCARD_DETAILS = (
    "PortInactiveDiscards",
    "PortNeighborMTUDiscards",
    "PortSwLifetimeLimitDiscards",
    "PortSwHOQLifetimeLimitDiscards",
)
DETAIL_BITS = 16


@lru_cache(4096)
def counter_name(printed: str) -> str | None:
    """The kernel's name of a counter of PortCounters or its extended form, else ``None``."""
    name = _OLD.get(printed) or kernel_name(printed)
    return name if name in _KNOWN else None


@dataclass(slots=True)
class Gathered:
    """Values of one port, by kernel name, from one or more attributes read close together.

    Attributes:
        narrow: From PortCounters: widths as the specification has them.
        wide: From PortCountersExtended: 64 bits each.
        details: What has no column, by its own name.
        stuck: Details that sit at their maximum.
    """

    narrow: dict[str, int] = field(default_factory=dict)
    wide: dict[str, int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)

    def detail(self, name: str, value: int, bits: int) -> None:
        """Note a counter of ``bits`` bits that has no column."""
        if value >= 2**bits - 1:
            self.stuck.append(name)
        else:
            self.details[name] = value

    def row(self) -> dict[str, Any]:
        """The counter part of a ``link_counters`` row."""
        narrow = dict(self.narrow)
        qp1 = narrow.pop(QP1_DROPPED, None)
        values = {**narrow, **self.wide}
        settled = settle(
            values,
            wide=any(name in self.wide for name in GROWING) or is_wide(values),
            wide_errors=any(name in self.wide for name in CHECKED),
        )
        extra: dict[str, int] = {**(settled["extra"] or {}), **self.details}
        stuck = [name for name in self.stuck if settled.get(name) is None]
        saturated = [*(settled["saturated"] or []), *stuck]
        if qp1 is not None and QP1_DROPPED not in self.wide:
            if qp1 == 2**16 - 1:
                saturated.append(QP1_DROPPED)
            else:
                extra[QP1_DROPPED] = qp1
        settled["extra"] = extra or None
        settled["saturated"] = saturated or None
        return settled

    def __bool__(self) -> bool:
        return bool(self.narrow or self.wide or self.details or self.stuck)


def number(text: str) -> int | None:
    """A printed counter, decimal or hexadecimal; ``None`` for what is none (``N/A``)."""
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    if not digits.isascii() or not digits.isalnum() or len(text) > 24:
        return None
    try:
        value = int(text, 16) if digits is not text else int(text)
    except ValueError:
        return None
    return value if value <= U64_MAX else None
