"""Trees with the bugs that lost other tools their metrics."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.collectors_ib.helpers import NOW, claims, port_tree, run
from xtune.collectors._base import Reject
from xtune.collectors._ib_sysfs_tree import read_file, read_ports

WORDS = {"port_xmit_data": 1000, "port_rcv_data": 2000}
WIDE = {**WORDS, "unicast_xmit_packets": 5}


def test_one_port(tmp_path: Path) -> None:
    port_tree(
        tmp_path,
        counters={**WIDE, "port_xmit_wait": 77, "port_xmit_packets": 2**33},
        hw_counters={"out_of_sequence": 3, "rx_write_requests": 9, "lifespan": 12},
        node_guid="0a7f:bc12:45ef:d23b",
        hca_type="MT4129",
        node_desc="node17 mlx5_0",
    )
    result = run("ib_sysfs", tmp_path, host="Node17")
    (row,) = result.counters
    assert row["link"] == "0x0a7fbc1245efd23b/1"
    assert (row["host"], row["device"], row["port"]) == ("node17", "mlx5_0", 1)
    assert (row["port_xmit_data"], row["port_xmit_wait"]) == (1000, 77)
    assert (row["port_xmit_packets"], row["out_of_sequence"]) == (2**33, 3)
    assert row["extra"] == {"rx_write_requests": 9}  # lifespan is the cache's age, no counter
    assert (row["data_unit_bytes"], row["rate_gbps"], row["ts"]) == (4, 400.0, None)
    assert row["port_rcv_errors"] is None  # absent is unknown, not 0
    assert row["np_cnp_sent"] is None
    (port,) = result.rows("ports")
    assert (port["device_family"], port["state"], port["width"]) == ("ConnectX-7", "ACTIVE", "4X")
    assert port["node_description"] == "node17 mlx5_0"
    assert result.rejects == []


def test_no_pma_costs_that_counter_only(tmp_path: Path) -> None:
    # prometheus/node_exporter #966, #1130
    port_tree(tmp_path, "i40iw0", counters={"port_xmit_data": "N/A (no PMA)", "link_downed": 1})
    port_tree(tmp_path, "mlx5_0", counters=WIDE)
    result = run("ib_sysfs", tmp_path)
    (reject,) = result.rejects
    assert reject.offset == "i40iw0/ports/1/counters/port_xmit_data"
    assert "N/A (no PMA)" in reject.reason
    first, second = result.counters
    assert (first["link_downed"], first["port_xmit_data"]) == (1, None)
    assert second["port_xmit_data"] == 1000


def test_a_driver_that_answers_einval_costs_that_counter_only(tmp_path: Path) -> None:
    # prometheus/node_exporter #3265, procfs #704
    def driver(path: Path) -> bytes:
        if path.name == "VL15_dropped":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return read_file(path)

    folder = port_tree(tmp_path, counters={**WIDE, "VL15_dropped": 0})
    reject, port = read_ports(folder, driver)
    assert isinstance(reject, Reject) and not isinstance(port, Reject)
    assert reject.offset == "mlx5_0/ports/1/counters/VL15_dropped"
    assert "Invalid argument" in reject.reason
    assert port.counters == WIDE


def test_what_cannot_be_read_is_rejected_and_the_rest_kept(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, counters=WIDE, hw_counters={})
    counters = folder / "ports/1/counters"
    os.mkfifo(counters / "port_rcv_errors")  # must not block
    (counters / "symbol_error").mkdir()
    (counters / "link_downed").symlink_to("/proc/self/mem")  # opens, then fails to read
    (counters / "port_xmit_wait").symlink_to(tmp_path / "gone")
    (counters / "port_xmit_discards").write_text("-3")
    (counters / "port_rcv_packets").write_text("18446744073709551616")
    (counters / "multicast_rcv_packets").write_text("")
    result = run("ib_sysfs", tmp_path)
    assert {Path(r.offset).name for r in result.rejects} == {
        "port_rcv_errors",
        "symbol_error",
        "link_downed",
        "port_xmit_wait",
        "port_xmit_discards",
        "port_rcv_packets",
        "multicast_rcv_packets",
    }
    (row,) = result.counters
    assert row["port_xmit_data"] == 1000 and row["link_downed"] is None


def test_a_device_without_counters_hides_no_other(tmp_path: Path) -> None:
    # prometheus/node_exporter #2769, #2846 (irdma), #2023 (Omni-Path): ports only, no error
    port_tree(tmp_path, "hfi1_0", rate="100 Gb/sec (4X EDR)")
    port_tree(tmp_path, "irdma0", counters={}, hw_counters={"lifespan": 10})
    port_tree(tmp_path, "mlx5_0", counters=WIDE)
    result = run("ib_sysfs", tmp_path)
    assert [p["device"] for p in result.rows("ports")] == ["hfi1_0", "irdma0", "mlx5_0"]
    assert [r["device"] for r in result.counters] == ["mlx5_0"]
    assert result.rejects == []


def test_saturated_32_bit_counters_are_unknown(tmp_path: Path) -> None:
    # TACC/remora #17: a flat line at the maximum is not an idle link
    values = {"port_xmit_data": 2**32 - 1, "port_rcv_data": 7, "port_xmit_wait": 2**32 - 1}
    port_tree(tmp_path, counters={**values, "excessive_buffer_overrun_errors": 15})
    (row,) = run("ib_sysfs", tmp_path).counters
    assert set(row["saturated"]) == {
        "port_xmit_data",
        "port_xmit_wait",
        "excessive_buffer_overrun_errors",
    }
    assert (row["port_xmit_data"], row["port_rcv_data"]) == (None, 7)


def test_one_wide_port_makes_its_device_wide_but_no_other(tmp_path: Path) -> None:
    top = 2**32 - 1
    port_tree(tmp_path, "mlx4_0", 1, counters={"port_xmit_data": top + 1})
    port_tree(tmp_path, "mlx4_0", 2, counters={"port_xmit_data": top})
    port_tree(tmp_path, "mlx4_1", 1, counters={"port_xmit_data": top})
    rows = run("ib_sysfs", tmp_path).counters
    assert [r["port_xmit_data"] for r in rows] == [top + 1, top, None]


def test_the_extended_set_stands_in_for_a_32_bit_one(tmp_path: Path) -> None:
    extended = {"port_xmit_data_64": 2**40, "port_unicast_xmit_packets": 11}
    port_tree(tmp_path, "old", counters={"port_xmit_data": 2**32 - 1}, counters_ext=extended)
    port_tree(tmp_path, "new", counters=WIDE, counters_ext=extended)
    new, old = run("ib_sysfs", tmp_path).counters
    assert (old["port_xmit_data"], old["unicast_xmit_packets"]) == (2**40, 11)
    assert old["saturated"] == [] and old["extra"] == {}
    # Beside a 64-bit set, two reads of one counter need not agree: both are kept.
    assert (new["port_xmit_data"], new["unicast_xmit_packets"]) == (1000, 5)
    assert new["extra"] == extended


def test_link_ids_fall_back(tmp_path: Path) -> None:
    port_tree(tmp_path / "a", counters=WIDE, node_guid="0000:0000:0000:0000")
    port_tree(tmp_path / "copy", counters=WIDE, node_guid="0000:0000:0000:0000")
    port_tree(tmp_path / "b", counters={**WIDE, "link_downed": 1})
    (named,) = run("ib_sysfs", tmp_path / "a", host="h1").counters
    assert named["link"] == "h1/mlx5_0/1" and named["node_guid"] is None
    links = {n: run("ib_sysfs", tmp_path / n).counters[0]["link"] for n in ("a", "copy", "b")}
    assert links["a"] == links["copy"] != links["b"]
    assert links["a"].startswith("unknown-") and links["a"].endswith("/mlx5_0/1")


def test_two_trees_below_a_forced_folder_stay_apart(tmp_path: Path) -> None:
    port_tree(tmp_path / "one", counters=WIDE)
    port_tree(tmp_path / "two", counters={**WIDE, "link_downed": 1})
    first, second = run("ib_sysfs", tmp_path).counters
    assert first["device"] == second["device"] and first["link"] != second["link"]


def test_times(tmp_path: Path) -> None:
    tree = tmp_path / "node17-2026-01-31T12:00:00Z"
    folder = port_tree(tree, counters=WIDE)
    counters = folder / "ports/1/counters"
    for index, path in enumerate(sorted(counters.iterdir())):
        os.utime(path, ns=(0, 1_769_860_800_000_000_000 + index))
    noon = 1_769_860_800_000_000_000  # 2026-01-31T12:00:00Z: 20,484 days and 12 hours
    assert noon == (20484 * 24 + 12) * 3600 * 10**9
    assert run("ib_sysfs", tree).counters[0]["ts"] is None
    assert run("ib_sysfs", tree, time_from="name").counters[0]["ts"] == noon
    assert run("ib_sysfs", tree, time_from="mtime").counters[0]["ts"] == noon + 2  # the newest
    assert run("ib_sysfs", tree, time_from="now").counters[0]["ts"] == NOW
    assert any("without a time" in text for text in run("ib_sysfs", tree).notes)


@pytest.mark.parametrize("below", ["", "class/infiniband"])
def test_the_shapes_that_are_claimed(tmp_path: Path, below: str) -> None:
    root = tmp_path / "root"
    folder = port_tree(root / below, counters=WIDE)
    assert claims(root) == {"ib_sysfs": 0.95}
    assert claims(folder) == {"ib_sysfs": 0.95}
    # The folder above may hold other inputs: it is not swallowed.
    assert claims(tmp_path) == {}
    for inside in (folder / "ports", folder / "ports/1", folder / "ports/1/counters"):
        assert claims(inside) == {}


def test_folders_that_are_no_sysfs(tmp_path: Path) -> None:
    (tmp_path / "x/ports/1").mkdir(parents=True)
    (tmp_path / "x/ports/1/readme").write_text("hello")
    assert claims(tmp_path) == {} and claims(tmp_path / "x") == {}
    (reject,) = run("ib_sysfs", tmp_path).rejects
    assert "no InfiniBand device" in reject.reason


def test_port_guid_pci_and_netdev_of_a_live_shape(tmp_path: Path) -> None:
    pci = tmp_path / "devices/0000:18:00.0"
    (pci / "net/ibs1").mkdir(parents=True)
    folder = port_tree(tmp_path / "class/infiniband", counters=WIDE)
    (folder / "device").symlink_to(pci)
    gids = folder / "ports/1/gids"
    gids.mkdir()
    (gids / "0").write_text("fe80:0000:0000:0000:b83f:d203:00da:1138\n")
    (port,) = run("ib_sysfs", tmp_path).rows("ports")
    assert port["port_guid"] == "0xb83fd20300da1138"
    assert (port["pci"], port["netdev"]) == ("0000:18:00.0", "ibs1")


@pytest.mark.parametrize(
    ("device", "hw_counters", "column", "value"),
    [
        ("rocep42s0", {"RxECNMrkd": 5}, "np_ecn_marked_roce_packets", 5),  # irdma
        ("rocep42s0", {"Nak Sequence Error": 5}, "packet_seq_err", 5),
        ("bnxt_re0", {"rx_cnp_pkts": 5}, "rp_cnp_handled", 5),
        ("bnxt_re0", {"oos_drop_count": 5}, "out_of_sequence", 5),
    ],
)
def test_congestion_counters_of_other_drivers(
    tmp_path: Path, device: str, hw_counters: dict[str, object], column: str, value: int
) -> None:
    port_tree(tmp_path, device, counters=WORDS, hw_counters=hw_counters)
    (row,) = run("ib_sysfs", tmp_path).counters
    assert (row[column], row["extra"]) == (value, hw_counters)
    assert (row["port_xmit_data"], row["data_unit_bytes"]) == (1000, 4)


@pytest.mark.parametrize(
    ("device", "sent", "packets"),
    [
        ("rdmap16s27", "tx_bytes", "tx_pkts"),  # efa
        ("erdma_0", "hw_tx_bytes_cnt", "hw_tx_packets_cnt"),
        ("erdma_0", "tx_bytes_cnt", "tx_packets_cnt"),
    ],
)
def test_traffic_that_a_driver_counts_in_bytes(
    tmp_path: Path, device: str, sent: str, packets: str
) -> None:
    port_tree(tmp_path, device, hw_counters={sent: 2**34, packets: 7})
    (row,) = run("ib_sysfs", tmp_path).counters
    assert (row["port_xmit_data"], row["data_unit_bytes"]) == (2**34, 1)
    assert (row["port_xmit_packets"], row["saturated"]) == (7, [])
    # Beside words of their own such names mean something else.
    port_tree(tmp_path, "bnxt_re0", counters=WORDS, hw_counters={sent: 9})
    first = run("ib_sysfs", tmp_path).counters[0]
    assert (first["port_xmit_data"], first["data_unit_bytes"]) == (1000, 4)
