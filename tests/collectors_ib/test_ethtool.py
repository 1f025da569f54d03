"""ethtool -S: which counter of which driver, whose it is, and what is no counter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import claims, damaged, run, run_text
from tests.samples import samples
from xtune.collectors._ethtool import counters, statistics
from xtune.tables import COUNTERS

TOP = 2**64 - 1


def columns(text: str) -> dict[str, int]:
    return {k: v for k, v in counters(statistics(text)).items() if k in COUNTERS}


def test_the_port_counts_and_not_the_netdev_where_a_driver_has_both() -> None:
    text = """NIC statistics:
     tx_bytes: 5
     tx_bytes_phy: 1000
     rx_bytes_phy: 2000
     tx_packets: 1
     tx_packets_phy: 10
     rx_discards_phy: 3
     tx_discards_phy: 4
     link_down_events_phy: 2
     rx_pcs_symbol_err_phy: 6
     rx_out_of_buffer: 7
     outbound_pci_stalled_rd: 88
"""
    found = counters(statistics(text))
    assert found["data_unit_bytes"] == 1
    assert (found["port_xmit_data"], found["port_rcv_data"]) == (1000, 2000)
    assert (found["port_xmit_packets"], found["port_xmit_discards"]) == (10, 4)
    assert (found["rx_discards_phy"], found["link_downed"], found["symbol_error"]) == (3, 2, 6)
    assert found["out_of_buffer"] == 7
    # A gauge, percent of the last second: under its own name alone.
    assert found["extra"]["outbound_pci_stalled_rd"] == 88
    assert found["extra"]["tx_bytes"] == 5


def test_a_virtual_function_counts_rdma_beside_the_rest() -> None:
    text = "rx_vport_unicast_bytes: 10\nrx_vport_rdma_unicast_bytes: 90\nrx_bytes: 10\n"
    assert columns(text) == {"port_rcv_data": 100}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # mlx5, PFC: microseconds, added up over the priorities; global pause is another mode.
        (("rx_prio3_pause_duration", "rx_prio4_pause_duration"), 12),
        (("rx_pause_duration_prio_0", "rx_pause_duration_prio_7"), 12),  # mlx4, mlxsw
        (("pfc_pri0_rx_duration_us", "pfc_pri3_rx_duration_us"), 12),  # bnxt
        (("rx_global_pause_duration",), 5),
        (("rx_prio3_pause_duration", "rx_global_pause_duration"), 5),
    ],
)
def test_pause(names: tuple[str, ...], expected: int) -> None:
    text = "".join(f"     {name}: {value}\n" for name, value in zip(names, (5, 7), strict=False))
    found = counters(statistics(text + "     rx_prio3_pause_transition: 9\n"))
    assert found["rx_pause_duration"] == expected
    assert "tx_pause_duration" not in found
    assert found["extra"].items() >= dict(zip(names, (5, 7), strict=False)).items()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port.tx_bytes: 9\ntx_bytes: 1\nport.rx_dropped: 2",
         {"port_xmit_data": 9, "rx_discards_phy": 2}),
        ("tx_bytes.nic: 9\ntx_bytes: 1\ntx_unicast.nic: 2\ntx_multicast.nic: 3\n"
         "tx_broadcast.nic: 4", {"port_xmit_data": 9, "port_xmit_packets": 9}),
        ("queue_0_tx_bytes: 1\nqueue_1_tx_bytes: 2\nqueue_0_rx_cnt: 3\nqueue_1_rx_cnt: 4",
         {"port_xmit_data": 3, "port_rcv_packets": 7}),
        ("[0]: tx_bytes: 1\n[1]: tx_bytes: 2\ntx_bytes: 3", {"port_xmit_data": 3}),
        ("a_octets_received_ok: 7\na_frames_received_ok: 2",
         {"port_rcv_data": 7, "port_rcv_packets": 2}),
        ("eth-mac-OctetsTransmittedOK: 7", {"port_xmit_data": 7}),
        # virtio_net, then as newer kernels name them; hv_netvsc; be2net: only queues count.
        ("rx_queue_0_bytes: 5\nrx_queue_1_bytes: 6\ntx_queue_0_packets: 2\n"
         "tx_queue_10_packets: 3", {"port_rcv_data": 11, "port_xmit_packets": 5}),
        ("rx0_bytes: 5\nrx1_bytes: 6", {"port_rcv_data": 11}),
        ("rx0_bytes: 5\nrx1_bytes: 6\nrx_bytes: 12", {"port_rcv_data": 12}),
        ("vf_rx_bytes: 90\nrx_queue_0_bytes: 5", {"port_rcv_data": 95}),
        ("txq0: tx_bytes: 1\ntxq1: tx_bytes: 2\nrxq0: rx_pkts: 3",
         {"port_xmit_data": 3, "port_rcv_packets": 3}),
        # sfc, dpaa2, tg3, iavf, bnxt
        ("port_tx_bytes: 9\ntx_unicast: 3\nport_tx_packets: 4",
         {"port_xmit_data": 9, "port_xmit_packets": 4}),
        ("[hw] rx bytes: 8\n[mac] rx bytes: 9\n[mac] rx frames ok: 2",
         {"port_rcv_data": 9, "port_rcv_packets": 2}),
        ("tx_octets: 9\ntx_ucast_packets: 1\ntx_mcast_packets: 2\ntx_bcast_packets: 3",
         {"port_xmit_data": 9, "port_xmit_packets": 6}),
        ("rx_bytes: 9\nrx_unicast: 1\nrx_multicast: 2\nrx_broadcast: 3",
         {"port_rcv_data": 9, "port_rcv_packets": 6}),
        ("link_down_events: 2\nrx_pcs_symbol_err: 3\nrx_stat_discard: 4\ntx_stat_discard: 5",
         {"link_downed": 2, "symbol_error": 3, "rx_discards_phy": 4, "port_xmit_discards": 5}),
    ],
)  # fmt: skip
def test_drivers(text: str, expected: dict[str, int]) -> None:
    assert columns(text) == expected


@pytest.mark.parametrize(
    ("pipe", "whole"),
    [
        ("", True),
        ("| grep -v ': 0'", True),
        ('| grep -v ": 0$"', True),
        ("| sort | tee log", True),
        ("| grep queue", False),
        ("| grep -v ': 0' | head", False),
    ],
)
def test_of_filtered_counters_no_sum_is_made(pipe: str, whole: bool, tmp_path: Path) -> None:
    text = (
        f"root@n1:~# ethtool -S eth0 {pipe}\n     queue_0_rx_bytes: 5\n     queue_1_rx_bytes: 6\n"
        "     tx_bytes: 7\n     rx_prio3_pause_duration: 2\n"
    )
    (row,) = run_text("ethtool", tmp_path, text).counters
    assert row["port_xmit_data"] == 7 and row["extra"]["queue_1_rx_bytes"] == 6
    assert (row["port_rcv_data"], row["rx_pause_duration"]) == ((11, 2) if whole else (None, None))


VMXNET3 = """NIC statistics:
     Tx Queue#: 0
       ucast pkts tx: 5
       ucast bytes tx: 500
       bcast bytes tx: 7
       drv dropped tx total: 2
          giant hdr: 2
       giant hdr: 2
     Tx Queue#: 1
       ucast pkts tx: 6
       ucast bytes tx: 600
     Rx Queue#: 0
       ucast bytes rx: 40
     tx timeout count: 3
