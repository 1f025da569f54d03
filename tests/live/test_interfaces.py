"""Hosts without an RDMA device: ethtool, /proc/net/dev, sysfs statistics."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.collectors_ib.helpers import Result, gather, run_text
from tests.live.test_processes import readings
from tests.live.test_sampling import Clock
from xtune.cli._live import sample_host
from xtune.collectors import Context
from xtune.collectors._live import open_sampler
from xtune.collectors._live_net import RESCAN_NS, NetSampler, run_command
from xtune.lake import Lake

PROC = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
  eth0:1000 11 1 2 0 0 0 3 2000 22 0 4 0 0 0 0
veth12: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
docker0: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
"""  # noqa: E501 - as the kernel prints it
ETHTOOL = """\
NIC statistics:
     rx_packets: 11
     rx_bytes: 1000
     tx_bytes: 2000
     rx_bytes_phy: 500000
     tx_bytes_phy: 700000
     rx_prio3_pause_duration: 40
     rx_prio4_pause_duration: 2
     outbound_pci_stalled_rd: 7
"""


def interface(root: Path, name: str, *, pci: str | None = None, **counters: int) -> Path:
    folder = root / "class/net" / name
    (folder / "statistics").mkdir(parents=True)
    (folder / "speed").write_text("100000\n")
    (folder / "operstate").write_text("up\n")
    for counter, value in counters.items():
        (folder / "statistics" / counter).write_text(f"{value}\n")
    if pci is not None:
        (root / "devices" / pci).mkdir(parents=True, exist_ok=True)
        (folder / "device").symlink_to(root / "devices" / pci)
    return folder


def proc(root: Path, text: str = PROC) -> Path:
    (root / "net").mkdir(parents=True)
    (root / "net/dev").write_text(text)
    return root


def sampler_of(root: Path, procfs: Path | None, clock: Clock, **given: Any) -> NetSampler:
    found = open_sampler(root, procfs, "Host1", now_ns=clock, monotonic_ns=clock, **given)
    assert isinstance(found, NetSampler)
    return found


def taken(sampler: NetSampler) -> Result:
    return gather(sampler.take().rows(Context(now_ns=lambda: 0)))


def test_proc_counts_physical_interfaces_in_bytes(tmp_path: Path) -> None:
    root = tmp_path / "sys"
    interface(root, "eth0", pci="0000:3b:00.0", rx_bytes=1)
    for name in ("lo", "veth12", "docker0"):
        interface(root, name)
    sampler = sampler_of(root, proc(tmp_path / "proc"), Clock())
    sampler.tick()
    result = taken(sampler)
    (row,) = result.counters
    assert (row["link"], row["host"], row["device"], row["port"]) == (
        "host1/eth0/1", "host1", "eth0", 1,
    )  # fmt: skip
    assert (row["port_rcv_data"], row["port_xmit_data"], row["data_unit_bytes"]) == (1000, 2000, 1)
    assert (row["port_rcv_packets"], row["port_xmit_packets"]) == (11, 22)
    assert row["port_xmit_discards"] == 4 and row["rate_gbps"] == 100.0
    assert row["extra"]["rx_errors"] == 1 and row["ts"] == 1_000_000_000
    (port,) = result.rows("ports")
    assert (port["pci"], port["netdev"], port["state"], port["link_layer"]) == (
        "0000:3b:00.0", "eth0", "UP", "Ethernet",
    )  # fmt: skip


def test_without_a_sysfs_names_tell_what_is_virtual(tmp_path: Path) -> None:
    sampler = sampler_of(tmp_path / "none", proc(tmp_path / "proc"), Clock())
    sampler.tick()
    assert [row["device"] for row in taken(sampler).counters] == ["eth0"]


