"""Runs of a trace parsed at once give what the tolerant scanner gives, event by event."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import read_bytes, read_path, some
from tests.collectors_nccl.test_kineto import COMMS, INFO, cpu, encoded, kernel, trace, x
from tests.samples import samples
from xtune.collectors import _json_events, _kineto_join
from xtune.collectors._base import Reject, Source
from xtune.collectors._json_events import TraceScan
from xtune.collectors.kineto import COLLECTOR

QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@contextmanager
def scanner(*, run: int, slow: bool = False) -> Iterator[None]:
    """Runs of another size, or none: each event by the tolerant scanner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_json_events, "RUN", run)
        patch.setattr(_json_events, "_LEAST_RUN", min(run, 64))
        if slow:
            patch.setattr(_json_events, "_run", lambda window, size: (None, size))
        yield


def scanned(path: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    events: list[dict[str, Any]] = []
    said = []
    for item in TraceScan(Source(path, path.name)):
        if isinstance(item, list):
            events += item
        else:
            said.append(item)
    return events, said


def both(path: Path, run: int) -> tuple[list[dict[str, Any]], list[Any]]:
    """What a scan with such runs finds, checked against the tolerant scanner alone."""
    with scanner(run=1 << 18, slow=True):
        expected = scanned(path)
    with scanner(run=run):
        found = scanned(path)
    # NaN is no equal of itself: compare what is printed.
    assert repr(found) == repr(expected)
    return found


TEXT = st.text(
    st.sampled_from('ab{}[],:"\\ \n\té组\u2028\ud800'), max_size=12
)  # what looks like a boundary, and what orjson refuses
VALUE: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1), st.floats(), TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(TEXT, inner, max_size=3),
        st.lists(st.fixed_dictionaries({"ph": TEXT, "a": inner}), max_size=3),
    ),
    max_leaves=4,
)
EVENT = st.one_of(
    st.builds(
        lambda name, args: x(name, "kernel", 1.5, 2.0, {"External id": 1, "v": args}), TEXT, VALUE
    ),
    st.builds(lambda seq: cpu(seq + 1, seq, Seq=seq), st.integers(0, 99)),
    VALUE,
)
LAYOUT = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (2, (",", ": ")), (1, None)])


@given(data=st.data())
@QUICK
def test_runs_of_any_size_give_what_single_events_give(
    tmp_path: Path, data: st.DataObject
) -> None:
    events = data.draw(st.lists(EVENT, max_size=12))
    indent, separators = data.draw(LAYOUT)
    text = json.dumps(
        trace(*events), indent=indent, separators=separators, ensure_ascii=data.draw(st.booleans())
    )
    content = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(content), len(content) * 2 // 3]))
    path = tmp_path / "t.json"
    path.write_bytes(bytes(content[:cut]))
    both(path, data.draw(st.sampled_from([60, 200, 1000, 1 << 18])))


def odd_trace() -> bytes:
    """A trace with all that orjson refuses, among good events."""
    good = [cpu(n + 1.0, n, Seq=n) for n in range(12)]
    good[3]["args"]["w"] = float("nan")
    good[5]["name"] = "BAD"
    good[7]["name"] = '},\n  {"ph": '
    good[9]["args"]["nested"] = [{"ph": "X"}, {"ph": "X"}]
    text = json.dumps(trace(*good), indent=2).replace("BAD", 'op "quoted", name')
    return text.replace('"Node-A"', '"Node-\udcff"').encode("utf-8", "surrogateescape")


