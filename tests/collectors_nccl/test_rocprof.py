from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes, some
from xtune.collectors._base import Source, Unknown
from xtune.collectors.rocprof import COLLECTOR

HEAD = (
    '"Domain","Function","Process_Id","Thread_Id","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"\n'
)


def line(function: str, start: int, end: int, domain: str = "RCCL_API") -> str:
    return f'"{domain}","{function}",77,78,9,{start},{end}\n'


TRACE = (
    HEAD
    + line("ncclGroupStart", 1, 2)
    + line("ncclAllReduce", 18414380653860, 18414380693574)
    + line("hipMemcpy", 5, 6, "HIP_API")
    + line("ncclAllToAllv", 7, 9, "RCCL_API_EXT")
    + line("ncclSend", 10, 10)
)


def test_calls_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    assert COLLECTOR.claim(path, Source(path, path.name).head()) > 0.9
    read = read_bytes(COLLECTOR, TRACE.encode(), tmp_path, ctx=context(rank=3))
    assert not read.rejects and not read.notes
    assert [row["op"] for row in read.rows] == ["all_reduce", "all_to_all", "send"]
    row = read.rows[0]
    # What is timed is the host's call; the collective itself runs later.
    assert some(row, "start_ts", "enqueue_ts", "duration_ns", "rank") == (None, None, None, 3)
    extra = row["extra"]
    assert some(extra, "start_ns", "call_ns", "pid") == ("18414380653860", "39714", "77")


@pytest.mark.parametrize(
    "bad",
    [line("ncclAllReduce", 9, 8), line("ncclAllReduce", 1, 2).replace(",2\n", ",x\n"), "a,b\n"],
)
def test_bad_line_costs_itself(tmp_path: Path, bad: str) -> None:
    read = read_bytes(COLLECTOR, (HEAD + bad + line("ncclReduce", 1, 2)).encode(), tmp_path)
    assert [row["op"] for row in read.rows] == ["reduce"] and len(read.rejects) == 1


def test_call_nobody_knows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + line("ncclTeleport", 1, 2) * 3)
    items = list(COLLECTOR.read(Source(path, path.name), context()))
    assert [(i.name, i.count) for i in items if isinstance(i, Unknown)] == [("ncclTeleport", 3)]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 6)), max_size=4
    )
)
def test_mutated_input_is_read_or_rejected(
    tmp_path: Path, edits: list[tuple[float, bytes, int]]
) -> None:
    data = TRACE.encode()
    for place, new, gone in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + gone :]
    read_bytes(COLLECTOR, data, tmp_path)