"""


def test_counters_below_the_number_of_their_queue_are_told_apart(tmp_path: Path) -> None:
    result = run_text("ethtool", tmp_path, VMXNET3)
    (row,) = result.counters
    assert row["extra"]["Tx Queue# 0: ucast pkts tx"] == 5
    assert row["extra"]["Tx Queue# 1: ucast pkts tx"] == 6
    assert row["extra"]["tx timeout count"] == 3 and "Tx Queue#" not in row["extra"]
    assert (row["port_xmit_data"], row["port_rcv_data"]) == (1107, 40)
    assert row["port_xmit_packets"] == 11 and row["port_rcv_packets"] is None
    assert not any("twice" in note for note in result.notes)
    assert statistics(VMXNET3) == row["extra"]


def test_names_and_values_of_every_kind() -> None:
    found = statistics(
        "NIC statistics:\n     rxq0: rx_drops: 5\n     [0]: rx_bytes: 6\n     two words: 7\n"
        f"     two_words: 8\n     same: 1\n     same: 1\n     cut: 1\n     cut: 2\n"
        f"     top: {TOP}\n     beyond: {TOP + 1}\n     negative: -1\n     float: 1.5\n"
    )
    # "cut" is two counters whose names the kernel cut at 32 characters: neither is known.
    assert found == {
        "rxq0: rx_drops": 5,
        "[0]: rx_bytes": 6,
        "two words": 7,
        "two_words": 8,
        "same": 1,
        "top": TOP,
    }


def test_a_counter_at_its_maximum_is_unknown(tmp_path: Path) -> None:
    result = run_text(
        "ethtool", tmp_path, f"NIC statistics:\n tx_bytes_phy: {TOP}\n rx_bytes: 1\n"
    )
    (row,) = result.counters
    assert (row["port_xmit_data"], row["port_rcv_data"]) == (None, 1)
    assert row["saturated"] == ["tx_bytes_phy", "port_xmit_data"]
    assert row["extra"] == {"rx_bytes": 1}


MANY = """\
root@Node7:~# ethtool eth0
Settings for eth0:
\tSupported ports: [ FIBRE ]
\tSpeed: 400000Mb/s
root@node7:~# ethtool -i eth0
driver: mlx5_core
bus-info: 0000:3b:00.0
root@node7:~# date
Tue Mar  5 16:26:11 UTC 2024
root@node7:~# ethtool -S eth0 | grep bytes_phy
     tx_bytes_phy: 1
