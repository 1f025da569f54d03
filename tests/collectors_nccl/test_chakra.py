from __future__ import annotations

import gzip
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import Read, context, read_bytes, read_path, some
from tests.samples import samples
from xtune.collectors._base import Source, Unknown
from xtune.collectors.chakra import COLLECTOR


def varint(value: int) -> bytes:
    out = b""
    while True:
        value, low = value >> 7, value & 0x7F
        out += bytes([low | (0x80 if value else 0)])
        if not value:
            return out


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def framed(*messages: bytes) -> bytes:
    return b"".join(varint(len(message)) + message for message in messages)


def attribute(name: bytes, number: int, value: int | bytes) -> bytes:
    return field(10, field(1, name) + field(number, value))


def proto_node(ident: int, kind: int, *attributes: bytes, micros: int = 0) -> bytes:
    node = field(1, ident) + field(2, b"node\xff") + field(3, kind)
    return node + (field(7, micros) if micros else b"") + b"".join(attributes)


INT64, UINT64, BOOL, TEXT, INT32 = 9, 13, 27, 29, 7
META = field(1, b"0.0.4")


def json_node(
    ident: int, values: list[Any], *, types: list[str] | None = None, **attributes: Any
) -> dict[str, Any]:
    listed = [{"name": "rf_id", "type": "uint64", "value": 1}]
    listed += [{"name": key, "type": "x", "value": value} for key, value in attributes.items()]
    return {
        "id": ident,
        "name": "record_param_comms",
        "ctrl_deps": 7,
        "inputs": {"values": values, "shapes": [], "types": types or []},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": listed,
    }


def trace(*nodes: dict[str, Any]) -> bytes:
    head = {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "time": "2026-01-31 08:00:00"}
    return json.dumps({**head, "start_ts": 5, "nodes": list(nodes), "finish_ts": 9}).encode()


def claim(data: bytes, folder: Path) -> float:
    path = folder / "claimed"
    path.write_bytes(data)
    return COLLECTOR.claim(path, Source(path, "claimed").head())


def counted(name: str, nelems: int, **more: Any) -> dict[str, Any]:
    found = {"collective_name": name, "dtype": "BFloat16", "in_msg_nelems": nelems}
    return {
        **found,
        "out_msg_nelems": nelems,
        "pg_name": "3",
        "pg_desc": "dp",
        "pg_size": 4,
        **more,
    }


def test_later_schema_by_hand(tmp_path: Path) -> None:
    tensor = [[1, 2, 0, 100, 2, "cuda:0"]]
    data = trace(
        json_node(4, [tensor, 9, ["3", "dp"], 2, "broadcast", [], [], 0, 2, 4]),
        json_node(
            5,
            [tensor, 10, ["3", "dp"], 1, "allreduce", [], [], 0, 2, 4],
            **counted("allreduce", 100),
        ),
        json_node(6, [10, ["", ""], 1, "wait", [], [], -1, -1, 1]),
        json_node(
            8,
            [tensor, [11, False], ["3", "dp"], 1, "_allgather_base", [], [], 0, 2, 4],
            **counted("_allgather_base", 100, out_msg_nelems=400),
        ),
        json_node(
            9,
            [tensor, [2, True], ["3", "dp"], 3, "send", [], [], 0, 2, 4],
            **counted("send", 100),
        ),
    )
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert claim(data, tmp_path) > 0.9 and not read.rejects and not read.notes
    columns = ("op", "seq", "comm", "comm_size", "comm_rank", "message_bytes")
    assert [some(row, *columns) for row in read.rows] == [
        ("broadcast", 9, "pg:3", 4, None, None),
        ("all_reduce", 10, "pg:3", 4, 1, 200),
        ("all_gather", 11, "pg:3", 4, 1, 800),
        ("send", None, "pg:3", 4, None, 200),
    ]
    # The group is ranks 0, 2, 4, 6: rank 1 of it is 2; the root and the peer tell nothing of it.
    assert {row["rank"] for row in read.rows} == {2}
    assert read.rows[0]["extra"]["root_or_peer"] == "2"
    assert {some(row, "start_ts", "enqueue_ts", "duration_ns") for row in read.rows} == {
        (None, None, None)
    }


