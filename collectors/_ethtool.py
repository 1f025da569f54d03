"""Names and meaning of ``ethtool -S`` counters, driver by driver.

Sources: Linux ``Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst`` and
``statistics.rst``, the string tables of the drivers (mlx4, mlxsw, bnxt, bnx2x, ice, i40e, iavf,
ena, sfc, dpaa2, tg3, virtio_net, hv_netvsc, be2net, vmxnet3), and ``do_gnicstats`` of ethtool.

What it assumes: counters of the port itself (``_phy``, ``port.``, ``.nic``) hold RoCE traffic, the
netdev's own (``rx_bytes``) do not where the driver has both; pause durations are microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from xtune.collectors._ib import U64_MAX

_DIGITS = re.compile(r"\d{1,20}", re.ASCII)

#: Ways to know a column, the port's own first: each a set of counters that are added up.
_VPORT = ("unicast", "multicast", "broadcast", "rdma_unicast", "rdma_multicast")
_CASTS = ("unicast", "multicast", "broadcast")


def _both(xmit: str, rcv: str, ways: Iterable[tuple[str, ...]]) -> dict[str, list[list[str]]]:
    """Ways for a sent and a received column from names with ``{t}`` for their direction."""
    listed = list(ways)
    sent = [[name.format(t="tx", T="Transmitted", u="transmitted") for name in w] for w in listed]
    got = [[name.format(t="rx", T="Received", u="received") for name in w] for w in listed]
    return {xmit: sent, rcv: got}


_WAYS: dict[str, list[list[str]]] = {
    **_both(
        "port_xmit_data",
        "port_rcv_data",
        [
            ("{t}_bytes_phy",),
            tuple(f"{{t}}_vport_{cast}_bytes" for cast in _VPORT),
            ("port.{t}_bytes",),
            ("{t}_bytes.nic",),
            ("a_octets_{u}_ok",),
            ("eth-mac-Octets{T}OK",),
            ("port_{t}_bytes",),
            ("[mac] {t} bytes",),
            ("{t}_bytes",),
            ("{t}_octets",),
        ],
    ),
    **_both(
        "port_xmit_packets",
        "port_rcv_packets",
        [
            ("{t}_packets_phy",),
            tuple(f"{{t}}_vport_{cast}_packets" for cast in _VPORT),
            tuple(f"port.{{t}}_{cast}" for cast in _CASTS),
            tuple(f"{{t}}_{cast}.nic" for cast in _CASTS),
            ("a_frames_{u}_ok",),
            ("eth-mac-Frames{T}OK",),
            ("{t}_total_frames",),
            ("{t}_good_frames",),
            ("{t}_ucast_packets", "{t}_mcast_packets", "{t}_bcast_packets"),
            ("port_{t}_packets",),
            ("[mac] {t} frames ok",),
            ("{t}_packets",),
            tuple(f"{{t}}_{cast}" for cast in _CASTS),
        ],
    ),
    "port_xmit_discards": [
        ["tx_discards_phy"],
        ["tx_total_discard_pkts"],
        ["tx_stat_discard"],
        ["tx_dropped"],
    ],
    "rx_discards_phy": [
        ["rx_discards_phy"],
        ["port.rx_dropped"],
        ["rx_dropped.nic"],
        ["rx_total_discard_pkts"],
        ["rx_stat_discard"],
        ["rx_discards"],
    ],
    "port_rcv_errors": [
        ["rx_crc_errors_phy"],
        ["port.rx_crc_errors"],
        ["rx_crc_errors.nic"],
        ["a_frame_check_sequence_errors"],
        ["eth-mac-FrameCheckSequenceErrors"],
        ["rx_fcs_err_frames"],
        ["rx_crc_errors"],
    ],
    "symbol_error": [
        ["rx_pcs_symbol_err_phy"],
        ["rx_pcs_symbol_err"],
        ["a_symbol_error_during_carrier"],
        ["eth-phy-SymbolErrorDuringCarrier"],
    ],
    "link_downed": [["link_down_events_phy"], ["link_down_events"]],
    "out_of_buffer": [["rx_out_of_buffer"]],
}


def _queues(side: str, what: str, count: str) -> re.Pattern[str]:
    """Counters whose sum is the port's: of ENA, virtio_net, hv_netvsc, be2net, vmxnet3 in turn.

    Traffic of a virtual function that bypasses hv_netvsc's queues is counted apart (``vf_``).
    """
    return re.compile(
        rf"queue_\d+_{side}_{'cnt' if what == 'packets' else what}"
        rf"|{side}(?:_queue_)?\d+_{what}|vf_{side}_{what}"
        rf"|{side}q\d+: {side}_{count}"
        rf"|{side.capitalize()} Queue# \d+: [umb]cast {count} {side}"
    )


#: Virtual ports, and some real ones, have no counter of the port at all, only those of queues.
_QUEUES = {
    f"port_{way}_{column}": _queues(side, what, count)
    for side, way in (("tx", "xmit"), ("rx", "rcv"))
    for column, what, count in (("data", "bytes", "bytes"), ("packets", "packets", "pkts"))
}
#: Per priority where PFC is on: mlx5, then mlx4 and mlxsw, then bnxt.
_PFC = re.compile(
    r"([rt]x)_prio\d_pause_duration|([rt]x)_pause_duration_prio_\d|pfc_pri\d_([rt]x)_duration_us"
)
_GLOBAL_PAUSE = ("{t}_global_pause_duration", "{t}_pause_duration")


def number(text: str) -> int | None:
    """A counter's value: decimal digits within 64 bits, else ``None``."""
    if not _DIGITS.fullmatch(text):
        return None
    value = int(text)
    return value if value <= U64_MAX else None


