"""Seeds of the collectors of NCCL's and PyTorch's traces, of decisions and probes."""

from __future__ import annotations

import json
import pickle
from random import Random
from typing import Any

from tests.hostile.mutate import weird, weird_inside
from tests.hostile.seed import Seed, lines

AT_NS = 1_700_000_000_000_000_000


def _coll(name: str, count: int, dtype: int, n: int = 2, comm: str = "0xaa") -> str:
    return (
        f"{name}: opCount 1b sendbuff 0x7f0 recvbuff 0x7f8 count {count} datatype {dtype} op 0"
        f" root 0 comm {comm} [nranks={n}] stream 0x55f0"
    )


def _info(pid: int, body: str) -> str:
    return f"node-{pid}:{pid}:{pid} [0] NCCL INFO {body}"


def _init(rank: int) -> str:
    return (
        f"ncclCommInitRank comm 0xaa rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 41000"
        " commId 0xbeef - Init COMPLETE"
    )


def _debug() -> bytes:
    return lines(
        "NCCL version 2.27.3+cuda12.9",
        _info(1, _init(0)),
        "3: " + _info(2, _init(1)),
        _info(1, _coll("AllReduce", 1000, 7)),
        "3: " + _info(2, _coll("AllReduce", 1000, 7)),
        _info(1, "AllReduce: 4000 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}"),
        "[2025-01-02 03:04:05] " + _info(1, _coll("AllGather", 17, 9)),
        _info(1, _coll("Send", 5, 0)),
        _info(2, _coll("ReduceScatter", 10**6, 6)),
        _info(1, "comm 0xaa rank 0 nranks 2 cudaDev 0 busId 41000 - Destroy COMPLETE"),
    )


def _inspector(sn: int, **more: Any) -> dict[str, Any]:
    performance = {
        "coll": "AllReduce",
        "coll_sn": sn,
        "coll_msg_size_bytes": 1_000_000,
        "coll_exec_time_us": 40,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 25.0,
        "coll_busbw_gbs": 43.75,
        **more,
    }
    return {
        "header": {"id": "0xabc", "rank": 3, "n_ranks": 8, "nnodes": 2, "comm_name": "DP"},
        "metadata": {
            "inspector_output_format_version": "v4.1",
            "dump_timestamp_us": 1_752_867_229_276_385,
            "hostname": "node-a",
            "pid": 77,
        },
        "coll_perf": performance,
    }


def _inspector_lines() -> bytes:
    trace = {
        "coll_start_ts": 1_752_867_229_235_059,
        "coll_stop_ts": 1_752_867_229_235_064,
        "kernel_events": [{"channel_id": 0, "kernel_start_ts": 1_752_867_229_235_190}],
    }
    records: list[Any] = [_inspector(sn) for sn in (10, 11, 13)]
    records.append(_inspector(14, event_trace_ts=trace, coll="AllGather"))
    p2p = {"p2p": "Send", "p2p_sn": 5, "p2p_peer": 1, "p2p_msg_size_bytes": 64}
    records.append({"header": records[0]["header"], "p2p_perf": {**p2p, "p2p_exec_time_us": 2}})
    return lines(*map(json.dumps, records))


_PROM = (
    'version="v5.1",slurm_job_id="77",node="Node-A",gpu="GPU0",comm_name="DP Group 0",'
    'n_nodes="1",nranks="4",collective="AllReduce",message_size="4-5GB",algo_proto="Ring_ll"'
)


def _entry(n: int) -> dict[str, Any]:
    return {
        "record_id": n,
        "pg_id": 3,
        "process_group": ("tp", "TENSOR"),
        "collective_seq_id": 41 + n,
        "p2p_seq_id": 0,
        "op_id": 41 + n,
        "profiling_name": "nccl:_all_gather_base",
        "time_created_ns": AT_NS + n,
        "time_discovered_started_ns": AT_NS + 900 + n,
        "time_discovered_completed_ns": None,
        "duration_ms": 1.25,
        "input_sizes": [[3, 5]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[12, 5]],
        "output_dtypes": ["BFloat16"],
        "state": "started",
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
    }


def _recorder() -> dict[str, Any]:
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"},
            "tp": {"name": "tp", "desc": "TENSOR", "ranks": "[4, 5, 6, 7]"},
        },
        "pg_status": {"3": {"last_enqueued_collective": 42, "last_started_collective": -1}},
        "entries": [_entry(n) for n in range(3)],
    }


def _pickled(rng: Random) -> bytes:
    """A dump with odd values in it, as a pickle of an odd protocol."""
    dump = weird_inside(rng, _recorder(), rng.randint(1, 4))
    try:
        return pickle.dumps(dump, protocol=rng.randint(2, 5))
    except (RecursionError, ValueError, UnicodeEncodeError):
        return pickle.dumps(weird(rng))


def _kineto() -> dict[str, Any]:
    args = {
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
    events: list[dict[str, Any]] = []
    for n in range(3):
        ids = {"External id": 9 + n, "Seq": 41 + n}
        common = {"ph": "X", "pid": 1, "tid": 2}
        events += [
            {
                **common,
                "cat": "cpu_op",
                "name": "record_param_comms",
                "ts": 100.5 + 1000 * n,
                "dur": 20.0,
                "args": {**args, **ids},
            },
            {
                **common,
                "cat": "kernel",
                "name": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "ts": 200.25 + 1000 * n,
                "dur": 50.125,
                "args": {"External id": 9 + n, "correlation": 77 + n},
            },
            {**common, "cat": "kernel", "name": "gemm", "ts": 5.0, "dur": 1.0, "args": {}},
        ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": 6,
            "world_size": 8,
            "pg_config": [{"pg_name": "5", "pg_desc": "tp", "pg_size": 2, "ranks": [6, 7]}],
        },
        "host_name": "node-a",
        "baseTimeNanoseconds": AT_NS,
        "traceEvents": events,
    }


