"""Counters with a column are read at every tick, the others once a second."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.collectors_ib.helpers import port_tree
from tests.live.test_sampling import GUID, WIDE, Clock, sampler_of, taken
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
