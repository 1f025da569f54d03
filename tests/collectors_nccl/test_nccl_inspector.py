from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes, read_path, some
from tests.samples import samples
from xtune.collectors import Source, Unknown
from xtune.collectors._collective import named_comm
from xtune.collectors.nccl_inspector import COLLECTOR
from xtune.collectors.nccl_inspector_prom import COLLECTOR as PROM

HEADER = {"id": "0x0abc", "rank": 3, "n_ranks": 8, "nnodes": 2, "comm_name": "DP Group 0"}
METADATA = {
    "inspector_output_format_version": "v4.1",
    "dump_timestamp_us": 1_752_867_229_276_385,
    "hostname": "Node-A.example",
    "pid": 77,
}


def record(**performance: Any) -> dict[str, Any]:
    plain = {
        "coll": "AllReduce",
        "coll_sn": 10,
        "coll_msg_size_bytes": 1_000_000,
        "coll_exec_time_us": 40,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 25.0,
        "coll_busbw_gbs": 43.75,
    }
    return {"header": HEADER, "metadata": METADATA, "coll_perf": {**plain, **performance}}


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def test_plain_record_by_hand(tmp_path: Path) -> None:
    read = read_bytes(COLLECTOR, lines(record()), tmp_path)
    assert not read.rejects and not read.notes
    (row,) = read.rows
    assert some(row, "comm", "comm_rank", "comm_size", "seq") == ("0xabc", 3, 8, 10)
    assert some(row, "op", "message_bytes", "duration_ns") == ("all_reduce", 1_000_000, 40_000)
    # The time of writing is neither a start nor an enqueue.
    assert some(row, "start_ts", "enqueue_ts") == (None, None)
    assert some(row, "host", "rank", "state") == ("node-a.example", None, "completed")
    # algbw = S/t and busbw = algbw * 2(n-1)/n, with GB = 1e9.
    assert row["algbw_gigabytes_s"] == pytest.approx(1e6 / 40e-6 / 1e9)
    assert row["busbw_gigabytes_s"] == row["algbw_gigabytes_s"] * 2 * 7 / 8
    assert some(row["extra"], "seq_of", "comm_name") == ("op", "DP Group 0")


def test_algorithm_and_protocol_of_newer_formats(tmp_path: Path) -> None:
    known = record(coll_algo="Ring", coll_proto="LL128")
    unknown = record(coll_sn=11, coll_algo="UNKNOWN", coll_proto="")
    rows = read_bytes(COLLECTOR, lines(known, unknown), tmp_path).rows
    assert [some(row, "algorithm", "protocol") for row in rows] == [
        ("RING", "LL128"),
        (None, None),
    ]


def test_size_per_rank_becomes_the_whole_array(tmp_path: Path) -> None:
    read = read_bytes(
        COLLECTOR,
        lines(*(record(coll=c) for c in ("AllGather", "ReduceScatter", "AlltoAll", "Broadcast"))),
        tmp_path,
    )
    sizes = [row["message_bytes"] for row in read.rows]
    assert sizes == [8_000_000, 8_000_000, 8_000_000, 1_000_000]


def test_verbose_record_has_the_start_of_its_first_kernel(tmp_path: Path) -> None:
    trace = {
        "coll_start_ts": 1_752_867_229_235_059,
        "coll_stop_ts": 1_752_867_229_235_064,
        "kernel_events": [
            {"channel_id": 0, "kernel_start_ts": 1_752_867_229_235_190},
            {"channel_id": 1, "kernel_start_ts": 1_752_867_229_235_181},
            {"channel_id": 2, "kernel_start_ts": 0},
        ],
    }
    (row,) = read_bytes(COLLECTOR, lines(record(event_trace_ts=trace)), tmp_path).rows
    assert row["start_ts"] == 1_752_867_229_235_181_000
    assert row["enqueue_ts"] == 1_752_867_229_235_059_000


def test_host_timed_operation_starts_when_enqueued(tmp_path: Path) -> None:
    trace = {"coll_start_ts": 1_752_867_229_235_059, "kernel_events": []}
    on_host = record(event_trace_ts=trace, coll_timing_source="collective_cpu")
    on_gpu = record(event_trace_ts=trace)
    starts = [r["start_ts"] for r in read_bytes(COLLECTOR, lines(on_host, on_gpu), tmp_path).rows]
    assert starts == [1_752_867_229_235_059_000, None]