def _decisions() -> bytes:
    return lines(
        *(
            json.dumps(
                {
                    "xtune_decision": 1,
                    "ts_ns": AT_NS + n,
                    "job": "j",
                    "rank": 3,
                    "step": 200 + n,
                    "kind": "level",
                    "before": n,
                    "after": [n + 1, 4],
                    "reason": "wait over 0.15",
                    "shadow": True,
                }
            )
            for n in range(4)
        )
    )


def _probes() -> bytes:
    return lines(
        *(
            json.dumps(
                {
                    "xtune_probe": 1,
                    "src": "h0",
                    "dst": "h1",
                    "path": n,
                    "link": "0x0000000000000001/1",
                    "name": "h0>l0",
                    "ts_ns": AT_NS + n,
                    "rtt_ns": None if n == 2 else 12_345 + n,
                    "occupancy": None if n == 2 else 0.25,
                    "error_rate": 1e-6,
                    "signal_margin": 2.5,
                    "lost": n == 2,
                }
            )
            for n in range(4)
        )
    )


def _profiler_event(
    name: str, cat: str, phase: str, number: int, ts: float, **args: object
) -> str:
    more = f', "args": {json.dumps(args)}' if args else ""
    return (
        f'{{"name": "{name}", "cat": "{cat}", "ph": "{phase}", "id": {number}, "pid": 77, '
        f'"tid": 1, "ts": {ts:f}{more}}},'
    )


def _profiler() -> bytes:
    found = ["["]
    for n in (7, 8):
        args = {"SeqNum": n, "CommHash": 11400714819323198485, "Rank": 3, "Count": 1000}
        args_ = {**args, "Datatype": "ncclBfloat16", "Algorithm": "RING", "Protocol": "LL128"}
        clocks = {"Channel": 0, "StartGpuClk": 5000, "StopGpuClk": 9000}
        found += [
            _profiler_event("AllReduce", "COLL", "b", n, 10.5 + 100 * n, **args_, nChannels=2),
            _profiler_event("KernelCh", "GPU", "b", 0, 20.0 + 100 * n, **clocks),
            _profiler_event("KernelCh", "GPU", "e", 0, 80.0 + 100 * n),
            _profiler_event("AllReduce", "COLL", "e", n, 99.5 + 100 * n),
        ]
    return lines(*found, "{}]")


def _gradients() -> bytes:
    return lines(
        *(
            json.dumps(
                {
                    "xtune_layer_gradients": 1,
                    "ts_ns": AT_NS + n,
                    "job": "j",
                    "run": "r",
                    "rank": 3,
                    "step": 10 * n,
                    "scope": "full",
                    "layer": ["a.weight", "a.bias"],
                    "depth": [0.0, 1.0],
                    "elements": [1000, 10],
                    "norm": [0.5, 0.25],
                    "density": [1.0, 0.9],
                }
            )
            for n in range(4)
        )
    )


_ROCPROF = lines(
    '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp"',
    '"RCCL_API","ncclGroupStart",77,78,9,1,2',
    *(
        f'"RCCL_API","nccl{name}",77,78,{n},{18414380653860 + n},{18414380693574 + n}'
        for n, name in enumerate(("AllReduce", "AllGather", "Send", "Teleport"))
    ),
    '"HIP_API","hipMemcpy",77,78,9,5,6',
)

SEEDS = {
    "rocprof": Seed(form="text", inputs=(_ROCPROF,), stands=("op",)),
    "nccl_profiler": Seed(form="json", inputs=(_profiler(),), stands=("op", "seq")),
    "layer_gradients": Seed(
        form="jsonl", inputs=(_gradients(),), stands=("ts", "step", "layer", "norm")
    ),
    "nccl_debug": Seed(form="text", inputs=(_debug(),), stands=("op", "dtype", "message_bytes")),
    "nccl_inspector": Seed(
        form="jsonl", inputs=(_inspector_lines(),), stands=("op", "seq", "message_bytes")
    ),
    "nccl_inspector_prom": Seed(
        form="text",
        inputs=(
            lines(
                f"nccl_bus_bandwidth_gbs{{{_PROM}}} 678.25",
                f"nccl_collective_exec_time_microseconds{{{_PROM}}} 9498.5",
                f"nccl_bus_bandwidth_gbs{{{_PROM.replace('AllReduce', 'AllGather')}}} 0",
            ),
        ),
    ),
    "flight_recorder": Seed(
        form="json",
        inputs=(
            json.dumps(_recorder()).encode(),
            pickle.dumps(_recorder(), protocol=2),
            pickle.dumps(_recorder(), protocol=4),
        ),
        remake=_pickled,
    ),
    "kineto": Seed(
        form="json",
        inputs=(
            json.dumps(_kineto()).encode(),
            json.dumps(_kineto()["traceEvents"]).encode(),
            json.dumps(_kineto(), indent=1).encode(),
        ),
        stands=("op", "seq", "message_bytes"),
    ),
    "decisions": Seed(
        form="jsonl",
        inputs=(_decisions(),),
        stands=("ts", "job", "rank", "step", "before", "after"),
    ),
    "probes": Seed(
        form="jsonl",
        inputs=(_probes(),),
        stands=("ts", "path", "rtt_ns", "occupancy", "lost"),
    ),
}
