"""What the fields of UFM telemetry are, by name.

Three generations of names stand for the same things: ``Infiniband_MBOut_u_Gb`` (the suffix is
UFM's notion of a unit for display; the value is raw), PMA names such as ``PortXmitDataExtended``,
and the labels of the low-frequency set, ``Total_Raw_BER``. Sources: UFM Enterprise manual,
"Low-Frequency (Secondary) Telemetry Fields"; Mellanox/ufm_sdk_3.0, plugins
``fluentd_telemetry_plugin`` (parser, message samples) and ``pdr_deterministic_plugin``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from xtune.collectors._ib import WIDTHS, kernel_name
from xtune.tables import COUNTERS

#: ``Infiniband_X``: X -> the kernel's name.
_INFINIBAND = {
    "mbout": "port_xmit_data",
    "mbin": "port_rcv_data",
    "pckout": "port_xmit_packets",
    "pckin": "port_rcv_packets",
    "symbolerrors": "symbol_error",
    "linkrecovers": "link_error_recovery",
    "linkdowned": "link_downed",
    "rcverrors": "port_rcv_errors",
    "rcvremotephyserrors": "port_rcv_remote_physical_errors",
    "rcvswrelayerrors": "port_rcv_switch_relay_errors",
    "xmtdiscards": "port_xmit_discards",
    "xmtconstrainterrors": "port_xmit_constraint_errors",
    "rcvconstrainterrors": "port_rcv_constraint_errors",
    "linkintegrityerrors": "local_link_integrity_errors",
    "excbufoverrunerrors": "excessive_buffer_overrun_errors",
    "vl15dropped": "VL15_dropped",
    "xmitwait": "port_xmit_wait",
    "xmtwait": "port_xmit_wait",
}
_LABELS = {
    "link_down": "link_downed",
    "linkerrorrecoverycounter": "link_error_recovery",
}
_IDENTITY = {
    "timestamp": "time",
    "node_guid": "node_guid",
    "port_guid": "port_guid",
    "port_num": "port",
    "port_number": "port",
    "node_description": "node_description",
}
_SIGNAL = {
    "raw_ber": "raw_ber",
    "total_raw_ber": "raw_ber",
    "effective_ber": "effective_ber",
    "eff_ber": "effective_ber",
    "cableinfo.temperature": "temperature",
    "cableinfo_temperature": "temperature",
    "cableinfotemperature": "temperature",
    "module_temperature": "temperature",
    "temperature": "temperature",
}
#: Of the port, its firmware or its cable: into ``extra`` of the signal reading, as text.
_ABOUT = re.compile(
    r"symbol_ber|time_since_last_clear.*|active_fec|fec_mode_active|chip_temp|cableinfo\..*"
    r"|module_.*|cable_.*|vendor_.*|.*voltage.*|phy_(manager_)?state|logical_state"
    r"|link_(speed|width)_active|device_id|lid|fw_version|port_label|m_label|status_message"
    r"|.*_ber(_.*)?|.*temp(erature)?",
)
_LANE = re.compile(r"(.+?)_?lane_?(\d{1,2})")
_HIST = re.compile(r"hist_?\[?(\d{1,2})\]?")
_UNIT = re.compile(r"(_[fdu])?_u_[A-Za-z/%]+$")
_SKIPPED = {"", "source_id", "tag", "type", "source", "sys_image_guid", "port_type", "aport"}


@dataclass(frozen=True, slots=True)
class Role:
    """What a field is.

    Attributes:
        kind: ``identity``, ``counter``, ``signal``, ``lane``, ``hist``, ``about``,
            ``calculated`` (by UFM from others), ``other`` or ``skip``.
        name: Its name in xtune's words; of a lane's field without the lane.
        index: Lane or bin.
        wide: Whether a counter is a 64-bit field.
        unit: Bytes of a unit of a data counter.
    """

    kind: str
    name: str
    index: int = 0
    wide: bool = False
    unit: int = 4


@lru_cache(maxsize=8192)
def role(field: str) -> Role:
    """What a field of this name is; a number under a name that is not known is ``other``."""
    plain = field.strip()
    lower = plain.lower()
    if lower in _SKIPPED:
        return Role("skip", lower)
    if lower in _IDENTITY:
        return Role("identity", _IDENTITY[lower])
    if lower.startswith("infiniband_"):
        known = _INFINIBAND.get(_UNIT.sub("", plain)[len("infiniband_") :].lower())
        # In bytes: of the public sample, whose only traffic are management packets, each port
        # has 288 a packet, which is a MAD of 256 octets with its headers.
        if known:
            return Role("counter", known, unit=1)
        return Role("calculated" if "_f_u_" in plain else "other", plain)
    if lower in _SIGNAL:
        return Role("signal", _SIGNAL[lower])
    lane = _LANE.fullmatch(lower)
    if lane:
        return Role("lane", lane[1], index=int(lane[2]))
    bin_ = _HIST.fullmatch(lower)
    if bin_:
        return Role("hist", "fec_bins", index=int(bin_[1]))
    name = _LABELS.get(lower) or kernel_name(plain)
    if name in COUNTERS or name in WIDTHS:
        return Role("counter", name, wide=plain.endswith(("Extended", "Ext")))
    if _ABOUT.fullmatch(lower):
        return Role("about", plain)
    return Role("other", plain)