def test_sysfs_statistics_where_there_is_no_proc(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", pci="0000:3b:00.0", rx_bytes=5, tx_bytes=2**64 - 1)
    sampler = sampler_of(tmp_path, None, Clock())
    sampler.tick()
    (row,) = taken(sampler).counters
    assert row["port_rcv_data"] == 5 and row["port_xmit_data"] is None
    assert "tx_bytes" in row["saturated"]


def test_ethtool_comes_first_and_gives_what_its_text_gives_as_a_file(tmp_path: Path) -> None:
    interface(tmp_path / "sys", "eth0", pci="0000:3b:00.0")
    asked: list[Sequence[str]] = []

    def runner(words: Sequence[str]) -> str | None:
        asked.append(words)
        return ETHTOOL

    sampler = sampler_of(tmp_path / "sys", proc(tmp_path / "proc"), Clock(), runner=runner)
    sampler.tick()
    (row,) = taken(sampler).counters
    assert asked[-1] == ["ethtool", "-S", "eth0"]
    assert (row["port_rcv_data"], row["rx_pause_duration"]) == (500000, 42)
    (file,) = run_text("ethtool", tmp_path, f"eth0:\n{ETHTOOL}", host="host1").counters
    assert {**row, "ts": None, "rate_gbps": None} == {**file, "ts": None}


def test_a_driver_without_statistics_falls_back(tmp_path: Path) -> None:
    interface(tmp_path / "sys", "eth0", pci="0000:3b:00.0")
    sampler = sampler_of(
        tmp_path / "sys", proc(tmp_path / "proc"), Clock(), runner=lambda words: None
    )
    sampler.tick()
    (row,) = taken(sampler).counters
    assert row["port_rcv_data"] == 1000


def test_what_proc_said_keeps_its_time_beside_a_slow_ethtool(tmp_path: Path) -> None:
    for name in ("eth0", "eth1", "eth2"):
        interface(tmp_path / "sys", name, pci=f"0000:3b:00.{name[-1]}")
    clock = Clock()

    def runner(words: Sequence[str]) -> str | None:
        clock.later()
        return None if words[-1] == "eth2" else ETHTOOL

    text = PROC + "  eth2:3000 33 0 0 0 0 0 0 4000 44 0 0 0 0 0 0\n"
    sampler = sampler_of(tmp_path / "sys", proc(tmp_path / "proc", text), clock, runner=runner)
    began = clock.now
    sampler.tick()
    assert {row["device"]: row["ts"] for row in taken(sampler).counters} == {
        "eth0": began, "eth1": began + 100_000_000, "eth2": began,
    }  # fmt: skip


def test_an_ethtool_that_fails_once_mixes_no_sources(tmp_path: Path) -> None:
    interface(tmp_path / "sys", "eth0", pci="0000:3b:00.0")
    answers: list[str | None] = [ETHTOOL, None, ETHTOOL]
    sampler = sampler_of(
        tmp_path / "sys", proc(tmp_path / "proc"), Clock(), runner=lambda words: answers.pop(0)
    )
    sampler.tick()  # the first answer was asked for when the interface was found
    sampler.tick()
    assert [row["port_rcv_data"] for row in taken(sampler).counters] == [500000]
    assert list(sampler.rejected) == ["eth0"]


def test_a_renamed_interface_keeps_its_link(tmp_path: Path) -> None:
    folder = interface(tmp_path, "eth0", pci="0000:3b:00.0", rx_bytes=5)
    clock = Clock()
    sampler = sampler_of(tmp_path, None, clock)
    sampler.tick()
    folder.rename(folder.parent / "ens1f0")
    clock.later(RESCAN_NS)
    sampler.tick()
    rows = taken(sampler).counters
    assert [(row["device"], row["link"]) for row in rows] == [
        ("eth0", "host1/eth0/1"), ("ens1f0", "host1/eth0/1"),
    ]  # fmt: skip


def test_ports_that_share_a_pci_function_are_links_of_their_own(tmp_path: Path) -> None:
    """An adapter's two ports, and representors; one that tells neither number nor name."""
    told = {"eth0": ("0", ""), "eth1": ("1", ""), "eth2": ("0", "pf0vf0"), "eth3": ("", "")}
    for bytes_, (name, (number, port)) in enumerate(told.items()):
        folder = interface(tmp_path, name, pci="0000:3b:00.0", rx_bytes=bytes_)
        (folder / "dev_port").write_text(number)
        (folder / "phys_port_name").write_text(port)
    folder = interface(tmp_path, "eth4", pci="0000:3b:00.0", rx_bytes=4)  # as eth3
    clock = Clock()
    sampler = sampler_of(tmp_path, None, clock)
    for name in ("eth1", "eth2"):
        (folder.parent / name).rename(folder.parent / f"new{name}")
    clock.later(RESCAN_NS)
    sampler.tick()
    assert {row["port_rcv_data"]: row["link"] for row in taken(sampler).counters} == {
        number: f"host1/eth{number}/1" for number in range(5)
    }


def test_a_new_interface_under_an_old_name_is_another_link(tmp_path: Path) -> None:
    folder = interface(tmp_path, "eth0", pci="0000:3b:00.0", rx_bytes=5)
    clock = Clock()
    sampler = sampler_of(tmp_path, None, clock)
    folder.rename(folder.parent / "ens1")
    interface(tmp_path, "eth0", pci="0000:5e:00.0", rx_bytes=9)
    clock.later(RESCAN_NS)
    sampler.tick()
    links = {row["device"]: row["link"] for row in taken(sampler).counters}
    assert links == {"ens1": "host1/eth0/1", "eth0": "host1/eth0@0000:5e:00.0/1"}


def test_a_real_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "ethtool"
    tool.write_text("#!/bin/sh\necho NIC statistics:\necho '     rx_bytes: 3'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "rx_bytes: 3" in (run_command(["ethtool", "-S", "eth0"]) or "")
    tool.write_text("#!/bin/sh\nexit 94\n")
    assert run_command(["ethtool", "-S", "eth0"]) is None
    assert run_command([str(tmp_path / "gone")]) is None


def test_this_machine(tmp_path: Path) -> None:
    """Whatever it has: rows with rising counters, no error."""
    if not [n for n in os.listdir("/sys/class/net") if n not in ("lo", "ifb0", "ifb1")]:
        pytest.skip("no network interface here")
    lake = Lake.open(tmp_path / "lake", create=True)
    sample_host(
        lake, Path("/sys"), Context(host="h", now_ns=lambda: 0), interval_s=0.05, duration_s=0.2,
        json=False,
    )  # fmt: skip
    found = readings(tmp_path / "lake")
    assert found and max(found.values()) == 1
