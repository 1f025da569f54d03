"""Bugs that other tools had with NCCL's and PyTorch's traces, and what is right."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.bugs.lakes import Collected, collected

AT_NS = 1_700_000_000_000_000_000
AT_US = AT_NS // 1000


def coll(name: str, count: int, comm: str = "0xaa", op_count: str = "0", dtype: int = 7) -> str:
    return (
        f"{name}: opCount {op_count} sendbuff 0x7f0 recvbuff 0x7f8 count {count} datatype {dtype}"
        f" op 0 root 0 comm {comm} [nranks=2] stream 0x55f0"
    )


def info(pid: int, body: str, host: str = "h") -> str:
    return f"{host}:{pid}:{pid} [0] NCCL INFO {body}"


def init(rank: int, comm: str) -> str:
    return f"ncclCommInitRank comm {comm} rank {rank} nranks 2 cudaDev 0 busId 1 commId 0xbeef - Init COMPLETE"  # noqa: E501


def nccl_log(folder: Path, *lines: str, **context: Any) -> Collected:
    """Two processes with a communicator, then the lines."""
    head = (info(1, init(0, "0xaa")), info(2, init(1, "0xbb")))
    return collected(folder, {"nccl.log": "\n".join([*head, *lines, ""])}, **context)


def test_two_ranks_lines_in_one_are_both_read_or_said_to_be_lost(tmp_path: Path) -> None:
    """Case 8. NVIDIA/nccl #147."""
    one, two = info(1, coll("AllReduce", 1000)), info(2, coll("AllReduce", 1000, "0xbb"))
    # Side by side, both are whole; one within the other, what is not whole is a reject.
    merged = nccl_log(tmp_path / "side", one + two)
    assert [row["comm_rank"] for row in merged.collectives] == [0, 1]
    for cut in range(0, len(one), 7):
        found = nccl_log(tmp_path / str(cut), one[:cut] + two + one[cut:], one, two)
        rows = found.collectives
        assert {(r["op"], r["message_bytes"]) for r in rows} == {("all_reduce", 4000)}, cut
        lost = 4 - len(rows)
        assert 0 <= lost <= 2 and found.file().rejects >= lost, cut


def test_operations_are_numbered_here_where_op_count_stays_zero(tmp_path: Path) -> None:
    """Case 9. NVIDIA/nccl PR #2021."""
    found = nccl_log(tmp_path, *(info(1, coll("AllReduce", n, op_count="0")) for n in (1, 2, 3)))
    assert [(r["seq"], r["message_bytes"]) for r in found.collectives] == [(0, 4), (1, 8), (2, 12)]


def event(name: str, cat: str, phase: str, number: int, ts: float, **args: Any) -> str:
    more = f', "args": {json.dumps(args)}' if args else ""
    return (
        f'{{"name": "{name}", "cat": "{cat}", "ph": "{phase}", "id": {number}, "pid": 7, '
        f'"tid": 1, "ts": {ts:f}{more}}},\n'
    )


PROFILED = {"SeqNum": 5, "CommHash": 12345, "Rank": 3, "Count": 1000, "Algorithm": "RING"}


def profiler(dtype: str, *inside: str, ends: float = 99.5) -> str:
    args = json.dumps(PROFILED)[1:-1]
    begin = (
        '{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 5, "pid": 7, "tid": 1, '
        f'"ts": 10.500000, "args": {{{args}, "Datatype": {dtype}}}}},\n'
    )
    return "[\n" + begin + "".join(inside) + event("AllReduce", "COLL", "e", 5, ends) + "{}]\n"


def test_zero_in_the_example_profiler_is_no_time(tmp_path: Path) -> None:
    """Case 10. NVIDIA/nccl #1961, PR #2391."""
    launch = event("KernelLaunch", "CUDA", "b", 0, 0.0) + event(
        "KernelLaunch", "CUDA", "e", 0, 0.0
    )
    clocks = {"Channel": 0, "StartGpuClk": 5000, "StopGpuClk": 0}
    kernel = event("KernelCh", "GPU", "b", 0, 20.0, **clocks)
    kernel += event("KernelCh", "GPU", "e", 0, 80.0)
    found = collected(tmp_path, {"trace.json": profiler('"ncclFloat32"', launch, kernel)})
    (row,) = found.collectives
    assert row["start_ts"] is None  # microseconds since the plugin's start are no time of day
    assert row["duration_ns"] is None or 0 < row["duration_ns"] <= 89_000
    assert "gpu_clock_ns" not in row["extra"]
    # An end of 0 is no end before the start.
    (row,) = collected(
        tmp_path / "b", {"trace.json": profiler('"ncclFloat32"', ends=0.0)}
    ).collectives
    assert row["duration_ns"] is None