def test_block_ends_at_every_offset(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(odd_trace())
    for run in range(40, 640, 7):
        events, said = both(path, run)
        assert len(events) == 11
        (reject,) = said
        at = int(reject.offset.removeprefix("byte "))
        assert odd_trace()[:at].endswith(b'"op "')


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_keys_in_any_order_and_metadata_on_either_side(
    tmp_path: Path, indent: int | None, packed: bool
) -> None:
    expected = read_bytes(COLLECTOR, encoded(cpu(), kernel()), tmp_path).rows
    shuffle = random.Random(1)
    for _ in range(20):
        events = [cpu(), x("aten::add", "cpu_op", 5, 1, {}), kernel()]
        for event in events:
            items = list(event.items())
            shuffle.shuffle(items)
            event.clear()
            event.update(items)
        properties = [{"id": 0, "name": "GPU"}, {"id": 1, "name": "GPU"}]
        whole = trace(*events, displayTimeUnit="ms", deviceProperties=properties)
        keys = list(whole)
        shuffle.shuffle(keys)
        data = json.dumps({key: whole[key] for key in keys}, indent=indent).encode()
        read = read_bytes(COLLECTOR, gzip.compress(data) if packed else data, tmp_path)
        assert read.rows == expected and not read.rejects and not read.notes


def test_metadata_that_is_no_json_is_still_read(tmp_path: Path) -> None:
    """A Windows path in traceName is no JSON; the time base beside it counts."""
    text = json.dumps({"traceEvents": [cpu(), kernel()]})[:-1]
    tail = ', "traceName": "C:\\users\\x.json", "distributedInfo": {"rank": 6},'
    data = f'{text}{tail} "baseTimeNanoseconds": 1700000000000000000}}'.encode()
    (row,) = read_bytes(COLLECTOR, data, tmp_path).rows
    assert row["start_ts"] == 1_700_000_000_000_200_250 and row["rank"] == 6


def test_arguments_that_look_like_metadata_are_none(tmp_path: Path) -> None:
    event = cpu(changes={"host_name": "other", "baseTimeNanoseconds": 5})
    (row,) = read_bytes(COLLECTOR, encoded(event), tmp_path).rows
    assert row["host"] == "node-a" and row["enqueue_ts"] > 10**18


def test_cut_trace_without_end_says_where(tmp_path: Path) -> None:
    """An unterminated trace of many runs: whole events are kept, the cut has its offset."""
    events = [cpu(n, n, Seq=n) for n in range(1, 3000)]
    whole = encoded(*events)
    cut = len(whole) * 3 // 4
    with scanner(run=4096):
        read = read_bytes(COLLECTOR, whole[:cut], tmp_path)
    start = whole.rfind(b'{"ph"', 0, cut)
    assert [r["seq"] for r in read.rows] == list(range(1, whole[:start].count(b'"Seq"') + 1))
    (reject,) = read.rejects
    assert reject.offset == f"byte {start}"
    assert f"{len(read.rows)} whole events" in reject.reason


def test_negative_thread_and_odd_ids_are_no_matter(tmp_path: Path) -> None:
    """Old Kineto wrote thread ids as signed; process ids may be text."""
    odd = {**cpu(), "tid": -1878206592, "pid": "Spans"}
    read = read_bytes(COLLECTOR, encoded(odd, kernel()), tmp_path)
    assert len(read.rows) == 1 and not read.rejects and not read.notes


def test_one_file_of_a_job_of_sixteen(tmp_path: Path) -> None:
    """The other ranks are missing, not this one: sizes are the job's, the rank is the file's."""
    config = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 16, "ranks": list(range(16))}
    info = {"backend": "nccl", "rank": 11, "world_size": 16, "pg_config": [config]}
    changes = {"Process Group Name": "0", "Process Group Ranks": "[0, ...]", "Group size": 16}
    (row,) = read_bytes(COLLECTOR, encoded(cpu(changes=changes), info=info), tmp_path).rows
    assert some(row, "rank", "comm_rank", "comm_size") == (11, 11, 16)


RCCL = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)", "reduce_scatter"),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", "all_gather"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclAllReduceTreeLL128Kernel_sum_f16(ncclColl)", "all_reduce"),
        ("ncclBroadcastRingKernel_copy_i8(ncclColl)", "broadcast"),
        ("ncclSendRecvKernel_copy_i8(ncclWorkElem)", "send_recv"),
        (RCCL, "Generic"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "all_to_all"),
        ("void deep_ep::internode_ll::combine<true, 7168, 9, 4>(void*)", "all_to_all"),
        ("mscclKernel_Sum_half_Simple_0(ncclDevComm*)", "Sum"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", None),
        ("void deep_ep::internode::get_dispatch_layout<256, 32, 1>(long const*)", None),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", None),
    ],
)
def test_kernels_by_name(tmp_path: Path, name: str, op: str | None) -> None:
    data = encoded(x(name, "kernel", 200, 50, {"device": 0}))
    assert [r["op"] for r in read_bytes(COLLECTOR, data, tmp_path).rows] == [op] * (op is not None)


