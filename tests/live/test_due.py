"""What is read and looked up at every tick, and what once a second."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.collectors_ib.helpers import port_tree
from tests.live.test_sampling import GUID, WIDE, Clock, sampler_of, taken
from xtune.collectors._live_sysfs import STEADY_NS
from xtune.collectors.ib_sysfs import has_column

HW = {"out_of_sequence": 3, "rx_write_requests": 100, "rx_read_requests": 7}


def _extra(row: dict[str, object]) -> dict[str, int] | None:
    found = row["extra"]
    return dict(found) if found else None  # type: ignore[call-overload]


def test_what_has_no_column_is_read_once_a_second_and_unknown_between(tmp_path: Path) -> None:
    folder = port_tree(tmp_path, counters=WIDE, hw_counters=HW, node_guid=GUID)
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    for tick in range(21):
        (folder / "ports/1/counters/port_xmit_data").write_text(f"{tick}\n")
        (folder / "ports/1/hw_counters/out_of_sequence").write_text(f"{tick + 50}\n")
        (folder / "ports/1/hw_counters/rx_write_requests").write_text(f"{tick + 100}\n")
        sampler.tick()
        clock.later()
        if tick == 13:  # a flush in between changes nothing
            early = taken(sampler).counters
    rows = early + taken(sampler).counters
    assert [row["port_xmit_data"] for row in rows] == list(range(21))
    assert [row["out_of_sequence"] for row in rows] == list(range(50, 71))
    known = {at: row["extra"] for at, row in enumerate(rows) if row["extra"]}
    assert {at: dict(extra) for at, extra in known.items()} == {
        at: {"rx_write_requests": 100 + at, "rx_read_requests": 7} for at in (0, 10, 20)
    }
    sampler.close()


@pytest.mark.parametrize("early_ns", [0, 30_000_000])
def test_at_one_hertz_all_is_read_at_each_tick(tmp_path: Path, early_ns: int) -> None:
    port_tree(tmp_path, counters=WIDE, hw_counters=HW)
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    for tick in range(5):
        sampler.tick()
        clock.later(1_000_000_000 + (early_ns if tick % 2 else -early_ns))
    assert [_extra(row) for row in taken(sampler).counters] == [
        {"rx_write_requests": 100, "rx_read_requests": 7}
    ] * 5
    sampler.close()


def test_a_port_without_any_column_is_read_at_each_tick(tmp_path: Path) -> None:
    port_tree(tmp_path, "hfi1_0", hw_counters={"DmaWait": 4, "RxPkt": 9})
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    for _ in range(3):
        sampler.tick()
        clock.later()
    assert [_extra(row) for row in taken(sampler).counters] == [{"DmaWait": 4, "RxPkt": 9}] * 3
    sampler.close()


def test_a_counter_that_dies_moves_no_value_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = port_tree(tmp_path, counters=WIDE, hw_counters=HW)
    dying = (folder / "ports/1/counters/port_rcv_data").stat().st_ino
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    sampler.tick()
    pread = os.pread

    def failing(handle: int, size: int, at: int) -> bytes:
        if os.fstat(handle).st_ino == dying:
            raise OSError(22, "Invalid argument")
        return pread(handle, size, at)

    monkeypatch.setattr(os, "pread", failing)
    for _ in range(11):
        clock.later()
        sampler.tick()
    rows = sorted(taken(sampler).counters, key=lambda row: row["ts"])
    assert [row["port_xmit_data"] for row in rows] == [1000] * 12
    assert [row["port_rcv_data"] for row in rows] == [2000] + [None] * 11
    assert [row["out_of_sequence"] for row in rows] == [3] * 12
    assert [at for at, row in enumerate(rows) if row["extra"]] == [0, 10]
    sampler.close()


def test_stale_readings_of_a_tree_that_stood_still_are_thrown_away(tmp_path: Path) -> None:
    folder = port_tree(tmp_path / "sys", counters=WIDE, hw_counters=HW, node_guid=GUID)
    clock = Clock()
    sampler = sampler_of(tmp_path / "sys", clock)
    sampler.tick()
    clock.later(STEADY_NS)
    sampler.tick()  # looked up for the last time: 1 s until the next
    for _ in range(4):
        clock.later()
        sampler.tick()
    files = folder / "ports/1/counters"
    (tmp_path / "new").write_text("5000\n")
    (tmp_path / "new").replace(files / "port_xmit_data")  # what is open goes on giving 1000
    for _ in range(9):
        clock.later()
        sampler.tick()
    rows = taken(sampler).counters
    changed = 1_000_000_000 + STEADY_NS + 450_000_000
    assert all(row["port_xmit_data"] == 5000 for row in rows if row["ts"] > changed)
    assert [row["port_xmit_data"] for row in rows] == [1000, 1000] + [5000] * 4
    (tmp_path / "new").write_text("5001\n")
    (tmp_path / "new").replace(files / "port_xmit_data")  # it changes: looked up at each tick
    clock.later()
    sampler.tick()
    assert [row["port_xmit_data"] for row in taken(sampler).counters] == [5001]
    sampler.close()


def test_what_is_taken_between_two_looks_is_looked_up_first(tmp_path: Path) -> None:
    folder = port_tree(tmp_path / "sys", counters=WIDE, node_guid=GUID)
    clock = Clock()
    sampler = sampler_of(tmp_path / "sys", clock)
    sampler.tick()
    clock.later(STEADY_NS)
    sampler.tick()
    clock.later()
    sampler.tick()
    assert len(taken(sampler).counters) == 3
    clock.later()
    sampler.tick()
    folder.rename(tmp_path / "gone")
    assert taken(sampler).counters == []
    sampler.close()


def test_readings_before_the_driver_went_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = port_tree(tmp_path, counters=WIDE, node_guid=GUID)
    clock = Clock()
    sampler = sampler_of(tmp_path, clock)
    sampler.tick()
    clock.later(STEADY_NS)
    for _ in range(4):
        sampler.tick()
        clock.later()

    def gone(handle: int, size: int, at: int) -> bytes:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(os, "pread", gone)
    shutil.rmtree(folder)
    sampler.tick()
    assert len(taken(sampler).counters) == 5
    sampler.close()


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("port_xmit_wait", True), ("out_of_sequence", True), ("RxECNMrkd", True),
        ("tx_bytes", True), ("port_xmit_data_64", True), ("rx_write_requests", False),
        ("ip4InOctets", False),
    ],
)  # fmt: skip
def test_a_column_under_any_driver_s_name(name: str, has: bool) -> None:
    assert has_column(name) is has
