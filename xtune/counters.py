"""Counters that have a column of their own in ``link_counters``: unit and meaning.

Names and units are the kernel's (Linux drivers/infiniband/core/sysfs.c,
drivers/infiniband/hw/mlx5/counters.c; ethtool names from
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst).
"""

from __future__ import annotations

COUNTERS: dict[str, tuple[str, str]] = {
    "port_xmit_data": ("words of 4 octets, see data_unit_bytes", "data sent"),
    "port_rcv_data": ("words of 4 octets, see data_unit_bytes", "data received"),
    "port_xmit_packets": ("packets", "packets sent"),
    "port_rcv_packets": ("packets", "packets received"),
    "unicast_xmit_packets": ("packets", "unicast packets sent"),
    "unicast_rcv_packets": ("packets", "unicast packets received"),
    "multicast_xmit_packets": ("packets", "multicast packets sent"),
    "multicast_rcv_packets": ("packets", "multicast packets received"),
    "port_xmit_wait": ("ticks, see xmit_wait_tick", "had data to send and could not"),
    "port_xmit_discards": ("packets", "packets dropped at the sender"),
    "port_rcv_errors": ("packets", "packets received with an error"),
    "port_rcv_remote_physical_errors": ("packets", "packets marked bad by the far end"),
    "port_rcv_switch_relay_errors": ("packets", "packets a switch could not forward"),
    "port_xmit_constraint_errors": ("packets", "packets refused by partition or raw filters"),
    "port_rcv_constraint_errors": ("packets", "packets refused by partition or raw filters"),
    "symbol_error": ("errors", "minor link errors"),
    "link_error_recovery": ("events", "successful link retrains"),
    "link_downed": ("events", "failed link retrains"),
    "local_link_integrity_errors": ("events", "local physical errors over the threshold"),
    "excessive_buffer_overrun_errors": ("events", "buffer overruns over the threshold"),
    "VL15_dropped": ("packets", "management packets dropped"),
    "np_ecn_marked_roce_packets": ("packets", "RoCE packets that arrived ECN-marked"),
    "np_cnp_sent": ("packets", "congestion notifications sent by the receiver"),
    "rp_cnp_handled": ("packets", "congestion notifications that throttled this sender"),
    "rp_cnp_ignored": ("packets", "congestion notifications this sender ignored"),
    "out_of_sequence": ("packets", "packets received out of order"),
    "packet_seq_err": ("packets", "sequence NAKs received"),
    "implied_nak_seq_err": ("events", "acknowledgement jumps"),
    "local_ack_timeout_err": ("events", "acknowledgement timer expired at this sender"),
    "rnr_nak_retry_err": ("events", "receiver was not ready"),
    "roce_adp_retrans": ("events", "adaptive retransmissions"),
    "roce_slow_restart": ("events", "slow restarts"),
    "out_of_buffer": ("packets", "no receive buffer was posted"),
    "rx_discards_phy": ("packets", "packets dropped on receive, no room at the port"),
    "rx_pause_duration": ("microseconds", "the network paused this port"),
    "tx_pause_duration": ("microseconds", "this port paused the network"),
}