def test_unquoted_values_are_read_or_said_with_their_place(tmp_path: Path) -> None:
    """Case 11. ROCm/rocm-systems #3216."""
    found = collected(tmp_path, {"trace.json": profiler("ncclFloat32")})
    if found.collectives:
        (row,) = found.collectives
        assert (row["op"], row["dtype"], row["message_bytes"]) == ("all_reduce", "fp32", 4000)
    else:
        (reject,) = found.file().reasons
        assert reject.offset.startswith(("line 2", "byte"))


def test_operations_that_inspector_dropped_are_counted(tmp_path: Path) -> None:
    """Case 12. NVIDIA/nccl PR #2304, #1945."""

    def record(number: int) -> str:
        header = {"id": "0xabc", "rank": 3, "n_ranks": 8, "nnodes": 2}
        performance = {
            "coll": "AllReduce",
            "coll_sn": number,
            "coll_msg_size_bytes": 1_000_000,
            "coll_exec_time_us": 40,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 25.0,
            "coll_busbw_gbs": 43.75,
        }
        metadata: dict[str, Any] = {"dump_timestamp_us": AT_US, "hostname": "h", "pid": 7}
        metadata["inspector_output_format_version"] = "v4.1"
        return json.dumps({"header": header, "metadata": metadata, "coll_perf": performance})

    text = "".join(record(n) + "\n" for n in range(1, 101) if n % 2)
    found = collected(tmp_path, {"h-pid7.log": text})
    assert len(found.collectives) == 50
    said = " ".join(f"{text} {count}" for text, count in found.file().notes.items())
    assert "50 of 99" in said, said  # from 1 to 99


def entry(number: int) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": AT_NS + number,
        "duration_ms": None,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "is_p2p": False,
    }


def recorder(*numbers: int) -> bytes:
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    found = {"version": "2.9", "nccl_version": "2.27.3", "pg_config": {"0": group}}
    return pickle.dumps({**found, "pg_status": {}, "entries": [entry(n) for n in numbers]}, 2)


def test_dumps_of_flight_recorder_that_are_odd_each_in_its_way(tmp_path: Path) -> None:
    """Case 13. pytorch #140879, #125173, #145125, #165994."""
    found = collected(
        tmp_path,
        {
            "nccl_trace_node-17_rank_0": recorder(5, 6, 7),  # a host's name in the file's name
            "nccl_trace_node-17_rank_1": recorder(6, 7, 8),  # the ring wrapped elsewhere
            "trace_2": recorder(5)[:87],
            "trace_3": recorder(),
        },
    )
    by_rank: dict[int, list[int]] = {}
    for row in found.collectives:
        if row["seq"] is not None:
            by_rank.setdefault(row["rank"], []).append(row["seq"])
    # Entries align by the number of the operation in its group, not by their place.
    assert by_rank == {0: [5, 6, 7], 1: [6, 7, 8]}
    assert found.file("trace_2").state == "rejected"
    empty = found.file("trace_3")
    assert empty.state == "read" and (empty.rows or empty.notes)  # it is evidence, not nothing


PARAMS = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
}


def traced(seq: int, ts: float, dur: float = 50.0) -> list[dict[str, Any]]:
    common = {"ph": "X", "pid": 1, "tid": 2}
    args = {**PARAMS, "External id": seq + 1, "Seq": seq}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return [
        {**common, "cat": "cpu_op", "name": "record_param_comms", "ts": ts, "dur": 20.0}
        | {"args": args},
        {**common, "cat": "kernel", "name": name, "ts": ts + 100, "dur": dur}
        | {"args": {"External id": seq + 1}},
    ]


def kineto(*events: dict[str, Any], **top: Any) -> str:
    return json.dumps(
        {"schemaVersion": 1, "baseTimeNanoseconds": AT_NS, **top, "traceEvents": list(events)}
    )


def test_a_trace_without_its_rank_is_of_no_rank(tmp_path: Path) -> None:
    """Case 14. HolisticTraceAnalysis #17, #107, chakra #167."""
    traces = {f"{host}.json": kineto(*traced(1, ts)) for host, ts in (("a", 1.0), ("b", 2.0))}
    found = collected(tmp_path / "none", traces)
    assert [row["rank"] for row in found.collectives] == [None, None]
    assert "--rank" in str(found.file("a.json").notes)
    told = collected(tmp_path / "told", {"a.json": traces["a.json"]}, rank=3)
    assert [row["rank"] for row in told.collectives] == [3]
    own = kineto(*traced(1, 1.0), distributedInfo={"rank": 5, "world_size": 8})
    found = collected(tmp_path / "own", {"a.json": own}, rank=3)
    assert [row["rank"] for row in found.collectives] == [5]


