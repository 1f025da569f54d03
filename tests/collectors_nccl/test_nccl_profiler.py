from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes, some
from xtune.collectors._base import Source, Unknown
from xtune.collectors.kineto import COLLECTOR as KINETO
from xtune.collectors.nccl_profiler import COLLECTOR


def event(name: str, cat: str, phase: str, ident: int, ts: float, args: str = "") -> str:
    """One line as the plugin prints it: a C format with ``%f`` times."""
    more = f', "args": {{{args}}}' if args else ""
    return (
        f'{{"name": "{name}", "cat": "{cat}", "ph": "{phase}", "id": {ident}, "pid": 77, '
        f'"tid": 1, "ts": {ts:f}{more}}},\n'
    )


def coll(
    ident: int,
    began: float,
    ended: float,
    *inside: str,
    name: str = "AllReduce",
    count: int = 1000,
    dtype: str = '"ncclBfloat16"',
) -> str:
    args = (
        f'"SeqNum": {ident}, "CommHash": 11400714819323198485, "Rank": 3, "Count": {count}, '
        f'"Datatype": {dtype}, "Algorithm": "RING", "Protocol": "LL128", "nChannels": 2'
    )
    begin = event(name, "COLL", "b", ident, began, args)
    return begin + "".join(inside) + event(name, "COLL", "e", ident, ended)


def channel(number: int, began: float, ended: float, start: int = 0, stop: int = 0) -> str:
    clocks = f'"Channel": {number}, "StartGpuClk": {start}, "StopGpuClk": {stop}'
    proxy = event("ScheduleSend", "PROXY", "b", 9, began, '"Channel": 0, "Peer": 1')
    return (
        event("KernelCh", "GPU", "b", 0, began, clocks)
        + proxy
        + event("KernelCh", "GPU", "e", 0, ended)
    )


def trace(*events: str) -> bytes:
    return ("[\n" + "".join(events) + "{}]\n").encode()


def claim(data: bytes, folder: Path) -> float:
    path = folder / "claimed"
    path.write_bytes(data)
    head = Source(path, "claimed").head()
    assert COLLECTOR.claim(path, head) == 0.0 or COLLECTOR.claim(path, head) > KINETO.claim(
        path, head
    )
    return COLLECTOR.claim(path, head)


def test_operation_by_hand(tmp_path: Path) -> None:
    api = event("Group API", "GROUP_API", "b", 0, 5.0, '"groupApiId": 0, "groupDepth": 1')
    data = trace(
        api,
        coll(
            7, 10.5, 99.5, channel(0, 20.0, 80.0, 5000, 9000), channel(1, 21.0, 90.0, 5100, 9900)
        ),
        event("Group API", "GROUP_API", "e", 0, 100.0),
    )
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert claim(data, tmp_path) > 0.9 and not read.rejects and not read.notes
    (row,) = read.rows
    assert some(row, "op", "seq", "comm_rank", "dtype") == ("all_reduce", 7, 3, "bf16")
    assert some(row, "message_bytes", "algorithm", "protocol") == (2000, "RING", "LL128")
    # The hash is 64 bits, as NCCL's log prints it in hexadecimal.
    assert row["comm"] == "0x9e3779b97f4a7c15"
    # Earliest start to latest stop by the GPU's clock: 9900 - 5000.
    assert some(row, "duration_ns", "start_ts", "enqueue_ts", "rank") == (4900, None, None, None)
    extra = row["extra"]
    assert some(extra, "timing_source", "start_us", "seq_of") == ("kernel_gpu", "10.5", "op")


def test_zero_is_a_time_that_was_never_taken(tmp_path: Path) -> None:
    data = trace(
        coll(1, 10.0, 99.0, channel(0, 20.0, 80.0, 5000, 0)),  # StopGpuClk 0
        coll(2, 10.0, 99.0, channel(0, 20.0, 0.0, 0, 0)),
        coll(3, 0.0, 99.0, channel(0, 0.0, 0.0)),
        coll(4, 10.0, 0.0),
        coll(5, 10.0, 9.0),
    )
    read = read_bytes(COLLECTOR, data, tmp_path)
    found = [(r["duration_ns"], r["extra"].get("timing_source")) for r in read.rows]
    assert found == [
        (60_000, "kernel_cpu"),
        (89_000, "collective_cpu"),
        (None, None),
        (None, None),
        (None, None),
    ]
    assert [row["extra"].get("start_us") for row in read.rows] == [
        "10.0",
        "10.0",
        None,
        "10.0",
        "10.0",
    ]


