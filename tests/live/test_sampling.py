"""What live sampling reads is what the files say at that moment, whatever happens to them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collectors_ib.helpers import Result, gather, port_tree, run
from xtune.collectors import Context, _live_sysfs
from xtune.collectors._live import open_sampler
from xtune.collectors._live_sysfs import SCAN_NS, SysfsSampler
from xtune.errors import InputError

WIDE = {"port_xmit_data": 1000, "port_rcv_data": 2000, "unicast_xmit_packets": 5}
GUID = "0a7f:bc12:45ef:d23b"


class Clock:
    """Nanoseconds that move only when told, the same for both clocks."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def later(self, ns: int = 100_000_000) -> None:
        self.now += ns


def sampler_of(root: Path, clock: Clock, host: str = "node1") -> SysfsSampler:
    found = open_sampler(root, None, host, now_ns=clock, monotonic_ns=clock)
    assert isinstance(found, SysfsSampler)
    return found


def taken(sampler: SysfsSampler, **given: Any) -> Result:
    return gather(sampler.take().rows(Context(now_ns=lambda: 0, **given)))


def one(root: Path, **given: Any) -> Result:
    """The rows of a single reading."""
    sampler = sampler_of(root, Clock())
    sampler.tick()
    result = taken(sampler, **given)
    sampler.close()
    return result


@pytest.fixture(autouse=True)
def no_file_stays_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before + 60  # Arrow and DuckDB may open some


def kinds_of_trees(root: Path) -> Path:
    devices = root / "class" / "infiniband"
    port_tree(
        devices, "mlx5_0", counters={**WIDE, "symbol_error": 65535, "port_xmit_wait": 2**32 - 1},
        hw_counters={"out_of_sequence": 3, "rx_write_requests": 9, "lifespan": 12}, node_guid=GUID,
        hca_type="MT4129",
    )  # fmt: skip
    old = {"port_xmit_data": 2**32 - 1, "port_rcv_data": 17, "link_downed": 1}
    port_tree(devices, "mlx4_0", counters=old)
    port_tree(devices, "mlx4_0", 2, counters={"port_xmit_data": 7},
              counters_ext={"port_xmit_data_64": 2**33, "port_rcv_packets_64": 12})  # fmt: skip
    port_tree(devices, "irdma0", counters={"port_xmit_data": "N/A (no PMA)", "link_downed": 4},
              hw_counters={"ip4InOctets": 2**64 - 1, "ip4OutOctets": 11})  # fmt: skip
    port_tree(devices, "rdmap0s31", hw_counters={"tx_bytes": 2**32 - 1, "rx_bytes": 9})  # EFA
    port_tree(devices, "hfi1_0")  # no counters at all
    port_tree(devices, "empty_0", counters={})
    counters = devices / "mlx4_0/ports/1/counters"
    (counters / "symbol_error").mkdir()
    (counters / "port_rcv_errors").write_text("-1\n")
    (counters / "port_xmit_discards").write_text("1_0\n")
    (counters / "VL15_dropped").write_text("")
    (counters / "port_rcv_packets").write_text(f"{2**70}\n")
    return root


def test_rows_are_those_of_the_tree_collected_as_files(tmp_path: Path) -> None:
    root = kinds_of_trees(tmp_path)
    live, files = (
        one(root, labels={"rack": "7"}),
        run("ib_sysfs", root, host="node1", labels={"rack": "7"}),
    )
    for table in ("link_counters", "ports"):

        def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return sorted(
                ({**row, "ts": None} for row in rows), key=lambda r: (r["device"], r["port"])
            )

        assert plain(live.rows(table)) == plain(files.rows(table))
    assert len(live.counters) == 5
    (efa,) = (row for row in live.counters if row["device"] == "rdmap0s31")
    assert (efa["port_xmit_data"], efa["data_unit_bytes"]) == (2**32 - 1, 1)
    assert {row["ts"] for row in live.counters} == {1_000_000_000}


