from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.multiprocessing.spawn import spawn

from tests.collectors_nccl.helpers import context, read_bytes, read_path, some
from tests.samples import samples
from xtune.collectors import _json_events
from xtune.collectors.kineto import COLLECTOR

BASE = 1_700_000_000_000_000_000
INFO = {
    "backend": "nccl",
    "rank": 6,
    "world_size": 8,
    "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": list(range(8))},
        {"pg_name": "5", "pg_desc": "tp", "pg_size": 2, "ranks": [6, 7]},
    ],
}
COMMS = {
    "Collective name": "_allgather_base",
    "In msg nelems": 1000,
    "Out msg nelems": 2000,
    "Group size": 2,
    "dtype": "BFloat16",
    "Process Group Name": "5",
    "Process Group Description": "tp",
    "Process Group Ranks": "[6, 7]",
    "Seq": 41,
}


def x(name: str, cat: str, ts: float, dur: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur} | {
        "args": args
    }


def cpu(
    ts: float = 100.5, ext: int = 9, changes: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    args = {**COMMS, "External id": ext, **(changes or {}), **more}
    return x("record_param_comms", "cpu_op", ts, 20.0, args)


def kernel(ts: float = 200.25, dur: float = 50.125, ext: int = 9, **args: Any) -> dict[str, Any]:
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return x(name, "kernel", ts, dur, {"External id": ext, "correlation": 77, **args})


def trace(*found: Any, info: Any = INFO, **top: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "host_name": "Node-A",
        "baseTimeNanoseconds": BASE,
        "traceEvents": list(found),
        **top,
    }


def encoded(*found: Any, **top: Any) -> bytes:
    return json.dumps(trace(*found, **top)).encode()


def test_cpu_op_and_kernel_are_one_row(tmp_path: Path) -> None:
    data = encoded(cpu(), kernel())
    assert COLLECTOR.claim(tmp_path, data) > 0.9
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert not read.rejects and not read.notes
    (row,) = read.rows
    assert row["enqueue_ts"] == BASE + 100_500
    assert row["start_ts"] == BASE + 200_250
    assert row["duration_ns"] == 50_125
    assert some(row, "rank", "comm_rank", "comm", "comm_size", "seq") == (6, 0, "pg:5", 2, 41)
    assert some(row, "op", "dtype", "message_bytes") == ("all_gather", "bf16", 4000)
    assert some(row, "host", "state") == ("node-a", "completed")
    # The kernel's name is no proof of the algorithm that ran in it.
    assert some(row, "algorithm", "protocol") == (None, None)


def test_metadata_after_the_events_and_gzip(tmp_path: Path) -> None:
    whole = trace(cpu(), kernel())
    late = {"traceEvents": whole.pop("traceEvents"), **whole}
    early = read_bytes(COLLECTOR, encoded(cpu(), kernel()), tmp_path).rows
    assert read_bytes(COLLECTOR, gzip.compress(json.dumps(late).encode()), tmp_path).rows == early


def test_old_traces_have_epoch_microseconds(tmp_path: Path) -> None:
    event = cpu(ts=1_661_203_462_602_585)
    (row,) = read_bytes(COLLECTOR, encoded(event, baseTimeNanoseconds=None), tmp_path).rows
    assert row["enqueue_ts"] == 1_661_203_462_602_585_000
    # With neither a base nor a date the time is unknown, and said to be.
    read = read_bytes(COLLECTOR, encoded(cpu(), baseTimeNanoseconds=None), tmp_path)
    assert read.rows[0]["enqueue_ts"] is None and read.note("unknown start").count == 1


@pytest.mark.parametrize(
    ("info", "given_rank", "expected"),
    [
        ({"rank": 3}, None, 3),
        ({"rank": 3}, 5, 3),
        ({"backend": "nccl"}, 5, 5),
        ({"backend": "nccl"}, None, None),
        (None, None, None),
    ],
)
def test_rank_is_never_assumed(
    tmp_path: Path, info: Any, given_rank: int | None, expected: int | None
) -> None:
    data = encoded(cpu(), kernel(), info=info)
    read = read_bytes(COLLECTOR, data, tmp_path, "rank-0.json", context(rank=given_rank))
    assert read.rows[0]["rank"] == expected
    assert bool(read.notes) == (expected is None or given_rank not in (None, expected))


@pytest.mark.parametrize(
    ("name", "sent", "received", "expected"),
    [
        ("allreduce", 1000, 1000, ("all_reduce", 2000)),
        ("_reduce_scatter_base", 2000, 1000, ("reduce_scatter", 4000)),
        ("all_to_allv", 2000, 1500, ("all_to_all", 4000)),
        ("broadcast", "1000", "1000", ("broadcast", 2000)),
        ("barrier", 0, 0, ("barrier", None)),
        ("allgather", 1000, 0, ("all_gather", 4000)),
    ],
)
def test_sizes(
    tmp_path: Path, name: str, sent: Any, received: Any, expected: tuple[str, int | None]
) -> None:
    event = cpu(
        changes={"Collective name": name, "In msg nelems": sent, "Out msg nelems": received}
    )
    (row,) = read_bytes(COLLECTOR, encoded(event), tmp_path).rows
    assert some(row, "op", "message_bytes") == expected


def test_what_is_no_operation(tmp_path: Path) -> None:
    marks = [cpu(ext=n, changes={"Collective name": c, "dtype": "Byte"})
             for n, c in enumerate(("wait", "init", "startCoalescing"))]  # fmt: skip
    others = [
        x("aten::add", "cpu_op", 5, 1, {}),
        x("nccl:all_gather", "gpu_user_annotation", 200, 50, {}),
        x("record_param_comms", "cpu_op", 5, 1, {}),
        {"ph": "M", "name": "process_name", "args": {"name": "nccl:x"}},
        kernel(ts=0.0, ext=50),  # a time of 0 is none
        None,
        7,
        {},
    ]
    read = read_bytes(COLLECTOR, encoded(*marks, *others), tmp_path)
    assert not read.rows and not read.rejects and read.note("no collective")


def test_without_seq_operations_are_numbered_in_order(tmp_path: Path) -> None:
    def plain(ts: float, ext: int, group: str) -> dict[str, Any]:
        event = cpu(ts, ext, {"Process Group Name": group})
        del event["args"]["Seq"]
        return event

    events = [plain(30, 3, "5"), plain(10, 1, "5"), plain(20, 2, "0"), kernel(ts=40, ext=1)]
    read = read_bytes(COLLECTOR, encoded(*events), tmp_path)
    assert [some(r, "comm", "seq") for r in read.rows] == [("pg:5", 0), ("pg:0", 0), ("pg:5", 1)]
    assert {r["extra"]["seq_source"] for r in read.rows} == {"trace order"}


def test_send_has_no_number(tmp_path: Path) -> None:
    event = cpu(changes={"Collective name": "send"})
    (row,) = read_bytes(COLLECTOR, encoded(event), tmp_path).rows
    assert some(row, "op", "seq") == ("send", None)


def annotation(ts: float, op: str = "nccl:all_to_all") -> dict[str, Any]:
    args = {"Input Dims": [[2, 1000]], "Input type": ["float"], "External id": 1}
    return x(op, "user_annotation", ts, 5, args)


def test_older_traces_join_in_order(tmp_path: Path) -> None:
    send_recv = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
    kernels = [{**kernel(ts=t, ext=1000 + t), "name": send_recv} for t in (200, 300)]
    read = read_bytes(
        COLLECTOR, encoded(annotation(100), annotation(150), *kernels, info={"rank": 1}), tmp_path
    )
    assert [some(r, "op", "enqueue_ts", "start_ts", "message_bytes") for r in read.rows] == [
        ("all_to_all", BASE + 100_000, BASE + 200_000, 8000),
        ("all_to_all", BASE + 150_000, BASE + 300_000, 8000),
    ]
    # With a kernel whose CPU op is not in the trace they cannot be told apart: kernels count.
    read = read_bytes(COLLECTOR, encoded(annotation(100), *kernels, info={"rank": 1}), tmp_path)
    assert [some(r, "op", "start_ts") for r in read.rows] == [
        ("send_recv", BASE + 200_000), ("send_recv", BASE + 300_000),
    ]  # fmt: skip
    assert read.note("left out").count == 1


def test_two_kernels_of_one_operation_are_its_whole_span(tmp_path: Path) -> None:
    (row,) = read_bytes(COLLECTOR, encoded(cpu(), kernel(200, 50), kernel(240, 30)), tmp_path).rows
    assert some(row, "start_ts", "duration_ns") == (BASE + 200_000, 70_000)


def test_kernel_that_says_all_itself(tmp_path: Path) -> None:
    custom = x("deep_ep_dispatch", "kernel", 200, 50, COMMS)
    (row,) = read_bytes(COLLECTOR, encoded(custom), tmp_path).rows
    assert some(row, "op", "seq", "message_bytes") == ("all_gather", 41, 4000)
    assert row["extra"]["event"] == "deep_ep_dispatch"


def test_nan_in_the_trace(tmp_path: Path) -> None:
    text = encoded(cpu(), kernel(weight=float("nan")), cpu(300, 10, Seq=42)).decode()
    for spelled in ("NaN", "nan", "-inf", "Infinity"):
        read = read_bytes(COLLECTOR, text.replace("NaN", spelled).encode(), tmp_path)
        assert [r["seq"] for r in read.rows] == [41, 42] and not read.rejects
        assert len(read.notes) == (spelled in ("nan", "-inf"))


def test_event_that_is_no_json_costs_itself(tmp_path: Path) -> None:
    text = encoded(cpu(), kernel(note="BAD"), cpu(300, 10, Seq=42)).decode()
    for bad in ('un"escaped', "x\ny"):
        broken = text.replace("BAD", bad)
        read = read_bytes(COLLECTOR, broken.encode(), tmp_path)
        assert [r["seq"] for r in read.rows] == [41, 42]
        (reject,) = read.rejects
        # The offset lies within the event that is wrong.
        at = int(reject.offset.removeprefix("byte "))
        assert broken.index("ncclDevKernel") < at <= broken.index(bad) + len(bad) + 1


def test_unquoted_value_of_the_example_profiler(tmp_path: Path) -> None:
    data = b'[{"name":"AllReduce","ph":"b","ts":0.0,"args":{"datatype":ncclFloat}},\n{}]'
    assert COLLECTOR.claim(tmp_path, data) > 0.5
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert not read.rows and "byte" in read.rejects[0].offset


@given(at=st.floats(0.2, 1.0))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_cut_trace_keeps_whole_events_and_says_where(tmp_path: Path, at: float) -> None:
    whole = json.dumps(trace(*(cpu(n, n, Seq=n) for n in range(1, 30)))).encode()
    cut = int(len(whole) * at)
    read = read_bytes(COLLECTOR, whole[:cut], tmp_path)
    ends = [e for e in range(cut + 1) if whole[:e].endswith(b"}}")]
    assert [r["seq"] for r in read.rows] == list(range(1, len(ends) + 1))
    if cut < len(whole) - 2:
        said = [r.reason for r in read.rejects] + [n.text for n in read.notes]
        assert any(
            "whole events are kept" in words or "no trace events" in words for words in said
        )
        for reject in read.rejects:
            place = int(reject.offset.removeprefix("byte "))
            assert place == 0 or whole[place : place + 1] == b"{"


def test_cut_gzip_file_keeps_what_it_gives(tmp_path: Path) -> None:
    events = [cpu(n, n, {"note": f"{n * 7919 % 10007:x}" * 9}, Seq=n) for n in range(1, 400)]
    packed = gzip.compress(encoded(*events))
    read = read_bytes(COLLECTOR, packed[: len(packed) // 2], tmp_path)
    seqs = [r["seq"] for r in read.rows]
    assert seqs == list(range(1, len(seqs) + 1)) and len(seqs) > 100
    assert "cut here" in read.rejects[0].reason and "cannot be read" in read.rejects[1].reason


def test_events_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_bytes(COLLECTOR, encoded(cpu(), kernel(), cpu(300, 10)), tmp_path)
    for size in (7, 64, 300):
        monkeypatch.setattr(_json_events, "RUN", size)
        got = read_bytes(COLLECTOR, encoded(cpu(), kernel(), cpu(300, 10)), tmp_path)
        assert got == expected


def test_names_beyond_ascii(tmp_path: Path) -> None:
    event = cpu(changes={"Process Group Name": "Gruppe-ü-组"})
    for ascii_only in (True, False):
        data = json.dumps(trace(event), ensure_ascii=ascii_only).encode()
        assert read_bytes(COLLECTOR, data, tmp_path).rows[0]["comm"] == "pg:Gruppe-ü-组"


def test_shortened_list_of_ranks(tmp_path: Path) -> None:
    event = cpu(changes={"Process Group Name": "99", "Process Group Ranks": "[0, 1, ...]"})
    (row,) = read_bytes(COLLECTOR, encoded(event), tmp_path).rows
    assert some(row, "comm_rank", "comm_size") == (None, 2)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    odd = bytearray(encoded(cpu(), kernel()))
    for _ in range(data.draw(st.integers(1, 6))):
        odd[data.draw(st.integers(0, len(odd) - 1))] = data.draw(st.integers(0, 255))
    for content in (bytes(odd), data.draw(st.binary(max_size=60)), b'[{"ph":' + bytes(odd[:40])):
        COLLECTOR.claim(tmp_path, content)
        read = read_bytes(COLLECTOR, content, tmp_path)
        assert read.rows or read.rejects or read.notes


VALUE: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just([[{}]])
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_values_of_any_type(tmp_path: Path, data: st.DataObject) -> None:
    odd = cpu(5, 8)
    for key in data.draw(st.lists(st.sampled_from(sorted(odd["args"])), max_size=3)):
        odd["args"][key] = data.draw(VALUE)
    for key in data.draw(st.lists(st.sampled_from(sorted(odd)), max_size=2)):
        odd[key] = data.draw(VALUE)
    info = {**INFO, data.draw(st.sampled_from(sorted(INFO))): data.draw(VALUE)}
    good = cpu(400, 10, Seq=99)
    read = read_bytes(COLLECTOR, encoded(odd, good, info=info), tmp_path)
    assert 99 in {row["seq"] for row in read.rows}


def _train(rank: int, store: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    cpu_only = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu_only, record_shapes=True) as profiler:
        for _ in range(3):
            model(torch.ones(8, 64)).sum().backward()
        dist.all_gather([torch.zeros(16), torch.zeros(16)], torch.ones(16))
    profiler.export_chrome_trace(f"{out}/trace{rank}.json")
    dist.destroy_process_group()


def test_gloo_run_of_two_ranks(tmp_path: Path) -> None:
    args = (str(tmp_path / "store"), str(tmp_path))
    spawn(_train, args=args, nprocs=2)  # type: ignore[no-untyped-call]
    found = []
    for rank in range(2):
        path = tmp_path / f"trace{rank}.json"
        assert COLLECTOR.claim(path, path.read_bytes()[:65536]) > 0.9
        read = read_path(COLLECTOR, path)
        assert not read.rejects
        assert {some(r, "rank", "comm_rank", "comm", "comm_size") for r in read.rows} == {
            (rank, rank, "pg:0", 2)
        }
        found.append(read.rows)
    # One bucket of 64 * 64 weights and 64 biases in fp32, once an iteration, on both ranks alike.
    for rows in found:
        reduced = [r for r in rows if r["op"] == "all_reduce"]
        assert [r["message_bytes"] for r in reduced] == [(64 * 64 + 64) * 4] * 3
        (gathered,) = [r for r in rows if r["op"] == "all_gather"]
        assert gathered["message_bytes"] == 2 * 16 * 4
        for row in rows:
            assert row["duration_ns"] > 0 and row["start_ts"] >= row["enqueue_ts"]
    first, second = ([some(r, "seq", "op", "message_bytes") for r in rows] for rows in found)
    assert first == second and [s for s, *_ in first] == list(range(len(first)))
    # Both clocks are this machine's: one operation overlaps in time on both ranks.
    for a, b in zip(*found, strict=True):
        if a["op"] == "all_reduce":
            assert max(a["start_ts"], b["start_ts"]) < min(
                a["start_ts"] + a["duration_ns"], b["start_ts"] + b["duration_ns"]
            )


@pytest.mark.shared_samples
def test_every_public_trace() -> None:
    rows = {}
    for path in sorted(samples("kineto_traces").iterdir()):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        assert COLLECTOR.claim(path, content[:65536]) > 0.8
        read = read_path(COLLECTOR, path)
        assert not read.rejects
        whole = json.loads(content)
        rank = (whole.get("distributedInfo") or {}).get("rank")
        assert {r["rank"] for r in read.rows} <= {rank}
        rows[path.name] = read.rows
        kernels = [
            e for e in whole["traceEvents"]
            if e.get("cat") == "kernel" and "nccl" in e["name"]
        ]  # fmt: skip
        # Each kernel is one row, with its own duration: nothing lost, nothing twice.
        timed = [r["duration_ns"] for r in read.rows if r["duration_ns"] is not None]
        assert sorted(timed) == sorted(round(e["dur"] * 1000) for e in kernels)
    assert len(rows["hta_nccl_data_trim.json.gz"]) == 21
    assert len(rows["hta_rank_non_gpu_rank_non_gpu.json.gz"]) == 6


def test_a_number_too_long_for_python_costs_its_event(tmp_path: Path) -> None:
    whole = encoded(cpu(), kernel(), kernel(ts=900.0, ext=10))
    read = read_bytes(COLLECTOR, whole.replace(b"900.0", b"9" * 5000), tmp_path)
    assert len(read.rows) == 1
    assert [r.reason for r in read.rejects] == [
        "event is not JSON: a number of thousands of digits"
    ]
