"""Names of metrics of the Prometheus exporters, and what they mean here.

InfiniBand: node_exporter (``node_infiniband_*``, data multiplied by 4),
treydock/infiniband_exporter (``infiniband_switch_*``, ``infiniband_hca_*``, multiplied by 4 since
its issue #33, words before) and guilbaults/infiniband-exporter (``infiniband_*_total``, words).
Ethernet: node_exporter's ethtool collector (``node_ethtool_*``).
GPUs: dcgm-exporter (``DCGM_FI_*``, ``dcgm_*`` of its 1.x) and DLRover's xpu_timer
(``XPU_TIMER_*``). Collectives: xpu_timer and NCCL Inspector (``nccl_*``).
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from xtune.collectors._ib import U64_MAX

NODE, TREYDOCK, GUILBAULTS = "node_exporter", "infiniband_exporter", "infiniband-exporter"
DCGM, XPU_GPU = "dcgm-exporter", "xpu_timer"
ETHTOOL = "node_exporter ethtool"
XPU_COLLECTIVE, INSPECTOR = "xpu_timer collectives", "NCCL Inspector"
_MAX_DIGITS = 400
#: Exporters of ports, whose figures are counts but for the gauges below.
PORTS = frozenset({NODE, TREYDOCK, GUILBAULTS})
#: Exporters on the host of the ports themselves.
HOSTS = frozenset({NODE, ETHTOOL})
GPUS = frozenset({DCGM, XPU_GPU})
RATE, STATE, INFO, SPEED, WIDTH = "rate", "state", "info", "speed", "width"
#: Physical state by number; what is at the other end of a cable; the rate of all ports of a node.
PHYSICAL, UPLINK, NODE_RATE = "physical", "uplink", "node_rate"
GAUGES = frozenset({RATE, STATE, INFO, SPEED, WIDTH, PHYSICAL, UPLINK, NODE_RATE})
#: Gauges that are labels, with the value 1.
TOLD = frozenset({INFO, UPLINK})
#: What to ask a server for, among which :func:`recognise` decides.
FAMILIES = (
    "node_infiniband_.+|node_ethtool_.+|infiniband_.+|DCGM_FI_.+|dcgm_.+|XPU_TIMER_.+|nccl_.+"
)

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
    "physical_state_id": PHYSICAL,
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
    "portswhoqlifetimelimitdiscards": "port_sw_hoq_lifetime_limit_discards",
    "excessivebufferoverrunerrors": "excessive_buffer_overrun_errors",
    "portrcvswitchrelayerrors": "port_rcv_switch_relay_errors",
    "portxmitconstrainterrors": "port_xmit_constraint_errors",
    "portrcvconstrainterrors": "port_rcv_constraint_errors",
    "qp1dropped": "qp1_dropped",
}
_TREYDOCK_GAUGES = {
    "info": INFO,
    "uplink_info": UPLINK,
    "port_rate_bytes_per_second": RATE,
    "rate_bytes_per_second": NODE_RATE,
}
_INSPECTOR = re.compile(
    r"nccl_(?:bus_bandwidth_gbs|p2p_bus_bandwidth_gbs|(?:collective|p2p)_(?:count|"
    r"(?:slow_event_)?exec_time_(?:(?:sum|min|p50|p95|p99|max)_)?microseconds)"
    r"|(?:collectives|p2p)(?:_dropped)?_total)"
)


#: Labels with the value 1, or link modes: no counters.
_ETHTOOL_TEXT = frozenset({"node_ethtool_info", "node_ethtool_"})
#: The names of dcgm-exporter 1.x (its etc/1.x-compatibility-metrics.csv).
DCGM_1 = {
    "dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "dcgm_fb_used": "DCGM_FI_DEV_FB_USED",
    "dcgm_fb_free": "DCGM_FI_DEV_FB_FREE",
    "dcgm_power_usage": "DCGM_FI_DEV_POWER_USAGE",
    "dcgm_total_energy_consumption": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "dcgm_sm_clock": "DCGM_FI_DEV_SM_CLOCK",
    "dcgm_memory_clock": "DCGM_FI_DEV_MEM_CLOCK",
    "dcgm_gpu_temp": "DCGM_FI_DEV_GPU_TEMP",
    "dcgm_memory_temp": "DCGM_FI_DEV_MEMORY_TEMP",
    "dcgm_mem_copy_utilization": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "dcgm_xid_errors": "DCGM_FI_DEV_XID_ERRORS",
    "dcgm_nvlink_bandwidth_total": "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "dcgm_fi_prof_gr_engine_active": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "dcgm_fi_prof_sm_active": "DCGM_FI_PROF_SM_ACTIVE",
    "dcgm_fi_prof_nvlink_tx_bytes": "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "dcgm_fi_prof_nvlink_rx_bytes": "DCGM_FI_PROF_NVLINK_RX_BYTES",
}
_TREYDOCK_COUNTERS = {
    "transmit_data_bytes": "port_xmit_data",
    "receive_data_bytes": "port_rcv_data",
    "transmit_packets": "port_xmit_packets",
    "receive_packets": "port_rcv_packets",
    "unicast_transmit_packets": "unicast_xmit_packets",
    "unicast_receive_packets": "unicast_rcv_packets",
    "multicast_transmit_packets": "multicast_xmit_packets",
    "multicast_receive_packets": "multicast_rcv_packets",
    "symbol_error": "symbol_error",
    "link_error_recovery": "link_error_recovery",
    "link_downed": "link_downed",
    "receive_errors": "port_rcv_errors",
    "receive_remote_physical_errors": "port_rcv_remote_physical_errors",
    "receive_switch_relay_errors": "port_rcv_switch_relay_errors",
    "transmit_discards": "port_xmit_discards",
    "transmit_constraint_errors": "port_xmit_constraint_errors",
    "receive_constraint_errors": "port_rcv_constraint_errors",
    "local_link_integrity_errors": "local_link_integrity_errors",
    "excessive_buffer_overrun_errors": "excessive_buffer_overrun_errors",
    "vl15_dropped": "VL15_dropped",
    "transmit_wait": "port_xmit_wait",
    "qp1_dropped": "qp1_dropped",
    "local_physical_errors": "port_local_physical_errors",
    "malformed_packet_errors": "port_malformed_packet_errors",
    "buffer_overrun_errors": "port_buffer_overrun_errors",
    "dli_mapping_errors": "port_dlid_mapping_errors",
    "vl_mapping_errors": "port_vl_mapping_errors",
    "looping_errors": "port_looping_errors",
}


@lru_cache(4096)
def _ports(metric: str) -> tuple[str, str] | None:
    if metric.startswith("node_infiniband_"):
        rest = metric.removeprefix("node_infiniband_")
        if rest in NODE_LEGACY:
            return NODE, rest
        known = _NODE_COUNTERS.get(rest)
        return (NODE, known) if known else None
    match = re.fullmatch(r"infiniband_(?:switch|hca)_(\w+)", metric)
    if match:
        gauge = _TREYDOCK_GAUGES.get(match[1])
        if gauge:
            return TREYDOCK, gauge
        counter = re.fullmatch(r"port_(\w+)_total", match[1])
        known = _TREYDOCK_COUNTERS.get(counter[1]) if counter else None
        return (TREYDOCK, known) if known else None
    if metric in ("infiniband_speed", "infiniband_width"):
        return GUILBAULTS, metric.removeprefix("infiniband_")
    # Clients before OpenMetrics do not add ``_total``.
    known = _GUILBAULTS_COUNTERS.get(metric.removeprefix("infiniband_").removesuffix("_total"))
    return (GUILBAULTS, known) if known and metric.startswith("infiniband_") else None


def recognise(metric: str) -> tuple[str, str] | None:
    """Exporter and meaning of a metric name, or ``None``.

    The meaning is a kernel counter name or a gauge of a port; else the metric's own name.
    """
    if metric.startswith(("node_infiniband_", "infiniband_")):
        return _ports(metric) if len(metric) <= 200 else None
    if metric.startswith("node_ethtool_"):
        return None if metric in _ETHTOOL_TEXT else (ETHTOOL, metric)
    if metric.startswith(("DCGM_FI_DEV_", "DCGM_FI_PROF_")):
        return DCGM, metric
    if metric.startswith("dcgm_"):
        known = DCGM_1.get(metric)
        return (DCGM, known) if known else None
    if metric.startswith("XPU_TIMER_COLL_KERNEL_"):
        return XPU_COLLECTIVE, metric.removeprefix("XPU_TIMER_COLL_KERNEL_").lower()
    if metric.startswith("XPU_TIMER_"):
        return XPU_GPU, metric.removeprefix("XPU_TIMER_").lower()
    if metric.startswith("nccl_") and _INSPECTOR.fullmatch(metric):
        return INSPECTOR, metric
    return None


def count(text: str) -> int | float | None:
    """A sample's value: an integer where it is one, ``None`` for NaN and infinities.

    Raises:
        ValueError: Not a number at all.
    """
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    if "_" in text or len(text) > _MAX_DIGITS:
        raise ValueError("Python's own way to write a number, or none at all")
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
