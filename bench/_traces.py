"""Traces as PyTorch's profiler writes them, of any size: for the benchmarks of collectors.

Laid out like kineto's output_json.cpp: CPU ops, CUDA calls and flows first, kernels after, the
time base behind the events. One collective in seventy events.
"""

from __future__ import annotations

from pathlib import Path

_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017624576, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_count": 1, "pg_config": [
    {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": [0, 1, 2, 3, 4, 5, 6, 7]}]},
  "traceEvents": [
"""
_TAIL = """
  ],
  "traceName": "rank3.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1711964646000000000
}
"""
_EVENT = """  {{
    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      {args}
    }}
  }}"""
_FLOW = """  {{
    "ph": "s", "id": {id}, "pid": 2910249, "tid": 2919752, "ts": {ts:.3f},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }}"""
_PARAMS = (
    '"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1048576,'
    ' "Out msg nelems": 1048576, "Group size": 8, "Process Group Name": "0",'
    ' "Process Group Description": "default_pg",'
    ' "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
)
_FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>,"
    " std::array<char*, 1ul> >(int, at::native::FillFunctor<c10::BFloat16>)"
)
_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_GROUP = 24  # CPU ops, and three times as many other events, between two collectives


def _host(number: int) -> list[str]:
    """The CPU side of one collective and of what is computed before it."""
    start = 4_458_676_522_690.65 + 1000.0 * number
    ids = {"pid": 2910249, "tid": 2919752}
    events = []
    for index in range(_GROUP):
        ts, at = start + 40 * index, number * _GROUP + index
        args = f'"External id": {at},"Record function id": 0, "Sequence number": {at}, "Ev Idx": 1'
        events.append(
            _EVENT.format(cat="cpu_op", name="aten::linear", ts=ts, dur=9.5, args=args, **ids)
        )
        args = f'"External id": {at},"cbid": 211, "correlation": {at}'
        events.append(
            _EVENT.format(
                cat="cuda_runtime", name="cudaLaunchKernel", ts=ts + 2, dur=4.2, args=args, **ids
            )
        )
        events.append(_FLOW.format(id=at, ts=ts + 3))
    args = f'"External id": {10**9 + number},"Seq": {number}, {_PARAMS}'
    events.append(
        _EVENT.format(
            cat="cpu_op", name="record_param_comms", ts=start + 970, dur=8.0, args=args, **ids
        )
    )
    return events


def _device(number: int) -> list[str]:
    """The kernels of one collective and of what is computed before it."""
    start = 4_458_676_522_690.65 + 1000.0 * number
    ids = {"pid": 0, "tid": 7}
    more = '"device": 0, "context": 1, "stream": 7, "grid": [24, 1, 1], "block": [544, 1, 1]'
    events = []
    for index in range(_GROUP):
        at = number * _GROUP + index
        args = (
            f'"External id": {at},"queued": 0, {more}, "correlation": {at}, "warps per SM": 0.03'
        )
        events.append(
            _EVENT.format(
                cat="kernel", name=_FILL, ts=start + 40 * index + 9, dur=3.1, args=args, **ids
            )
        )
    args = f'"External id": {10**9 + number},"queued": 0, {more}, {_PARAMS}'
    events.append(
        _EVENT.format(cat="kernel", name=_REDUCE, ts=start + 990, dur=25.0, args=args, **ids)
    )
    return events


def write_trace(path: Path, size: int) -> int:
    """Write a trace of about ``size`` bytes.

    Returns:
        How many collectives it has.
    """
    whole = len(",\n".join(_host(1000) + _device(1000)))
    count = max(1, size // whole)
    with path.open("w") as stream:
        stream.write(_HEAD)
        for side in (_host, _device):
            for number in range(count):
                stream.write(",\n" if number or side is _device else "")
                stream.write(",\n".join(side(number)))
        stream.write(_TAIL)
    return count
