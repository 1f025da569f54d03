from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import read_bytes, some
from tests.collectors_nccl.nccl_tests_log import claim, line, log, of
from xtune.collectors.nccl_tests import COLLECTOR

REPORT: dict[str, Any] = {
    "version": 3,
    "start_time": "2026-01-31 08:00:00",
    "args": ["/opt/nccl-tests/build/all_reduce_perf", "-J", "out.json"],
    "env": ["HOME=/root", "SECRET=hidden"],
    "nccl_version": 22902,
    "config": {
        "nthreads": 1,
        "ngpus": 2,
        "iterations": 20,
        "devices": [
            {"rank": 0, "group": 0, "pid": 7, "hostname": "Node-0", "device": 0},
            {"rank": 2, "group": 0, "pid": 8, "hostname": "node-1", "device": 0},
        ],
    },
    "results": [
        {
            "size": 1 << 22,
            "count": 1 << 20,
            "type": "bfloat16",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {"time": 1000.0, "alg_bw": 4.194304, "bus_bw": 6.291456, "nwrong": 0},
            "in_place": {"time": 500.0, "alg_bw": 8.388608, "bus_bw": 12.582912, "nwrong": None},
            "actual_iterations": 20,
        },
        {
            "size": 1 << 22,
            "out_of_place": None,
            "in_place": {"time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": None},
        },
        {
            "size": 1 << 22,
            "in_place": {"time": 500.0, "alg_bw": 8.388608, "bus_bw": 12.7, "nwrong": None},
        },
    ],
    "average_bus_bandwidth": {"bandwidth": 9.4, "okay": "unchecked"},
}


@pytest.mark.parametrize("indent", [None, 1])
def test_json_report(tmp_path: Path, indent: int | None) -> None:
    data = json.dumps(REPORT, indent=indent).encode()
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert claim(data, tmp_path) > 0.9
    assert [some(r, "duration_ns", "comm_size", "dtype", "op") for r in read.rows] == [
        (1_000_000, 4, "bf16", "all_reduce"),
        (500_000, 4, "bf16", "all_reduce"),
    ]
    assert [r["busbw_gigabytes_s"] for r in read.rows] == [6.291456, 12.582912]
    assert [reject.reason.split()[0] for reject in read.rejects] == ["neither", "bus"]
    assert "hidden" not in str(read.rows) and read.rows[0]["extra"]["hosts"] == "node-0,node-1"


def test_json_report_of_a_killed_test(tmp_path: Path) -> None:
    data = json.dumps(REPORT).encode()
    second = data.index(b'{"size"', data.index(b'{"size"') + 1)
    for end in range(second, second + 40):
        read = read_bytes(COLLECTOR, data[:end], tmp_path)
        assert len(read.rows) == 2 and not read.rejects
        assert read.note("ends within the results")


def test_rccl_json_and_csv(tmp_path: Path) -> None:
    record = {"numCycle": 0, "name": "AllGather", "nodes": 1, "ranks": 4, "ranksPerNode": 4}
    record |= {"gpusPerRank": 1, "size": 1 << 20, "type": "fp8_e4m3", "redop": "none"}
    record |= {"inPlace": 1, "time": 100.0, "algBw": 10.48576, "busBw": 7.86432, "wrong": "N/A"}
    data = ("[\n" + ",\n".join([json.dumps(record)] * 2) + "\n]\n").encode()
    table = ",".join(record) + "\n" + ",".join(map(str, record.values())) + "\n"
    for found, count in ((data, 2), (table.encode(), 1)):
        assert claim(found, tmp_path) >= 0.9
        read = read_bytes(COLLECTOR, found, tmp_path)
        assert not read.rejects and len(read.rows) == count
        row = read.rows[0]
        assert some(row, "op", "comm_size", "duration_ns") == ("all_gather", 4, 100_000)
        assert some(row, "dtype", "busbw_gigabytes_s") == ("fp8e4m3", 7.86432)
        assert row["extra"]["in_place"] == "true" and "wrong" not in row["extra"]


def test_table_of_another_tool_tells_an_all_reduce_by_its_factor(tmp_path: Path) -> None:
    rows = [(1 << n, 50.0 + (1 << n) / 1e5) for n in range(10, 30, 2)]
    lines = [f"{s},{t:.2f},{s / t / 1e3:.2f},{s / t / 1e3 * 1.75:.2f}\n" for s, t in rows]
    read = of("size_bytes,time_us,algbw_GBs,busbw_GBs\n" + "".join(lines), tmp_path)
    assert not read.rejects
    assert {some(row, "op", "comm_size") for row in read.rows} == {("all_reduce", 8)}
    # A factor below one is of several operations: none is chosen.
    lines = [f"{s},{t:.2f},{s / t / 1e3:.2f},{s / t / 1e3 * 0.75:.2f}\n" for s, t in rows]
    read = of("size_bytes,time_us,algbw_GBs,busbw_GBs\n" + "".join(lines), tmp_path)
    assert {some(row, "op", "comm_size") for row in read.rows} == {(None, None)}