def split(line: str) -> tuple[str, str] | None:
    """Name and value of a line; the name keeps its prefix: ``[0]: rx_bytes``, ``rxq0: drops``."""
    name, _, value = line.rpartition(":")
    name, value = name.strip(), value.strip()
    return (name, value) if name and value else None


class Section:
    """Names a queue's counters by the queue, where its number stands on a line above them.

    vmxnet3 prints ``Tx Queue#: 0`` and then, indented further, names that are the same in every
    queue.
    """

    _HEAD = re.compile(r"[RT]x Queue#")

    def __init__(self) -> None:
        self._prefix = ""
        self._indent = 0

    def name(self, line: str, name: str, value: str) -> str | None:
        """What to call the counter of a line as :func:`split` parts it; ``None`` for a heading."""
        indent = len(line) - len(line.lstrip())
        if self._HEAD.fullmatch(name):
            self._prefix, self._indent = f"{name} {value}: ", indent
            return None
        if indent <= self._indent:
            self._prefix = ""
        return self._prefix + name


def statistics(text: str) -> dict[str, int]:
    """Counters by name of one device's ``ethtool -S`` output.

    A name that stands twice with different values is left out: ethtool cuts names at 32
    characters, so two counters may share one and neither is known. So is what is no number
    within 64 bits.
    """
    found: dict[str, int] = {}
    twice: set[str] = set()
    section = Section()
    for line in text.splitlines():
        pair = split(line)
        value = number(pair[1]) if pair else None
        name = section.name(line, *pair) if pair else None
        if name is None or value is None:
            continue
        if found.setdefault(name, value) != value:
            twice.add(name)
    return {name: value for name, value in found.items() if name not in twice}


def _sum(values: Iterable[int]) -> int | None:
    """Sum of counters, unknown where one sits at its maximum or the sum leaves 64 bits."""
    total = 0
    for value in values:
        if value == U64_MAX:
            return None
        total += value
    return total if total < U64_MAX else None


def _columns(found: Mapping[str, int], whole: bool) -> dict[str, int | None]:
    columns: dict[str, int | None] = {}
    for column, ways in _WAYS.items():
        for way in ways:
            present = [found[name] for name in way if name in found]
            # Of sums the first is always there: without it these are other counters.
            if way[0] in found and (whole or len(way) == 1):
                columns[column] = _sum(present)
                break
    if not whole:
        return columns
    for column, pattern in _QUEUES.items():
        if column not in columns:
            queues = [value for name, value in found.items() if pattern.fullmatch(name)]
            if queues:
                columns[column] = _sum(queues)
    pfc: dict[str, list[int]] = {}
    for name, value in found.items():
        match = _PFC.fullmatch(name)
        if match:
            pfc.setdefault(match[1] or match[2] or match[3], []).append(value)
    for side in ("rx", "tx"):
        paused = [found[n] for g in _GLOBAL_PAUSE if (n := g.format(t=side)) in found][:1]
        if side in pfc or paused:
            columns[f"{side}_pause_duration"] = _sum(pfc.get(side) or paused)
    return columns


def counters(found: Mapping[str, int], *, whole: bool = True) -> dict[str, Any]:
    """The counter part of a ``link_counters`` row.

    Every counter stands in ``extra`` under the driver's own name, also those that have a column:
    which of a driver's byte counters a column came from can be seen there. Data is in bytes;
    pause is the sum over the priorities where PFC is on, else that of global pause. Gauges such
    as ``outbound_pci_stalled_rd`` (percent of the last second) are in ``extra`` alone.

    Args:
        found: As :func:`statistics` gives it.
        whole: Whether these are all counters of the device; else sums over several are unknown.
    """
    columns = _columns(found, whole)
    stuck = [name for name, value in found.items() if value == U64_MAX]
    stuck += [name for name, value in columns.items() if value is None and name not in stuck]
    return {
        **{name: value for name, value in columns.items() if value is not None},
        "saturated": stuck or None,
        "extra": {name: value for name, value in found.items() if value != U64_MAX} or None,
        "data_unit_bytes": 1,
    }