@pytest.mark.parametrize("category", ["Operator", "cpu_op"])
def test_annotation_among_the_operators_of_an_old_trace(tmp_path: Path, category: str) -> None:
    said = {"External id": 4, "Input Dims": [[1024]], "Input type": ["float"]}
    annotation = x("nccl:all_reduce", category, 100, 20, said)
    launched = {"device": 0, "external id": 4}
    kernel_of_it = x("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "Kernel", 200, 50, launched)
    (row,) = read_bytes(COLLECTOR, encoded(annotation, kernel_of_it), tmp_path).rows
    assert some(row, "op", "dtype", "message_bytes") == ("all_reduce", "fp32", 4096)
    assert row["start_ts"] - row["enqueue_ts"] == 100_000


def test_generic_kernel_has_its_cpu_ops_name(tmp_path: Path) -> None:
    (row,) = read_bytes(COLLECTOR, encoded(cpu(), {**kernel(), "name": RCCL}), tmp_path).rows
    assert some(row, "op", "seq") == ("all_gather", 41) and row["extra"]["event"] == RCCL


def test_peer_of_a_send(tmp_path: Path) -> None:
    event = cpu(changes={"Collective name": "send", "Dst Rank": "7"})
    (row,) = read_bytes(COLLECTOR, encoded(event), tmp_path).rows
    assert row["op"] == "send" and row["extra"]["peer"] == "7"


def _many(count: int) -> bytes:
    """CPU ops first, kernels after, as Kineto writes them; the time base at the very end."""
    calls = [cpu(10.0 * n + 1, n, Seq=n) for n in range(count)]
    launched = [kernel(10.0 * n + 5, 2.0, n) for n in range(count)]
    whole = trace(*calls, *launched)
    base = whole.pop("baseTimeNanoseconds")
    return json.dumps({**whole, "baseTimeNanoseconds": base}).encode()


def test_more_collectives_than_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_bytes(COLLECTOR, _many(400), tmp_path)
    assert len(expected.rows) == 400 and not expected.notes
    # Kernels that are joined are held no longer.
    monkeypatch.setattr(_kineto_join, "HELD", 600)
    assert read_bytes(COLLECTOR, _many(400), tmp_path) == expected
    monkeypatch.setattr(_kineto_join, "HELD", 100)
    read = read_bytes(COLLECTOR, _many(400), tmp_path)
    assert read.note("in pieces").count == 1
    assert {r["enqueue_ts"] for r in read.rows} >= {r["enqueue_ts"] for r in expected.rows}


def test_annotations_that_repeat_cpu_ops_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_kineto_join, "HELD", 100)
    annotation = [x("nccl:all_gather", "user_annotation", n + 1, 1, {}) for n in range(70)]
    events = [cpu(n + 1.0, n, Seq=n) for n in range(70)] + annotation
    read = read_bytes(COLLECTOR, encoded(*events), tmp_path)
    assert [r["seq"] for r in read.rows] == list(range(70)) and not read.notes


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"traceEvents":[' + b"{" * 100_000, b"[1,"])
def test_nests_and_no_events_end_soon(tmp_path: Path, content: bytes) -> None:
    read = read_bytes(COLLECTOR, content, tmp_path)
    assert not read.rows and (read.rejects or read.notes)


def test_reject_in_each_of_many_events(tmp_path: Path) -> None:
    """Each broken event costs itself, not its run."""
    good, bad = json.dumps(cpu(changes=COMMS)), json.dumps(cpu()).replace("record_param", 'a"b')
    data = '{"traceEvents":[' + ",".join([good, bad] * 500) + "]}"
    with scanner(run=1 << 16):
        read = read_bytes(COLLECTOR, data.encode(), tmp_path)
    assert len(read.rows) == 500 and len(read.rejects) == 500
    assert all(isinstance(reject, Reject) for reject in read.rejects)


@pytest.mark.shared_samples
def test_public_traces_alike_by_both_ways(tmp_path: Path) -> None:
    for path in sorted(samples("kineto_traces").iterdir()):
        expected = read_path(COLLECTOR, path)
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        assert repr(scanned(path)[0]) == repr(json.loads(content)["traceEvents"])
        small = tmp_path / "t.json"
        small.write_text(json.dumps(json.loads(content), separators=(",", ":")))
        with scanner(run=3000):
            assert read_path(COLLECTOR, small) == expected
    assert INFO


_PEAK = """
import sys
import time
from pathlib import Path
from xtune.collectors._base import Context, Source
from xtune.collectors.kineto import COLLECTOR
for _ in COLLECTOR.read(Source(Path(sys.argv[1]), "t"), Context(now_ns=lambda: 0)):
    pass
status = Path("/proc/self/status").read_text()
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    """Of what is of no use nothing is held, whether the file is packed or not."""
    events = [x("aten::add", "cpu_op", 5.0, 1.0, {"note": "n" * 400})] * 2000
    body = json.dumps(events)[1:-1].encode()
    peaks = []
    for copies in (1, 60):
        path = tmp_path / f"{copies}.json.gz"
        with gzip.open(path, "wb", compresslevel=1) as stream:
            stream.write(b'{"traceEvents":[' + b",".join([body] * copies) + b"]}")
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 20 and peaks[1] < 300


@pytest.mark.parametrize(
    "content",
    [
        b"[" + b"1," * 100_000,
        b"[" + b'{"a":NaN},' * 20_000 + b"{}]",
        b"[" + b'{"ph":nan},' * 10_000 + b"{}]",
        b"[" + b'{"ph":"a"b"},' * 5_000 + b"{}]",
        b'[{"ph":"X","args":"' + b"},{" * 500_000 + b'"},{"ph":"X"}]',
        b'[{"ph":"X","args":"' + b"x" * 9_000_000 + b'"},{"ph":"X"}]',
        b'{"traceEvents":[' + b"},{" * 300_000,
    ],
    ids=["numbers", "NaN", "nan", "quotes", "boundaries", "long", "no start"],
)
def test_odd_traces_end_soon(tmp_path: Path, content: bytes) -> None:
    started = time.process_time()
    read_bytes(COLLECTOR, content, tmp_path)
    assert time.process_time() - started < 5