@pytest.mark.parametrize("value", [0, 0.0, "nan", "inf", None, -1])
def test_unknown_bandwidth_and_time_are_null(tmp_path: Path, value: Any) -> None:
    changed = record(coll_algobw_gbs=value, coll_busbw_gbs=value, coll_exec_time_us=value)
    (row,) = read_bytes(COLLECTOR, lines(changed), tmp_path).rows
    unknown = some(row, "algbw_gigabytes_s", "busbw_gigabytes_s", "duration_ns")
    assert unknown == (None, None, None)


def test_header_once_and_send(tmp_path: Path) -> None:
    data = lines(
        {"header": HEADER, "metadata": METADATA},
        {"coll_perf": record()["coll_perf"]},
        {
            "p2p_perf": {
                "p2p": "Send",
                "p2p_sn": 5,
                "p2p_peer": 1,
                "p2p_msg_size_bytes": 64,
                "p2p_exec_time_us": 2,
            }
        },
    )
    first, second = read_bytes(COLLECTOR, data, tmp_path).rows
    assert first["comm"] == second["comm"] == "0xabc"
    assert some(second, "op", "seq", "message_bytes", "duration_ns") == ("send", None, 64, 2000)
    assert some(second["extra"], "p2p_seq", "peer") == ("5", "1")


def test_cut_last_line_costs_only_itself(tmp_path: Path) -> None:
    data = lines(record(), record(coll_sn=11)) + lines(record(coll_sn=12))[:-20]
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert [row["seq"] for row in read.rows] == [10, 11]
    assert [reject.offset.partition(" (")[0] for reject in read.rejects] == ["line 3"]
    assert "cut last line" in read.rejects[0].reason


def test_gaps_are_counted_for_each_kind_of_operation(tmp_path: Path) -> None:
    # all_reduce 0, 2, 5: three of six; all_gather 7, 8: two of two.
    numbers = [("AllReduce", 0), ("AllGather", 7), ("AllReduce", 2), ("AllGather", 8)]
    numbers.append(("AllReduce", 5))
    read = read_bytes(COLLECTOR, lines(*(record(coll=c, coll_sn=n) for c, n in numbers)), tmp_path)
    assert "captured 5 of 8" in read.note("Inspector").text


def test_context_gives_what_the_file_does_not(tmp_path: Path) -> None:
    data = lines({**record(), "metadata": {}})
    ctx = context(job="j", host="h", rank=11)
    (row,) = read_bytes(COLLECTOR, data, tmp_path, ctx=ctx).rows
    assert some(row, "job", "host", "rank") == ("j", "h", 11)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_raises_and_good_lines_stay(tmp_path: Path, data: st.DataObject) -> None:
    middle = bytearray(lines(record(coll_sn=1)))[:-1]
    for _ in range(data.draw(st.integers(1, 5))):
        middle[data.draw(st.integers(0, len(middle) - 1))] = data.draw(st.integers(0, 255))
    content = lines(record(coll_sn=0)) + bytes(middle) + b"\n" + lines(record(coll_sn=2))
    COLLECTOR.claim(tmp_path, content)
    seqs = [row["seq"] for row in read_bytes(COLLECTOR, content, tmp_path).rows]
    assert seqs[0] == 0 and seqs[-1] == 2
    odd = data.draw(st.binary(max_size=80))
    assert read_bytes(COLLECTOR, lines(record()) + odd, tmp_path).rows[0]["seq"] == 10


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_values_of_any_type(tmp_path: Path, data: st.DataObject) -> None:
    value: st.SearchStrategy[Any] = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just([[]])
    )
    odd = record()
    for part in ("header", "metadata", "coll_perf"):
        keys = st.lists(st.sampled_from(sorted(odd[part])), max_size=3)
        odd[part] = {**odd[part], **{key: data.draw(value) for key in data.draw(keys)}}
    read = read_bytes(COLLECTOR, lines(odd, record(coll_sn=99)), tmp_path)
    assert read.rows[-1]["seq"] == 99


@pytest.mark.shared_samples
def test_documented_records() -> None:
    path = samples("nccl_inspector", "nccl_readme_examples.jsonl")
    assert COLLECTOR.claim(path, path.read_bytes()) > 0.9
    plain, verbose = read_path(COLLECTOR, path).rows
    for row in (plain, verbose):
        # The size is right if it gives back the bandwidths that Inspector printed.
        algbw = row["message_bytes"] / row["duration_ns"]
        assert algbw == pytest.approx(row["algbw_gigabytes_s"], rel=1e-6)
    assert plain["busbw_gigabytes_s"] / plain["algbw_gigabytes_s"] == pytest.approx(2 * 7 / 8)
    assert verbose["busbw_gigabytes_s"] / verbose["algbw_gigabytes_s"] == pytest.approx(7 / 8)


