from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import Read, context, read_path, some
from xtune.collectors._base import Source
from xtune.collectors.nsight import COLLECTOR

BEGAN = 1_769_846_400_000_000_000
PID, TID = 4711, 4712
THREAD = 1 << 56 | PID << 24 | TID
PROCESS = 1 << 56 | PID << 24
COMM = 0x9E3779B97F4A7C15

#: As NVIDIA's "SQLite Export Schema Reference" has them, of a late version.
SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER NOT NULL, utcTime TEXT,
  localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT,
  nameEnum INTEGER, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
  shortName INTEGER NOT NULL, mangledName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER,
  jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL,
  idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT,
  arrayOrUnionDetail INTEGER, offset INTEGER);
"""
STRINGS = {
    1: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    2: "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    3: "gemm",
    4: "ncclAllReduce",
    5: "ncclGroupEnd",
    6: "ncclAllGather",
    7: "ncclCommInitRank",
    8: "ncclGroupStart",
}
INT, UINT64, SIZE = 5, 18, 22


class Export:
    """A hand-made report; nanoseconds since the session's start."""

    def __init__(self, path: Path, schema: str = SCHEMA) -> None:
        self.path = path
        self.db = sqlite3.connect(path)
        self.db.executescript(schema)
        self.db.executemany("INSERT INTO StringIds VALUES (?, ?)", STRINGS.items())
        if "SESSION_START" in schema:
            self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=BEGAN)
        if "SYSTEM_ENV" in schema:
            self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="Node-7")
        if "ENTRIES" in schema:
            names = ("NCCL communicator ID", "Message size [bytes]")
            for place, (kind, name) in enumerate(zip((UINT64, SIZE), names, strict=True)):
                self.entry(100, place, kind, name, 8 * place or None)
            for place, (kind, name, offset) in enumerate(
                [
                    (UINT64, "NCCL communicator ID", None),
                    (INT, "No. of ranks", 8),
                    (INT, "Rank", 12),
                    (INT, "CUDA device", 16),
                ]
            ):
                self.entry(200, place, kind, name, offset)

    def entry(self, schema: int, place: int, kind: int, name: str, offset: int | None) -> None:
        self.add(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            domainId=1,
            schemaId=schema,
            idx=place,
            type=kind,
            name=name,
            offset=offset,
        )

    def add(self, table: str, **values: Any) -> None:
        marks = ", ".join("?" * len(values))
        names = ", ".join(values)
        self.db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))

    def kernel(self, start: int, end: int, name: int, launch: int, at: int | None = None) -> None:
        found = self.db.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)").fetchall()
        values = {
            "start": start,
            "end": end,
            "deviceId": 2,
            "contextId": 1,
            "streamId": 20,
            "correlationId": launch,
            "globalPid": PROCESS,
            "demangledName": name,
            "shortName": name,
        }
        columns = {column[1] for column in found}
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", **{k: v for k, v in values.items() if k in columns})
        if at is not None:
            self.add(
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                start=at,
                end=at + 5,
                eventClass=0,
                globalTid=THREAD,
                correlationId=launch,
                nameId=3,
                returnValue=0,
            )

    def call(self, start: int, end: int, name: int, **payload: Any) -> None:
        values = {"start": start, "end": end, "eventType": 59, "textId": name, "domainId": 1}
        self.add("NVTX_EVENTS", globalTid=THREAD, **values, **payload)

    def read(self, **flags: Any) -> Read:
        self.db.commit()
        self.db.close()
        head = Source(self.path, self.path.name).head()
        assert COLLECTOR.claim(self.path, head) > 0.9
        return read_path(COLLECTOR, self.path, context(**flags))


def packed(schema: int, *values: Any, layout: str) -> bytes:
    payload = struct.pack("<" + layout, *values)
    header = struct.pack("<IIIIQQ", 1, 0, schema, 0, len(payload), 32 + len(payload))
    return header + payload


def full(path: Path) -> Export:
    export = Export(path)
    made = packed(200, COMM, 8, 3, 0, layout="Qiii")
    export.call(10, 20, 7, binaryData=made)
    reduce = packed(100, COMM, 4096, layout="QQ")
    export.call(100, 200, 4, binaryData=reduce)
    export.kernel(1000, 6000, 1, launch=1, at=150)
    export.kernel(7000, 8000, 3, launch=2, at=160)
    return export


def test_kernel_by_hand(tmp_path: Path) -> None:
    read = full(tmp_path / "report.sqlite").read(rank=5)
    assert not read.rejects and not read.notes
    (row,) = read.rows
    assert some(row, "start_ts", "enqueue_ts", "duration_ns") == (BEGAN + 1000, BEGAN + 150, 5000)
    assert some(row, "op", "host", "rank", "state") == ("all_reduce", "node-7", 5, "completed")
    # The call's payload names the communicator as NCCL's log does; its making tells the ranks.
    assert some(row, "comm", "comm_size", "comm_rank", "message_bytes") == (
        "0x9e3779b97f4a7c15",
        8,
        3,
        4096,
    )
    assert some(row["extra"], "pid", "device", "stream") == (str(PID), "2", "20")
    assert row["seq"] is None


