"""Names of InfiniBand metrics of the Prometheus exporters, and the kernel's names for them.

Three exporters are known: node_exporter (``node_infiniband_*``, data multiplied by 4),
treydock/infiniband_exporter (``infiniband_switch_*``, ``infiniband_hca_*``, multiplied by 4 since
its issue #33, words before) and guilbaults/infiniband-exporter (``infiniband_*_total``, words).
"""

from __future__ import annotations

import math
import re

from xtune.collectors._ib import U64_MAX

NODE, TREYDOCK, GUILBAULTS = "node_exporter", "infiniband_exporter", "infiniband-exporter"
RATE, STATE, INFO, SPEED, WIDTH = "rate", "state", "info", "speed", "width"
GAUGES = frozenset({RATE, STATE, INFO, SPEED, WIDTH})

_NODE_COUNTERS = {
    "port_data_transmitted_bytes_total": "port_xmit_data",
    "port_data_received_bytes_total": "port_rcv_data",
    "port_packets_transmitted_total": "port_xmit_packets",
    "port_packets_received_total": "port_rcv_packets",
    "unicast_packets_transmitted_total": "unicast_xmit_packets",
    "unicast_packets_received_total": "unicast_rcv_packets",
    "multicast_packets_transmitted_total": "multicast_xmit_packets",
    "multicast_packets_received_total": "multicast_rcv_packets",
    "port_transmit_wait_total": "port_xmit_wait",
    "port_discards_transmitted_total": "port_xmit_discards",
    "port_discards_received_total": "port_rcv_discards",
    "port_errors_received_total": "port_rcv_errors",
    "port_constraint_errors_transmitted_total": "port_xmit_constraint_errors",
    "port_constraint_errors_received_total": "port_rcv_constraint_errors",
    "port_receive_remote_physical_errors_total": "port_rcv_remote_physical_errors",
    "port_receive_switch_relay_errors_total": "port_rcv_switch_relay_errors",
    "symbol_error_total": "symbol_error",
    "link_error_recovery_total": "link_error_recovery",
    "link_downed_total": "link_downed",
    "local_link_integrity_errors_total": "local_link_integrity_errors",
    "excessive_buffer_overrun_errors_total": "excessive_buffer_overrun_errors",
    "vl15_dropped_total": "VL15_dropped",
    "duplicate_requests_packets_total": "duplicate_request",
    "implied_nak_seq_errors_total": "implied_nak_seq_err",
    "local_ack_timeout_errors_total": "local_ack_timeout_err",
    "np_cnp_packets_sent_total": "np_cnp_sent",
    "np_ecn_marked_roce_packets_received_total": "np_ecn_marked_roce_packets",
    "out_of_buffer_drops_total": "out_of_buffer",
    "out_of_sequence_packets_received_total": "out_of_sequence",
    "packet_sequence_errors_total": "packet_seq_err",
    "req_cqes_errors_total": "req_cqe_error",
    "req_cqes_flush_errors_total": "req_cqe_flush_error",
    "req_remote_access_errors_total": "req_remote_access_errors",
    "req_remote_invalid_request_errors_total": "req_remote_invalid_request",
    "resp_cqes_errors_total": "resp_cqe_error",
    "resp_cqes_flush_errors_total": "resp_cqe_flush_error",
    "resp_local_length_errors_total": "resp_local_length_error",
    "resp_remote_access_errors_total": "resp_remote_access_errors",
    "rnr_nak_retry_packets_received_total": "rnr_nak_retry_err",
    "roce_adp_retransmits_total": "roce_adp_retrans",
    "roce_adp_retransmits_timeout_total": "roce_adp_retrans_to",
    "roce_slow_restart_used_total": "roce_slow_restart",
    "roce_slow_restart_cnps_total": "roce_slow_restart_cnps",
    "roce_slow_restart_total": "roce_slow_restart_trans",
    "rp_cnp_packets_handled_total": "rp_cnp_handled",
    "rp_cnp_ignored_packets_received_total": "rp_cnp_ignored",
    "rx_atomic_requests_total": "rx_atomic_requests",
    "rx_dct_connect_requests_total": "rx_dct_connect",
    "rx_read_requests_total": "rx_read_requests",
    "rx_write_requests_total": "rx_write_requests",
    "rx_icrc_encapsulated_errors_total": "rx_icrc_encapsulated",
    "rate_bytes_per_second": RATE,
    "state_id": STATE,
    "info": INFO,
}
#: From ``counters_ext/`` of old kernels: the 64-bit set where the other is of 32 bits.
NODE_LEGACY = {
    "legacy_data_transmitted_bytes_total": "port_xmit_data",
    "legacy_data_received_bytes_total": "port_rcv_data",
    "legacy_packets_transmitted_total": "port_xmit_packets",
    "legacy_packets_received_total": "port_rcv_packets",
    "legacy_unicast_packets_transmitted_total": "unicast_xmit_packets",
    "legacy_unicast_packets_received_total": "unicast_rcv_packets",
    "legacy_multicast_packets_transmitted_total": "multicast_xmit_packets",
    "legacy_multicast_packets_received_total": "multicast_rcv_packets",
}
_GUILBAULTS_COUNTERS = {
    "linkdownedcounter": "link_downed",
    "linkerrorrecoverycounter": "link_error_recovery",
    "symbolerrorcounter": "symbol_error",
    "locallinkintegrityerrors": "local_link_integrity_errors",
    "vl15dropped": "VL15_dropped",
    "portxmitdata": "port_xmit_data",
    "portrcvdata": "port_rcv_data",
    "portxmitpkts": "port_xmit_packets",
    "portrcvpkts": "port_rcv_packets",
    "portunicastxmitpkts": "unicast_xmit_packets",
    "portunicastrcvpkts": "unicast_rcv_packets",
    "portmulticastxmitpkts": "multicast_xmit_packets",
    "portmulticastrcvpkts": "multicast_rcv_packets",
    "portxmitwait": "port_xmit_wait",
    "portxmitdiscards": "port_xmit_discards",
    "portrcverrors": "port_rcv_errors",
    "portrcvremotephysicalerrors": "port_rcv_remote_physical_errors",
    "portbufferoverrunerrors": "port_buffer_overrun_errors",
    "portlocalphysicalerrors": "port_local_physical_errors",
    "portinactivediscards": "port_inactive_discards",
    "portdlidmappingerrors": "port_dlid_mapping_errors",
    "portneighbormtudiscards": "port_neighbor_mtu_discards",
}