LABELS = (
    'version="v5.1",slurm_job_id="77",node="Node-A",gpu="GPU0",comm_name="DP Group 0",'
    'n_nodes="1",nranks="4",collective="AllReduce",message_size="4-5GB",algo_proto="Ring_ll"'
)


def test_counts_that_are_no_number_count_nothing(tmp_path: Path) -> None:
    data = "".join(
        f'nccl_collectives_dropped_total{{version="1",gpu="{gpu}"}} {value}\n'
        for gpu, value in enumerate(("+Inf", "NaN", "3"))
    )
    read = read_bytes(PROM, data.encode(), tmp_path)
    assert read.rejects == [] and read.rows == []
    assert read.note("dropped before it wrote them").count == 3


@pytest.mark.parametrize(
    ("printed", "comm"),
    [("0x00AB", "0xab"), ("9f3c", "0x9f3c"), ("a_b", "a_b"), (" 1", " 1"), ("-5", "-5")],
)
def test_an_id_is_a_hash_where_it_is_hexadecimal(printed: str, comm: str) -> None:
    assert named_comm(printed) == comm


def test_prometheus_text(tmp_path: Path) -> None:
    other = LABELS.replace("AllReduce", "AllGather").replace("77", "unknown")
    data = (
        f"nccl_bus_bandwidth_gbs{{{LABELS}}} 678.25\n"
        f"nccl_bus_bandwidth_gbs{{{other}}} 0\nnonsense\n"
        f"nccl_collective_exec_time_microseconds{{{LABELS}}} 9498.5\n"
        f"nccl_collective_exec_time_microseconds{{{other}}} 1"
    ).encode()
    assert PROM.claim(tmp_path, data) > 0.9 and COLLECTOR.claim(tmp_path, data) == 0.0
    read = read_bytes(PROM, data, tmp_path, ctx=context(job="given"))
    assert [reject.offset.split(" (")[0] for reject in read.rejects] == ["line 3", "line 5"]
    names = ("op", "job", "host", "comm_size", "algorithm", "protocol")
    first, second = read.rows
    assert some(first, *names) == ("all_reduce", "77", "node-a", 4, "RING", "LL")
    assert some(first, "busbw_gigabytes_s", "duration_ns") == (678.25, 9_498_500)
    # A range is no size, and a name is no communicator.
    assert some(first, "message_bytes", "comm", "seq") == (None, None, None)
    assert some(first["extra"], "message_size", "comm_name") == ("4-5GB", "DP Group 0")
    assert some(second, "op", "job", "busbw_gigabytes_s") == ("all_gather", "given", None)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_prometheus_text(tmp_path: Path, data: st.DataObject) -> None:
    good = f"nccl_bus_bandwidth_gbs{{{LABELS}}} 678.25\n".encode()
    odd = bytearray(good)
    for _ in range(data.draw(st.integers(1, 5))):
        odd[data.draw(st.integers(0, len(odd) - 2))] = data.draw(st.integers(0, 255))
    PROM.claim(tmp_path, bytes(odd))
    rows = read_bytes(PROM, good + bytes(odd) + good, tmp_path).rows
    assert rows[0]["busbw_gigabytes_s"] == 678.25


@pytest.mark.shared_samples
def test_documented_prometheus_lines() -> None:
    path = samples("nccl_inspector", "nccl_readme_prom.prom")
    assert PROM.claim(path, path.read_bytes()) > 0.9
    read = read_path(PROM, path)
    assert [some(r, "op", "duration_ns") for r in read.rows] == [
        ("all_reduce", 9_498_470), ("send", 1_154_870),
    ]  # fmt: skip


def test_records_of_another_kind_are_named(tmp_path: Path) -> None:
    path = tmp_path / "host-pid7.log"
    path.write_bytes(lines(record(), {"dump_stats": {"dropped": 3}}, {"dump_stats": {}}))
    items = list(COLLECTOR.read(Source(path, path.name), context()))
    assert [item for item in items if isinstance(item, Unknown)] == [Unknown("dump_stats", 2)]
