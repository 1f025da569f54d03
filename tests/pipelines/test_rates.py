"""link_rates, row by row: inputs and outputs worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.lakes import (
    LINE_BYTES_S,
    TICKS_S,
    A,
    B,
    counters,
    derived,
    new_lake,
    put,
    refresh,
)

U32 = 2**32 - 1


def rates(tmp_path: Path, *batches: list[dict[str, Any]], **tables: list[dict[str, Any]]) -> Any:
    lake = new_lake(tmp_path / "lake")
    for name, rows in tables.items():
        put(lake, name, rows, source="f" * 12)
    for index, rows in enumerate(batches):
        put(lake, "link_counters", rows, source=f"{index:012d}")
    refresh(lake)
    return derived(lake, "link_rates")


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_a_gigabyte_a_second_is_eight_gigabits(tmp_path: Path) -> None:
    words = [0, 250_000_000, 750_000_000]  # 1 GB, then 2 GB in two seconds
    found = rates(tmp_path, counters([0, 1, 3], port_xmit_data=words, port_rcv_data=words[::-1]))
    assert column(found, "ts") == [1.0, 3.0]
    assert column(found, "interval_s") == [1.0, 2.0]
    # The received words fall: a reset, so the whole group is unknown in both intervals.
    assert column(found, "rx_gbps") == [None, None]
    assert column(found, "tx_gbps") == [None, None]


def test_utilization_is_of_the_data_rate(tmp_path: Path) -> None:
    words = [0, 250_000_000, 750_000_000]
    found = rates(tmp_path, counters([0, 1, 3], port_xmit_data=words, port_rcv_data=words))
    assert column(found, "tx_gbps") == [8.0, 8.0]
    assert column(found, "rx_gbps") == [8.0, 8.0]
    assert column(found, "utilization") == pytest.approx([0.02, 0.02])  # of 400


@pytest.mark.parametrize(
    ("rate", "data_rate"),
    [(40.0, 32.0), (10.0, 8.0), (56.0, 56.0 * 64 / 66), (100.0, 100.0), (400.0, 400.0)],
)
def test_encoding_decides_the_data_rate(tmp_path: Path, rate: float, data_rate: float) -> None:
    found = rates(tmp_path, counters([0, 1], rate=rate, port_xmit_data=[0, 125_000_000]))
    assert column(found, "utilization") == pytest.approx([4.0 / data_rate])


def test_ethernet_names_its_data_rate(tmp_path: Path) -> None:
    port = {"link": A, "link_layer": "Ethernet", "node_guid": A[:18], "port": 1}
    found = rates(
        tmp_path, counters([0, 1], rate=40.0, port_xmit_data=[0, 125_000_000]), ports=[port]
    )
    assert column(found, "utilization") == pytest.approx([0.1])


def test_bytes_are_not_multiplied_again(tmp_path: Path) -> None:
    found = rates(
        tmp_path,
        counters([0, 1], port_xmit_data=[0, 10**9], data_unit_bytes=[1, 1]),
        counters([0, 1], B, port_xmit_data=[0, 10**9], data_unit_bytes=[4, 4]),
    )
    assert column(found, "tx_gbps") == [8.0, 32.0]


def test_wait_uses_the_ports_own_tick(tmp_path: Path) -> None:
    half = TICKS_S // 2
    found = rates(
        tmp_path,
        counters([0, 1], port_xmit_wait=[7, 7 + half]),
        counters([0, 1], B, port_xmit_wait=[7, 7 + half // 16], xmit_wait_tick=[128.0] * 2),
    )
    assert column(found, "wait_fraction") == pytest.approx([0.5, 0.5])
    assert column(found, "level") == [3, 3]


def test_wait_of_a_switch_ib_counts_per_lane(tmp_path: Path) -> None:
    port = {"link": A, "device_family": "Switch-IB 2", "width": "4X"}
    ticks = round(0.25 * LINE_BYTES_S / (32 * 4))
    found = rates(tmp_path, counters([0, 1], port_xmit_wait=[0, ticks]), ports=[port])
    assert column(found, "wait_fraction") == pytest.approx([0.25])


def test_wait_beyond_the_whole_time_is_clipped(tmp_path: Path) -> None:
    found = rates(tmp_path, counters([0, 1], port_xmit_wait=[0, round(1.01 * TICKS_S)]))
    assert column(found, "wait_fraction") == [1.0]


def test_pause_is_wait_for_ethernet(tmp_path: Path) -> None:
    found = rates(tmp_path, counters([0, 2], rx_pause_duration=[0, 600_000]))
    assert column(found, "wait_fraction") == pytest.approx([0.3])  # 0.6 of 2 s
    assert column(found, "level") == [2]


def test_without_a_rate_wait_and_utilization_are_unknown(tmp_path: Path) -> None:
    found = rates(
        tmp_path, counters([0, 1], rate=None, port_xmit_wait=[0, 5], port_xmit_data=[0, 10**6])
    )
    assert column(found, "wait_fraction") == [None]
    assert column(found, "utilization") == [None]
    assert column(found, "tx_gbps") == pytest.approx([0.032])
    assert column(found, "level") == [None]


def test_the_rate_of_the_port_fills_in(tmp_path: Path) -> None:
    rows = counters([0, 1], rate=None, port_xmit_wait=[0, TICKS_S // 4])
    topology = {
        "src_guid": A[:18],
        "src_port": 1,
        "dst_guid": B[:18],
        "dst_port": 2,
        "rate_gbps": 400.0,
        "tier": 0,
    }
    found = rates(tmp_path, rows, topology_links=[topology])
    assert column(found, "wait_fraction") == pytest.approx([0.25])


def test_a_reset_gives_one_unknown_interval(tmp_path: Path) -> None:
    found = rates(
        tmp_path,
        counters(
            [0, 1, 2, 3],
            port_xmit_data=[1000, 251_000_000, 5, 250_000_005],
            port_xmit_wait=[0, 0, 50, 50],  # rose, but over a reset: not to be trusted either
            np_ecn_marked_roce_packets=[0, 5, 10, 15],  # another register: not reset
        ),
    )
    assert column(found, "tx_gbps")[1:] == [None, 8.0]
    assert column(found, "wait_fraction") == [0.0, None, 0.0]
    assert column(found, "ecn_rate") == [5.0, 5.0, 5.0]


def test_error_counters_cleared_alone_are_a_reset_too(tmp_path: Path) -> None:
    found = rates(
        tmp_path, counters([0, 1, 2], symbol_error=[5, 0, 2], port_xmit_data=[0, 10**6, 2 * 10**6])
    )
    assert column(found, "error_rate") == [None, 2.0]
    assert column(found, "tx_gbps") == [None, 0.032]


def test_an_error_counter_that_comes_and_goes_makes_no_errors(tmp_path: Path) -> None:
    found = rates(
        tmp_path,
        counters([0, 1, 2, 3], symbol_error=[900] * 4, port_rcv_errors=[4, None, 4, 5],
                 port_xmit_data=[0, 0, 0, 0]),
    )  # fmt: skip
    assert column(found, "error_rate") == [None, None, 1.0]
    assert column(found, "tx_gbps") == [0.0, 0.0, 0.0]


def test_saturated_is_unknown_not_zero(tmp_path: Path) -> None:
    stuck = counters([0, 1, 2], port_xmit_wait=[5, U32, U32], symbol_error=[1, 65535, 65535])
    for row in stuck[1:]:
        row["saturated"] = ["symbol_error"]  # the 32-bit wait is known by its value alone
    found = rates(tmp_path, stuck)
    assert column(found, "wait_fraction") == [None, None]
    assert column(found, "error_rate") == [None, None]
    assert column(found, "level") == [None, None]


def test_an_absent_counter_is_unknown_and_leaves_the_others(tmp_path: Path) -> None:
    found = rates(
        tmp_path,
        counters([0, 1, 2], port_xmit_data=[0, None, 250_000_000], port_xmit_wait=[0, 0, 0]),
    )
    assert column(found, "tx_gbps") == [None, None]
    assert column(found, "wait_fraction") == [0.0, 0.0]
    assert column(found, "ecn_rate") == [None, None]  # never there


def test_a_sum_is_unknown_while_one_of_its_terms_is(tmp_path: Path) -> None:
    found = rates(
        tmp_path,
        counters([0, 2, 4], symbol_error=[0, 6, 6], port_rcv_errors=[0, 4, None]),
    )
    assert column(found, "error_rate") == [5.0, None]


def test_marks_discards_and_retransmissions(tmp_path: Path) -> None:
    found = rates(
        tmp_path,
        counters(
            [0, 2],
            np_ecn_marked_roce_packets=[0, 100],
            np_cnp_sent=[0, 50],  # repeats the marks
            rp_cnp_handled=[0, 20],
            port_xmit_discards=[1, 9],
            packet_seq_err=[0, 2],
            local_ack_timeout_err=[0, 4],
            out_of_sequence=[0, 1000],  # adaptive routing
        ),
    )
    assert column(found, "ecn_rate") == [60.0]
    assert column(found, "discard_rate") == [4.0]
    assert column(found, "retransmit_rate") == [3.0]


def test_duplicates_are_merged_and_order_does_not_matter(tmp_path: Path) -> None:
    words = [0, 250_000_000, 500_000_000]
    first = counters([2, 0, 1], port_xmit_data=[words[2], words[0], words[1]])
    second = counters([0, 1, 2], port_xmit_wait=[0, 0, TICKS_S])  # the other line of each sample
    found = rates(tmp_path, first, second, first)
    assert column(found, "ts") == [1.0, 2.0]
    assert column(found, "tx_gbps") == [8.0, 8.0]
    assert column(found, "wait_fraction") == [0.0, 1.0]


def test_a_missing_sample_makes_a_longer_interval(tmp_path: Path) -> None:
    found = rates(tmp_path, counters([0, 1, 4], port_xmit_data=[0, 250_000_000, 10**9]))
    assert column(found, "interval_s") == [1.0, 3.0]
    assert column(found, "tx_gbps") == [8.0, 8.0]


def test_deltas_are_taken_as_they_are(tmp_path: Path) -> None:
    rows = counters([10, 20], port_xmit_data=[250_000_000, 125_000_000], port_xmit_wait=[0, 0])
    for row in rows:
        row["interval_s"] = 1.0
    found = rates(tmp_path, rows)
    assert column(found, "ts") == [10.0, 20.0]
    assert column(found, "interval_s") == [1.0, 1.0]
    assert column(found, "tx_gbps") == [8.0, 4.0]
    assert column(found, "level") == [0, 0]


def test_one_snapshot_beside_its_delta(tmp_path: Path) -> None:
    """A fabric dump holds both: the first gives its delta, the next the difference, of a day."""
    absolute = counters([10], port_xmit_data=[10**12])
    delta = counters([10], port_xmit_data=[250_000_000])
    delta[0]["interval_s"] = 1.0
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", absolute + delta)
    refresh(lake)
    assert [(r["ts"], r["tx_gbps"]) for r in derived(lake, "link_rates")] == [(10.0, 8.0)]
    # A day later: the absolute value of the first day is what the difference starts from.
    later = counters([86410], port_xmit_data=[10**12 + 250_000_000 * 86400])
    delta[0]["ts"] = later[0]["ts"]
    put(lake, "link_counters", later + delta)
    refresh(lake)
    found = derived(lake, "link_rates")
    assert [(r["ts"], r["interval_s"], r["tx_gbps"]) for r in found] == [
        (10.0, 1.0, 8.0),
        (86410.0, 86400.0, 8.0),
    ]


def test_a_down_port_is_clear(tmp_path: Path) -> None:
    found = rates(tmp_path, counters([0, 1, 2], port_xmit_data=[9] * 3, port_xmit_wait=[4] * 3))
    assert column(found, "level") == [0, 0]
    assert column(found, "tx_gbps") == [0.0, 0.0]


def test_twice_the_line_rate_is_unknown(tmp_path: Path) -> None:
    found = rates(
        tmp_path,
        counters([0, 1, 2], port_xmit_data=[0, LINE_BYTES_S, LINE_BYTES_S * 5 // 4]),
    )
    assert column(found, "tx_gbps") == [None, 400.0]
    assert column(found, "utilization") == [None, 1.0]


def test_no_discards_do_not_prove_that_nothing_waits(tmp_path: Path) -> None:
    found = rates(tmp_path, counters([0, 1, 2, 3], port_xmit_discards=[0, 0, 200, 200]))
    assert column(found, "level") == [None, 2, None]