1709655972.25
+ ethtool -S eth1
NIC statistics:
     tx_bytes_phy: 2
not of ethtool
Standard stats for eth2:
eth-mac-OctetsTransmittedOK: 3
==> eth3 <==
NIC statistics:
     tx_bytes_phy: 4
==> notes/a-much-too-long-name.txt <==
     tx_bytes_phy: 5
"""


def test_whose_counters_they_are(tmp_path: Path) -> None:
    result = run_text("ethtool", tmp_path, MANY)
    at = 1_709_655_971_000_000_000
    found = [(r["host"], r["device"], r["port_xmit_data"], r["ts"]) for r in result.counters]
    assert found == [
        ("node7", "eth0", 1, at),
        ("node7", "eth1", 2, at + 1_250_000_000),
        ("node7", "eth2", 3, at + 1_250_000_000),
        (None, "eth3", 4, None),  # another file: neither its host nor its time is known
        (None, None, 5, None),
    ]
    first, last = result.counters[0], result.counters[-1]
    assert (first["link"], first["rate_gbps"], first["port"]) == ("node7/eth0/1", 400.0, 1)
    assert re.fullmatch(r"unknown-([0-9a-f]{12})/unknown-\1-\d+/1", last["link"])
    ports = {p["device"]: p for p in result.rows("ports")}
    assert (ports["eth0"]["pci"], ports["eth0"]["rate_gbps"]) == ("0000:3b:00.0", 400.0)
    assert ports["eth1"]["link_layer"] == "Ethernet"
    (reject,) = result.rejects
    assert "not of ethtool" in reject.reason


def test_a_loop_without_names_keeps_its_devices_apart(tmp_path: Path) -> None:
    text = "".join(
        f"{second}\nNIC statistics:\n tx_bytes_phy: {a}\nNIC statistics:\n tx_bytes_phy: {b}\n"
        for second, a, b in ((1709655971, 1, 100), (1709655972, 2, 200))
    )
    rows = run_text("ethtool", tmp_path, text, host="h").counters
    links = [row["link"] for row in rows]
    assert links[0] == links[2] != links[1] == links[3]
    named = run_text("ethtool", tmp_path, "NIC statistics:\n a: 1\n", labels={"device": "eth9"})
    assert named.counters[0]["device"] == "eth9"


def test_a_cut_block_has_no_sums_and_no_cut_value(tmp_path: Path) -> None:
    text = "NIC statistics:\n rx_prio3_pause_duration: 5\n tx_bytes_phy: 9\n rx_bytes_phy: 12"
    result = run_text("ethtool", tmp_path, text)
    (row,) = result.counters
    assert (row["rx_pause_duration"], row["port_rcv_data"]) == (None, None)
    assert row["port_xmit_data"] == 9
    assert "may be cut" in result.rejects[0].reason


@pytest.mark.shared_samples
def test_public_dumps() -> None:
    for path in sorted(samples("ethtool_text").iterdir()):
        assert max(claims(path), key=lambda kind: claims(path)[kind]) == "ethtool"
        (row,) = run("ethtool", path).counters
        lines = re.findall(r"^\s*(\S.*): (\d+)\s*$", path.read_text(), re.M)
        assert row["extra"] == {name: int(value) for name, value in lines}
    mlx5 = run("ethtool", samples("ethtool_text", "ethq_mlx5_core.txt")).counters[0]
    # awk '/tx_bytes_phy|rx_bytes_phy/{print $2}'
    assert (mlx5["port_xmit_data"], mlx5["port_rcv_data"]) == (2662454044895, 2202570777997)
    ena = run("ethtool", samples("ethtool_text", "ethq_ena.txt")).counters[0]
    # awk -F': ' '/^queue_[0-9]+_rx_bytes/{s+=$2} END{print s}'
    assert ena["port_rcv_data"] == 186106995835


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_input_never_raises(data: st.DataObject) -> None:
    for row in damaged("ethtool", data, MANY).counters:
        assert row["link"].count("/") == 2