@pytest.mark.parametrize("kind", ["kineto", "chakra"])
def test_json_that_is_cut_keeps_its_whole_events_and_says_where(tmp_path: Path, kind: str) -> None:
    """Case 15. mlcommons/chakra #192."""
    if kind == "kineto":
        text = kineto(*(e for n in range(20) for e in traced(n, 1000.0 * n + 9)))
        cut = text[: text.index('"External id": 16')]
    else:
        values = [[[1, 2, 0, 100, 4, "cuda:0"]], 10, ["3", "dp"], 1, "allreduce", [], [], 0, 2, 4]
        node = {"name": "record_param_comms", "ctrl_deps": 7, "attrs": []}
        node |= {"inputs": {"values": values, "shapes": [], "types": []}}
        nodes = [{"id": n, **node} for n in range(20)]
        text = json.dumps({"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": nodes})
        cut = text[: text.index('"id": 15')]
    found = collected(tmp_path, {"trace.json": cut}, rank=0)
    assert len(found.collectives) == 15
    offsets = [reject.offset for reject in found.file().reasons]
    assert offsets and all(o.startswith("byte") for o in offsets)
    assert 0 < int(offsets[-1].split()[1].rstrip(",")) <= len(cut)


def test_overlapping_kernels_of_one_operation_are_its_span_not_their_sum(tmp_path: Path) -> None:
    """Case 16. HolisticTraceAnalysis #241; its memory (#191, #43) is measured elsewhere."""
    call, first = traced(1, 10.0, dur=50.0)
    second = {**first, "ts": first["ts"] + 25.0, "tid": 3}  # the same operation, another stream
    found = collected(tmp_path, {"a.json": kineto(call, first, second)}, rank=0)
    (row,) = found.collectives
    assert row["duration_ns"] == 75_000


def test_nan_and_bad_escapes_in_a_trace(tmp_path: Path) -> None:
    """Case 19. bluepill #437, pytorch #146900."""
    text = kineto(*(e for n in range(3) for e in traced(n, 1000.0 * n + 9)), rank=0)
    for token in ("NaN", "nan", "Infinity", "-inf"):
        odd = text.replace('"dur": 50.0', f'"dur": {token}', 1)
        found = collected(tmp_path / token, {"a.json": odd}, rank=0)
        assert [r["seq"] for r in found.collectives] == [0, 1, 2]
        assert [r["duration_ns"] for r in found.collectives] == [None, 50_000, 50_000]
    # Quotes that nobody escaped cost the event they stand in, and the place is said.
    at = text.index('"record_param_comms"', text.index('"Seq": 0'))
    odd = text[:at] + '"a "quoted" name"' + text[at + len('"record_param_comms"') :]
    found = collected(tmp_path / "quotes", {"a.json": odd}, rank=0)
    assert {0, 2} <= {r["seq"] for r in found.collectives}
    reject = found.file().reasons[0]
    assert abs(int(reject.offset.split()[1]) - at) < 400


@pytest.mark.parametrize(
    "prefix",
    [
        "3: ",
        "(RayTrainWorker pid=77, ip=10.0.0.3) ",
        "[2025-01-02 03:04:05] [1,0]<stdout>:",
        "n1| ",
    ],
)
def test_what_a_launcher_puts_before_a_line_hides_nothing(tmp_path: Path, prefix: str) -> None:
    """Case 20. NVIDIA/nccl #2039."""
    stamp = "[2025-01-02 03:04:05] [2025-01-02 03:04:05] "
    lines = [
        prefix + stamp + info(1, init(0, "0xaa")),
        prefix + stamp + info(1, coll("AllReduce", 1000)),
        prefix + info(1, coll("AllGather", 1000)),
    ]
    found = collected(tmp_path, {"slurm.out": "\n".join(lines) + "\n"}, tz="UTC")
    assert [(r["op"], r["seq"], r["comm_rank"]) for r in found.collectives] == [
        ("all_reduce", 0, 0),
        ("all_gather", 1, 0),
    ]
    assert found.file().rejects == 0


def test_ranks_that_call_different_operations_are_both_kept(tmp_path: Path) -> None:
    """Case 21. NVIDIA/nccl #899, ROCm/rccl #429."""
    found = nccl_log(
        tmp_path,
        info(1, coll("AllReduce", 1000, "0xaa", "7")),
        info(2, coll("Broadcast", 1000, "0xbb", "7")),
        info(1, coll("AllGather", 50, "0xaa", "8")),
        info(2, coll("AllGather", 60, "0xbb", "8")),
    )
    seen = {(r["comm"], r["seq"]): {} for r in found.collectives}  # type: ignore[var-annotated]
    for row in found.collectives:
        seen[row["comm"], row["seq"]][row["comm_rank"]] = (row["op"], row["message_bytes"])
    assert seen == {
        ("0xbeef", 0): {0: ("all_reduce", 4000), 1: ("broadcast", 4000)},
        ("0xbeef", 1): {0: ("all_gather", 400), 1: ("all_gather", 480)},
    }