def test_each_port_is_stamped_when_it_is_read(tmp_path: Path) -> None:
    port_tree(tmp_path, "mlx5_0", counters=WIDE)
    port_tree(tmp_path, "mlx5_1", counters=WIDE)
    ticks = iter(range(100, 200))
    sampler = SysfsSampler(tmp_path, "h1", lambda: next(ticks), lambda: 0)
    first = next(ticks)
    sampler.tick()
    sampler.tick()
    assert [r["ts"] for r in sorted(taken(sampler).counters, key=lambda r: r["ts"])] == [
        first + 1, first + 2, first + 3, first + 4,
    ]  # fmt: skip
    sampler.close()


def test_values_move_and_the_port_is_described_once(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, counters=WIDE, node_guid=GUID)
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    for value in (1, 22, 333):
        (folder / "ports/1/counters/port_xmit_data").write_text(f"{value}\n")
        sampler.tick()
        clock.later()
    result = taken(sampler)
    assert [row["port_xmit_data"] for row in result.counters] == [1, 22, 333]
    assert len(result.rows("ports")) == 1
    (folder / "ports/1/state").write_text("1: DOWN\n")
    clock.later(SCAN_NS)
    sampler.tick()
    (port,) = taken(sampler).rows("ports")
    assert port["state"] == "DOWN"
    sampler.close()


def test_a_rate_that_drops_is_seen(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, counters=WIDE)
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    sampler.tick()
    (folder / "ports/1/rate").write_text("100 Gb/sec (1X NDR)\n")
    clock.later(1_000_000_000)
    sampler.tick()
    assert [row["rate_gbps"] for row in taken(sampler).counters] == [400.0, 100.0]
    sampler.close()


def test_a_device_under_another_name_keeps_its_link(tmp_path: Path) -> None:
    # Open files of the old name can still be read and give old values: they must not count.
    root = tmp_path / "sys"
    folder = port_tree(root, "mlx5_0", counters=WIDE, node_guid=GUID)
    clock = Clock()
    sampler = sampler_of(root, clock)
    sampler.tick()
    shutil.copytree(folder, tmp_path / "new")
    shutil.rmtree(folder)
    clock.later()
    sampler.tick()  # gone: no row
    assert [row["device"] for row in taken(sampler).counters] == ["mlx5_0"]
    (tmp_path / "new/ports/1/counters/port_xmit_data").write_text("5000\n")
    (tmp_path / "new").rename(root / "rocep1s0f0")
    clock.later(1_000_000_000)
    sampler.tick()
    result = taken(sampler)
    (row,) = result.counters
    assert (row["device"], row["port_xmit_data"]) == ("rocep1s0f0", 5000)
    assert row["link"] == "0x0a7fbc1245efd23b/1"
    (port,) = result.rows("ports")
    assert port["device"] == "rocep1s0f0"
    assert any("mlx5_0 is gone" in text for text in sampler.messages)
    assert any("mlx5_0 is rocep1s0f0 now" in text for text in sampler.messages)
    sampler.close()


def test_renamed_in_place_costs_no_sample(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, "mlx5_0", counters=WIDE, node_guid=GUID)
    sampler = sampler_of(tmp_path, Clock())
    sampler.tick()
    folder.rename(tmp_path / "rocep1s0f0")
    sampler.tick()
    assert [row["device"] for row in taken(sampler).counters] == ["mlx5_0", "rocep1s0f0"]
    sampler.close()


def test_without_a_guid_the_pci_address_tells(tmp_path: Path) -> None:
    pci = tmp_path / "devices/0000:18:00.0"
    pci.mkdir(parents=True)
    root = tmp_path / "sys"
    folder = port_tree(root, "mlx5_0", counters=WIDE)
    (folder / "device").symlink_to(pci)
    port_tree(root, "mlx5_1", counters=WIDE)
    sampler = sampler_of(root, Clock())
    sampler.tick()
    folder.rename(root / "rocep24s0")
    sampler.tick()
    rows = [r for r in taken(sampler).counters if r["device"] != "mlx5_1"]
    assert [row["device"] for row in rows] == ["mlx5_0", "rocep24s0"]
    assert {row["link"] for row in rows} == {"node1/mlx5_0/1"}
    sampler.close()