def _treydock_name(rest: str) -> str:
    """``transmit_data_bytes`` -> ``port_xmit_data``, by the same words in the same order."""
    name = rest.replace("transmit", "xmit").replace("receive", "rcv").removesuffix("_bytes")
    bare = {"vl15_dropped": "VL15_dropped"}
    if re.match(r"(symbol_error|link_|local_link_|excessive_|qp1_|unicast_|multicast_)", name):
        return name
    return bare.get(name, f"port_{name}")


def recognise(metric: str) -> tuple[str, str] | None:
    """Exporter and meaning of a metric name: a kernel counter name, a gauge, or ``None``."""
    if metric.startswith("node_infiniband_"):
        rest = metric.removeprefix("node_infiniband_")
        if rest in NODE_LEGACY:
            return NODE, rest
        known = _NODE_COUNTERS.get(rest)
        return (NODE, known) if known else None
    match = re.fullmatch(r"infiniband_(?:switch|hca)_(?:(info)|port_(\w+)_total)", metric)
    if match:
        return TREYDOCK, INFO if match[1] else _treydock_name(match[2])
    match = re.fullmatch(r"infiniband_(\w+)_total", metric)
    if match:
        known = _GUILBAULTS_COUNTERS.get(match[1])
        return (GUILBAULTS, known) if known else None
    if metric in ("infiniband_speed", "infiniband_width"):
        return GUILBAULTS, metric.removeprefix("infiniband_")
    return None


def count(text: str) -> int | float | None:
    """A sample's value: an integer where it is one, ``None`` for NaN and infinities.

    Raises:
        ValueError: Not a number at all.
    """
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        return None
    if number != int(number):
        return number
    # All ones of 64 bits are rounded up to 2^64 in a double.
    return U64_MAX if number == 2.0**64 else int(number)


def host_of(instance: str) -> str | None:
    """Host of an ``instance`` label: without the port, in lower case."""
    match = re.fullmatch(r"\[([^\]]+)\](?::\d+)?|([^:]+)(?::\d+)?|(.+)", instance.strip())
    found = match and (match[1] or match[2] or match[3])
    return found.lower() if found else None