def test_first_schema_counts_in_the_order_of_the_trace(tmp_path: Path) -> None:
    values = [[[1, 2, 0, 100, 4, "cuda:0"]], "x", 4096, 1, "allreduce", [], [], 8]
    old = {
        "name": "record_param_comms",
        "id": 3,
        "rf_id": 1,
        "parent": 2,
        "inputs": values,
        "input_types": ["GenericList[Tensor(float)]"],
        "outputs": [[[1, 2, 0, 100, 4, "cuda:0"]]],
        "output_types": ["GenericList[Tensor(float)]"],
    }
    read = read_bytes(COLLECTOR, trace(old, old), tmp_path, ctx=context(rank=5))
    assert not read.rejects
    assert [some(r, "seq", "message_bytes", "dtype", "comm_size") for r in read.rows] == [
        (0, 400, "fp32", 8),
        (1, 400, "fp32", 8),
    ]
    # Where a group is in one process names it for no other: comm is unknown.
    assert [some(r, "comm", "comm_rank", "rank") for r in read.rows] == [(None, 1, 5)] * 2
    extra = read.rows[0]["extra"]
    assert some(extra, "comm_pointer", "seq_source") == ("0x1000", "trace order")


def test_kernel_of_a_linked_trace_tells_the_duration(tmp_path: Path) -> None:
    call = json_node(
        5, [1, ["3", "dp"], 1, "allreduce", [], [], 0, 1, 4], **counted("allreduce", 8)
    )
    kernel = {"id": 6, "name": "ncclDevKernel_AllReduce", "ctrl_deps": 5, "cat": "kernel"}
    kernel |= {"dur": 12.5, "ts": 1_700_000_000_000_000.5}
    (row,) = read_bytes(COLLECTOR, trace(call, kernel), tmp_path).rows
    assert some(row, "duration_ns", "state") == (12_500, "completed")
    assert row["start_ts"] == 1_700_000_000_000_000_500
    # A time that is not since the epoch is not a time of day.
    (row,) = read_bytes(COLLECTOR, trace(call, {**kernel, "ts": 77.0}), tmp_path).rows
    assert some(row, "duration_ns", "start_ts") == (12_500, None)


def test_operation_nobody_knows_is_named(tmp_path: Path) -> None:
    data = trace(json_node(5, [1, ["3", ""], 1, "teleport", [], [], 0, 1, 4]))
    path = tmp_path / "et.json"
    path.write_bytes(data)
    items = list(COLLECTOR.read(Source(path, "et.json"), context()))
    assert [item.name for item in items if isinstance(item, Unknown)] == ["teleport"]
    assert read_path(COLLECTOR, path).rows[0]["op"] == "teleport"


def test_cut_trace_keeps_its_whole_nodes_and_says_where(tmp_path: Path) -> None:
    nodes = [
        json_node(i, [i, ["3", "dp"], 1, "allreduce", [], [], 0, 1, 4], **counted("allreduce", i))
        for i in range(1, 6)
    ]
    data = trace(*nodes)
    third = data.index(b'{"id": 3')
    for end in range(third, data.index(b'{"id": 4') - 2, 7):
        read = read_bytes(COLLECTOR, data[:end], tmp_path)
        assert [row["seq"] for row in read.rows] == [1, 2]
        (reject,) = read.rejects
        assert reject.offset == f"byte {third}" and "2 whole nodes" in reject.reason
    packed = gzip.compress(data * 1)[:-30]
    read = read_bytes(COLLECTOR, packed, tmp_path)
    assert any("cannot be read further" in reject.reason for reject in read.rejects)


def test_node_that_is_not_json_costs_itself(tmp_path: Path) -> None:
    nodes = [json_node(i, [i, ["3", "dp"], 1, "allreduce", [], [], 0, 1, 4]) for i in range(1, 5)]
    data = trace(*nodes).replace(b'"id": 2,', b'"id": 2 2,')
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert [row["seq"] for row in read.rows] == [1, 3, 4]
    place = data.index(b'{"id": 2 2')
    assert [reject.offset for reject in read.rejects] == [f"byte {place}"]


