"""Tables of counters: wide and long, with and without header, device, time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import claims, damaged, run, run_text
from tests.samples import samples
from xtune.collectors.counters_csv import COLLECTOR

AT = 1_709_652_347_000_000_000
WIDE = """\
collector_time_utc,node,device,port,state,rate,port_xmit_data,port_rcv_data,symbol_error,irqs
2024-03-05T15:25:47.123456789Z,N1,mlx5_0,1,4:ACTIVE,400Gb/sec(4XNDR),5,6,65535,3
2024-03-05 15:25:48,n1,mlx5_0,1,4:ACTIVE,400Gb/sec(4XNDR),N/A,9999999999999,0,4
"""
LONG = """\
side,counter,before,after,delta
# RETRY,trial=0,status=12
client,local_ack_timeout_err,0,6,6
client,lifespan,10,10,0
client,rx_bytes_phy,100,300,200
server,local_ack_timeout_err,1,1,0
# RETRY,trial=1,status=12
client,local_ack_timeout_err,6,12,6
"""
EVENTS = """\
# Counter timeline
# trial,counter_name,offset_us,old_val,new_val,delta
0,roce_adp_retrans,18126,269,270,1
0,CQE_RECEIVED,3583317,12,0x81,0
1,req_cqe_error,-5.5,86,87,1
"""
RATED = """\
ts,host,device,{column},port_xmit_data,port_xmit_wait
1709652347,n1,mlx5_0,{cell},5,6
"""


def test_a_sample_a_row(tmp_path: Path) -> None:
    first, second = run_text("counters_csv", tmp_path, WIDE).counters
    assert (first["ts"], first["link"], first["rate_gbps"]) == (
        AT + 123456789,
        "n1/mlx5_0/1",
        400.0,
    )
    assert (first["port_xmit_data"], first["saturated"]) == (5, ["symbol_error"])
    assert (first["extra"], first["labels"]) == ({"irqs": 3}, {"state": "4:ACTIVE"})
    # N/A is unknown; a column that says UTC needs no zone in its cells.
    assert (second["port_xmit_data"], second["ts"]) == (None, AT + 10**9)
    assert (second["port_rcv_data"], second["data_unit_bytes"]) == (9999999999999, 4)


@pytest.mark.parametrize(
    ("column", "cell", "ts"),
    [
        ("ts", "1709652347", AT),
        ("time", "1709652347.25", AT + 250_000_000),
        ("time", "1709652347000.25", AT + 250_000),
        ("timestamp_ms", "1709652347000", AT),
        ("timestamp", "1709652347000000", AT),
        ("epoch_ns", str(AT), AT),
    ],
)
def test_times(tmp_path: Path, column: str, cell: str, ts: int) -> None:
    text = f"{column},hca,port_xmit_data\n{cell},mlx5_0,1\n"
    assert run_text("counters_csv", tmp_path, text).counters[0]["ts"] == ts


@pytest.mark.parametrize(
    ("column", "cell", "offset"),
    [("elapsed_s", "1.5", 1_500_000_000), ("time_ms", "20", 20_000_000), ("t", "3", 3 * 10**9)],
)
def test_a_time_since_some_start_is_none(
    tmp_path: Path, column: str, cell: str, offset: int
) -> None:
    text = f"{column},hca,port_xmit_data\n{cell},mlx5_0,1\n"
    (row,) = run_text("counters_csv", tmp_path, text).counters
    assert (row["ts"], row["extra"]) == (None, {"offset_ns": offset})


def test_local_times_need_a_zone(tmp_path: Path) -> None:
    text = "timestamp,node,port,port_xmit_data\n2024-03-05 16:25:47,n1,mlx5_0/2,7\n"
    without = run_text("counters_csv", tmp_path, text)
    assert without.counters[0]["ts"] is None
    assert any("--tz" in note for note in without.notes)
    (row,) = run_text("counters_csv", tmp_path, text, tz="Europe/Berlin").counters
    assert (row["ts"], row["device"], row["port"]) == (AT, "mlx5_0", 2)


def test_bytes_and_words(tmp_path: Path) -> None:
    words = "ts,dev,port_xmit_data\n1709652347,a,9\n"
    named = "ts,dev,port_xmit_data_bytes\n1709652347,a,9\n"
    driver = "ts,iface,tx_bytes,rx_bytes\n1709652347,eth0,9,8\n"
    units = [run_text("counters_csv", tmp_path, t).counters[0] for t in (words, named, driver)]
    assert [row["data_unit_bytes"] for row in units] == [4, 1, 1]
    assert [row["port_xmit_data"] for row in units] == [9, 9, 9]
    (told,) = run_text(
        "counters_csv", tmp_path, words, column_map={"data_unit_bytes": "1"}
    ).counters
    assert told["data_unit_bytes"] == 1


def test_differences_stand_apart_from_totals(tmp_path: Path) -> None:
    text = "ts,dev,port_xmit_data,port_xmit_wait_delta\n1709652347,a,10,1\n1709652349,a,20,2\n"
    result = run_text("counters_csv", tmp_path, text)
    found = [(r["port_xmit_data"], r["port_xmit_wait"], r["interval_s"]) for r in result.counters]
    assert sorted(found, key=str) == [(10, None, None), (20, None, None), (None, 2, 2.0)]
    assert any("unknown time" in note for note in result.notes)


@pytest.mark.parametrize("cell", ["9223372036.9", "99999999999999999999.5", "-1709652347"])
def test_a_time_that_no_column_holds_is_null(tmp_path: Path, cell: str) -> None:
    text = f"time,device,port_xmit_data,port_rcv_data\n{cell},mlx5_0,5,6\n"
    result = run_text("counters_csv", tmp_path, text)
    assert [(r["ts"], r["port_xmit_data"]) for r in result.counters] == [(None, 5)]
    assert "times before 1970 or after 2262: null" in result.notes


def test_a_difference_needs_time_to_pass(tmp_path: Path) -> None:
    text = "time,device,symbol_error_delta,interval_s\n"
    text += "".join(f"{1709652347 + n},m,{n},{dt}\n" for n, dt in enumerate((-3, 0, 2.5)))
    rows = run_text("counters_csv", tmp_path, text).counters
    # The first is over an unknown time, the second over that since the row before it.
    assert [(r["symbol_error"], r["interval_s"]) for r in rows] == [(1, 1.0), (2, 2.5)]


@pytest.mark.parametrize("change", ["--1", "\u00b2", "1_0", ""])
def test_rows_without_a_header_need_numbers(tmp_path: Path, change: str) -> None:
    only = f"rx,symbol_error,1,2,{change}\n"
    assert COLLECTOR.claim(tmp_path, only.encode()) == 0
    text = f"rx,symbol_error,1,2,1\nrx,symbol_error,2,{change},{change}\n"
    assert len(run_text("counters_csv", tmp_path, text).rejects) == 1


def test_the_user_names_columns(tmp_path: Path) -> None:
    text = "when,sent,x\n1709652347,5,6\n"
    bare = run_text("counters_csv", tmp_path, text)
    assert "--map" in bare.rejects[0].hint
    told = {"time": "when", "port_xmit_data": "sent"}
    (row,) = run_text("counters_csv", tmp_path, text, column_map=told).counters
    assert (row["ts"], row["port_xmit_data"], row["extra"]) == (AT, 5, {"x": 6})


def test_pairs_of_before_and_after(tmp_path: Path) -> None:
    result = run_text("counters_csv", tmp_path, LONG)
    found = [
        (
            r["labels"]["trial"],
            r["labels"]["side"],
            r["labels"]["moment"],
            r["local_ack_timeout_err"],
        )
        for r in result.counters
    ]
    assert found == [
        ("0", "client", "before", 0),
        ("0", "client", "after", 6),
        ("0", "server", "before", 1),
        ("0", "server", "after", 1),
        ("1", "client", "before", 6),
        ("1", "client", "after", 12),
    ]
    first = result.counters[0]
    assert (first["port_rcv_data"], first["data_unit_bytes"], first["ts"]) == (100, 1, None)
    assert "lifespan" not in first["extra"]  # the age of the cache in ms
    sides = {r["link"] for r in result.counters}
    assert len(sides) == 2  # two ports, whoever they are
    headerless = LONG.partition("\n")[2]
    assert len(run_text("counters_csv", tmp_path, headerless).counters) == 6


def test_events_of_one_counter_each(tmp_path: Path) -> None:
    result = run_text("counters_csv", tmp_path, EVENTS)
    first, second = result.counters
    assert (first["roce_adp_retrans"], first["extra"]) == (270, {"offset_ns": 18126000})
    assert second["extra"] == {"req_cqe_error": 87}
    assert second["labels"] == {"trial": "1", "offset_us": "-5.5"}
    assert result.unknown == {"CQE_RECEIVED": 1}


def test_rows_that_do_not_fit_cost_themselves_only(tmp_path: Path) -> None:
    result = run_text("counters_csv", tmp_path, WIDE + "1,2,3\n" + WIDE.splitlines()[1] + "\n")
    assert len(result.counters) == 3
    (reject,) = result.rejects
    assert "3 cells under 10 columns" in reject.reason
    cut = run_text("counters_csv", tmp_path, WIDE.rstrip("\n"))
    assert len(cut.counters) == 1
    assert "may be cut" in cut.rejects[0].reason


@pytest.mark.parametrize(
    "text",
    [
        "step,loss\n1,2.5\n",
        "worker,gpu,time\n0,25,1\n",
        "id,job_num,avg_run_time\nSeren,1,2\n",
        "rank,symbol\n0,1\n",
        '{"port_xmit_data": 1, "ts": 2}\n',
        "a line about port_xmit_data, port_rcv_data and ts\n",
    ],
)
def test_other_tables_are_left_to_others(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert "counters_csv" not in claims(path)


@pytest.mark.shared_samples
def test_public_tables() -> None:
    folder = samples("roce_counter_timeseries")
    pairs = run("counters_csv", folder / "unionxic_LARGE_MSG_RETRY_EXC_QP_ERR.csv").counters
    # A dead peer: 8 adaptive retransmissions, then 6 expired timers, in each of 3 trials.
    for before, after in zip(pairs[::2], pairs[1::2], strict=True):
        assert after["roce_adp_retrans"] - before["roce_adp_retrans"] == 8
        assert after["local_ack_timeout_err"] - before["local_ack_timeout_err"] == 6
    events = run("counters_csv", folder / "unionxic_timeline_retry_exc.csv").counters
    expired = [
        row["extra"]["offset_ns"]
        for row in events
        if row["labels"]["trial"] == "0" and row["local_ack_timeout_err"] is not None
    ]
    gaps = [(b - a) / 1e6 for a, b in pairwise(expired)]
    assert gaps == pytest.approx([537] * 5, abs=2)  # milliseconds
    for path in samples("cluster_datasets").glob("*.csv*"):
        assert "counters_csv" not in claims(path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), base=st.sampled_from([WIDE, LONG, EVENTS]))
def test_damaged_input_never_raises(data: st.DataObject, base: str) -> None:
    for row in damaged("counters_csv", data, base).counters:
        assert row["link"].count("/") >= 1


def test_counters_of_the_netdev_do_not_stand_in_for_the_ports(tmp_path: Path) -> None:
    text = (
        "time,device,port_xmit_data,tx_bytes,tx_packets,tx_dropped,rx_crc_errors,"
        "tx_discards_phy,rx_prio3_pause_duration\n"
        "1700000000,mlx5_0,1000,9,3,2,1,7,5\n"
    )
    (row,) = run_text("counters_csv", tmp_path, text).counters
    assert (row["port_xmit_data"], row["data_unit_bytes"]) == (1000, 4)
    assert row["port_xmit_packets"] is None and row["port_rcv_errors"] is None
    assert (row["port_xmit_discards"], row["rx_pause_duration"]) == (7, 5)
    assert row["extra"]["tx_packets"] == 3 and row["extra"]["tx_dropped"] == 2


@pytest.mark.parametrize(
    ("column", "cell", "rate"),
    [
        ("rate_gbps", "200", 200.0),
        ("rate_gbps", "195.5", 195.5),  # where the name says the unit, any number counts
        ("Link_Rate", "400", 400.0),
        ("rate", "200 Gb/sec (4X HDR)", 200.0),
        ("rate", "100G", 100.0),
        ("speed", "25", 25.0),
        ("speed", "200000", 200.0),  # /sys/class/net/*/speed
        ("speed", "100000Mb/s", 100.0),  # ethtool
        ("link_speed_mbps", "400000", 400.0),
        ("port_speed", "-1", None),  # of a port that is down
        ("speed", "Unknown!", None),
        ("rate", "0", None),
    ],
)
def test_a_rate_of_an_obvious_name_and_unit(
    tmp_path: Path, column: str, cell: str, rate: float | None
) -> None:
    text = RATED.format(column=column, cell=cell)
    read = run_text("counters_csv", tmp_path, text)
    [row] = read.counters
    assert (row["rate_gbps"], dict(read.notes)) == (rate, {})


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("speed", "100", "has no known unit in cells such as '100'"),  # EDR, or fast Ethernet
        ("rate", "25GB/s", "has no known unit in cells such as '25GB/s'"),
        ("rate", "HDR", "has no known unit in cells such as 'HDR'"),
        ("rate", "137", "has no known unit in cells such as '137'"),
        ("myrate", "200", "is not taken for the port's rate"),
        ("bandwidth", "200", "is not taken for the port's rate"),
    ],
)
def test_what_may_be_a_rate_is_told_and_the_user_says_it(
    tmp_path: Path, column: str, cell: str, said: str
) -> None:
    text = RATED.format(column=column, cell=cell)
    read = run_text("counters_csv", tmp_path, text)
    assert [row["rate_gbps"] for row in read.counters] == [None]
    [note] = read.notes
    assert note.startswith(f"column {column} {said}")
    assert f"--map rate_gbps={column} " in note
    told = run_text("counters_csv", tmp_path, text, column_map={"rate_gbps": column})
    number = float(cell) if cell.isdigit() else None
    assert [row["rate_gbps"] for row in told.counters] == [number]


def test_seconds_since_boot_are_no_time_and_it_is_said(tmp_path: Path) -> None:
    read = run_text("counters_csv", tmp_path, "ts,port_xmit_data,port_rcv_data\n12345.6,1,2\n")
    [row] = read.counters
    assert (row["ts"], row["extra"]) == (None, {"offset_ns": 12_345_600_000_000})
    assert any(note.startswith("times since some start, not since 1970") for note in read.notes)
    assert not any("--time-from" in note for note in read.notes)


def test_nanoseconds_since_boot_look_like_2001_and_it_is_said(tmp_path: Path) -> None:
    text = "ts,port_xmit_data,port_rcv_data\n1000000000000,1,2\n"
    read = run_text("counters_csv", tmp_path, text)
    assert read.counters[0]["ts"] == 10**18
    [(note, count)] = [n for n in read.notes.items() if n[0].startswith("times before 2005")]
    assert (count, "--map elapsed_ns=ts" in note) == (1, True)
    told = run_text("counters_csv", tmp_path, text, column_map={"elapsed_ns": "ts"})
    assert told.counters[0]["ts"] is None
    assert told.counters[0]["extra"] == {"offset_ns": 10**12}
