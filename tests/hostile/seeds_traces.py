"""Seeds of the collectors of binary traces: Nsight Systems, Chakra."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import struct
from random import Random
from typing import Any

from tests.hostile.mutate import damaged, weird
from tests.hostile.seed import Seed
from tests.hostile.seeds_training import part, varint

_AT_NS = 1_769_846_400_000_000_000
_PID, _TID, _COMM = 4711, 4712, 0x9E3779B97F4A7C15
_THREAD, _PROCESS = 1 << 56 | _PID << 24 | _TID, 1 << 56 | _PID << 24
# The tables of NVIDIA's "SQLite Export Schema Reference" that matter here, without most columns.
_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
  contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER, shortName INTEGER, mangledName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER,
  category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
  textId INTEGER, domainId INTEGER, uint64Value INTEGER, jsonTextId INTEGER, jsonText TEXT,
  binaryData TEXT);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER,
  flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER,
  offset INTEGER);
"""
_INT, _UINT64, _SIZE = 5, 18, 22


def _packed(schema: int, layout: str, *values: int) -> bytes:
    payload = struct.pack("<" + layout, *values)
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(payload), 32 + len(payload)) + payload


def _rows() -> list[tuple[str, dict[str, Any]]]:
    """Table and values of each row of a report of three kernels."""
    kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)"
    names = {1: kernel, 3: "gemm", 4: "ncclAllReduce", 7: "ncclCommInitRank"}
    rows: list[tuple[str, dict[str, Any]]] = [
        *(("StringIds", {"id": number, "value": name}) for number, name in names.items()),
        ("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": _AT_NS}),
        ("TARGET_INFO_SYSTEM_ENV", {"name": "Hostname", "value": "Node-7"}),
    ]
    fields = (
        *((100, _UINT64, "NCCL communicator ID"), (100, _SIZE, "Message size [bytes]")),
        *((200, _UINT64, "NCCL communicator ID"), (200, _INT, "No. of ranks")),
        *((200, _INT, "Rank"), (200, _INT, "CUDA device")),
    )
    offsets = (None, 8, None, 8, 12, 16)
    for (schema, kind, name), offset in zip(fields, offsets, strict=True):
        entry = {"domainId": 1, "schemaId": schema, "type": kind, "name": name, "offset": offset}
        rows.append(("NVTX_PAYLOAD_SCHEMA_ENTRIES", {**entry, "idx": (offset or 0) // 8}))
    call = {"eventType": 59, "domainId": 1, "globalTid": _THREAD}
    made = _packed(200, "Qiii", _COMM, 8, 3, 0)
    rows.append(("NVTX_EVENTS", {**call, "start": 10, "end": 20, "textId": 7, "binaryData": made}))
    said = json.dumps({"NCCL communicator ID": _COMM - (1 << 64), "Message size [bytes]": 512})
    told: tuple[dict[str, Any], ...] = (
        {"binaryData": _packed(100, "QQ", _COMM, 4096)},
        {"jsonText": said},
        {},
    )
    for n, payload in enumerate(told):
        at = 1000 * n
        span = {"start": at + 100, "end": at + 200, "textId": 4}
        rows.append(("NVTX_EVENTS", {**call, **span, **payload}))
        launch = {"start": at + 150, "end": at + 155, "globalTid": _THREAD, "correlationId": n}
        rows.append(("CUPTI_ACTIVITY_KIND_RUNTIME", {**launch, "nameId": 3, "eventClass": 0}))
        ran = {"start": at + 1000, "end": at + 1900, "correlationId": n, "globalPid": _PROCESS}
        where = {"deviceId": 2, "contextId": 1, "streamId": 20, "demangledName": 1, "shortName": 1}
        rows.append(("CUPTI_ACTIVITY_KIND_KERNEL", {**ran, **where}))
    return rows


def _report(rows: list[tuple[str, dict[str, Any]]]) -> bytes:
    db = sqlite3.connect(":memory:")
    db.executescript(_SCHEMA)
    for table, values in rows:
        marks = ", ".join("?" * len(values))
        words = f"INSERT OR REPLACE INTO {table} ({', '.join(values)}) VALUES ({marks})"
        with contextlib.suppress(sqlite3.IntegrityError):  # an odd value may be no primary key
            db.execute(words, tuple(values.values()))
    db.commit()
    data = db.serialize()
    db.close()
    return data


def _odd_report(rng: Random) -> bytes:
    """A whole database with odd values, or without some rows or columns of them."""
    rows = [(table, dict(values)) for table, values in _rows()]
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(rows))
        table, values = rows[at]
        how = rng.randrange(5)
        column = rng.choice(list(values))
        if how == 0:
            rows.insert(at, (table, dict(values)))
        elif how == 1 and len(values) > 1:
            del values[column]
        elif how == 2 and isinstance(values[column], bytes):
            values[column] = damaged(rng, values[column], ())
        else:
            values[column] = _storable(weird(rng), rng)
    return _report(rows)


def _storable(value: Any, rng: Random) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, int | float):
        return value
    return rng.randbytes(rng.randrange(40))


def _node(number: int, kind: int, *attributes: bytes) -> bytes:
    return part(1, number) + part(2, b"node") + part(3, kind) + part(7, 12) + b"".join(attributes)


def _attribute(name: bytes, field: int, value: int | bytes) -> bytes:
    return part(10, part(1, name) + part(field, value))


_MESSAGES = [
    part(1, b"0.0.4"),
    *(
        _node(
            n,
            7,
            _attribute(b"is_cpu_op", 27, 0),
            _attribute(b"comm_type", 9, 0),
            _attribute(b"comm_size", 9, 4096 * n),
            _attribute(b"pg_name", 29, b"7"),
        )
        for n in range(1, 5)
    ),
]


def _framed(messages: list[bytes]) -> bytes:
    return b"".join(varint(len(message)) + message for message in messages)


def _odd_messages(rng: Random) -> bytes:
    messages = list(_MESSAGES)
    at = rng.randrange(len(messages))
    messages[at] = damaged(rng, messages[at], messages)
    return _framed(messages)


def _call(number: int, name: str) -> dict[str, Any]:
    told = {"collective_name": name, "dtype": "BFloat16", "in_msg_nelems": 100}
    told |= {"out_msg_nelems": 100, "pg_name": "3", "pg_desc": "dp", "pg_size": 4}
    tensor = [[1, 2, 0, 100, 2, "cuda:0"]]
    attributes: list[dict[str, Any]] = [{"name": "rf_id", "type": "uint64", "value": 1}]
    attributes += [{"name": key, "type": "x", "value": value} for key, value in told.items()]
    values = [tensor, 10 + number, ["3", "dp"], 1, name, [], [], 0, 2, 4]
    return {
        "id": number,
        "name": "record_param_comms",
        "ctrl_deps": 7,
        "inputs": {"values": values, "shapes": [], "types": []},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": attributes,
    }


def _chakra() -> dict[str, Any]:
    head = {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "time": "2026-01-31 08:00:00"}
    nodes = [_call(5, "allreduce"), _call(6, "broadcast"), _call(8, "_allgather_base")]
    return {**head, "start_ts": 5, "nodes": nodes, "finish_ts": 9}


SEEDS = {
    "chakra": Seed(
        form="json",
        inputs=(json.dumps(_chakra()).encode(), _framed(_MESSAGES)),
        stands=("op", "message_bytes"),
        remake=_odd_messages,
    ),
    "nsight": Seed(form="binary", inputs=(_report(_rows()),), remake=_odd_report),
}