def test_table_with_halves_as_columns(tmp_path: Path) -> None:
    text = "Size(B),Op,nranks,oop_time(us),oop_algbw,oop_busbw,in-place busbw,in-place time\n"
    text += "1048576,AllReduce,2,100,10.49,10.49,20.97,50\n1048576,AllReduce\n"
    read = of(text, tmp_path)
    assert [some(r, "duration_ns", "busbw_gigabytes_s") for r in read.rows] == [
        (100_000, 10.49),
        (50_000, 20.97),
    ]
    assert [r["extra"]["in_place"] for r in read.rows] == ["false", "true"]
    assert [reject.offset for reject in read.rejects] == ["line 3 (byte 125)"]


@pytest.mark.parametrize("unit", ["Gbps", "(Gb/s)", "_gbps"])
def test_bandwidths_in_bits_or_bytes_are_not_guessed(tmp_path: Path, unit: str) -> None:
    header = f"size,nranks,op,algbw{unit},busbw{unit}"
    read = of(f"{header}\n1048576,8,allreduce,80,140\n", tmp_path)
    assert read.rows == [] and "no size and time" in read.rejects[0].reason
    assert f"algbw{unit}, busbw{unit}" in read.note("bits or bytes?").text
    # With a time the size tells: 1 MiB in 104.86 us is 10 GB/s, which is 80 Gb/s.
    read = of(f"{header},time_us\n1048576,8,allreduce,10,17.5,104.86\n", tmp_path)
    assert [row["busbw_gigabytes_s"] for row in read.rows] == [17.5] and not read.rejects
    read = of(f"{header},time_us\n1048576,8,allreduce,80,140,104.86\n", tmp_path)
    assert read.rows == [] and "size over time" in read.rejects[0].reason


def test_summary_of_tests_is_rejected_with_its_reason(tmp_path: Path) -> None:
    text = "file,test,minBytes,maxBytes,avg_bus_bw_GBs,peak_busbw_GBs\na.log,x,1,2,3,4\n"
    assert 0.5 < claim(text.encode(), tmp_path) < 0.9
    read = of(text, tmp_path)
    assert not read.rows and "summary of whole tests" in read.rejects[0].reason


@pytest.mark.parametrize(
    "data", [b"", b"# \n", b"\x00" * 99, b"[", b"{}", b",,,\n,,", b"\xff,busbw"]
)
def test_nothing_of_ours(tmp_path: Path, data: bytes) -> None:
    assert not read_bytes(COLLECTOR, data, tmp_path).rows
    assert claim(data, tmp_path) < 0.7


SEED = (
    log("all_reduce_perf", 4, *[line(1 << n, (99.0, 98.0), 1.5) for n in range(20, 26)]).encode(),
    json.dumps(REPORT).encode(),
    b"size,time,algbw,busbw\n1048576,100,10.49,15.73\n",
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.sampled_from(SEED),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 6)), max_size=5
    ),
)
def test_mutated_input_never_gives_a_row_that_contradicts_itself(
    tmp_path: Path, seed: bytes, edits: list[tuple[float, bytes, int]]
) -> None:
    for place, new, gone in edits:
        at = int(place * len(seed))
        seed = seed[:at] + new + seed[at + gone :]
    for row in read_bytes(COLLECTOR, seed, tmp_path).rows:
        size, algbw, time = some(row, "message_bytes", "algbw_gigabytes_s", "duration_ns")
        if algbw is not None and time is not None and row["extra"].get("time_is") != "cpu":
            assert math.isclose(size / time, algbw, rel_tol=0.02, abs_tol=0.02 + 6e3 / time)


def test_json_whose_numbers_were_rounded(tmp_path: Path) -> None:
    result = {
        "name": "AllReduce", "nodes": 1, "ranks": 8, "size": 1 << 20, "type": "float",
        "redop": "sum", "inPlace": 0, "time": 21.5, "algBw": 48.77, "busBw": 85.35, "wrong": "0",
    }  # fmt: skip
    read = of(json.dumps([result]), tmp_path)  # 1.75 times 48.77 is 85.3475
    assert not read.rejects and len(read.rows) == 1
    read = of(json.dumps([{**result, "busBw": 85.45}]), tmp_path)
    assert len(read.rejects) == 1 and not read.rows
