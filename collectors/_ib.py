"""What InfiniBand counters are called, how wide they are, and what identifies a port.

Widths are those of the PMA PortCounters attribute (IBA volume 1, section 16.1.3; Linux
``drivers/infiniband/core/sysfs.c``, ``PORT_PMA_ATTR``). PMA counters saturate: at their maximum
they stay until cleared, so that value means "unknown", not "stopped".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from xtune.tables import COUNTERS

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
#: What ibdiagnet and firmware put where there is no value.
NO_VALUE = 2**64 - 2
WORD_BYTES = 4

DATA = ("port_xmit_data", "port_rcv_data")
#: 32 bits, or 64 where the device has the extended set: told by content, not by name.
GROWING = (*DATA, "port_xmit_packets", "port_rcv_packets")
ALWAYS_64 = (
    "unicast_xmit_packets",
    "unicast_rcv_packets",
    "multicast_xmit_packets",
    "multicast_rcv_packets",
)
WIDTHS: dict[str, int] = {
    **dict.fromkeys(GROWING, 32),
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
}

#: Signalling rate of one lane in Gb/s as the kernel prints it (``sysfs.c``, ``rate_show``).
LANE_GBPS: dict[str, float] = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.0,
    "FDR": 14.0,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}

PORT_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}

#: Device family by PCI device id, vendor 15b3 (the public PCI id list).
FAMILIES: dict[int, str] = {
    0x1003: "ConnectX-3",
    0x1004: "ConnectX-3",
    0x1007: "ConnectX-3 Pro",
    0x1011: "Connect-IB",
    0x1012: "Connect-IB",
    0x1013: "ConnectX-4",
    0x1014: "ConnectX-4",
    0x1015: "ConnectX-4 Lx",
    0x1016: "ConnectX-4 Lx",
    0x1017: "ConnectX-5",
    0x1018: "ConnectX-5",
    0x1019: "ConnectX-5 Ex",
    0x101A: "ConnectX-5 Ex",
    0x101B: "ConnectX-6",
    0x101C: "ConnectX-6",
    0x101D: "ConnectX-6 Dx",
    0x101F: "ConnectX-6 Lx",
    0x1021: "ConnectX-7",
    0x1023: "ConnectX-8",
    0xA2D2: "BlueField",
    0xA2D6: "BlueField-2",
    0xA2DC: "BlueField-3",
    0xBD36: "InfiniScale IV",
    0xC738: "SwitchX",
    0xCB20: "Switch-IB",
    0xCF08: "Switch-IB 2",
    0xD2F0: "Quantum",
    0xD2F2: "Quantum-2",
    0xD2F4: "Quantum-3",
}
_TICK_OF_PORT = {
    "Quantum",
    "Quantum-2",
    "Quantum-3",
    "ConnectX-6",
    "ConnectX-7",
    "ConnectX-8",
    "BlueField-2",
    "BlueField-3",
}
_TICK_OF_LANE = {"SwitchX", "Switch-IB", "Switch-IB 2"}

_PMA_SPECIAL = {
    "symbolerror": "symbol_error",
    "symbolerrors": "symbol_error",
    "linkerrorrecovery": "link_error_recovery",
    "linkdowned": "link_downed",
    "vl15dropped": "VL15_dropped",
    "qp1dropped": "qp1_dropped",
}
_HEX = re.compile(r"[0-9a-f]{1,16}")


def family_of(device_id: int | None) -> str | None:
    """Device family of a PCI device id, ``None`` where it is not in the table."""
    return None if device_id is None else FAMILIES.get(device_id)


def family_of_hca(hca_type: str | None) -> str | None:
    """Device family of sysfs' ``hca_type``, such as ``MT4129``: a device id in decimal digits."""
    digits = (hca_type or "").removeprefix("MT")
    return family_of(int(digits)) if re.fullmatch(r"\d{1,6}", digits, re.ASCII) else None


def xmit_wait_tick(family: str | None, tick: int | None, lanes: int | None) -> float | None:
    """Byte times on the whole port per tick of ``port_xmit_wait``.

    ``tick`` is PortSamplesControl's encoding: t means t+1. On Quantum and the adapters of its
    time that counts for the port whatever its width, on Switch-X and Switch-IB for one lane
    (NVIDIA ibdiagnet manual 2.13, "Congestion Assessment"; NVIDIA/ib-traffic-monitor #3). For
    families that neither names the answer is ``None``.
    """
    if tick is None or family is None:
        return None
    if family in _TICK_OF_PORT:
        return float(tick + 1)
    if family in _TICK_OF_LANE and lanes is not None:
        return float((tick + 1) * lanes)
    return None