def test_protobuf_by_hand(tmp_path: Path) -> None:
    data = framed(
        META,
        proto_node(1, 4, micros=9),
        proto_node(2, 7, attribute(b"is_cpu_op", BOOL, 1)),
        proto_node(
            3,
            7,
            attribute(b"is_cpu_op", BOOL, 0),
            attribute(b"comm_type", INT64, 0),
            attribute(b"comm_size", INT64, 4096),
            attribute(b"pg_name", TEXT, b"7"),
            micros=12,
        ),
        proto_node(4, 7, attribute(b"comm_type", INT64, 2), attribute(b"comm_size", UINT64, 64)),
        proto_node(5, 5, attribute(b"comm_size", INT64, 32), attribute(b"comm_dst", INT32, 6)),
        proto_node(6, 6, attribute(b"comm_size", INT64, 32), attribute(b"comm_src", INT32, 2)),
    )
    read = read_bytes(COLLECTOR, data, tmp_path, name="ring.3.et")
    assert claim(data, tmp_path) > 0.9 and not read.rejects
    assert [some(r, "op", "message_bytes", "duration_ns", "comm", "seq") for r in read.rows] == [
        ("all_reduce", 4096, 12_000, "pg:7", 0),
        ("all_gather", None, None, None, None),
        ("send", 32, None, None, None),
        ("recv", 32, None, None, None),
    ]
    assert [row["extra"].get("peer") for row in read.rows] == [None, None, "6", "2"]
    assert read.rows[1]["extra"]["comm_bytes"] == "64"
    # A generator names its files <workload>.<rank>.et; what the user says counts more.
    assert {row["rank"] for row in read.rows} == {3} and read.note("file name")
    given = read_bytes(COLLECTOR, data, tmp_path, name="ring.3.et", ctx=context(rank=8))
    assert {row["rank"] for row in given.rows} == {8}


def test_cut_protobuf_keeps_its_whole_nodes(tmp_path: Path) -> None:
    nodes = [
        proto_node(i, 7, attribute(b"comm_type", INT64, 5), attribute(b"comm_size", INT64, i))
        for i in range(1, 5)
    ]
    data = framed(META, *nodes)
    before = len(framed(META, *nodes[:2]))
    for end in range(before + 1, len(framed(META, *nodes[:3]))):
        read = read_bytes(COLLECTOR, data[:end], tmp_path)
        assert [row["message_bytes"] for row in read.rows] == [1, 2]
        (reject,) = read.rejects
        assert reject.offset == f"byte {before}" and "cut" in reject.reason
        assert "2 whole nodes" in reject.hint


def test_bad_message_costs_itself(tmp_path: Path) -> None:
    good = proto_node(1, 7, attribute(b"comm_type", INT64, 9))
    read = read_bytes(COLLECTOR, framed(META, good, b"\xff" * 5, good), tmp_path)
    assert [row["op"] for row in read.rows] == ["barrier", "barrier"] and len(read.rejects) == 1
    huge = framed(META, good) + varint(1 << 40) + b"x"
    read = read_bytes(COLLECTOR, huge, tmp_path)
    assert len(read.rows) == 1 and "longer than any node" in read.rejects[0].reason


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 200,
        b"{}",
        b'{"schema": 1, "nodes": []}',
        b"\x89PNG\r\n",
        struct.pack("<Q", 7),
    ],
)
def test_nothing_of_ours(tmp_path: Path, data: bytes) -> None:
    assert claim(data, tmp_path) == 0.0
    assert not read_bytes(COLLECTOR, data, tmp_path).rows


JSON = trace(
    *[
        json_node(
            i,
            [[[1, 2, 0, 100, 2, "cuda:0"]], i, ["3", "dp"], 1, "allreduce", [], [], 0, 2, 4],
            **counted("allreduce", 100),
        )
        for i in range(4)
    ]
)
PROTO = framed(
    META,
    *[
        proto_node(i, 7, attribute(b"comm_type", INT64, 5), attribute(b"comm_size", INT64, 77))
        for i in range(9)
    ],
)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.sampled_from([JSON, PROTO]),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 6)), max_size=4
    ),
)
def test_mutated_input_is_read_or_rejected(
    tmp_path: Path, seed: bytes, edits: list[tuple[float, bytes, int]]
) -> None:
    for place, new, gone in edits:
        at = int(place * len(seed))
        seed = seed[:at] + new + seed[at + gone :]
    claim(seed, tmp_path)
    read_bytes(COLLECTOR, seed, tmp_path)


def ops(read: Read) -> Counter[str]:
    return Counter(row["op"] for row in read.rows)


@pytest.mark.shared_samples
def test_json_and_protobuf_samples_of_one_model_agree() -> None:
    """The counts are those of a plain json.load; ResNet's .et has the same buckets."""
    path = samples("chakra_et", "param_resnet_2gpu_et.json.gz")
    nodes = json.loads(gzip.decompress(path.read_bytes()))["nodes"]
    said = Counter(
        a["value"]
        for node in nodes
        if node["name"] == "record_param_comms"
        for a in node["attrs"]
        if a["name"] == "collective_name"
    )
    read = read_path(COLLECTOR, path)
    assert ops(read) == {"all_reduce": said["allreduce"], "broadcast": said["broadcast"]}
    assert [row["seq"] for row in read.rows] == list(range(33, 54))
    gradients = sum(r["message_bytes"] for r in read.rows[2:7])
    # 25557032 parameters of ResNet-50, fp32.
    assert gradients == 25_557_032 * 4
