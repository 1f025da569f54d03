"""What other drivers than mlx5 call in ``hw_counters`` what mlx5 has a name for.

Sources: Linux ``drivers/infiniband/hw``: ``irdma/verbs.c`` (``irdma_hw_stat_names``),
``bnxt_re/hw_counters.c``, ``efa/efa_verbs.c`` (``EFA_DEFINE_PORT_STATS``), ``erdma/erdma_verbs.c``
(``erdma_descs``, with and without ``hw_``). Each counter keeps its own name beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_Value = TypeVar("_Value")

#: irdma, then bnxt_re.
_ALIASES = {
    "RxECNMrkd": "np_ecn_marked_roce_packets",
    "cnpSent": "np_cnp_sent",
    "cnpHandled": "rp_cnp_handled",
    "cnpIgnored": "rp_cnp_ignored",
    "Nak Sequence Error": "packet_seq_err",
    "Nak Sequence Error Implied": "implied_nak_seq_err",
    "RTO": "local_ack_timeout_err",
    "Rcvd Out of order packets": "out_of_sequence",
    "rx_ecn_marked_pkts": "np_ecn_marked_roce_packets",
    "tx_cnp_pkts": "np_cnp_sent",
    "rx_cnp_pkts": "rp_cnp_handled",
    "seq_err_naks_rcvd": "packet_seq_err",
    "rnr_naks_rcvd": "rnr_nak_retry_err",
    "oos_drop_count": "out_of_sequence",
}
#: Bytes and packets of a port: EFA and bnxt_re, then erdma in its two spellings.
_TRAFFIC = {
    "tx_bytes": "port_xmit_data",
    "rx_bytes": "port_rcv_data",
    "tx_pkts": "port_xmit_packets",
    "rx_pkts": "port_rcv_packets",
    "hw_tx_bytes_cnt": "port_xmit_data",
    "hw_rx_bytes_cnt": "port_rcv_data",
    "hw_tx_packets_cnt": "port_xmit_packets",
    "hw_rx_packets_cnt": "port_rcv_packets",
    "tx_bytes_cnt": "port_xmit_data",
    "rx_bytes_cnt": "port_rcv_data",
    "tx_packets_cnt": "port_xmit_packets",
    "rx_packets_cnt": "port_rcv_packets",
}


def is_renamed(name: str) -> bool:
    """Whether a counter of ``hw_counters`` is one that mlx5 or the kernel names otherwise."""
    return name in _ALIASES or name in _TRAFFIC


def aliased(hw_counters: Mapping[str, _Value]) -> dict[str, _Value]:
    """Counters that another driver has under another name, by the name of their column."""
    return {_ALIASES[n]: v for n, v in hw_counters.items() if n in _ALIASES}


def traffic(
    hw_counters: Mapping[str, _Value], counters: Mapping[str, _Value]
) -> dict[str, _Value]:
    """Traffic of a port whose driver counts it in ``hw_counters`` alone; data is in **bytes**.

    Empty where ``counters/`` has data counters of its own, which are words of 4 octets.
    """
    if "port_xmit_data" in counters or "port_rcv_data" in counters:
        return {}
    return {_TRAFFIC[n]: v for n, v in hw_counters.items() if n in _TRAFFIC}