def guid(text: str | None) -> str | None:
    """A GUID as 0x and 16 lower-case digits; ``None`` for none, all zeros, or anything else.

    Takes ``0a7f:bc12:45ef:d23b``, ``0x2c90300...`` without leading zeros, bare hex digits.
    """
    if text is None:
        return None
    digits = text.strip().lower().replace(":", "").removeprefix("0x")
    if not _HEX.fullmatch(digits) or int(digits, 16) == 0:
        return None
    return f"0x{digits.zfill(16)}"


def link_id(node_guid: str | None, host: str | None, device: str, port: int, unknown: str) -> str:
    """Link id of a directed port.

    Args:
        node_guid: As :func:`guid` gives it.
        host: Host as read.
        device: Device name on the host.
        port: Port number.
        unknown: ``unknown-<hash of the input>``, used where neither GUID nor host is known.
    """
    if node_guid:
        return f"{node_guid}/{port}"
    return f"{host or unknown}/{device}/{port}"


def lanes_of(width: str | None) -> int | None:
    """Lanes of ``4X`` or ``4x``."""
    match = re.match(r"(\d{1,2})\s*[xX]", width or "")
    return int(match[1]) if match else None


def rate_of(width: str | None, speed: str | None) -> float | None:
    """Rate in Gb/s of a width such as ``4x`` and a speed such as ``NDR``; ``None`` for ``???``."""
    lanes = lanes_of(width)
    lane = LANE_GBPS.get((speed or "").upper())
    return lanes * lane if lanes and lane else None


def parse_rate(text: str) -> tuple[float | None, str | None]:
    """Rate in Gb/s and width of a sysfs ``rate`` file, e.g. ``400 Gb/sec (4X NDR)``.

    The number counts, not the name: a RoCE bond prints ``200 Gb/sec (2X NDR)``.
    """
    number = re.match(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*Gb/sec", text)
    width = re.search(r"\((\d{1,2}[xX])", text)
    return (float(number[1]) or None if number else None, width[1].upper() if width else None)


def kernel_name(pma_name: str) -> str:
    """The kernel's name of a counter that perfquery and ibdiagnet call ``PortXmitPkts``.

    ``Extended``, ``Ext`` and ``Counter`` at the end do not change what is counted. Names the
    kernel does not know become snake case.
    """
    base = re.sub(r"(Counter)?(Extended|Ext)?$", "", pma_name.strip())
    special = _PMA_SPECIAL.get(base.lower())
    if special:
        return special
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", base).lower()
    name = name.replace("_pkts", "_packets").replace("uni_cast", "unicast")
    name = name.replace("multi_cast", "multicast")
    return re.sub(r"^port_(unicast|multicast)_", r"\1_", name)


def told_unit(column_map: Mapping[str, str]) -> int | None:
    """Bytes of a unit of the data counters where the user says so: ``data_unit_bytes=4``."""
    told = column_map.get("data_unit_bytes")
    return int(told) if told in ("1", "4") else None


def is_wide(values: Mapping[str, int], unit: int = WORD_BYTES) -> bool:
    """Whether data and packet counters are the 64-bit set.

    The same file name holds either: the presence of ``unicast_xmit_packets`` tells, or ever
    seeing a value beyond 32 bits.
    """
    if "unicast_xmit_packets" in values:
        return True
    return any(
        values.get(name, 0) > U32_MAX * (WORD_BYTES // unit if name in DATA else 1)
        for name in GROWING
    )


@cache
def tops(wide: bool, wide_errors: bool, unit: int) -> dict[str, int]:
    """The value at which each counter with a width sticks."""
    limits = {}
    for name, width in WIDTHS.items():
        bits = 64 if (wide if name in GROWING else wide_errors) else width
        scale = WORD_BYTES // unit if name in DATA and bits < 64 else 1
        limits[name] = (2**bits - 1) * scale
    return limits


def settle(
    values: Mapping[str, int],
    *,
    wide: bool,
    wide_errors: bool = False,
    unit: int = WORD_BYTES,
) -> dict[str, Any]:
    """The counter part of a ``link_counters`` row: columns, ``saturated``, ``extra``.

    Args:
        values: Counter by kernel name, raw.
        wide: Whether data and packet counters have 64 bits.
        wide_errors: Whether all others have 64 bits too (read from the extended attribute).
        unit: Bytes of one unit of the data counters, 4, or 1 where the source had multiplied.
    """
    limits = tops(wide, wide_errors, unit)
    row: dict[str, Any] = {}
    saturated: list[str] = []
    extra: dict[str, int] = {}
    for name, value in values.items():
        if value == NO_VALUE:
            continue
        if value in (limits.get(name), U64_MAX):
            saturated.append(name)
        elif name in COUNTERS:
            row[name] = value
        else:
            extra[name] = value
    row["saturated"] = saturated or None
    row["extra"] = extra or None
    row["data_unit_bytes"] = unit
    return row


def has_counters(row: Mapping[str, Any]) -> bool:
    """Whether a row that :func:`settle` began says anything at all."""
    return bool(row["saturated"] or row["extra"] or any(name in row for name in COUNTERS))