def test_generic_kernel_gets_its_operation_from_the_one_call_of_its_group(tmp_path: Path) -> None:
    export = full(tmp_path / "report.sqlite")
    said = {"NCCL communicator ID": COMM - (1 << 64), "Message size [bytes]": 512}
    export.add("StringIds", id=99, value=json.dumps(said))
    export.call(280, 290, 8)  # GroupStart
    export.call(300, 310, 6, jsonTextId=99)
    export.call(320, 400, 5)  # GroupEnd launches it
    export.kernel(9000, 9500, 2, launch=3, at=350)
    export.call(480, 490, 8)
    export.call(500, 510, 6, jsonText=json.dumps(said))
    export.call(520, 530, 4)
    export.call(540, 600, 5)
    export.kernel(9600, 9700, 2, launch=4, at=550)
    read = export.read()
    one, two = read.rows[1:]
    # An all-gather's size is the whole array: 8 ranks times what one sends.
    assert some(one, "op", "message_bytes", "comm") == (
        "all_gather",
        4096,
        "0x9e3779b97f4a7c15",
    )
    # Two calls in the group: which of them the kernel ran is not known.
    assert two["op"] == "Generic" and some(two, "comm", "message_bytes") == (None, None)
    assert read.note("does not say its rank")


def test_early_version_without_most_columns(tmp_path: Path) -> None:
    schema = """
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL,
      shortName INT NOT NULL);
    """
    export = Export(tmp_path / "report.sqlite", schema)
    export.kernel(1000, 6000, 1, launch=0)
    read = export.read(rank=1)
    (row,) = read.rows
    assert some(row, "op", "duration_ns", "start_ts", "rank") == ("all_reduce", 5000, None, 1)
    assert row["extra"]["start_ns"] == "1000" and read.note("session began")


def test_calls_are_rows_where_no_kernel_was_traced(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite", SCHEMA)
    export.call(100, 200, 4)
    export.call(210, 220, 5)
    read = export.read()
    (row,) = read.rows
    assert some(row, "op", "enqueue_ts", "start_ts", "duration_ns") == (
        "all_reduce",
        BEGAN + 100,
        None,
        None,
    )
    assert read.note("no NCCL kernel was traced")


def test_report_without_nccl_is_read(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.kernel(7000, 8000, 3, launch=2, at=160)
    read = export.read()
    assert not read.rows and not read.rejects and read.note("no NCCL kernel and no NCCL call")


def test_rank_given_is_not_used_for_several_processes(tmp_path: Path) -> None:
    export = full(tmp_path / "report.sqlite")
    export.add(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        start=1,
        end=2,
        deviceId=0,
        contextId=1,
        streamId=1,
        globalPid=PROCESS + (1 << 24),
        demangledName=3,
        shortName=3,
    )
    read = export.read(rank=5)
    assert read.rows[0]["rank"] is None and read.note("several processes")


def test_gzip_is_undone(tmp_path: Path) -> None:
    export = full(tmp_path / "report.sqlite")
    rows = export.read().rows
    path = tmp_path / "report.sqlite.gz"
    path.write_bytes(gzip.compress(export.path.read_bytes()))
    assert COLLECTOR.claim(path, Source(path, path.name).head()) > 0.9
    assert read_path(COLLECTOR, path).rows == rows


def test_views_and_other_databases_are_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    db = sqlite3.connect(path)
    db.executescript("CREATE TABLE a (b); CREATE VIEW c AS SELECT 1 AS start, 2 AS 'end';")
    db.close()
    assert COLLECTOR.claim(path, Source(path, path.name).head()) == 0.0
    evil = tmp_path / "evil.sqlite"
    db = sqlite3.connect(evil)
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, "
        "i AS 'end', 1 AS shortName FROM n"
    )
    db.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
        "INSERT INTO StringIds VALUES (1, 'ncclDevKernel_AllReduce');"
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless};"
    )
    db.close()
    assert not read_path(COLLECTOR, evil).rows


def test_damaged_database_is_one_reject(tmp_path: Path) -> None:
    export = full(tmp_path / "report.sqlite")
    export.db.commit()
    export.db.close()
    data = export.path.read_bytes()
    for cut in (50, 4096, len(data) // 2, len(data) - 4096):
        export.path.write_bytes(data[:cut])
        read = read_path(COLLECTOR, export.path)
        assert len(read.rejects) <= 1 and all("SQLite" in r.reason for r in read.rejects)
    export.path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    assert len(read_path(COLLECTOR, export.path).rejects) == 1


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    export = full(tmp_path_factory.mktemp("nsight") / "report.sqlite")
    export.db.commit()
    export.db.close()
    return export.path


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(edits=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=4)), max_size=8))
def test_mutated_database_is_read_or_rejected(
    tmp_path: Path, seed: Path, edits: list[tuple[float, bytes]]
) -> None:
    data = bytearray(seed.read_bytes())
    for place, new in edits:
        at = int(place * len(data))
        data[at : at + len(new)] = new
    path = tmp_path / "mutated.sqlite"
    path.write_bytes(data)
    COLLECTOR.claim(path, bytes(data[:65536]))
    for row in read_path(COLLECTOR, path).rows:
        assert row["duration_ns"] is None or row["duration_ns"] > 0