def test_unquoted_values_are_mended(tmp_path: Path) -> None:
    api = '"count": 8, "datatype": ncclFloat32, "root": 0, "GraphCaptured": 0, "Stream": 0x7f1a'
    data = trace(
        event("AllReduce", "COLL_API", "b", 0, 0.0, api),
        coll(1, 10.0, 20.0, dtype="ncclFloat16"),
        event("AllReduce", "COLL_API", "e", 0, 0.0),
        coll(2, 10.0, 20.0, dtype="(nil)"),
    )
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert not read.rejects
    assert [some(row, "seq", "dtype", "message_bytes") for row in read.rows] == [
        (1, "fp16", 2000),
        (2, "(nil)", None),
    ]


def test_sizes_that_need_the_number_of_ranks_stay_unknown(tmp_path: Path) -> None:
    p2p = '"CommHash": 5, "Rank": 1, "Peer": 2, "Count": 10, "Datatype": "ncclInt8"'
    data = trace(
        coll(1, 1.0, 2.0, name="AllGather"),
        coll(2, 1.0, 2.0, name="Broadcast", dtype='"ncclFloat8e4m3"'),
        event("Send", "P2P", "b", 0, 1.0, p2p),
        event("Send", "P2P", "e", 0, 3.0),
    )
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert [some(row, "op", "message_bytes", "seq") for row in read.rows] == [
        ("all_gather", None, 1),
        ("broadcast", 1000, 2),
        ("send", 10, None),
    ]
    assert read.rows[0]["extra"]["call_bytes"] == "2000"
    assert some(read.rows[2]["extra"], "peer", "count") == ("2", "10")
    assert read.rows[2]["duration_ns"] == 2000


def test_copy_engine_collective(tmp_path: Path) -> None:
    args = '"eventId": 4, "count": 8, "datatype": "ncclFloat32", "strategy": "MC", '
    args += '"duration_cpu_us": 9.5, "duration_gpu_us": 7'
    data = trace(
        event("AllGather", "CE_COLL", "b", 0, 1.0, args),
        event("AllGather", "CE_COLL", "e", 0, 30.0),
    )
    (row,) = read_bytes(COLLECTOR, data, tmp_path).rows
    assert some(row, "op", "duration_ns", "comm", "seq") == ("all_gather", 7000, None, None)


def test_cut_and_broken_events(tmp_path: Path) -> None:
    whole = trace(*[coll(n, 10.0, 20.0) for n in range(5)])
    cut = whole[: whole.index(b'"id": 3,') + 20]
    read = read_bytes(COLLECTOR, cut, tmp_path)
    assert [row["seq"] for row in read.rows] == [0, 1, 2]
    assert "6 whole events" in read.rejects[0].reason
    # A line of the plugin is an event.
    place = whole.rindex(b"\n", 0, whole.index(b'"id": 3,')) + 1
    assert read.rejects[0].offset == f"byte {place}"
    broken = whole.replace(b'"id": 2,', b'"id": 2 2,', 1)
    read = read_bytes(COLLECTOR, broken, tmp_path)
    assert [row["seq"] for row in read.rows] == [0, 1, 3, 4] and len(read.rejects) == 1


def test_category_nobody_knows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(trace(event("X", "WARP", "b", 0, 1.0), coll(1, 1.0, 2.0)))
    items = list(COLLECTOR.read(Source(path, "trace.json"), context()))
    assert [item.name for item in items if isinstance(item, Unknown)] == ["WARP"]


@pytest.mark.parametrize("data", [b"", b"[", b"[{}]", b'[{"ph": "X", "ts": 1, "cat": "kernel"}]'])
def test_nothing_of_ours(tmp_path: Path, data: bytes) -> None:
    assert claim(data, tmp_path) == 0.0
    assert not read_bytes(COLLECTOR, data, tmp_path).rows


@pytest.mark.parametrize("indent", [None, 2])
def test_trace_that_another_program_wrote_anew(tmp_path: Path, indent: int | None) -> None:
    data = trace(coll(1, 1.0, 2.0), coll(2, 1.0, 2.0))
    events: list[Any] = json.loads(data)
    again = json.dumps(events, indent=indent).encode()
    assert (
        read_bytes(COLLECTOR, again, tmp_path).rows == read_bytes(COLLECTOR, data, tmp_path).rows
    )


SEED = trace(*[coll(n, 10.0, 99.0, channel(0, 20.0, 80.0, 5000, 9000)) for n in range(4)])


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 6)), max_size=4
    )
)
def test_mutated_input_is_read_or_rejected(
    tmp_path: Path, edits: list[tuple[float, bytes, int]]
) -> None:
    seed = SEED
    for place, new, gone in edits:
        at = int(place * len(seed))
        seed = seed[:at] + new + seed[at + gone :]
    for row in read_bytes(COLLECTOR, seed, tmp_path).rows:
        assert row["duration_ns"] is None or row["duration_ns"] > 0