def test_a_guid_that_is_not_ready_yet_does_not_change_the_link(tmp_path: Path) -> None:
    pci = tmp_path / "devices/0000:18:00.0"
    pci.mkdir(parents=True)
    root = tmp_path / "sys"
    folder = port_tree(root, "mlx5_0", counters=WIDE, node_guid=GUID)
    (folder / "device").symlink_to(pci)
    clock = Clock()
    sampler = sampler_of(root, clock)
    (folder / "node_guid").write_text("0000:0000:0000:0000\n")
    clock.later(SCAN_NS)
    sampler.tick()
    (row,) = taken(sampler).counters
    assert (row["link"], row["node_guid"]) == ("0x0a7fbc1245efd23b/1", "0x0a7fbc1245efd23b")
    sampler.close()


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, counters=WIDE)
    sampler = sampler_of(tmp_path, Clock())
    sampler.tick()
    for value in (7, 8, 9):  # a writer that replaces files gives each a new inode
        (tmp_path / "new").write_text(f"{value}\n")
        (tmp_path / "new").replace(folder / "ports/1/counters/port_xmit_data")
        sampler.tick()
    assert [row["port_xmit_data"] for row in taken(sampler).counters] == [1000, 7, 8, 9]
    sampler.close()


def test_devices_come_and_counters_too(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, "mlx5_0", counters=WIDE)
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    sampler.tick()
    (folder / "ports/1/counters/symbol_error").write_text("3\n")
    port_tree(tmp_path, "mlx5_1", counters=WIDE, node_guid=GUID)
    clock.later(1_000_000_000)
    sampler.tick()
    rows = taken(sampler).counters
    assert sorted(row["device"] for row in rows) == ["mlx5_0", "mlx5_0", "mlx5_1"]
    assert [row["symbol_error"] for row in rows if row["device"] == "mlx5_0"] == [None, 3]
    sampler.close()


def test_a_new_device_without_a_guid_is_seen_twice_first(tmp_path: Path) -> None:
    """One that is being removed may have lost its GUID already: no link of another name."""
    port_tree(tmp_path, "mlx5_0", counters=WIDE, node_guid=GUID)
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    going = port_tree(tmp_path, "mlx5_1", counters=WIDE)
    staying = port_tree(tmp_path, "mlx5_2", counters=WIDE)
    clock.later(1_000_000_000)
    sampler.tick()
    shutil.rmtree(going)
    clock.later(1_000_000_000)
    sampler.tick()
    assert {row["device"] for row in taken(sampler).counters} == {"mlx5_0", staying.name}
    sampler.close()


def test_all_devices_may_go_and_come_back(tmp_path: Path) -> None:
    root = tmp_path / "sys"
    folder = port_tree(root / "class/infiniband", "mlx5_0", counters=WIDE, node_guid=GUID)
    clock = Clock()
    sampler = sampler_of(root, clock)
    folder.rename(tmp_path / "away")
    sampler.tick()
    assert sampler.ports == 0 and taken(sampler).counters == []
    (tmp_path / "away").rename(folder)
    clock.later(1_000_000_000)
    sampler.tick()
    assert len(taken(sampler).counters) == 1
    assert sampler.messages[-1].startswith("mlx5_0 is back")
    sampler.close()


class Driver:
    """Answers of a driver that fails, by file name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **errors: int) -> None:
        self.errors = errors
        self.asked: list[str] = []
        real = os.pread

        def pread(handle: int, size: int, offset: int) -> bytes:
            name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
            self.asked.append(name)
            if name in self.errors:
                raise OSError(self.errors[name], os.strerror(self.errors[name]))
            return real(handle, size, offset)

        monkeypatch.setattr("os.pread", pread)


def test_what_a_driver_never_gives_is_given_up_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port_tree(tmp_path, counters={**WIDE, "VL15_dropped": 0})
    driver = Driver(monkeypatch, VL15_dropped=errno.EINVAL)
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    for _ in range(3):
        sampler.tick()
    assert driver.asked.count("VL15_dropped") == 2  # with the others, then alone
    rows = taken(sampler).counters
    assert [(r["port_xmit_data"], r["VL15_dropped"]) for r in rows] == [(1000, None)] * 3
    assert list(sampler.rejected) == ["mlx5_0/ports/1/counters/VL15_dropped"]
    driver.errors = {}
    clock.later(SCAN_NS)
    sampler.tick()
    assert [r["VL15_dropped"] for r in taken(sampler).counters] == [0]
    sampler.close()


def test_a_busy_counter_is_null_at_that_tick_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port_tree(tmp_path, counters=WIDE)
    driver = Driver(monkeypatch, port_rcv_data=errno.EAGAIN)
    sampler = sampler_of(tmp_path, Clock())
    sampler.tick()
    driver.errors = {}
    sampler.tick()
    rows = taken(sampler).counters
    assert [r["port_rcv_data"] for r in rows] == [None, 2000]
    assert [r["port_xmit_data"] for r in rows] == [1000, 1000]
    sampler.close()


def test_a_device_that_died_gives_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port_tree(tmp_path, counters=WIDE)
    driver = Driver(monkeypatch)
    sampler = sampler_of(tmp_path, Clock())
    driver.errors = {"port_rcv_data": errno.ENODEV}
    sampler.tick()
    assert taken(sampler).counters == []
    driver.errors = {}
    sampler.tick()
    assert len(taken(sampler).counters) == 1
    sampler.close()


def test_32_bits_once_seen_beyond_are_64(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, counters={"port_xmit_data": 2**32 - 1, "port_rcv_data": 1})
    sampler = sampler_of(tmp_path, Clock())
    sampler.tick()
    (row,) = taken(sampler).counters
    assert row["port_xmit_data"] is None and row["saturated"] == ["port_xmit_data"]
    data = folder / "ports/1/counters/port_xmit_data"
    for value in (2**33, 2**32 - 1):
        data.write_text(f"{value}\n")
        sampler.tick()
    assert [r["port_xmit_data"] for r in taken(sampler).counters] == [2**33, 2**32 - 1]
    sampler.close()


def test_unreadable_files_cost_themselves(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, counters=WIDE)
    counters = folder / "ports/1/counters"
    os.mkfifo(counters / "port_rcv_errors")  # must not block
    (counters / "link_downed").symlink_to("/proc/self/mem")
    (counters / "port_xmit_wait").symlink_to(tmp_path / "gone")
    result = one(tmp_path)
    (row,) = result.counters
    assert row["port_xmit_data"] == 1000 and row["port_xmit_wait"] is None


def test_nothing_to_sample_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no InfiniBand device"):
        open_sampler(tmp_path, None, "h")


def test_more_counters_than_may_be_open_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files stay free for the lake, and no device is taken for gone."""
    devices = tmp_path / "class" / "infiniband"
    for n in range(6):
        port_tree(
            devices,
            f"mlx5_{n}",
            counters={"port_xmit_data": n},
            node_guid=f"0002:c903:0000:000{n}",
        )
    monkeypatch.setattr(_live_sysfs, "allow_many", lambda: 10)
    monkeypatch.setattr(_live_sysfs, "SPARE_FILES", 5)
    began = len(os.listdir("/proc/self/fd"))
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    assert len(os.listdir("/proc/self/fd")) <= began + 5
    sampler.tick()
    (devices / "mlx5_5/ports/1/counters/port_xmit_data").write_text("77\n")
    clock.later(SCAN_NS)
    sampler.tick()
    assert sorted(row["port_xmit_data"] for row in taken(sampler).counters) == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        77,
    ]
    assert not sampler.messages and not sampler.rejected
    assert len(os.listdir("/proc/self/fd")) <= began + 5
    sampler.close()
    assert len(os.listdir("/proc/self/fd")) == began
